package postgres

import (
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5"
)

// inUse lets one call at a time use a transaction: a connection cannot do two
// things at once. Its zero value is ready.
type inUse struct {
	mu    sync.Mutex
	users map[any]*user
}

type user struct {
	sync.Mutex
	count int // who holds it or waits for it
}

// lock waits for a transaction and returns what gives it back. Savepoints of pgx
// are transactions of their own on one connection, so that is what counts.
func (u *inUse) lock(tx any) (unlock func()) {
	key := tx
	if p, ok := tx.(pgx.Tx); ok {
		if conn := connOf(p); conn != nil {
			key = conn
		}
	}
	if !reflect.TypeOf(key).Comparable() {
		return func() {} // a handle without identity: its owner sees to it
	}
	u.mu.Lock()
	if u.users == nil {
		u.users = map[any]*user{}
	}
	mine := u.users[key]
	if mine == nil {
		mine = &user{}
		u.users[key] = mine
	}
	mine.count++
	u.mu.Unlock()
	mine.Lock()
	return func() {
		mine.Unlock()
		u.mu.Lock()
		defer u.mu.Unlock()
		if mine.count--; mine.count == 0 {
			delete(u.users, key)
		}
	}
}
