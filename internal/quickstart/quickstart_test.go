package quickstart

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/internal/shop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var small = shop.Story{Orders: 300, Clerks: 4, Customers: 20}

func TestQuickstart_TheBooksAgree(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Run(t.Context(), &out, small))
	for _, line := range []string{
		"committed        270", "rolled back       30", "delivered        270",
		"missing            0   ok", "invented           0   ok", "out of order       0   ok",
		"Every order arrived, in order",
	} {
		require.Contains(t, out.String(), line)
	}
	require.NotContains(t, out.String(), "\x1b", "colour is for terminals")
}

// A verdict that cannot be bad is worth nothing.
func TestQuickstart_TellsWhenTheyDoNot(t *testing.T) {
	lose, swap := small, small
	lose.Lose, swap.Swap = true, true
	var out strings.Builder
	require.ErrorContains(t, Run(t.Context(), &out, lose), "1 missing")
	require.Contains(t, out.String(), "missing            1   WRONG")
	require.ErrorContains(t, Run(t.Context(), &out, swap), "1 out of order")
}
