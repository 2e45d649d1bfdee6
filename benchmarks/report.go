package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// report is what a run came to, as -json writes it.
type report struct {
	Versions string    `json:"versions"`
	Samples  []sample  `json:"samples"`
	Targets  []verdict `json:"targets"`
}

// sample is the values of one measurement.
type sample struct {
	Scenario string    `json:"scenario"`
	Name     string    `json:"name"`
	Unit     string    `json:"unit"`
	Values   []float64 `json:"values"`
}

func (s sample) median() float64 { return quantile(s.Values, 0.5) }

// verdict is a figure against its target.
type verdict struct {
	Scenario string  `json:"scenario"`
	Name     string  `json:"name"`
	Got      float64 `json:"got"`
	Sign     string  `json:"sign"`
	Want     float64 `json:"want"`
	Unit     string  `json:"unit"`
	Pass     bool    `json:"pass"`
}

func (b *bench) missed() (n int) {
	for _, v := range b.report.Targets {
		if !v.Pass {
			n++
		}
	}
	return n
}

// write puts the report into a file.
func (r report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return v[min(len(v)-1, int(q*float64(len(v))))]
}

const row = "%-62s %12s %-5s %s\n"

func (b *bench) printf(format string, args ...any) { _, _ = fmt.Fprintf(b.out, format, args...) }

// show prints the median of a few runs with the least and greatest.
func (b *bench) show(s sample) {
	b.keep(s)
	b.printf(row, s.Name, number(s.median()), s.Unit,
		"("+number(slices.Min(s.Values))+"–"+number(slices.Max(s.Values))+")")
}

// showDelays prints quantiles of many values, in milliseconds.
func (b *bench) showDelays(name string, delays []float64) {
	b.keep(sample{Name: name, Unit: "ms", Values: delays})
	b.printf(row, name, number(quantile(delays, 0.5)), "ms",
		fmt.Sprintf("p99 %s, greatest %s, of %d", number(quantile(delays, 0.99)), number(quantile(delays, 1)), len(delays)))
}

// note prints a figure that no target is set for.
func (b *bench) note(name string, value float64, unit, rest string) {
	b.keep(sample{Name: name, Unit: unit, Values: []float64{value}})
	b.printf(row, name, number(value), unit, rest)
}

func (b *bench) keep(s sample) {
	s.Scenario = b.scenario
	b.report.Samples = append(b.report.Samples, s)
}

func number(f float64) string {
	switch {
	case f >= 1000:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// measurement is something to be measured.
type measurement struct {
	name  string
	once  func(context.Context) (float64, error)
	notes func() // more to print about it; nil: nothing
}

// warmUps are runs that are not counted: a server has to fill its caches and to
// compile its code.
const warmUps = 2

// inTurn measures as often as asked, one after the other and again from the
// first, so that all meet the same machine.
func (b *bench) inTurn(ctx context.Context, unit string, all ...measurement) ([]sample, error) {
	out := make([]sample, len(all))
	for run := range warmUps + b.runs {
		for i, m := range all {
			v, err := m.once(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.name, err)
			}
			if run >= warmUps {
				out[i].Values = append(out[i].Values, v)
			}
		}
	}
	for i, m := range all {
		out[i].Name, out[i].Unit = m.name, unit
		b.show(out[i])
		if m.notes != nil {
			m.notes()
		}
	}
	return out, nil
}

// atLeast and atMost judge a figure against its target.
func (b *bench) atLeast(name string, got, want float64, unit string) {
	b.judge(verdict{Name: name, Got: got, Want: want, Unit: unit, Sign: "≥", Pass: got >= want})
}

func (b *bench) atMost(name string, got, want float64, unit string) {
	b.judge(verdict{Name: name, Got: got, Want: want, Unit: unit, Sign: "≤", Pass: got <= want})
}

func (b *bench) judge(v verdict) {
	v.Scenario = b.scenario
	b.report.Targets = append(b.report.Targets, v)
	b.printf(row, "  "+v.Name, number(v.Got), v.Unit, fmt.Sprintf("target %s %s: %s", v.Sign, number(v.Want), v.word()))
}

func (v verdict) word() string {
	if v.Pass {
		return "PASS"
	}
	return "FAIL"
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// warnOfOthers tells of transactions that distort what is measured: the
// incumbent stands still while any write transaction of the server is open.
func (b *bench) warnOfOthers(ctx context.Context) {
	var n int
	err := b.pool.QueryRow(ctx, `select count(*) from pg_stat_activity
where (backend_xid is not null or backend_xmin is not null) and pid <> pg_backend_pid() and backend_type = 'client backend'`).Scan(&n)
	if err == nil && n > 0 {
		b.printf("WARNING: %d sessions of others have transactions open on this server: figures are not to be trusted\n", n)
	}
}

// versions says what is measured with what.
func (b *bench) versions(ctx context.Context) string {
	var pg, fsync, commit string
	_ = b.pool.QueryRow(ctx, "select current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')").
		Scan(&pg, &fsync, &commit)
	kafka := "of an unknown version"
	if all, err := b.admin.ApiVersions(ctx); err == nil {
		for _, v := range all {
			kafka = v.VersionGuess()
		}
	}
	libraries := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			libraries[d.Path] = d.Version
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "Postgres %s (fsync %s, synchronous_commit %s), Kafka %s, %s on %d cores\n",
		pg, fsync, commit, kafka, runtime.Version(), runtime.NumCPU())
	for i, path := range []string{
		"github.com/jackc/pgx/v5", "github.com/twmb/franz-go", "github.com/ThreeDotsLabs/watermill",
		"github.com/ThreeDotsLabs/watermill-sql/v3", "github.com/ThreeDotsLabs/watermill-kafka/v3", "github.com/IBM/sarama",
	} {
		if i > 0 {
			out.WriteString(", ")
		}
		fmt.Fprintf(&out, "%s %s", strings.TrimPrefix(path, "github.com/"), libraries[path])
	}
	fmt.Fprintf(&out, "\nmedian (least–greatest) of %d runs in turn, after %d that are not counted", b.runs, warmUps)
	return out.String()
}
