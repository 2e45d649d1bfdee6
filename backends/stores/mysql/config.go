package mysql

import (
	"errors"
	"fmt"
	"time"

	"github.com/outmill/outmill/backends/stores/internal/records"
)

// Config sets a store up. Its zero value works.
type Config struct {
	// Prefix is put in front of each table's name, so that one database can hold
	// several outboxes. At most 24 bytes of lower-case letters, digits and
	// underscores. Default: none.
	Prefix string

	// MaxPayload is how many bytes a payload may have. The server's
	// max_allowed_packet limits it too. Default: 16 MiB.
	MaxPayload int

	// Sequences says whether a record with an aggregate is given the next number
	// of its topic and aggregate. Default: On. When Off, order within an aggregate
	// is that of the application's own locks: lock first, then publish. The same
	// holds for a sequence that the application supplies, which leaves the outbox's
	// own count alone: do not mix the two within a topic and aggregate.
	Sequences Sequences

	// Retention keeps delivered records in the archive table for so long.
	// Default: they are deleted.
	Retention time.Duration
}

// Sequences switches the allotting of sequences.
type Sequences uint8

const (
	// On allots sequences.
	On Sequences = iota
	// Off does not.
	Off
)

func (c Config) withDefaults() Config {
	if c.MaxPayload == 0 {
		c.MaxPayload = records.DefaultMaxPayload
	}
	return c
}

// validate reports every fault at once.
func (c Config) validate() error {
	faults := []error{records.CheckIdentifier("mysql: Prefix", c.Prefix, records.MaxPrefixBytes)}
	if c.MaxPayload < 1 || c.MaxPayload > records.HardMaxPayload {
		faults = append(faults, fmt.Errorf("mysql: MaxPayload is %d, allowed is 1 to %d", c.MaxPayload, records.HardMaxPayload))
	}
	if c.Retention < 0 {
		faults = append(faults, fmt.Errorf("mysql: Retention is %v, allowed is 0 or more", c.Retention))
	}
	if c.Sequences > Off {
		faults = append(faults, fmt.Errorf("mysql: Sequences is %d, allowed is On or Off", c.Sequences))
	}
	return errors.Join(faults...)
}
