package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/outmill/outmill/backends/connect"
)

func configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Look at the configuration", RunE: needsSubcommand}
	c.AddCommand(
		&cobra.Command{
			Use: "check", Short: "Find every mistake in the configuration; connects to nothing; exit code 2 if there are any",
			RunE: func(c *cobra.Command, _ []string) error {
				l, err := configured(c)
				if err != nil {
					return err
				}
				if err := l.check(); err != nil {
					return err
				}
				return say(c, "The configuration is good.")
			},
		},
		&cobra.Command{
			Use: "print", Short: "Print every setting, its value and where that comes from; secrets are masked",
			RunE: func(c *cobra.Command, _ []string) error {
				l, err := configured(c)
				if err != nil {
					return err
				}
				return l.print(c)
			},
		},
	)
	return c
}

func (l *loaded) print(c *cobra.Command) error {
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	var failed error
	for _, s := range all() {
		value, from := l.said[s.Name], l.from[s.Name]
		switch {
		case from == "":
			value, from = s.Default, "default"
		case s.Secret:
			value = connect.Mask(value)
		}
		_, err := fmt.Fprintf(w, "%s\t%s\t# %s\n", s.Name, strings.TrimSpace(oneLine(value)), from)
		failed = errors.Join(failed, err)
	}
	return errors.Join(failed, w.Flush())
}
