package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/internal/testenv"
)

// TestMain lets scenarios start this program as a forwarder.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick")) // sarama's, which has no end
}

// Every scenario runs with sizes at which its figures mean nothing.
func TestScenarios_RunToTheirEnd(t *testing.T) {
	testenv.Server(t, testenv.PostgresURL)
	testenv.Server(t, testenv.KafkaBrokers)
	tiny := options{
		runs: 1, rows: 1500, incumbentRows: 50, dead: 2000, backlog: 3000, messages: 4, transactions: 8,
		outage: 400 * time.Millisecond, idle: 300 * time.Millisecond,
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			// The incumbent stands still while any write transaction of the server is
			// open, and other tests may hold one.
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var out bytes.Buffer
			b, err := newBench(ctx, tiny, &out)
			require.NoError(t, err)
			defer b.close()
			require.NoError(t, b.measure(ctx, s), out.String())
			require.NotEmpty(t, b.report.Targets, "a scenario without a target proves nothing")
			require.NotEmpty(t, b.report.Samples)
			for _, v := range b.report.Targets {
				require.Equal(t, s.name, v.Scenario)
				require.Contains(t, out.String(), v.Name)
			}
			file := filepath.Join(t.TempDir(), "report.json")
			require.NoError(t, b.report.write(file))
			left := 0
			require.NoError(t, b.pool.QueryRow(ctx, "select count(*) from pg_namespace where nspname = any($1)", b.schemas).Scan(&left))
			require.Zero(t, left, "a schema was left behind")
		})
	}
}

// What reads a topic back must see what it is there to see.
func TestReadBack_SeesWhatIsWrong(t *testing.T) {
	at := func(n int) *kgo.Record {
		return &kgo.Record{
			Key: []byte(aggregateOf(n)), Value: payload,
			Headers: []kgo.RecordHeader{{Key: "_watermill_message_uuid", Value: []byte(idOf(n))}},
		}
	}
	shortened := at(0)
	shortened.Value = payload[1:]
	otherKey := at(0)
	otherKey.Key = []byte("order-1")
	stranger := at(0)
	stranger.Headers = nil
	for name, c := range map[string]struct {
		records []*kgo.Record
		wrong   string
	}{
		"in order":              {[]*kgo.Record{at(1), at(0), at(aggregates)}, ""},
		"a repeat":              {[]*kgo.Record{at(0), at(aggregates), at(0)}, ""},
		"an aggregate's second": {[]*kgo.Record{at(aggregates), at(0)}, "came after"},
		"out of range":          {[]*kgo.Record{at(2 * aggregates)}, "nobody sent"},
		"no id":                 {[]*kgo.Record{stranger}, "nobody sent"},
		"another key":           {[]*kgo.Record{otherKey}, "key"},
		"a part of the payload": {[]*kgo.Record{shortened}, "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArrived(2 * aggregates)
			var err error
			for _, r := range c.records {
				if err = a.take(r); err != nil {
					break
				}
			}
			if c.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.wrong)
		})
	}
}

func TestQuantile(t *testing.T) {
	require.Zero(t, quantile(nil, 0.5))
	require.InDelta(t, 2, quantile([]float64{3, 1, 2}, 0.5), 0)
	require.InDelta(t, 3, quantile([]float64{3, 1, 2}, 0.99), 0)
	require.InDelta(t, 3, quantile([]float64{3, 1, 2}, 1), 0)
}

// A target that is missed must be seen to be.
func TestJudge_MissedTargetsCount(t *testing.T) {
	var out strings.Builder
	b := &bench{out: &out}
	b.atMost("small", 2, 1, "ms")
	b.atLeast("large", 2, 1, "×")
	require.Equal(t, 1, b.missed())
	require.Contains(t, out.String(), "FAIL")
	require.Contains(t, out.String(), "PASS")
}
