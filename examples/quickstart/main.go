// Command quickstart shows Outmill at its main job, with nothing to install: an
// order service on SQLite, a forwarder, and a handler on Watermill's in-process
// Pub/Sub. Midway the forwarder dies between the broker's word and its own
// records, and another takes over. In the end the books are compared.
//
//	go run ./examples/quickstart
//
// The code to read is in internal/quickstart, since outmill demo runs it too.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/outmill/outmill/internal/quickstart"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := quickstart.Run(ctx, os.Stdout, quickstart.Story); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}
