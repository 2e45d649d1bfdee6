package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outmill/outmill/backends"
)

// change is what can be done to dead letters.
type change struct {
	verb, done, short, long string
	do                      func(backends.DeadLetters) func(context.Context, backends.DeadTarget) (int, error)
	// whole: of a parked aggregate all goes, whichever of its records were meant.
	whole bool
}

var requeue = change{
	verb: "requeue", done: "requeued", whole: true,
	short: "Send dead letters again",
	long: `Send dead letters again.

Of a parked aggregate all dead letters go back, in order and before what was
published for it since, even if only one of them was named. Others go back
alone. Attempts start anew.`,
	do: func(l backends.DeadLetters) func(context.Context, backends.DeadTarget) (int, error) { return l.Requeue },
}

var discard = change{
	verb: "discard", done: "discarded",
	short: "Drop dead letters for good",
	long: `Drop dead letters for good.

With --aggregate and nothing else, all dead letters of a parked aggregate are
dropped, and it goes on with what comes next. Otherwise exactly the records that
are meant are dropped; if the first of a parked aggregate is among them, the
rest of the aggregate is requeued.`,
	do: func(l backends.DeadLetters) func(context.Context, backends.DeadTarget) (int, error) { return l.Discard },
}

func deadChange(ch change) *cobra.Command {
	var s selection
	var yes, dry bool
	var most int
	c := &cobra.Command{
		Use: ch.verb + " [SHARD/ID...]", Short: ch.short, Long: ch.long, Args: cobra.ArbitraryArgs,
		RunE: deadStore(func(c *cobra.Command, letters backends.DeadLetters, args []string) error {
			p, err := ch.plan(c.Context(), letters, s, args, most)
			if err != nil {
				return err
			}
			if err := p.tell(c, ch); err != nil || dry || p.size() == 0 {
				return err
			}
			if !yes && !confirmed(c, ch) {
				return errors.New("nothing was done: it was not confirmed")
			}
			return p.carryOut(c, letters, ch)
		}),
	}
	s.flags(c)
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would be done, and do nothing")
	c.Flags().IntVar(&most, "limit", 10_000, "at most so many records that match")
	c.PreRunE = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 && s.empty():
			return usage(fmt.Errorf("nothing is named: give records as SHARD/ID, or --aggregate, --topic, --reason, --age"))
		case len(args) > 0 && !s.empty():
			return usage(errors.New("records are named and flags select: use one or the other"))
		}
		return positive("limit", most)
	}
	return c
}

// plan is what a change comes to.
type plan struct {
	aggregates []string       // as a whole
	records    []backends.Ref // alone; in an order in which none is requeued by another's end
	more       bool
}

func (p plan) size() int { return len(p.aggregates) + len(p.records) }

func (ch change) plan(ctx context.Context, letters backends.DeadLetters, s selection, args []string, most int) (plan, error) {
	if s.aggregate != "" && s == (selection{aggregate: s.aggregate}) {
		parked, err := parkedNames(ctx, letters)
		if err == nil && parked[s.aggregate] {
			return plan{aggregates: []string{s.aggregate}}, nil
		}
		if err != nil {
			return plan{}, err
		}
	}
	var p plan
	var meant []backends.DeadLetter
	for _, a := range args {
		ref, err := parseRef(a)
		if err != nil {
			return plan{}, err
		}
		d, err := one(ctx, letters, ref)
		if err != nil {
			return plan{}, err
		}
		meant = append(meant, d)
	}
	if len(args) == 0 {
		var err error
		p.more, err = s.walk(ctx, letters, func(d backends.DeadLetter) bool {
			d.Payload, d.Metadata = nil, nil
			if len(meant) == most {
				return false
			}
			meant = append(meant, d)
			return true
		})
		if err != nil {
			return plan{}, err
		}
	}
	parked := map[string]bool{}
	if ch.whole && slices.ContainsFunc(meant, func(d backends.DeadLetter) bool { return d.Aggregate != "" }) {
		var err error
		if parked, err = parkedNames(ctx, letters); err != nil {
			return plan{}, err
		}
	}
	whole := map[string]bool{}
	for _, d := range meant {
		if parked[d.Aggregate] {
			whole[d.Aggregate] = true
		} else {
			p.records = append(p.records, d.Ref)
		}
	}
	p.aggregates = slices.Sorted(maps.Keys(whole))
	slices.SortFunc(p.records, func(a, b backends.Ref) int {
		up := cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.ID, b.ID))
		if !ch.whole {
			return -up // the first of an aggregate last: then the rest is requeued
		}
		return up
	})
	p.records = slices.Compact(p.records)
	return p, nil
}

// parkedNames are the names of all parked aggregates.
func parkedNames(ctx context.Context, letters backends.DeadLetters) (map[string]bool, error) {
	const page = 500
	out := map[string]bool{}
	for after := ""; ; {
		call, cancel := context.WithTimeout(ctx, callLimit)
		found, err := letters.Parked(call, after, page)
		cancel()
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			out[p.Aggregate] = true
			after = p.Aggregate
		}
		if len(found) < page {
			return out, nil
		}
	}
}

func (p plan) tell(c *cobra.Command, ch change) error {
	if p.size() == 0 {
		return say(c, "Nothing matches.")
	}
	for i, a := range p.aggregates {
		if i == parkedShown {
			if err := say(c, "  … and %d more aggregates", len(p.aggregates)-i); err != nil {
				return err
			}
			break
		}
		if err := say(c, "  aggregate %s as a whole", oneLine(a)); err != nil {
			return err
		}
	}
	err := say(c, "To %s: %d aggregates as a whole, %d single records.", ch.verb, len(p.aggregates), len(p.records))
	if p.more {
		err = errors.Join(err, say(c, "More match than are looked at in one go: run it again afterwards, or raise --limit."))
	}
	return err
}

func confirmed(c *cobra.Command, ch change) bool {
	_, _ = fmt.Fprintf(c.OutOrStdout(), "Type yes to %s them: ", ch.verb)
	answer, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n') // an error is no yes
	return strings.TrimSpace(strings.ToLower(answer)) == "yes"
}

// carryOut goes on past what has vanished meanwhile.
func (p plan) carryOut(c *cobra.Command, letters backends.DeadLetters, ch change) error {
	n, gone := 0, 0
	var failed error
	each := func(t backends.DeadTarget) {
		if failed != nil {
			return
		}
		ctx, cancel := context.WithTimeout(c.Context(), callLimit)
		defer cancel()
		done, err := ch.do(letters)(ctx, t)
		switch {
		case errors.Is(err, backends.ErrNotFound):
			gone++
		case err != nil:
			failed = err
		default:
			n += done
		}
	}
	for _, a := range p.aggregates {
		each(backends.DeadTarget{Aggregate: a})
	}
	for _, r := range p.records {
		each(backends.DeadTarget{Record: &r})
	}
	err := say(c, "%d records %s.", n, ch.done)
	if gone > 0 {
		err = errors.Join(err, say(c, "%d of what was named is no longer there.", gone))
	}
	return errors.Join(err, failed)
}
