package mysql

import (
	"reflect"
	"sync"
)

// inUse lets one call at a time use a transaction: the savepoints of two would
// get mixed up. Its zero value is ready.
type inUse struct {
	mu    sync.Mutex
	users map[any]*user
}

type user struct {
	sync.Mutex
	count int // who holds it or waits for it
}

// lock waits for a transaction and returns what gives it back.
func (u *inUse) lock(tx any) (unlock func()) {
	if !reflect.TypeOf(tx).Comparable() {
		return func() {} // a handle without identity: its owner sees to it
	}
	u.mu.Lock()
	if u.users == nil {
		u.users = map[any]*user{}
	}
	mine := u.users[tx]
	if mine == nil {
		mine = &user{}
		u.users[tx] = mine
	}
	mine.count++
	u.mu.Unlock()
	mine.Lock()
	return func() {
		mine.Unlock()
		u.mu.Lock()
		defer u.mu.Unlock()
		if mine.count--; mine.count == 0 {
			delete(u.users, tx)
		}
	}
}
