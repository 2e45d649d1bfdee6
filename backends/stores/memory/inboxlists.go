package memory

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/outmill/outmill/backends"
)

var errInboxLimit = errors.New("memory: inbox: the limit is below 1")

func byKey(a, b backends.InboxKey) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Aggregate, b.Aggregate))
}

// Waiting implements [inboxes.Lists].
func (s inboxSource) Waiting(ctx context.Context, after backends.InboxKey, limit int) ([]backends.InboxWaiting, error) {
	if limit < 1 {
		return nil, errInboxLimit
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	found := map[backends.InboxKey]*backends.InboxWaiting{}
	for _, h := range s.box.buffer {
		if byKey(h.InboxKey, after) <= 0 {
			continue
		}
		w := found[h.InboxKey]
		if w == nil {
			w = &backends.InboxWaiting{InboxKey: h.InboxKey, Lowest: h.Sequence}
			found[h.InboxKey] = w
		}
		w.Buffered++
		w.Lowest = min(w.Lowest, h.Sequence)
		w.Age = max(w.Age, time.Since(h.at))
	}
	var out []backends.InboxWaiting
	for _, key := range slices.SortedFunc(maps.Keys(found), byKey) {
		w := found[key]
		if row := s.box.seen[key]; row != nil {
			w.Last = row.Last
			if w.First = row.Last == 0 && row.Started == 1; !w.First {
				w.Age = min(w.Age, time.Since(row.moved))
			}
		}
		out = append(out, *w)
	}
	return out[:min(len(out), limit)], ctx.Err()
}

// Purge implements [inboxes.Lists].
func (s inboxSource) Purge(ctx context.Context, limit int) (int, error) {
	if limit < 1 {
		return 0, errInboxLimit
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	n := 0
	for k, at := range s.box.marks {
		if n < limit && time.Since(at) > s.cfg.Retention {
			delete(s.box.marks, k)
			n++
		}
	}
	maps.DeleteFunc(s.box.failures, func(_ markKey, f inboxFailure) bool { return time.Since(f.at) > s.cfg.Retention })
	return n, ctx.Err()
}

// Backlog implements [inboxes.Lists].
func (s inboxSource) Backlog(ctx context.Context) (backends.InboxBacklog, error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	b := backends.InboxBacklog{Buffered: int64(len(s.box.buffer)), Dead: int64(len(s.box.dead))}
	for _, h := range s.box.buffer {
		b.Age = max(b.Age, time.Since(h.at))
	}
	for _, r := range s.box.seen {
		if r.Parked != "" {
			b.Parked++
		}
	}
	return b, ctx.Err()
}

// Parked implements [inboxes.Lists].
func (s inboxSource) Parked(ctx context.Context, after backends.InboxKey, limit int) ([]backends.InboxParked, error) {
	if limit < 1 {
		return nil, errInboxLimit
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	var out []backends.InboxParked
	for _, key := range slices.SortedFunc(maps.Keys(s.box.seen), byKey) {
		r := s.box.seen[key]
		if byKey(key, after) <= 0 || r.Parked == "" || len(out) == limit {
			continue
		}
		p := backends.InboxParked{InboxKey: key, ParkedAt: r.parkedAt.UTC(), Last: r.Last, Reason: r.Parked}
		p.Letters = min(int64(len(s.box.of(key, -1))), 1000)
		out = append(out, p)
	}
	return out, ctx.Err()
}

// Dead implements [inboxes.Lists].
func (s inboxSource) Dead(ctx context.Context, f backends.InboxDeadFilter) ([]backends.InboxDead, error) {
	if f.Limit < 0 {
		return nil, errInboxLimit
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	var out []backends.InboxDead
	for _, l := range s.box.dead {
		if l.ID > f.After && (f.Topic == "" || l.Topic == f.Topic) && (f.Aggregate == "" || l.Aggregate == f.Aggregate) {
			out = append(out, *l)
		}
	}
	slices.SortFunc(out, func(a, b backends.InboxDead) int { return cmp.Compare(a.ID, b.ID) })
	return out[:min(len(out), f.Limit)], ctx.Err()
}
