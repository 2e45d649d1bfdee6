package inboxes

import (
	"context"
	"errors"
	"fmt"

	"github.com/outmill/outmill/backends"
)

// Requeue implements [backends.InboxDeadLetters].
func (i *Inbox) Requeue(ctx context.Context, target backends.InboxTarget) (n int, err error) {
	err = i.operate(ctx, target, func(tx Tx, row Row, l backends.InboxDead) error {
		if target.ID == 0 {
			n, err = i.unpark(ctx, tx, row)
			return err
		}
		if row.Parked != "" && l.Sequence > row.Last {
			return fmt.Errorf("dead letter %d: %w", l.ID, backends.ErrParked)
		}
		n = 1
		return i.requeueOne(ctx, tx, l)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// requeueOne lets a message be handled by itself: its id is taken as new.
func (i *Inbox) requeueOne(ctx context.Context, tx Tx, l backends.InboxDead) error {
	if err := tx.Forget(ctx, &l.Delivery); err != nil {
		return err
	}
	if err := tx.Unmark(ctx, l.Topic, l.MessageID); err != nil {
		return err
	}
	switch n, err := tx.Destroy(ctx, l.InboxKey, 0, l.ID); {
	case err != nil:
		return err
	case n == 0: // another was faster
		return fmt.Errorf("inbox: dead letter %d: %w", l.ID, backends.ErrNotFound)
	}
	d := l.Delivery
	d.Aggregate, d.Sequence = "", 0 // the metadata still has them
	return tx.Hold(ctx, &d)
}

// unpark puts the dead letters of an aggregate back into the buffer.
func (i *Inbox) unpark(ctx context.Context, tx Tx, row Row) (int, error) {
	n, err := tx.Exhume(ctx, row.InboxKey, row.Last)
	if err != nil {
		return 0, err
	}
	if err := tx.ForgetAll(ctx, row.InboxKey); err != nil {
		return 0, err
	}
	row.Parked = ""
	row.Buffered += n
	return n, tx.Save(ctx, row, true)
}

// Discard implements [backends.InboxDeadLetters].
func (i *Inbox) Discard(ctx context.Context, target backends.InboxTarget) (n int, err error) {
	err = i.operate(ctx, target, func(tx Tx, row Row, l backends.InboxDead) error {
		if target.ID == 0 {
			n, err = i.discardAll(ctx, tx, row)
			return err
		}
		n = 1
		return i.discardOne(ctx, tx, row, l)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (i *Inbox) discardAll(ctx context.Context, tx Tx, row Row) (int, error) {
	_, highest, err := tx.Head(ctx, row.InboxKey, row.Last)
	if err != nil {
		return 0, err
	}
	n, err := tx.Destroy(ctx, row.InboxKey, row.Last, 0)
	if err != nil {
		return 0, err
	}
	if err := i.goOnAfter(ctx, tx, &row, highest); err != nil {
		return 0, err
	}
	_, err = i.unpark(ctx, tx, row)
	return n, err
}

func (i *Inbox) discardOne(ctx context.Context, tx Tx, row Row, l backends.InboxDead) error {
	if row.Parked == "" || l.Sequence <= row.Last {
		_, err := tx.Destroy(ctx, l.InboxKey, 0, l.ID)
		return err
	}
	head, _, err := tx.Head(ctx, row.InboxKey, row.Last)
	switch {
	case err != nil:
		return err
	case head != l.ID:
		return fmt.Errorf("dead letter %d: %w", l.ID, backends.ErrParked)
	}
	if _, err := tx.Destroy(ctx, row.InboxKey, 0, l.ID); err != nil {
		return err
	}
	if err := i.goOnAfter(ctx, tx, &row, l.Sequence); err != nil {
		return err
	}
	_, err = i.unpark(ctx, tx, row)
	return err
}

// goOnAfter moves a row past what was discarded.
func (i *Inbox) goOnAfter(ctx context.Context, tx Tx, row *Row, sequence int64) error {
	if sequence <= row.Last {
		return nil
	}
	if err := tx.PassOver(ctx, row.InboxKey, row.Last+1, sequence); err != nil {
		return err
	}
	row.Last, row.MessageID = sequence, ""
	return nil
}

// operate locks what a target names: the row first, as everyone does, then the
// dead letter.
func (i *Inbox) operate(ctx context.Context, target backends.InboxTarget, do func(tx Tx, row Row, l backends.InboxDead) error) error {
	if (target.Key == backends.InboxKey{}) == (target.ID == 0) {
		return errors.New("inbox: name an aggregate or a dead letter, not both and not neither")
	}
	return i.within(ctx, func(tx Tx) (bool, error) {
		key := target.Key
		if target.ID != 0 {
			l, found, err := tx.Letter(ctx, target.ID)
			if err == nil && !found {
				err = fmt.Errorf("inbox: dead letter %d: %w", target.ID, backends.ErrNotFound)
			}
			if err != nil {
				return false, err
			}
			key = l.InboxKey
		}
		row, found, err := tx.Lock(ctx, key, true)
		switch {
		case err != nil:
			return false, err
		case target.ID == 0 && (!found || row.Parked == ""):
			return false, fmt.Errorf("inbox: aggregate %q of topic %q is not parked: %w", key.Aggregate, key.Topic, backends.ErrNotFound)
		case target.ID == 0:
			return true, do(tx, row, backends.InboxDead{})
		}
		// Whoever held the row may have moved or dropped it.
		l, found, err := tx.Letter(ctx, target.ID)
		if err == nil && !found {
			err = fmt.Errorf("inbox: dead letter %d: %w", target.ID, backends.ErrNotFound)
		}
		if err != nil {
			return false, err
		}
		return true, do(tx, row, l)
	})
}
