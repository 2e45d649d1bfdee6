package inboxes

import (
	"context"
	"errors"

	"github.com/outmill/outmill/backends"
)

// errContended says that a row came and went each time it was looked for.
var errContended = errors.New("the inbox's row of the aggregate could not be locked")

// Begin implements [backends.Inbox].
func (i *Inbox) Begin(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (backends.InboxTx, backends.Standing, error) {
	tx, step, ok, err := i.start(ctx, d, order)
	if err != nil {
		return nil, backends.Standing{}, err
	}
	t := &transaction{Native: tx, tx: tx, delivery: d}
	var standing backends.Standing
	switch {
	case !ok:
		standing, err = i.receive(ctx, t, order)
	case order == backends.AnyOrder:
		standing, err = i.marked(ctx, t, step.Fresh)
	default:
		standing, err = i.advanced(ctx, t, step)
	}
	if err != nil {
		return nil, backends.Standing{}, errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return t, standing, nil
}

func (i *Inbox) start(ctx context.Context, d *backends.Delivery, order backends.InboxOrder) (tx Tx, step Step, ok bool, err error) {
	if s, can := i.Source.(Starter); can && d.MessageID != "" {
		return s.Start(ctx, d, order)
	}
	tx, err = i.Source.Begin(ctx)
	return tx, Step{}, false, err
}

// receive is the long way, where the usual case does not hold.
func (i *Inbox) receive(ctx context.Context, t *transaction, order backends.InboxOrder) (backends.Standing, error) {
	d := t.delivery
	if d.MessageID == "" {
		return backends.Standing{Place: backends.Refused, Reason: backends.ReasonNoID}, nil
	}
	if order == backends.AnyOrder {
		return i.unordered(ctx, t)
	}
	for range 3 {
		step, ok, err := t.tx.Advance(ctx, d, order == backends.Newer, !i.Config.NoMarks)
		if err != nil {
			return backends.Standing{}, err
		}
		if ok {
			return i.advanced(ctx, t, step)
		}
		row, found, err := t.tx.Lock(ctx, d.InboxKey, true)
		if err != nil {
			return backends.Standing{}, err
		}
		if found {
			t.row = row
			return i.place(ctx, t, order)
		}
		fresh, err := t.tx.Insert(ctx, d.InboxKey)
		if err != nil {
			return backends.Standing{}, err
		}
		if fresh {
			t.row = Row{InboxKey: d.InboxKey, Started: 1}
			return i.place(ctx, t, order)
		}
		// Two saw the aggregate for the first time at once, and the other was first.
	}
	return backends.Standing{}, errContended
}

func (i *Inbox) unordered(ctx context.Context, t *transaction) (backends.Standing, error) {
	fresh, err := t.tx.Mark(ctx, t.delivery.Topic, t.delivery.MessageID)
	if err != nil {
		return backends.Standing{}, err
	}
	return i.marked(ctx, t, fresh)
}

func (i *Inbox) marked(ctx context.Context, t *transaction, fresh bool) (backends.Standing, error) {
	d := t.delivery
	if fresh {
		return backends.Standing{Place: backends.Fresh}, nil
	}
	ago, _, err := t.tx.Marked(ctx, d.Topic, d.MessageID)
	return backends.Standing{Place: backends.Duplicate, Age: ago}, err
}

// advanced is the usual case. A copy in the buffer goes, or it would be handled
// a second time.
func (i *Inbox) advanced(ctx context.Context, t *transaction, step Step) (backends.Standing, error) {
	s := backends.Standing{Place: backends.Fresh, Expected: t.delivery.Sequence + 1, Buffered: step.Buffered}
	if !step.Fresh {
		s.Place = backends.Moved
	}
	if step.Buffered == 0 {
		return s, nil
	}
	n, err := t.tx.Drop(ctx, t.delivery)
	if err != nil || n == 0 {
		return s, err
	}
	row, _, err := t.tx.Lock(ctx, t.delivery.InboxKey, true)
	if err != nil {
		return s, err
	}
	row.Buffered -= n
	s.Buffered = row.Buffered
	return s, t.tx.Save(ctx, row, false)
}

// place decides under the lock.
func (i *Inbox) place(ctx context.Context, t *transaction, order backends.InboxOrder) (backends.Standing, error) {
	d, row := t.delivery, t.row
	s := backends.Standing{Expected: row.Last + 1, Buffered: row.Buffered}
	switch {
	case d.Sequence <= row.Last:
		return i.behind(ctx, t, order, s)
	case row.Parked != "":
		return i.dead(ctx, t, s, backends.Parked, backends.ReasonParked)
	case order == backends.Newer || d.Sequence == row.Last+1:
		return i.move(ctx, t, order, s)
	}
	held, ok, err := t.tx.Held(ctx, d.InboxKey, d.Sequence)
	switch {
	case err != nil:
		return s, err
	case !ok:
		s.Place = backends.Ahead
		return s, nil
	case held.MessageID == d.MessageID:
		s.Place = backends.Duplicate
		return s, nil
	}
	return i.dead(ctx, t, s, backends.Refused, backends.ReasonReused)
}

// behind is a delivery whose place has been passed.
func (i *Inbox) behind(ctx context.Context, t *transaction, order backends.InboxOrder, s backends.Standing) (backends.Standing, error) {
	d, row := t.delivery, t.row
	ago, known, err := t.tx.Marked(ctx, d.Topic, d.MessageID)
	s.Place, s.Age = backends.Duplicate, ago
	switch {
	case err != nil || known || d.MessageID == row.MessageID:
		return s, err
	case order == backends.Newer:
		s.Place = backends.Stale
		return s, nil
	case i.Config.NoMarks || d.Age == 0 || d.Age > i.Config.Retention:
		return s, nil // its mark may be gone, or never was
	case d.Sequence < row.Started:
		return i.dead(ctx, t, s, backends.Refused, backends.ReasonBefore)
	}
	skipped, err := t.tx.Skipped(ctx, d.InboxKey, d.Sequence)
	switch {
	case err != nil:
		return s, err
	case skipped:
		return i.dead(ctx, t, s, backends.Refused, backends.ReasonLate)
	}
	return i.dead(ctx, t, s, backends.Refused, backends.ReasonReused)
}

// dead is a delivery that belongs to the dead letters, unless it is there.
func (i *Inbox) dead(ctx context.Context, t *transaction, s backends.Standing, place backends.Place, reason string) (backends.Standing, error) {
	s.Place, s.Reason = place, reason
	there, err := t.tx.Buried(ctx, t.delivery)
	if there {
		s.Place, s.Reason = backends.Duplicate, ""
	}
	return s, err
}

// move takes a delivery whose turn it is.
func (i *Inbox) move(ctx context.Context, t *transaction, order backends.InboxOrder, s backends.Standing) (backends.Standing, error) {
	d, row := t.delivery, &t.row
	if row.Last == 0 && order == backends.Newer {
		row.Started = d.Sequence
	}
	row.Last, row.MessageID = d.Sequence, d.MessageID
	s.Place, s.Expected = backends.Fresh, d.Sequence+1
	if row.Buffered > 0 {
		n, err := t.tx.Drop(ctx, d)
		if err != nil {
			return s, err
		}
		row.Buffered -= n
		s.Buffered = row.Buffered
	}
	if err := t.tx.Save(ctx, *row, true); err != nil || i.Config.NoMarks {
		return s, err
	}
	fresh, err := t.tx.Mark(ctx, d.Topic, d.MessageID)
	if !fresh {
		s.Place = backends.Moved
	}
	return s, err
}

// Next implements [backends.Inbox].
//
// The buffer is read after the row is locked, in a statement of its own:
//
// 1. One statement that locks and reads takes its view of the buffer.
// 2. It waits for the row, which another holds that is putting the message
// it wants into the buffer.
// 3. It gets the row, and finds nothing in its older view: the message stays behind.
func (i *Inbox) Next(ctx context.Context, key backends.InboxKey, wait bool) (backends.InboxTx, *backends.Delivery, backends.Standing, error) {
	tx, err := i.Source.Begin(ctx)
	if err != nil {
		return nil, nil, backends.Standing{}, err
	}
	t := &transaction{Native: tx, tx: tx}
	var s backends.Standing
	found := false
	if key.Aggregate == "" {
		s, found, err = i.loose(ctx, t, key)
	} else {
		s, found, err = i.following(ctx, t, key, wait)
	}
	if err != nil || !found {
		return nil, nil, s, errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return t, t.delivery, s, nil
}

func (i *Inbox) following(ctx context.Context, t *transaction, key backends.InboxKey, wait bool) (s backends.Standing, found bool, err error) {
	row, found, err := t.tx.Lock(ctx, key, wait)
	if err != nil || !found || row.Parked != "" || row.Buffered == 0 {
		return s, false, err
	}
	t.row = row
	t.delivery, found, err = t.tx.Held(ctx, key, row.Last+1)
	if err != nil || !found {
		return s, false, err
	}
	s, err = i.move(ctx, t, backends.InSequence, s)
	return s, true, err
}

// loose takes a delivery that was requeued by itself.
func (i *Inbox) loose(ctx context.Context, t *transaction, key backends.InboxKey) (s backends.Standing, found bool, err error) {
	t.delivery, found, err = t.tx.Held(ctx, key, 0)
	if err != nil || !found {
		return s, false, err
	}
	if _, err := t.tx.Drop(ctx, t.delivery); err != nil {
		return s, false, err
	}
	s, err = i.unordered(ctx, t)
	if s.Place == backends.Duplicate {
		s.Place = backends.Moved
	}
	return s, true, err
}
