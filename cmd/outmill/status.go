package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/connect"
)

// parkedShown is how many parked aggregates a status names.
const parkedShown = 10

// status is what `outmill status --json` prints. Times are the database's.
type status struct {
	Ready     int64    `json:"ready"`
	Delayed   int64    `json:"delayed"`
	Dead      int64    `json:"dead"`
	Parked    int64    `json:"parked"`
	Capped    bool     `json:"capped"` // counting stopped: there may be more
	OldestAge float64  `json:"oldest_age_seconds"`
	Shards    int      `json:"shards"`
	Unowned   int      `json:"shards_unowned"`
	Owners    []string `json:"owners"` // forwarders alive

	ParkedAggregates []parkedAggregate `json:"parked_aggregates"` // the first ten by name
	Findings         []string          `json:"findings"`          // what an operator should look at
}

type parkedAggregate struct {
	Aggregate string    `json:"aggregate"`
	ParkedAt  time.Time `json:"parked_at"`
	Records   int64     `json:"records"`
	Reason    string    `json:"reason"`
}

func statusCommand() *cobra.Command {
	var asJSON bool
	var every time.Duration
	c := &cobra.Command{
		Use: "status", Short: "Show what waits, what was given up, and who is at work",
		Long: "Show what waits, what was given up, and who is at work.\nThe work is bounded: counting stops at a bound however much waits.",
		RunE: storeCommand(true, func(c *cobra.Command, l *loaded, store connect.Outbox, _ []string) error {
			for {
				if err := showStatus(c, l, store, asJSON); err != nil && every == 0 {
					return err
				} else if err != nil {
					_, _ = fmt.Fprintln(c.ErrOrStderr(), "outmill:", err) // the next look may succeed
				}
				if every == 0 || !pause(c.Context(), every) {
					return nil
				}
			}
		}),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON object on a line")
	c.Flags().DurationVar(&every, "watch", 0, "show it again after so long, until stopped")
	c.Flags().Lookup("watch").NoOptDefVal = "2s"
	c.PreRunE = func(*cobra.Command, []string) error {
		if every != 0 && every < 100*time.Millisecond {
			return usage(fmt.Errorf("--watch is %v: 100ms or more is needed", every))
		}
		return nil
	}
	return c
}

// pause is false when the context has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func showStatus(c *cobra.Command, l *loaded, store connect.Outbox, asJSON bool) error {
	ctx, cancel := context.WithTimeout(c.Context(), callLimit)
	defer cancel()
	s, err := statusOf(ctx, store)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(c.OutOrStdout()).Encode(s)
	}
	return s.print(c.OutOrStdout(), connect.Mask(l.Store))
}

func statusOf(ctx context.Context, store connect.Outbox) (status, error) {
	b, err := store.Backlog(ctx)
	if err != nil {
		return status{}, err
	}
	s := status{
		Ready: b.Ready, Delayed: b.Delayed, Dead: b.Dead, Parked: b.Parked, Capped: b.Capped,
		OldestAge: b.OldestAge.Seconds(), Shards: backends.Shards, Unowned: b.UnownedShards, Owners: b.Owners,
		ParkedAggregates: []parkedAggregate{}, Findings: []string{},
	}
	if s.Owners == nil {
		s.Owners = []string{}
	}
	if letters, ok := store.(backends.DeadLetters); ok && b.Parked > 0 {
		parked, err := letters.Parked(ctx, "", parkedShown)
		if err != nil {
			return status{}, err
		}
		for _, p := range parked {
			s.ParkedAggregates = append(s.ParkedAggregates, parkedAggregate(p))
		}
	}
	s.Findings = append(s.Findings, findings(b)...)
	return s, nil
}

// findings say why it is quiet, where it should not be.
func findings(b backends.Backlog) (out []string) {
	switch waiting := b.Ready + b.Delayed; {
	case waiting > 0 && len(b.Owners) == 0:
		out = append(out, "records wait and no forwarder is alive: start outmill run")
	case b.UnownedShards > 0 && len(b.Owners) > 0:
		out = append(out, "some shards have no owner: a forwarder has just died or come; look again after the lease")
	case b.Ready > 0 && b.OldestAge > time.Minute:
		out = append(out, "records are due and have waited for long: see the forwarder's log for a topic that cannot be reached")
	case b.Ready == 0 && b.Delayed > 0:
		out = append(out, "all that waits has failed before and waits for its next attempt")
	}
	if b.Parked > 0 {
		out = append(out, "aggregates are parked: see outmill dead list, then requeue or discard")
	} else if b.Dead > 0 {
		out = append(out, "records were given up: see outmill dead list, then requeue or discard")
	}
	return out
}

func (s status) print(out io.Writer, store string) error {
	more := ""
	if s.Capped {
		more = " or more"
	}
	age := "-"
	if s.Ready+s.Delayed > 0 {
		age = time.Duration(s.OldestAge * float64(time.Second)).Round(time.Millisecond).String()
	}
	owners := "none alive"
	if len(s.Owners) > 0 {
		owners = strings.Join(s.Owners, ", ")
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"store", store},
		{"ready", fmt.Sprint(s.Ready, more)},
		{"delayed", fmt.Sprint(s.Delayed, more)},
		{"oldest", age},
		{"dead", fmt.Sprint(s.Dead, more)},
		{"parked", fmt.Sprint(s.Parked, more)},
		{"shards", fmt.Sprintf("%d of %d owned", s.Shards-s.Unowned, s.Shards)},
		{"forwarders", owners},
	} {
		_, _ = fmt.Fprintf(w, "%s\t%s\n", row[0], row[1]) // Flush returns its error
	}
	if len(s.ParkedAggregates) > 0 {
		_, _ = fmt.Fprintln(w, "\nPARKED\tRECORDS\tSINCE\tREASON")
		for _, p := range s.ParkedAggregates {
			_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", oneLine(p.Aggregate), p.Records, p.ParkedAt.UTC().Format(time.RFC3339), oneLine(p.Reason))
		}
	}
	err := w.Flush()
	for _, f := range s.Findings {
		_, e := fmt.Fprintln(out, "!", f)
		err = errors.Join(err, e)
	}
	return err
}

// oneLine keeps what an application wrote from steering the terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '·'
		}
		return r
	}, text)
}
