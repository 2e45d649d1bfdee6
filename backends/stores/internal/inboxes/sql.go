package inboxes

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// Dialect is how an engine says what inboxes ask. Texts are written with ? for
// each parameter and with words in braces: {inbox}, {sequences}, {buffer}, {dead},
// {failures} and {skipped} are tables, {now} is the time, {ago column} how many
// microseconds ago a column's time was, {past} the time so many microseconds ago
// as the next parameter says, {lock} and {skip} lock what is selected.
type Dialect struct {
	Tables   Tables
	Numbered bool // $1 in place of ?
	Now      string
	Ago      func(column string) string
	Past     string // with one ?
	Lock     string
	SkipLock string
	// PurgeText deletes at most so many old rows of a table in one statement:
	// its table, its key and its time column in; consumer, age and limit are its
	// parameters.
	PurgeText func(table, column string) string

	texts sync.Map // raw text to what the engine gets
}

// Tables are quoted, qualified names.
type Tables struct {
	Inbox, Sequences, Buffer, Dead, Failures, Skipped string
}

// Placeholders are what migration files call the tables and their indexes; index
// quotes an index's name.
func (t Tables) Placeholders(index func(name string) string) map[string]string {
	out := map[string]string{
		"{{inbox}}": t.Inbox, "{{inbox_sequences}}": t.Sequences, "{{inbox_buffer}}": t.Buffer,
		"{{inbox_dead}}": t.Dead, "{{inbox_failures}}": t.Failures, "{{inbox_skipped}}": t.Skipped,
	}
	for _, name := range []string{
		"inbox_processed", "inbox_parked", "inbox_buffer_stored", "inbox_dead_aggregate", "inbox_failures_aggregate", "inbox_failures_failed",
	} {
		out["{{"+name+"}}"] = index(name)
	}
	return out
}

// Text renders a text, once.
func (d *Dialect) Text(raw string) string {
	if t, ok := d.texts.Load(raw); ok {
		return t.(string)
	}
	pairs := []string{
		"{inbox}", d.Tables.Inbox, "{sequences}", d.Tables.Sequences, "{buffer}", d.Tables.Buffer, "{dead}", d.Tables.Dead,
		"{failures}", d.Tables.Failures, "{skipped}", d.Tables.Skipped,
		"{now}", d.Now, "{past}", d.Past, "{lock}", d.Lock, "{skip}", d.SkipLock,
	}
	for _, c := range []string{"processed_at", "moved_at", "stored_at", "dead_at", "failed_at", "parked_at"} {
		pairs = append(pairs, "{ago "+c+"}", d.Ago(c))
	}
	t := strings.NewReplacer(pairs...).Replace(raw)
	if d.Numbered {
		t = number(t)
	}
	d.texts.Store(raw, t)
	return t
}

func number(text string) string {
	parts := strings.Split(text, "?")
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(i))
		}
		b.WriteString(p)
	}
	return b.String()
}

// Querier runs statements.
type Querier interface {
	Exec(ctx context.Context, text string, args ...any) (rows int64, err error)
	Query(ctx context.Context, each func(scan func(...any) error) error, text string, args ...any) error
}

// SQL is most of a [Tx], on any engine.
type SQL struct {
	Dialect  *Dialect
	Querier  Querier
	Consumer string
}

func (s SQL) exec(ctx context.Context, raw string, args ...any) (int64, error) {
	return s.Querier.Exec(ctx, s.Dialect.Text(raw), args...)
}

func (s SQL) query(ctx context.Context, each func(scan func(...any) error) error, raw string, args ...any) error {
	return s.Querier.Query(ctx, each, s.Dialect.Text(raw), args...)
}

// one reads a row, if there is one.
func (s SQL) one(ctx context.Context, to []any, raw string, args ...any) (found bool, err error) {
	err = s.query(ctx, func(scan func(...any) error) error {
		found = true
		return scan(to...)
	}, raw, args...)
	return found && err == nil, err
}

func micros(n int64) time.Duration { return max(0, time.Duration(n)*time.Microsecond) }

// Lock implements [Rows].
func (s SQL) Lock(ctx context.Context, key backends.InboxKey, wait bool) (Row, bool, error) {
	text := lockText
	if !wait {
		text = skipText
	}
	r := Row{InboxKey: key}
	var moved int64
	found, err := s.one(ctx, []any{&r.Started, &r.Last, &r.MessageID, &r.Buffered, &r.Parked, &moved}, text, s.Consumer, key.Topic, key.Aggregate)
	r.Moved = micros(moved)
	return r, found, err
}

const (
	lockText = `select started, last, message_id, buffered, parked, {ago moved_at} from {sequences} where consumer = ? and topic = ? and aggregate = ?{lock}`
	skipText = `select started, last, message_id, buffered, parked, {ago moved_at} from {sequences} where consumer = ? and topic = ? and aggregate = ?{skip}`
)

// Insert implements [Rows].
func (s SQL) Insert(ctx context.Context, key backends.InboxKey) (bool, error) {
	n, err := s.exec(ctx, `insert into {sequences} (consumer, topic, aggregate, moved_at) values (?, ?, ?, {now}) on conflict do nothing`,
		s.Consumer, key.Topic, key.Aggregate)
	return n > 0, err
}

// Save implements [Rows].
func (s SQL) Save(ctx context.Context, r Row, moved bool) error {
	text := saveText
	if moved {
		text = moveText
	}
	_, err := s.exec(ctx, text, r.Started, r.Last, r.MessageID, r.Buffered, r.Parked, s.Consumer, r.Topic, r.Aggregate)
	return err
}

const (
	saveText = `update {sequences} set parked_at = case when parked = '' then {now} else parked_at end,
    started = ?, last = ?, message_id = ?, buffered = ?, parked = ? where consumer = ? and topic = ? and aggregate = ?`
	moveText = `update {sequences} set parked_at = case when parked = '' then {now} else parked_at end, moved_at = {now},
    started = ?, last = ?, message_id = ?, buffered = ?, parked = ? where consumer = ? and topic = ? and aggregate = ?`
)

// MarkText adds an id, if it is not there: its parameters are consumer, topic and id.
const MarkText = `insert into {inbox} (consumer, topic, message_id, processed_at) values (?, ?, ?, {now}) on conflict do nothing`

// Mark implements [Marks].
func (s SQL) Mark(ctx context.Context, topic, id string) (bool, error) {
	n, err := s.exec(ctx, MarkText, s.Consumer, topic, id)
	return n > 0, err
}

// Marked implements [Marks].
func (s SQL) Marked(ctx context.Context, topic, id string) (time.Duration, bool, error) {
	var ago int64
	known, err := s.one(ctx, []any{&ago}, `select {ago processed_at} from {inbox} where consumer = ? and topic = ? and message_id = ?`, s.Consumer, topic, id)
	return micros(ago), known, err
}

// Unmark implements [Marks].
func (s SQL) Unmark(ctx context.Context, topic, id string) error {
	_, err := s.exec(ctx, `delete from {inbox} where consumer = ? and topic = ? and message_id = ?`, s.Consumer, topic, id)
	return err
}

// Held implements [Buffer].
func (s SQL) Held(ctx context.Context, key backends.InboxKey, sequence int64) (*backends.Delivery, bool, error) {
	d := &backends.Delivery{InboxKey: key, Sequence: sequence}
	var metadata string
	to := []any{&d.MessageID, &d.Payload, &metadata, &d.ReplyTopic}
	text := `select message_id, payload, metadata, reply_topic from {buffer} where consumer = ? and topic = ? and aggregate = ? and sequence = ?`
	if sequence == 0 {
		text += ` order by stored_at, message_id limit 1{skip}`
	}
	found, err := s.one(ctx, to, text, s.Consumer, key.Topic, key.Aggregate, sequence)
	if err != nil || !found {
		return nil, false, err
	}
	d.Metadata, err = decode(metadata)
	return d, true, err
}

// Hold implements [Buffer].
func (s SQL) Hold(ctx context.Context, d *backends.Delivery) error {
	_, err := s.exec(ctx, `insert into {buffer} (consumer, topic, aggregate, sequence, message_id, payload, metadata, reply_topic, stored_at)
values (?, ?, ?, ?, ?, ?, ?, ?, {now})`,
		s.Consumer, d.Topic, d.Aggregate, d.Sequence, d.MessageID, bytesOf(d), encode(d.Metadata), d.ReplyTopic)
	return err
}

// Drop implements [Buffer].
func (s SQL) Drop(ctx context.Context, d *backends.Delivery) (int, error) {
	n, err := s.exec(ctx, `delete from {buffer} where consumer = ? and topic = ? and aggregate = ? and sequence = ? and message_id = ?`,
		s.Consumer, d.Topic, d.Aggregate, d.Sequence, d.MessageID)
	return int(n), err
}

// Lowest implements [Buffer].
func (s SQL) Lowest(ctx context.Context, key backends.InboxKey) (int64, time.Duration, bool, error) {
	var n, lowest, age int64
	_, err := s.one(ctx, []any{&n, &lowest, &age}, `select count(*), coalesce(min(sequence), 0), coalesce(max({ago stored_at}), 0)
from {buffer} where consumer = ? and topic = ? and aggregate = ?`, s.Consumer, key.Topic, key.Aggregate)
	return lowest, micros(age), n > 0, err
}

// BuryHeld implements [Buffer].
func (s SQL) BuryHeld(ctx context.Context, key backends.InboxKey) error {
	_, err := s.exec(ctx, `insert into {dead} (consumer, topic, aggregate, sequence, message_id, payload, metadata, reply_topic, dead_at, reason)
select consumer, topic, aggregate, sequence, message_id, payload, metadata, reply_topic, {now}, '`+backends.ReasonParked+`'
from {buffer} where consumer = ? and topic = ? and aggregate = ? order by sequence`, s.Consumer, key.Topic, key.Aggregate)
	if err != nil {
		return err
	}
	_, err = s.exec(ctx, `delete from {buffer} where consumer = ? and topic = ? and aggregate = ?`, s.Consumer, key.Topic, key.Aggregate)
	return err
}

// bytesOf is a payload that is not nil.
func bytesOf(d *backends.Delivery) []byte {
	if d.Payload == nil {
		return []byte{}
	}
	return d.Payload
}

func encode(md message.Metadata) string {
	if len(md) == 0 {
		return "{}"
	}
	b, err := json.Marshal(map[string]string(md))
	if err != nil { // a map of strings always has a JSON form
		panic(err)
	}
	return string(b)
}

func decode(text string) (message.Metadata, error) {
	md := message.Metadata{}
	if err := json.Unmarshal([]byte(text), &md); err != nil {
		return nil, fmt.Errorf("metadata column is not a JSON object of strings: %w", err)
	}
	return md, nil
}
