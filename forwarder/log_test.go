package forwarder_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/forwarder"
)

// What an operator should know is there, at its level; what may be personal or
// endless is not.
func TestLog_LevelsAndLimits(t *testing.T) {
	inWorld(t, func(w *world) {
		w.broker.say = func(r backends.Record) error {
			switch string(r.Payload) {
			case "bad":
				return backends.Permanent(errors.New("bad " + strings.Repeat("quoted ", 1000)))
			case "slow":
				return errors.New("try again")
			}
			return nil
		}
		r := w.start(forwarder.Config{Workers: 1, RetryMax: 2 * time.Second, MaxAttempts: 25})
		w.publish("t", "jane@example.com", "bad")
		for range 100 {
			w.publish("t", "john@example.com", "slow")
			w.publish("t", "ok", "ok")
			w.after(time.Second)
		}
		_, err := r.end()
		require.NoError(w, err)
		log := w.logText()
		lines := func(level, text string) int {
			n := 0
			for _, l := range strings.Split(log, "\n") {
				require.Less(w, len(l), 1024)
				if strings.Contains(l, "level="+level) && strings.Contains(l, text) {
					n++
				}
			}
			return n
		}
		require.Equal(w, 1, lines("INFO", "the forwarder starts"))
		require.Equal(w, 1, lines("INFO", "the forwarder has stopped"))
		require.Equal(w, 1, lines("INFO", "gained=64 lost=0"))
		require.Equal(w, 1, lines("INFO", "shards were given back"))
		require.Equal(w, 2, lines("ERROR", "a record was given up: park"), "the bad one, then the slow one")
		warned, told := lines("WARN", "will be tried again"), lines("DEBUG", "will be tried again")
		require.True(w, warned >= 1 && warned <= 3, "the first and each tenth: %d", warned)
		require.Greater(w, told, 15)
		require.NotContains(w, log, "@example.com")
	})
}
