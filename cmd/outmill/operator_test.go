package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
)

// graveyard is a shop with dead letters: six of two parked aggregates of topic
// bills, and two single ones of topic notes, which were skipped.
func graveyard(t *testing.T) (s *shop, set []string) {
	t.Helper()
	s = newShop(t)
	s.publish("bills", 6, 2)
	s.givenUp("--poison", "park", 6)
	s.publish("notes", 2, 1)
	s.givenUp("--poison", "skip", 8)
	return s, []string{"OUTMILL_STORE=sqlite:" + s.path}
}

// givenUp runs a forwarder that may send to no topic of these, until so many
// records are dead.
func (s *shop) givenUp(flag, value string, dead int64) {
	s.Helper()
	p := start(s.T, []string{"OUTMILL_STORE=sqlite:" + s.path, "OUTMILL_BROKER=stdout:", "OUTMILL_HTTP=off"}, "run", "--allow", "orders", flag, value)
	require.Eventually(s, func() bool {
		b, err := s.store.Backlog(s.Context())
		return err == nil && b.Dead == dead && b.Ready+b.Delayed == 0
	}, limit, 10*time.Millisecond)
	p.signal(syscall.SIGTERM)
	require.Equal(s, exitOK, p.code(), p.err.String())
	require.Empty(s, p.out.String())
}

// list is what dead list --json prints.
func list(t *testing.T, set []string, args ...string) (out []letter) {
	t.Helper()
	code, text, said := outmill(t, set, append([]string{"dead", "list", "--json"}, args...)...)
	require.Equal(t, exitOK, code, said)
	for l := range strings.Lines(text) {
		var d letter
		require.NoError(t, json.Unmarshal([]byte(l), &d))
		out = append(out, d)
	}
	return out
}

func TestDead_ListAndShow(t *testing.T) {
	t.Parallel()
	s, set := graveyard(t)
	require.Len(t, list(t, set), 8)
	require.Len(t, list(t, set, "--aggregate", "bills-1"), 3)
	require.Len(t, list(t, set, "--topic", "notes"), 2)
	require.Len(t, list(t, set, "--reason", "ALLOW LIST", "--topic", "bills"), 6)
	require.Empty(t, list(t, set, "--reason", "nonesuch"))
	require.Empty(t, list(t, set, "--age", "1h"))
	require.Len(t, list(t, set, "--age", "1ns", "--limit", "5"), 5)

	_, table, said := outmill(t, set, "dead", "list", "--limit", "3")
	require.Len(t, strings.Split(strings.TrimSpace(table), "\n"), 4)
	require.Contains(t, table, "RECORD")
	require.Contains(t, said, "more than these 3")

	d := list(t, set, "--topic", "notes")[0]
	_, shown, _ := outmill(t, set, "dead", "show", d.Record)
	require.NotContains(t, shown, "payload_base64", "a payload is shown when asked for")
	require.Contains(t, shown, d.MessageID)
	_, shown, _ = outmill(t, set, "dead", "show", d.Record, "--payload")
	var with letter
	require.NoError(t, json.Unmarshal([]byte(shown), &with))
	require.JSONEq(t, `{"n": 0}`, string(with.Payload))

	for _, wrong := range []struct {
		code int
		said string
		args []string
	}{
		{exitFailed, "no such dead letter", []string{"show", "63/999999"}},
		{exitUsage, `"7" names no record: write SHARD/ID`, []string{"show", "7"}},
		{exitUsage, `"64/1" names no record`, []string{"show", "64/1"}},
		{exitUsage, "--limit is 0: 1 or more is needed", []string{"list", "--limit", "0"}},
		{exitUsage, "nothing is named: give records as SHARD/ID", []string{"discard"}},
		{exitUsage, "use one or the other", []string{"requeue", "1/2", "--topic", "notes"}},
		{exitUsage, "accepts 1 arg(s)", []string{"show"}},
		{exitUsage, "unknown flag: --agregate", []string{"list", "--agregate", "a"}},
	} {
		code, _, said := outmill(t, set, append([]string{"dead"}, wrong.args...)...)
		require.Equal(t, wrong.code, code, said)
		require.Contains(t, said, wrong.said)
	}
	s.counts(0, 8, 2)
}

// counts are what waits, what is dead and what is parked.
func (s *shop) counts(ready, dead, parked int64) {
	s.Helper()
	b, err := s.store.Backlog(s.Context())
	require.NoError(s, err)
	require.Equal(s, fmt.Sprint(ready, dead, parked), fmt.Sprint(b.Ready, b.Dead, b.Parked))
}

func TestDead_RequeueSendsAnAggregateAsAWhole(t *testing.T) {
	t.Parallel()
	s, set := graveyard(t)
	one := list(t, set, "--aggregate", "bills-0")[1].Record
	code, out, said := outmill(t, set, "dead", "requeue", one, "--dry-run")
	require.Equal(t, exitOK, code, said)
	require.Contains(t, out, "aggregate bills-0 as a whole")
	s.counts(0, 8, 2)

	code, out, said = outmill(t, set, "dead", "requeue", one) // nobody answers
	require.Equal(t, exitFailed, code)
	require.Contains(t, out, "Type yes to requeue them")
	require.Contains(t, said, "nothing was done: it was not confirmed")
	s.counts(0, 8, 2)

	code, out, said = outmill(t, set, "dead", "requeue", one, "--yes")
	require.Equal(t, exitOK, code, said)
	require.Contains(t, out, "3 records requeued.")
	s.counts(3, 5, 1)

	p := prepare(t, set, "dead", "requeue", "--age", "1ns")
	p.cmd.Stdin = strings.NewReader("yes\n")
	p.begin()
	require.Equal(t, exitOK, p.code(), p.err.String())
	require.Contains(t, p.out.String(), "1 aggregates as a whole, 2 single records")
	require.Contains(t, p.out.String(), "5 records requeued.")
	s.counts(8, 0, 0)

	run := start(t, append(set, "OUTMILL_BROKER=stdout:", "OUTMILL_HTTP=off"), "run")
	run.printed(8)
	run.signal(syscall.SIGTERM)
	require.Equal(t, exitOK, run.code())
	last := map[string]int64{}
	for _, l := range lines(t, run.out.String()) {
		if l.Topic == "bills" {
			require.Equal(t, last[l.Aggregate]+1, l.Sequence, "order is kept")
			last[l.Aggregate] = l.Sequence
		}
	}
}

func TestDead_DiscardDropsExactlyWhatIsMeant(t *testing.T) {
	t.Parallel()
	s, set := graveyard(t)
	for _, step := range []struct {
		args                []string
		said                string
		ready, dead, parked int64
	}{
		{[]string{"--aggregate", "bills-0"}, "3 records discarded.", 0, 5, 1},                         // as a whole
		{[]string{"--topic", "notes", "--reason", "allow"}, "2 records discarded.", 0, 3, 1},          // single ones
		{[]string{list(t, set, "--aggregate", "bills-1")[2].Record}, "1 records discarded.", 0, 2, 1}, // the last
		{[]string{list(t, set, "--aggregate", "bills-1")[0].Record}, "1 records discarded.", 1, 0, 0}, // the first: the rest goes on
		{[]string{"--aggregate", "bills-1"}, "Nothing matches.", 1, 0, 0},
	} {
		code, out, said := outmill(t, set, append([]string{"dead", "discard", "--yes"}, step.args...)...)
		require.Equal(t, exitOK, code, said)
		require.Contains(t, out, step.said)
		s.counts(step.ready, step.dead, step.parked)
	}
}

// By a filter that holds for all of a parked aggregate, all of it goes: the first
// goes last, or the rest would be sent.
func TestDead_DiscardByTopicSendsNothing(t *testing.T) {
	t.Parallel()
	s, set := graveyard(t)
	code, out, said := outmill(t, set, "dead", "discard", "--yes", "--topic", "bills")
	require.Equal(t, exitOK, code, said)
	require.Contains(t, out, "6 records discarded.")
	s.counts(0, 2, 0)
}

func TestStatus_SaysWhyItIsQuiet(t *testing.T) {
	t.Parallel()
	s, set := graveyard(t)
	s.publish("orders", 5, 1)
	code, out, said := outmill(t, set, "status", "--json")
	require.Equal(t, exitOK, code, said)
	var got status
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Positive(t, got.OldestAge)
	require.Equal(t, "5 0 8 2 false 64 64", fmt.Sprint(got.Ready, " ", got.Delayed, " ", got.Dead, " ", got.Parked, " ", got.Capped, " ", got.Shards, " ", got.Unowned))
	require.Empty(t, got.Owners)
	require.Equal(t, []string{"records wait and no forwarder is alive: start outmill run", "aggregates are parked: see outmill dead list, then requeue or discard"}, got.Findings)
	require.Equal(t, "bills-0 3", fmt.Sprint(got.ParkedAggregates[0].Aggregate, " ", got.ParkedAggregates[0].Records))

	code, out, said = outmill(t, set, "status")
	require.Equal(t, exitOK, code, said)
	for _, part := range []string{"ready       5", "dead        8", "0 of 64 owned", "none alive", "bills-1", "! records wait"} {
		require.Contains(t, out, part)
	}
	code, _, said = outmill(t, set, "status", "--watch=1ms")
	require.Equal(t, exitUsage, code)
	require.Contains(t, said, "--watch is 1ms: 100ms or more is needed")

	p := start(t, set, "status", "--watch=100ms", "--json")
	p.printed(3)
	p.signal(syscall.SIGTERM)
	require.Equal(t, exitOK, p.code())
}

func TestFindings(t *testing.T) {
	owners := []string{"a"}
	for _, c := range []struct {
		b    backends.Backlog
		want string
	}{
		{backends.Backlog{}, ""},
		{backends.Backlog{Owners: owners, Ready: 5}, ""},
		{backends.Backlog{UnownedShards: 64}, ""},
		{backends.Backlog{Delayed: 1, UnownedShards: 64}, "no forwarder is alive"},
		{backends.Backlog{Owners: owners, UnownedShards: 3}, "no owner"},
		{backends.Backlog{Owners: owners, Ready: 1, OldestAge: time.Hour}, "cannot be reached"},
		{backends.Backlog{Owners: owners, Delayed: 1}, "failed before"},
		{backends.Backlog{Owners: owners, Dead: 1}, "given up"},
	} {
		got := strings.Join(findings(c.b), "\n")
		require.Contains(t, got, c.want)
		require.Equal(t, c.want == "", got == "", got)
	}
}

func TestConfigCommands(t *testing.T) {
	t.Parallel()
	path := file(t, "store: postgres://app:hunter2@db/shop", "broker: kafka://app:hunter2@k1?sasl=PLAIN", "forwarder: {batch: 7}")
	code, out, said := outmill(t, nil, "config", "check", "-c", path)
	require.Equal(t, exitOK, code, said)
	require.Contains(t, out, "The configuration is good.")
	code, out, said = outmill(t, []string{"OUTMILL_LOG_LEVEL=warn"}, "config", "print", "-c", path, "--workers", "2")
	require.Equal(t, exitOK, code, said)
	require.NotContains(t, out, "hunter2")
	require.Regexp(t, `store +postgres://app:\*\*\*@db/shop +# file`, out)
	require.Regexp(t, `broker +kafka://app:\*\*\*@k1\?sasl=PLAIN +# file`, out)
	require.Regexp(t, `forwarder.batch +7 +# file`, out)
	require.Regexp(t, `log.level +warn +# environment`, out)
	require.Regexp(t, `forwarder.workers +2 +# flag`, out)
	require.Regexp(t, `forwarder.lease +15s +# default`, out)

	secret := t.TempDir() + "/url"
	require.NoError(t, os.WriteFile(secret, []byte("stdout:\n"), 0o600))
	code, _, said = outmill(t, []string{"OUTMILL_STORE=sqlite:a.db", "OUTMILL_BROKER_FILE=" + secret}, "config", "check")
	require.Equal(t, exitOK, code, said)
}

func TestCommands_Mistyped(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`unknown command "rum"`: {"rum"}, "migrate needs to know what to do": {"migrate"}, "unknown flag: --bach": {"run", "--bach", "1"},
		"store is not set": {"status"}, `unknown command "x" for "outmill run"`: {"run", "x"}, `there is no scheme "mongo"`: {"status", "--store", "mongo://x"},
	} {
		code, _, said := outmill(t, nil, args...)
		require.Equal(t, exitUsage, code, said)
		require.Contains(t, said, want)
	}
}

func TestDemoAndVersion(t *testing.T) {
	t.Parallel()
	code, out, said := outmill(t, nil, "demo", "--orders", "200")
	require.Equal(t, exitOK, code, said)
	require.Contains(t, out, "Every order arrived, in order")
	code, _, said = outmill(t, nil, "demo", "--orders", "0")
	require.Equal(t, exitUsage, code)
	require.Contains(t, said, "--orders is 0: 1 or more is needed")
	code, out, _ = outmill(t, nil, "version")
	require.Equal(t, exitOK, code)
	require.Regexp(t, `^outmill \S+ go\d`, out)
}
