package inboxes

import (
	"context"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Fail implements [backends.Inbox]. The row is locked before anything is counted:
//
// 1. A handler fails for the last time, and its process pauses.
// 2. The message is delivered to another, which handles it.
// 3. The first goes on: without the lock it would park an aggregate that is well.
func (i *Inbox) Fail(ctx context.Context, d *backends.Delivery, order backends.InboxOrder, f backends.InboxFailure) (out backends.InboxFailed, err error) {
	err = i.within(ctx, func(tx Tx) (bool, error) {
		if order == backends.AnyOrder || d.Aggregate == "" {
			return i.failLoose(ctx, tx, d, f, &out)
		}
		row, err := i.lock(ctx, tx, d.InboxKey)
		if err != nil {
			return false, err
		}
		if f.Undo && row.Last == d.Sequence && row.MessageID == d.MessageID {
			row.Last, row.MessageID = row.Last-1, ""
			if err := tx.Unmark(ctx, d.Topic, d.MessageID); err != nil {
				return false, err
			}
		}
		if d.Sequence <= row.Last {
			out.Overtaken = true
			return false, nil
		}
		if err := tx.Save(ctx, row, false); err != nil {
			return false, err
		}
		if err := count(ctx, tx, d, f, &out); err != nil || !out.GivenUp {
			return true, err
		}
		if order == backends.Newer {
			return true, i.giveUpOne(ctx, tx, row, d, f, out.Attempts)
		}
		return true, i.park(ctx, tx, row, d, f, out.Attempts)
	})
	return out, err
}

// lock locks a row, which it makes if need be.
func (i *Inbox) lock(ctx context.Context, tx Tx, key backends.InboxKey) (Row, error) {
	for range 3 {
		row, found, err := tx.Lock(ctx, key, true)
		if err != nil || found {
			return row, err
		}
		if _, err := tx.Insert(ctx, key); err != nil {
			return row, err
		}
	}
	return Row{}, errContended
}

func count(ctx context.Context, tx Tx, d *backends.Delivery, f backends.InboxFailure, out *backends.InboxFailed) (err error) {
	out.Attempts, err = tx.CountFailure(ctx, d, records.ErrorText(f.Err))
	out.GivenUp = err == nil && f.Limit > 0 && out.Attempts >= f.Limit
	return err
}

// failLoose is a message without order: it goes alone.
func (i *Inbox) failLoose(ctx context.Context, tx Tx, d *backends.Delivery, f backends.InboxFailure, out *backends.InboxFailed) (bool, error) {
	if f.Undo {
		if err := tx.Unmark(ctx, d.Topic, d.MessageID); err != nil {
			return false, err
		}
	}
	if err := count(ctx, tx, d, f, out); err != nil {
		return false, err
	}
	if !out.GivenUp {
		return true, nil
	}
	// The mark waits for whoever is handling it, and tells whether they did.
	fresh, err := tx.Mark(ctx, d.Topic, d.MessageID)
	if err != nil {
		return false, err
	}
	if !fresh {
		*out = backends.InboxFailed{Overtaken: true}
		return false, nil
	}
	if _, err := tx.Drop(ctx, d); err != nil {
		return false, err
	}
	if err := tx.Forget(ctx, d); err != nil {
		return false, err
	}
	return true, tx.Bury(ctx, d, out.Attempts, f.Reason, records.ErrorText(f.Err))
}

// giveUpOne gives up one message where order is Newer: what is newer goes on.
func (i *Inbox) giveUpOne(ctx context.Context, tx Tx, row Row, d *backends.Delivery, f backends.InboxFailure, attempts int) error {
	row.Last, row.MessageID = d.Sequence, d.MessageID
	if err := tx.Save(ctx, row, true); err != nil {
		return err
	}
	if _, err := tx.Mark(ctx, d.Topic, d.MessageID); err != nil {
		return err
	}
	if err := tx.Forget(ctx, d); err != nil {
		return err
	}
	return tx.Bury(ctx, d, attempts, f.Reason, records.ErrorText(f.Err))
}

// park sets an aggregate aside: the message that failed, and what waits behind it.
func (i *Inbox) park(ctx context.Context, tx Tx, row Row, d *backends.Delivery, f backends.InboxFailure, attempts int) error {
	if _, err := tx.Drop(ctx, d); err != nil {
		return err
	}
	there := false
	var err error
	if row.Parked != "" { // another has parked it since, and taken the copy in the buffer along
		if there, err = tx.Buried(ctx, d); err != nil {
			return err
		}
	}
	if !there {
		if err := tx.Bury(ctx, d, attempts, f.Reason, records.ErrorText(f.Err)); err != nil {
			return err
		}
	}
	if err := tx.Forget(ctx, d); err != nil {
		return err
	}
	return i.setAside(ctx, tx, row, f.Reason)
}

// setAside parks an aggregate with all that waits.
func (i *Inbox) setAside(ctx context.Context, tx Tx, row Row, reason string) error {
	if err := tx.BuryHeld(ctx, row.InboxKey); err != nil {
		return err
	}
	row.Buffered = 0
	if row.Parked == "" {
		row.Parked = reason
	}
	return tx.Save(ctx, row, false)
}

// Resolve implements [backends.InboxUpkeep].
func (i *Inbox) Resolve(ctx context.Context, key backends.InboxKey, how backends.GapAction, minAge time.Duration) (done bool, err error) {
	err = i.within(ctx, func(tx Tx) (bool, error) {
		// What is being handled holds the row: no gap is timed out under it.
		row, found, err := tx.Lock(ctx, key, false)
		if err != nil || !found || row.Parked != "" || row.Buffered == 0 {
			return false, err
		}
		lowest, age, held, err := tx.Lowest(ctx, key)
		if err != nil || !held || how != backends.GapFull && lowest <= row.Last+1 {
			return false, err
		}
		if row.Last > 0 || row.Started > 1 {
			age = min(age, row.Moved)
		}
		if age < minAge {
			return false, nil
		}
		if minAge > 0 { // who fails is not missing
			failing, err := tx.Failing(ctx, key, row.Last, lowest, minAge)
			if err != nil || failing {
				return false, err
			}
		}
		done = true
		return true, i.resolve(ctx, tx, row, how, lowest)
	})
	return done && err == nil, err
}

func (i *Inbox) resolve(ctx context.Context, tx Tx, row Row, how backends.GapAction, lowest int64) error {
	switch how {
	case backends.GapPark:
		return i.setAside(ctx, tx, row, backends.ReasonGap)
	case backends.GapFull:
		return i.setAside(ctx, tx, row, backends.ReasonFull)
	case backends.GapAdopt:
		row.Started = lowest
	default:
		if err := tx.PassOver(ctx, row.InboxKey, row.Last+1, lowest-1); err != nil {
			return err
		}
	}
	row.Last, row.MessageID = lowest-1, ""
	return tx.Save(ctx, row, true)
}
