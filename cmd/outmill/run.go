package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/connect"
	"github.com/outmill/outmill/forwarder"
	"github.com/outmill/outmill/internal/settings"
)

// closeLimit is how long closing the broker may take once the forwarder is done.
const closeLimit = 5 * time.Second

func runCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "Move records from the store to the broker until stopped",
		Long: `Move records from the store to the broker until stopped.

The first SIGTERM or SIGINT stops softly: the batch in hand is finished and
settled, and the shards are given back at once. A second one stops hard: what
was not settled is sent again. Exit codes: 0 stopped, 1 failed, 2 wrong
configuration, 3 the tables must be migrated, 4 stopped but not cleanly.`,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := configured(c)
			if err != nil {
				return err
			}
			if err := l.check(); err != nil {
				return err
			}
			return l.run(c.Context())
		},
	}
}

// check finds every fault that can be found without opening anything.
func (l *loaded) check() error {
	var faults []error
	for _, u := range []struct {
		key, url string
		check    func(string) error
	}{{"store", l.Store, connect.CheckStore}, {"broker", l.Broker, connect.CheckBroker}} {
		if u.url == "" {
			faults = append(faults, fmt.Errorf("%[1]s is not set: set it, or %[1]s_file, in the file, by %[2]s or by --%[1]s", u.key, variableOf(u.key)))
			continue
		}
		faults = append(faults, u.check(u.url))
	}
	_, err := forwarder.New(nothing{}, nothing{}, l.Forwarder)
	faults = append(faults, settings.Rename(err, "forwarder: ", settings.Infos(all())), l.checkHTTP())
	if err := errors.Join(faults...); err != nil {
		return usage(err)
	}
	return nil
}

// nothing stands in for a store and a broker where only a configuration is
// looked at; nothing of it is ever called.
type nothing struct {
	backends.Outbox
	backends.Broker
}

// run is the forwarder's life.
func (l *loaded) run(ctx context.Context) (err error) {
	log := l.logger()
	log.Info("outmill begins", "version", versionText(), "store", connect.Mask(l.Store), "broker", connect.Mask(l.Broker))
	ctx, stop := stoppable(ctx, log)
	defer stop()

	store, err := l.openStore(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	broker, err := connect.Broker(ctx, l.Broker)
	if err != nil {
		return err
	}
	defer func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		err = errors.Join(err, broker.Close(limit))
	}()

	system, _, _ := strings.Cut(l.Broker, ":")
	m, h := newMetrics(l.MetricsName, system), newHealth(store, broker, l.Forwarder.Effective().Lease)
	m.registry.MustRegister(newBacklogCollector(store, l.MetricsName, l.MetricsInterval))
	l.Forwarder.Logger, l.Forwarder.Hooks = log, m.hooks()
	l.Forwarder.Hooks.Leased = func(ctx context.Context, lease backends.Lease, err error) {
		m.leased(lease, err)
		h.leased(ctx, lease, err)
	}
	fwd, err := forwarder.New(store, broker, l.Forwarder)
	if err != nil {
		return usage(settings.Rename(err, "forwarder: ", settings.Infos(all())))
	}
	stopServing, err := serve(ctx, l.HTTP, h, m, log)
	if err != nil {
		return err
	}
	defer stopServing()
	defer context.AfterFunc(ctx, h.stop)()

	err = fwd.Run(ctx)
	switch {
	case err == nil:
		log.Info("outmill has stopped")
	case ctx.Err() != nil:
		return &exitError{exitUnclean, err}
	}
	return err
}

// stoppable ends the context at the first signal and the program at the second.
func stoppable(ctx context.Context, log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	ended := make(chan struct{})
	go func() { // ends with stop
		soft := false
		for {
			select {
			case s := <-signals:
				if soft {
					log.Warn("second signal: stopping at once; what was not settled is sent again, and the shards are free when the lease ends", "signal", s.String())
					os.Exit(exitUnclean)
				}
				soft = true
				log.Info("stopping: the batch in hand is finished; a second signal stops at once", "signal", s.String())
				cancel()
			case <-ended:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(ended)
		cancel()
	}
}
