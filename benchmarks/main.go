// Command benchmarks measures Outmill and what it replaces, on the same rows and
// servers in one run, and prints the ratios.
//
//	make services
//	go run ./benchmarks -list
//	go run ./benchmarks -run 'drain|latency' -runs 3
//
// It reads OUTMILL_POSTGRES_URL and OUTMILL_KAFKA_BROKERS, works in schemas and
// topics of its own, and drops them. Absolute figures say more of the machine than
// of the program; ratios within a run are what to look at.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"time"
)

// scenario is one thing that is measured.
type scenario struct {
	name  string
	about string
	run   func(ctx context.Context, b *bench) error
}

var scenarios = []scenario{
	{"drain", "a backlog into Kafka, ordered: Outmill, into nothing, through pubsub; the incumbent at its defaults and tuned", drain},
	{"latency", "idle latency from commit to the broker's word, one message at a time", latency},
	{"deadrows", "draining after 300,000 settled rows, with an old snapshot or a write transaction held open", deadRows},
	{"append", "a transaction that publishes against one with a hand-written INSERT", appending},
	{"outage", "commit latency of business transactions while the broker refuses", outage},
	{"memory", "a forwarder's memory with a backlog of 1,000,000 records", memory},
	{"idle", "what an idle forwarder costs, client and server together", idle},
}

type options struct {
	runs, rows, incumbentRows, dead, backlog int
	messages, transactions                   int
	workers, batch                           int
	outage, idle                             time.Duration
}

func main() {
	if os.Getenv(childVariable) != "" {
		child()
		return
	}
	var o options
	pattern := flag.String("run", ".", "run the scenarios whose names match this regular expression")
	list := flag.Bool("list", false, "list the scenarios and stop")
	strict := flag.Bool("strict", false, "exit with 1 when a target is missed")
	file := flag.String("json", "", "write the figures to this file as JSON")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	flag.IntVar(&o.runs, "runs", 3, "counted runs of each measurement, after one that is not")
	flag.IntVar(&o.rows, "rows", 100_000, "records of a drain")
	flag.IntVar(&o.incumbentRows, "incumbent-rows", 10_000, "records of the incumbent's drain; 0: leave it out")
	flag.IntVar(&o.dead, "dead", 300_000, "settled rows of deadrows")
	flag.IntVar(&o.backlog, "backlog", 1_000_000, "records of memory")
	flag.IntVar(&o.messages, "messages", 300, "messages of latency")
	flag.IntVar(&o.transactions, "transactions", 300, "transactions of a block of append")
	flag.IntVar(&o.workers, "workers", 0, "forwarder workers of drain; 0: the default")
	flag.IntVar(&o.batch, "batch", 0, "forwarder batch of drain; 0: the default")
	flag.DurationVar(&o.outage, "outage", 2*time.Minute, "how long the broker refuses in outage")
	flag.DurationVar(&o.idle, "idle", time.Minute, "how long idle watches")
	flag.Parse()
	if *list {
		for _, s := range scenarios {
			fmt.Printf("%-9s %s\n", s.name, s.about)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	missed, err := measure(ctx, o, *pattern, *profile, *file)
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(2)
	}
	if missed > 0 && *strict {
		os.Exit(1)
	}
}

func measure(ctx context.Context, o options, pattern, profile, file string) (missed int, err error) {
	match, err := regexp.Compile(pattern)
	if err != nil {
		return 0, err
	}
	b, err := newBench(ctx, o, os.Stdout)
	if err != nil {
		return 0, err
	}
	defer b.close()
	if profile != "" {
		f, err := os.Create(profile) //nolint:gosec // the user names the file
		if err != nil {
			return 0, err
		}
		defer func() { _ = f.Close() }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return 0, err
		}
		defer pprof.StopCPUProfile()
	}
	b.report.Versions = b.versions(ctx)
	b.printf("%s\n", b.report.Versions)
	b.warnOfOthers(ctx)
	for _, s := range scenarios {
		if !match.MatchString(s.name) {
			continue
		}
		if err := b.measure(ctx, s); err != nil {
			return b.missed(), err
		}
	}
	b.printf("\n%d of %d targets met\n", len(b.report.Targets)-b.missed(), len(b.report.Targets))
	if file != "" {
		err = b.report.write(file)
	}
	return b.missed(), err
}

// measure runs one scenario.
func (b *bench) measure(ctx context.Context, s scenario) error {
	b.scenario = s.name
	b.printf("\n## %s: %s\n\n", s.name, s.about)
	began := time.Now()
	if err := s.run(ctx, b); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	b.printf("(%v)\n", time.Since(began).Round(time.Second))
	return nil
}
