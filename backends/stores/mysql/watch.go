package mysql

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// marksSeen is the highest id that is known of, now and a while ago. It lets
// Watch pass over settled rows that an old read view keeps in the table.
type marksSeen struct {
	mu            sync.Mutex
	old, mid, now int64     // old was known when mid began to be gathered
	at            time.Time // when that was
}

// saw takes an id in.
func (m *marksSeen) saw(id int64, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at.Sub(m.at) >= settleDown {
		m.old, m.mid, m.at = m.mid, m.now, at
	}
	m.now = max(m.now, id)
}

// past is an id that was known a second ago.
func (m *marksSeen) past() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.old
}

// Watch implements [backends.Waker]. Rows of a transaction that commits more than
// a second after it appended may go unnoticed: a forwarder finds them by reading.
// So do rows that wait for their time.
func (s *Store) Watch() func(ctx context.Context) (bool, error) {
	first, requeues := true, int64(-1)
	return func(ctx context.Context) (bool, error) {
		var top, n int64
		err := s.db.QueryRowContext(ctx, fmt.Sprintf(`select n, coalesce((select max(id) from %s force index (%soutbox_id) where id > %d), 0)
from %s where name = 'requeues'`, s.names.outbox, s.names.prefix, s.marks.past(), s.names.state)).Scan(&n, &top)
		if err != nil {
			return false, fmt.Errorf("mysql: look for new records: %w", mend(err))
		}
		fresh := first || top > 0 || n != requeues
		first, requeues = false, n
		s.marks.saw(top, time.Now())
		return fresh, nil
	}
}

// filled asks whether the outbox holds a row.
func (s *Store) filled() string {
	return fmt.Sprintf("exists (select 1 from %s force index (%soutbox_id) where id > 0)", s.names.outbox, s.names.prefix)
}
