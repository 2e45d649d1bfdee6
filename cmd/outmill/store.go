package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outmill/outmill/backends/connect"
)

// callLimit is how long an operator's command waits for one answer of the store.
const callLimit = 30 * time.Second

// openStore opens the store. Where it must exist, a file that is not there is not
// made in passing by a command that only wants to look.
func (l *loaded) openStore(ctx context.Context, exists bool) (connect.Outbox, error) {
	url := l.Store
	if exists && strings.HasPrefix(url, "sqlite:") && !strings.Contains(url, "existing=") {
		mark := "?"
		if strings.Contains(url, "?") {
			mark = "&"
		}
		url += mark + "existing=true"
	}
	return connect.Store(ctx, url)
}

// storeCommand is a command that needs the store alone.
func storeCommand(exists bool, do func(c *cobra.Command, l *loaded, store connect.Outbox, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		l, err := configured(c)
		if err != nil {
			return err
		}
		if l.Store == "" {
			return usage(fmt.Errorf("store is not set: set it, or store_file, in the file, by %s or by --store", variableOf("store")))
		}
		if err := connect.CheckStore(l.Store); err != nil {
			return usage(err)
		}
		ctx, stop := untilSignal(c.Context())
		defer stop()
		c.SetContext(ctx)
		store, err := l.openStore(ctx, exists)
		if err != nil {
			return err
		}
		return errors.Join(do(c, &l, store, args), store.Close())
	}
}
