package inboxes

import (
	"context"
	"time"

	"github.com/outmill/outmill/backends"
)

// Bury implements [Letters].
func (s SQL) Bury(ctx context.Context, d *backends.Delivery, attempts int, reason, text string) error {
	_, err := s.exec(ctx, `insert into {dead} (consumer, topic, aggregate, sequence, message_id, payload, metadata, reply_topic, dead_at, attempts, reason, last_error)
values (?, ?, ?, ?, ?, ?, ?, ?, {now}, ?, ?, ?)`,
		s.Consumer, d.Topic, d.Aggregate, d.Sequence, d.MessageID, bytesOf(d), encode(d.Metadata), d.ReplyTopic, attempts, reason, text)
	return err
}

// Buried implements [Letters].
func (s SQL) Buried(ctx context.Context, d *backends.Delivery) (bool, error) {
	var one int
	return s.one(ctx, []any{&one}, `select 1 from {dead} where consumer = ? and topic = ? and aggregate = ? and sequence = ? and message_id = ? limit 1`,
		s.Consumer, d.Topic, d.Aggregate, d.Sequence, d.MessageID)
}

// PassOver implements [Letters].
func (s SQL) PassOver(ctx context.Context, key backends.InboxKey, from, to int64) error {
	_, err := s.exec(ctx, `insert into {skipped} (consumer, topic, aggregate, low, high) values (?, ?, ?, ?, ?)`,
		s.Consumer, key.Topic, key.Aggregate, from, to)
	return err
}

// Skipped implements [Letters].
func (s SQL) Skipped(ctx context.Context, key backends.InboxKey, sequence int64) (bool, error) {
	var one int
	return s.one(ctx, []any{&one}, `select 1 from {skipped} where consumer = ? and topic = ? and aggregate = ? and low <= ? and high >= ? limit 1`,
		s.Consumer, key.Topic, key.Aggregate, sequence, sequence)
}

const letterColumns = `id, topic, aggregate, sequence, message_id, payload, metadata, reply_topic, {ago dead_at}, attempts, reason, last_error`

func scanLetter(scan func(...any) error) (l backends.InboxDead, err error) {
	var metadata string
	var ago int64
	err = scan(&l.ID, &l.Topic, &l.Aggregate, &l.Sequence, &l.MessageID, &l.Payload, &metadata, &l.ReplyTopic, &ago, &l.Attempts, &l.Reason, &l.LastError)
	if err != nil {
		return l, err
	}
	l.DeadAt = time.Now().Add(-micros(ago)).UTC()
	l.Metadata, err = decode(metadata)
	return l, err
}

// Letter implements [Dead].
func (s SQL) Letter(ctx context.Context, id int64) (l backends.InboxDead, found bool, err error) {
	err = s.query(ctx, func(scan func(...any) error) (err error) {
		found = true
		l, err = scanLetter(scan)
		return err
	}, `select `+letterColumns+` from {dead} where consumer = ? and id = ?`, s.Consumer, id)
	return l, found, err
}

// Head implements [Dead].
func (s SQL) Head(ctx context.Context, key backends.InboxKey, above int64) (id, highest int64, err error) {
	_, err = s.one(ctx, []any{&highest}, `select coalesce(max(sequence), 0) from {dead} where consumer = ? and topic = ? and aggregate = ? and sequence > ?`,
		s.Consumer, key.Topic, key.Aggregate, above)
	if err != nil {
		return 0, 0, err
	}
	_, err = s.one(ctx, []any{&id}, `select id from {dead} where consumer = ? and topic = ? and aggregate = ? and sequence > ? order by sequence, id limit 1`,
		s.Consumer, key.Topic, key.Aggregate, above)
	return id, highest, err
}

// first picks of several dead letters with one sequence the first.
const first = `consumer = ? and topic = ? and aggregate = ? and sequence > ? and id in
    (select min(id) from {dead} where consumer = ? and topic = ? and aggregate = ? and sequence > ? group by sequence)`

// Exhume implements [Dead].
func (s SQL) Exhume(ctx context.Context, key backends.InboxKey, above int64) (int, error) {
	args := []any{s.Consumer, key.Topic, key.Aggregate, above}
	n, err := s.exec(ctx, `insert into {buffer} (consumer, topic, aggregate, sequence, message_id, payload, metadata, reply_topic, stored_at)
select consumer, topic, aggregate, sequence, message_id, payload, metadata, reply_topic, {now} from {dead} where `+first, append(args, args...)...)
	if err != nil {
		return 0, err
	}
	// The rest has a sequence that another has: it stays, to be looked at.
	_, err = s.exec(ctx, `delete from {dead} where consumer = ? and topic = ? and aggregate = ? and sequence > ? and message_id in
    (select message_id from {buffer} where consumer = ? and topic = ? and aggregate = ? and sequence > ?)`, append(args, args...)...)
	return int(n), err
}

// Destroy implements [Dead].
func (s SQL) Destroy(ctx context.Context, key backends.InboxKey, above, id int64) (int, error) {
	if id != 0 {
		n, err := s.exec(ctx, `delete from {dead} where consumer = ? and id = ?`, s.Consumer, id)
		return int(n), err
	}
	n, err := s.exec(ctx, `delete from {dead} where consumer = ? and topic = ? and aggregate = ? and sequence > ?`,
		s.Consumer, key.Topic, key.Aggregate, above)
	return int(n), err
}

// CountFailure implements [Failures].
func (s SQL) CountFailure(ctx context.Context, d *backends.Delivery, text string) (attempts int, err error) {
	_, err = s.exec(ctx, `insert into {failures} (consumer, topic, message_id, aggregate, sequence, attempts, failed_at, last_error)
values (?, ?, ?, ?, ?, 1, {now}, ?)
on conflict (consumer, topic, message_id) do update set attempts = {failures}.attempts + 1, failed_at = excluded.failed_at, last_error = excluded.last_error`,
		s.Consumer, d.Topic, d.MessageID, d.Aggregate, d.Sequence, text)
	if err != nil {
		return 0, err
	}
	_, err = s.one(ctx, []any{&attempts}, `select attempts from {failures} where consumer = ? and topic = ? and message_id = ?`, s.Consumer, d.Topic, d.MessageID)
	return attempts, err
}

// Forget implements [Failures].
func (s SQL) Forget(ctx context.Context, d *backends.Delivery) error {
	_, err := s.exec(ctx, `delete from {failures} where consumer = ? and topic = ? and message_id = ?`, s.Consumer, d.Topic, d.MessageID)
	return err
}

// ForgetAll implements [Failures].
func (s SQL) ForgetAll(ctx context.Context, key backends.InboxKey) error {
	_, err := s.exec(ctx, `delete from {failures} where consumer = ? and topic = ? and aggregate = ?`, s.Consumer, key.Topic, key.Aggregate)
	return err
}

// Failing implements [Failures].
func (s SQL) Failing(ctx context.Context, key backends.InboxKey, above, below int64, within time.Duration) (bool, error) {
	var one int
	return s.one(ctx, []any{&one}, `select 1 from {failures} where consumer = ? and topic = ? and aggregate = ? and sequence > ? and sequence < ?
    and failed_at > {past} limit 1`, s.Consumer, key.Topic, key.Aggregate, above, below, within.Microseconds())
}
