package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The request, the message, its sending and its handling are one trace, in which
// the wait can be read.
func TestRun_OneTraceWithTheWait(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, 50*time.Millisecond))
	t.Log("\n" + out.String())
	traces := strings.Split(out.String(), "trace ")[1:]
	require.Len(t, traces, 2)
	require.Regexp(t, `(?s)^[0-9a-f]{32}\n\n`+
		`POST /orders +server .*\n`+
		`└─ create orders +producer .*\n`+
		`   └─ publish orders +client .* waited \d+\.\dms in the outbox\n`+
		`   └─ process orders +consumer .*\n\n$`, traces[0])
	require.Regexp(t, `(?s)^[0-9a-f]{32}\n\nforwarder outbox +internal .*\n$`, traces[1])
}
