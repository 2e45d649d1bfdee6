package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/outmill/outmill/internal/quickstart"
)

func demoCommand() *cobra.Command {
	story := quickstart.Story
	c := &cobra.Command{
		Use: "demo", Short: "Show it at work: orders on SQLite, a forwarder killed midway, and books that must agree",
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(c.Context())
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return quickstart.Run(ctx, c.OutOrStdout(), story)
		},
	}
	c.Flags().IntVar(&story.Orders, "orders", story.Orders, "how many are placed")
	c.PreRunE = func(*cobra.Command, []string) error { return positive("orders", story.Orders) }
	return c
}
