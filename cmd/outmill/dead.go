package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/connect"
)

func deadCommand() *cobra.Command {
	c := &cobra.Command{Use: "dead", Short: "Look at what was given up, send it again or drop it", RunE: needsSubcommand}
	c.AddCommand(deadList(), deadShow(), deadChange(requeue), deadChange(discard))
	return c
}

// selection says which dead letters are meant.
type selection struct {
	aggregate, topic, reason string
	age                      time.Duration
}

func (s *selection) flags(c *cobra.Command) {
	c.Flags().StringVar(&s.aggregate, "aggregate", "", "of this aggregate")
	c.Flags().StringVar(&s.topic, "topic", "", "of this topic")
	c.Flags().StringVar(&s.reason, "reason", "", "whose last error holds this text, upper or lower case")
	c.Flags().DurationVar(&s.age, "age", 0, "given up at least so long ago")
}

func (s *selection) empty() bool { return *s == selection{} }

// Bounds of one command's work.
const (
	deadPage = 100     // dead letters come with their payloads
	deadScan = 100_000 // looked at for --reason, which the store knows nothing of
)

// walk calls use for each dead letter that is meant, by shard and id, until it is
// false. It reports whether there may be more than it looked at.
func (s *selection) walk(ctx context.Context, letters backends.DeadLetters, use func(backends.DeadLetter) bool) (more bool, err error) {
	filter := backends.DeadFilter{Aggregate: s.aggregate, Topic: s.topic, MinAge: s.age, Limit: deadPage}
	reason := strings.ToLower(s.reason)
	for range deadScan / deadPage {
		call, cancel := context.WithTimeout(ctx, callLimit)
		page, err := letters.Dead(call, filter)
		cancel()
		if err != nil {
			return false, err
		}
		for _, d := range page {
			if strings.Contains(strings.ToLower(d.LastError), reason) && !use(d) {
				return true, nil
			}
			filter.After = d.Ref
		}
		if len(page) < deadPage {
			return false, nil
		}
	}
	return true, nil
}

// deadStore is a command on dead letters.
func deadStore(do func(c *cobra.Command, letters backends.DeadLetters, args []string) error) func(*cobra.Command, []string) error {
	return storeCommand(true, func(c *cobra.Command, _ *loaded, store connect.Outbox, args []string) error {
		letters, ok := store.(backends.DeadLetters)
		if !ok {
			return errors.New("this store keeps no dead letters")
		}
		return do(c, letters, args)
	})
}

// letter is how a dead letter is printed as JSON.
type letter struct {
	Record    string            `json:"record"` // SHARD/ID
	MessageID string            `json:"message_id"`
	Topic     string            `json:"topic"`
	Aggregate string            `json:"aggregate,omitempty"`
	Sequence  int64             `json:"sequence,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	DeadAt    time.Time         `json:"dead_at"`
	Attempts  int               `json:"attempts"`
	LastError string            `json:"last_error"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Bytes     int               `json:"payload_bytes"`
	Payload   []byte            `json:"payload_base64,omitempty"`
}

func letterOf(d backends.DeadLetter) letter {
	return letter{
		Record: refText(d.Ref), MessageID: d.MessageID, Topic: d.Topic, Aggregate: d.Aggregate, Sequence: d.Sequence,
		CreatedAt: d.CreatedAt.UTC(), DeadAt: d.DeadAt.UTC(), Attempts: d.Attempts, LastError: d.LastError, Bytes: len(d.Payload),
	}
}

func refText(r backends.Ref) string { return fmt.Sprintf("%d/%d", r.Shard, r.ID) }

func parseRef(text string) (backends.Ref, error) {
	shard, id, ok := strings.Cut(text, "/")
	s, err1 := strconv.Atoi(shard)
	i, err2 := strconv.ParseInt(id, 10, 64)
	if !ok || err1 != nil || err2 != nil || s < 0 || s >= backends.Shards || i < 1 {
		return backends.Ref{}, usage(fmt.Errorf("%q names no record: write SHARD/ID as outmill dead list shows it, such as 7/1234", text))
	}
	return backends.Ref{Shard: s, ID: i}, nil
}

func deadList() *cobra.Command {
	var s selection
	var asJSON bool
	var most int
	c := &cobra.Command{
		Use: "list", Short: "List dead letters by shard and id",
		RunE: deadStore(func(c *cobra.Command, letters backends.DeadLetters, _ []string) error {
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			enc := json.NewEncoder(c.OutOrStdout())
			if !asJSON {
				_, _ = fmt.Fprintln(w, "RECORD\tTOPIC\tAGGREGATE\tSEQUENCE\tGIVEN UP\tATTEMPTS\tLAST ERROR") // Flush returns its error
			}
			var failed error
			n := 0
			more, err := s.walk(c.Context(), letters, func(d backends.DeadLetter) bool {
				if n == most {
					return false
				}
				n++
				if asJSON {
					failed = errors.Join(failed, enc.Encode(letterOf(d)))
					return failed == nil
				}
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\n", refText(d.Ref), oneLine(d.Topic), oneLine(d.Aggregate), d.Sequence,
					d.DeadAt.UTC().Format(time.RFC3339), d.Attempts, oneLine(cut(d.LastError, 100)))
				return true
			})
			if !asJSON {
				failed = errors.Join(failed, w.Flush())
			}
			if more {
				_, _ = fmt.Fprintf(c.ErrOrStderr(), "There are more than these %d: narrow the list, or raise --limit.\n", n)
			}
			return errors.Join(err, failed)
		}),
	}
	s.flags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON object on each line")
	c.Flags().IntVar(&most, "limit", 100, "at most so many")
	c.PreRunE = func(*cobra.Command, []string) error { return positive("limit", most) }
	return c
}

func positive(name string, n int) error {
	if n < 1 {
		return usage(fmt.Errorf("--%s is %d: 1 or more is needed", name, n))
	}
	return nil
}

func cut(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n]) + "…"
	}
	return text
}

func deadShow() *cobra.Command {
	var payload bool
	c := &cobra.Command{
		Use: "show SHARD/ID", Short: "Show one dead letter as JSON, with its metadata", Args: cobra.ExactArgs(1),
		RunE: deadStore(func(c *cobra.Command, letters backends.DeadLetters, args []string) error {
			ref, err := parseRef(args[0])
			if err != nil {
				return err
			}
			d, err := one(c.Context(), letters, ref)
			if err != nil {
				return err
			}
			l := letterOf(d)
			l.Metadata = d.Metadata
			if payload {
				l.Payload = d.Payload
			}
			enc := json.NewEncoder(c.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(l)
		}),
	}
	c.Flags().BoolVar(&payload, "payload", false, "with the payload, in base64")
	return c
}

// one finds a dead letter.
func one(ctx context.Context, letters backends.DeadLetters, ref backends.Ref) (backends.DeadLetter, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	found, err := letters.Dead(ctx, backends.DeadFilter{After: backends.Ref{Shard: ref.Shard, ID: ref.ID - 1}, Limit: 1})
	switch {
	case err != nil:
		return backends.DeadLetter{}, err
	case len(found) == 0 || found[0].Ref != ref:
		return backends.DeadLetter{}, fmt.Errorf("%s: %w", refText(ref), backends.ErrNotFound)
	}
	return found[0], nil
}
