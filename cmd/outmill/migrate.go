package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/outmill/outmill/backends/connect"
)

func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
}

func migrateCommand() *cobra.Command {
	c := &cobra.Command{Use: "migrate", Short: "Make or change the outbox's tables", RunE: needsSubcommand}
	c.AddCommand(
		&cobra.Command{
			Use: "up", Short: "Make the tables, or bring them to this version; safe to repeat and to run at once",
			RunE: storeCommand(false, func(c *cobra.Command, l *loaded, store connect.Outbox, _ []string) error {
				if err := store.Migrate(c.Context()); err != nil {
					return err
				}
				return say(c, "The tables of %s are as this version needs them.", connect.Mask(l.Store))
			}),
		},
		&cobra.Command{
			Use: "status", Short: "Say whether the tables are as this version needs them; exit code 3 if not",
			RunE: storeCommand(true, func(c *cobra.Command, l *loaded, store connect.Outbox, _ []string) error {
				ctx, cancel := context.WithTimeout(c.Context(), callLimit)
				defer cancel()
				if err := store.Check(ctx); err != nil {
					return err
				}
				return say(c, "The tables of %s are as this version needs them.", connect.Mask(l.Store))
			}),
		},
		&cobra.Command{
			Use: "print", Short: "Print the statements for a tool of your own; connects to nothing",
			RunE: func(c *cobra.Command, _ []string) error { return printMigration(c) },
		},
	)
	return c
}

func printMigration(c *cobra.Command) error {
	l, err := configured(c)
	if err != nil {
		return err
	}
	if l.Store == "" {
		return usage(fmt.Errorf("store is not set: set it in the file, by %s or by --store", variableOf("store")))
	}
	text, err := connect.MigrationSQL(l.Store)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(c.OutOrStdout(), text)
	return err
}

func say(c *cobra.Command, format string, args ...any) error {
	_, err := fmt.Fprintf(c.OutOrStdout(), format+"\n", args...)
	return err
}

// needsSubcommand is a command that does nothing by itself.
func needsSubcommand(c *cobra.Command, _ []string) error {
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	return usage(fmt.Errorf("%s needs to know what to do: one of %v", c.CommandPath(), names))
}
