package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/internal/shop"
	"github.com/outmill/outmill/internal/testenv"
)

func TestKafka_TheBooksAgree(t *testing.T) {
	url := testenv.Server(t, testenv.PostgresURL)
	brokers := strings.Split(testenv.Server(t, testenv.KafkaBrokers), ",")
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, shop.Story{Orders: 1000, Clerks: 4, Customers: 30}, url, brokers))
	for _, line := range []string{
		"committed        900", "rolled back      100", "delivered        900",
		"missing            0   ok", "invented           0   ok", "out of order       0   ok",
	} {
		require.Contains(t, out.String(), line)
	}
}
