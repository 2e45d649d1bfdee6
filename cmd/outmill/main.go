// Command outmill is the forwarder as a program of its own, and the operator's
// tool for the outbox: it moves records, makes the tables, shows what waits,
// and requeues or discards what was given up.
//
//	outmill run --config /etc/outmill/outmill.yaml
//
// Settings come from a file, the environment and flags; docs/configuration.md
// lists them all.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outmill/outmill/backends"
)

//go:generate go test -run TestConfigurationDoc_IsFresh . -update

// Exit codes. They are documented, so they stay.
const (
	exitOK      = 0
	exitFailed  = 1 // something could not be done; the last line says what
	exitUsage   = 2 // wrong flags or configuration: trying again does not help
	exitSchema  = 3 // the tables are missing or of another version: outmill migrate
	exitUnclean = 4 // stopped, but not in time or by a second signal: what was not settled is sent again
)

// exitError is an error with the code that the program ends with.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usage marks an error as a mistake in flags or configuration.
func usage(err error) error { return &exitError{exitUsage, err} }

func main() { os.Exit(execute(context.Background(), os.Args[1:])) }

func execute(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case strings.HasPrefix(err.Error(), "unknown command"): // cobra has no type for it
		err = usage(fmt.Errorf("%w: see outmill --help", err))
	}
	fmt.Fprintln(os.Stderr, "outmill:", err)
	var e *exitError
	switch {
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, backends.ErrSchema):
		fmt.Fprintln(os.Stderr, "outmill: run: outmill migrate up")
		return exitSchema
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: "outmill", Short: "Forwarder and operator's tool for a transactional outbox",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w: see %s --help", err, c.CommandPath()))
	})
	root.PersistentFlags().StringP("config", "c", "", "file of settings (YAML); also "+configVariable)
	settingFlags(root.PersistentFlags(), false)
	run, conf := runCommand(), configCommand()
	settingFlags(run.Flags(), true)
	settingFlags(conf.PersistentFlags(), true)
	root.AddCommand(run, migrateCommand(), statusCommand(), deadCommand(), conf, demoCommand(), versionCommand())
	for _, c := range root.Commands() {
		mistakes(c)
	}
	return root
}

// settingFlags makes the flags of settings: those of the forwarder, or those that
// every command needs.
func settingFlags(flags *pflag.FlagSet, forwarder bool) {
	for _, s := range all() {
		if everywhere := strings.HasPrefix(s.Name, "store") || strings.HasPrefix(s.Name, "log."); everywhere == forwarder {
			continue
		}
		if s.Secret { // a flag is in the list of processes for all to see
			s.Doc += " Prefer the file or " + variableOf(s.Name) + ": others see flags."
		}
		flags.String(flagOf(s.Name), "", s.Doc+" Default: "+s.Default)
	}
}

// mistakes makes wrong arguments and unknown subcommands errors of usage.
func mistakes(c *cobra.Command) {
	args := c.Args
	if args == nil {
		args = cobra.NoArgs
	}
	c.Args = func(c *cobra.Command, given []string) error {
		if err := args(c, given); err != nil {
			return usage(fmt.Errorf("%w: see %s --help", err, c.CommandPath()))
		}
		return nil
	}
	for _, sub := range c.Commands() {
		mistakes(sub)
	}
}

// configured loads the configuration that a command was given.
func configured(c *cobra.Command) (loaded, error) {
	file, err := c.Flags().GetString("config")
	if err != nil {
		return loaded{}, err
	}
	return load(sources{file: file, environ: os.Environ(), flags: c.Flags()})
}
