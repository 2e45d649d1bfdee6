package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/internal/testenv"
)

func TestOrders_TheBooksAgree(t *testing.T) {
	url := testenv.Server(t, testenv.PostgresURL)
	brokers := strings.Split(testenv.Server(t, testenv.KafkaBrokers), ",")
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, 100, url, brokers))
	require.NotContains(t, out.String(), " 0 before their predecessor", "nothing came early")
	for _, line := range []string{
		"order-13 could not be billed: it is parked with 3 dead letters", "requeue puts 3 events back",
		"committed        400", "billed           400", "answered         100",
		"missing            0   ok", "billed twice       0   ok", "out of order       0   ok", "no answer          0   ok",
	} {
		require.Contains(t, out.String(), line)
	}
}
