package inboxes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outmill/outmill/backends"
)

// SQLLists is [Lists] on any engine. Its statements are transactions of their own.
type SQLLists struct {
	SQL

	Retention time.Duration
}

// Waiting implements [Lists].
func (s SQLLists) Waiting(ctx context.Context, after backends.InboxKey, limit int) ([]backends.InboxWaiting, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("inbox: list what waits: the limit is %d, allowed is 1 or more", limit)
	}
	var out []backends.InboxWaiting
	err := s.query(ctx, func(scan func(...any) error) error {
		var w backends.InboxWaiting
		var started, age, moved int64
		if err := scan(&w.Topic, &w.Aggregate, &w.Buffered, &w.Lowest, &age, &w.Last, &started, &moved); err != nil {
			return err
		}
		w.First = w.Aggregate != "" && w.Last == 0 && started == 1
		w.Age = micros(age)
		if !w.First && w.Aggregate != "" {
			w.Age = min(w.Age, micros(moved))
		}
		out = append(out, w)
		return nil
	}, `select b.topic, b.aggregate, b.n, b.lowest, b.age, coalesce(s.last, 0), coalesce(s.started, 1), coalesce({ago moved_at}, 0)
from (select consumer, topic, aggregate, count(*) as n, min(sequence) as lowest, max({ago stored_at}) as age
      from {buffer} where consumer = ? and (topic > ? or topic = ? and aggregate > ?)
      group by consumer, topic, aggregate order by topic, aggregate limit ?) b
left join {sequences} s on s.consumer = b.consumer and s.topic = b.topic and s.aggregate = b.aggregate
order by b.topic, b.aggregate`, s.Consumer, after.Topic, after.Topic, after.Aggregate, limit)
	return out, err
}

// Purge implements [Lists]. What failed long ago goes with what was handled.
func (s SQLLists) Purge(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("inbox: purge: the limit is %d, allowed is 1 or more", limit)
	}
	n, err := s.exec(ctx, s.Dialect.PurgeText("{inbox}", "processed_at"), s.Consumer, s.Retention.Microseconds(), limit)
	if err != nil {
		return 0, err
	}
	_, err = s.exec(ctx, s.Dialect.PurgeText("{failures}", "failed_at"), s.Consumer, s.Retention.Microseconds(), limit)
	return int(n), err
}

// counted bounds what Backlog costs.
const counted = "100001"

// Backlog implements [Lists].
func (s SQLLists) Backlog(ctx context.Context) (backends.InboxBacklog, error) {
	var b backends.InboxBacklog
	var age int64
	_, err := s.one(ctx, []any{&b.Buffered, &age, &b.Parked, &b.Dead}, `select
    (select count(*) from (select 1 from {buffer} where consumer = ? limit `+counted+`) x),
    coalesce((select max({ago stored_at}) from (select stored_at from {buffer} where consumer = ? order by stored_at limit 1) x), 0),
    (select count(*) from (select 1 from {sequences} where consumer = ? and parked <> '' limit `+counted+`) x),
    (select count(*) from (select 1 from {dead} where consumer = ? limit `+counted+`) x)`,
		s.Consumer, s.Consumer, s.Consumer, s.Consumer)
	b.Age = micros(age)
	b.Capped = max(b.Buffered, b.Parked, b.Dead) > 100_000
	return b, err
}

// Parked implements [Lists].
func (s SQLLists) Parked(ctx context.Context, after backends.InboxKey, limit int) ([]backends.InboxParked, error) {
	if limit <= 0 {
		return nil, fmt.Errorf("inbox: list parked aggregates: the limit is %d, allowed is 1 or more", limit)
	}
	var out []backends.InboxParked
	err := s.query(ctx, func(scan func(...any) error) error {
		var p backends.InboxParked
		var ago int64
		if err := scan(&p.Topic, &p.Aggregate, &p.Last, &p.Reason, &ago, &p.Letters); err != nil {
			return err
		}
		p.ParkedAt = time.Now().Add(-micros(ago)).UTC()
		out = append(out, p)
		return nil
	}, `select s.topic, s.aggregate, s.last, s.parked, {ago parked_at},
    (select count(*) from (select 1 from {dead} d where d.consumer = s.consumer and d.topic = s.topic and d.aggregate = s.aggregate limit 1000) x)
from {sequences} s where s.consumer = ? and s.parked <> '' and (s.topic > ? or s.topic = ? and s.aggregate > ?)
order by s.topic, s.aggregate limit ?`, s.Consumer, after.Topic, after.Topic, after.Aggregate, limit)
	return out, err
}

// Dead implements [Lists].
func (s SQLLists) Dead(ctx context.Context, f backends.InboxDeadFilter) ([]backends.InboxDead, error) {
	if f.Limit < 0 {
		return nil, errors.New("inbox: list dead letters: Limit is below 0")
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	text := `select ` + letterColumns + ` from {dead} where consumer = ? and id > ?`
	args := []any{s.Consumer, f.After}
	if f.Topic != "" {
		text += ` and topic = ?`
		args = append(args, f.Topic)
	}
	if f.Aggregate != "" {
		text += ` and aggregate = ?`
		args = append(args, f.Aggregate)
	}
	var out []backends.InboxDead
	err := s.query(ctx, func(scan func(...any) error) error {
		l, err := scanLetter(scan)
		out = append(out, l)
		return err
	}, text+` order by id limit ?`, append(args, f.Limit)...)
	return out, err
}
