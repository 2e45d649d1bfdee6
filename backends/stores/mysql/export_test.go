package mysql

import (
	"time"

	"github.com/outmill/outmill/backends"
)

// UseFloors makes a reader put floors in from its first read on.
func UseFloors(r backends.Reader, pause time.Duration) {
	f := &r.(*reader).floors
	f.active, f.pause = true, pause
}

// Floor is from where a reader reads a shard.
func Floor(r backends.Reader, shard int) int64 { return r.(*reader).floors.safe[shard] }
