package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/connect"
	"github.com/outmill/outmill/backends/stores/memory"
)

var update = flag.Bool("update", false, "write docs/configuration.md anew")

const docPath = "../../docs/configuration.md"

// The page is made of the same tables as the program. If this fails, run
// go generate ./cmd/outmill and look at what has changed.
func TestConfigurationDoc_IsFresh(t *testing.T) {
	var b bytes.Buffer
	writeDoc(t, &b)
	if *update {
		require.NoError(t, os.WriteFile(docPath, b.Bytes(), 0o644))
	}
	have, err := os.ReadFile(docPath)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "run go generate ./cmd/outmill")
}

// The file of the page, and the one of the deployment, have no mistakes.
func TestConfigurationDoc_ItsFileIsGood(t *testing.T) {
	_, text, ok := strings.Cut(docIntro, "```yaml\n")
	require.True(t, ok)
	text, _, _ = strings.Cut(text, "```")
	require.NoError(t, checked(sources{file: file(t, text)}))
	require.NoError(t, checked(sources{file: "deploy/outmill.yaml", environ: []string{"OUTMILL_STORE=sqlite:a.db", "OUTMILL_BROKER=stdout:"}}))
}

const docIntro = `<!-- Made by go generate ./cmd/outmill. Do not edit. -->
# Configuration

` + "`outmill`" + ` takes settings from a file, the environment and flags. Later ones win, in this order. A file is named by ` + "`--config`" + ` or ` + "`OUTMILL_CONFIG`" + `; none is
looked for. ` + "`outmill config check`" + ` finds every mistake at once without connecting to anything, ` + "`outmill config print`" + ` shows each setting and where it comes from, with secrets masked.

` + "```yaml" + `
store: postgres://app:secret@db:5432/shop?schema=outbox
broker: kafka://k1:9092,k2:9092?compression=zstd
log: {format: json}
forwarder:
  workers: 4
  allow: [orders, invoices]
` + "```" + `

Names that do not exist are errors, and so is a variable that is nearly one of these (` + "`OUTMILL_FORWARDER_BACH`" + `); other variables with this prefix are left alone, since clusters set some after the names of services.
A size is plain bytes or has a unit (64KiB, 16MiB), a duration has its unit (500ms, 15s). In a variable or flag a list has commas between its entries.

Keep passwords out of flags, which every user of the machine sees: use the file, a variable, or ` + "`store_file` and `broker_file`" + `, which name files that hold the URL alone (a mounted secret).
`

func writeDoc(t *testing.T, b *bytes.Buffer) {
	b.WriteString(docIntro)
	b.WriteString("\n## Settings\n\n| key | variable | flag | default | |\n|---|---|---|---|---|\n")
	for _, s := range all() {
		fmt.Fprintf(b, "| `%s` | `%s` | `--%s` | %s | %s |\n", s.Name, variableOf(s.Name), flagOf(s.Name), s.Default, meaning(s.Doc, s.Kind))
	}
	b.WriteString("\n## URLs\n\nEvery option of a store or broker is a parameter of its URL. In user names and passwords write `/` as `%2F`, `?` as `%3F`, `#` as `%23`, `@` as `%40` and `%` as `%25`. " +
		"In a program of your own, `connect.Store(ctx, url)` and `connect.Broker(ctx, url)` of the package `backends/connect` take the same URLs.\n")
	writeSchemes(b, "Stores", connect.Stores())
	writeSchemes(b, "Brokers", connect.Brokers())
	b.WriteString("\nA line of `stdout:` holds `message_id`, `topic`, `aggregate`, `sequence`, `created_at`, `metadata`, and `payload` (a JSON object or array as it is, other text as a string) or `payload_base64`.\n")
	writeCommands(b)
	writeOperation(t, b)
}

func meaning(doc, kind string) string {
	switch kind {
	case "text", "driver":
		return doc
	case "number", "size", "duration", "true/false", "list":
		return doc + " (" + kind + ")"
	}
	return doc + " One of: " + kind + "."
}

func writeSchemes(b *bytes.Buffer, title string, schemes []connect.Scheme) {
	fmt.Fprintf(b, "\n### %s\n", title)
	for _, s := range schemes {
		fmt.Fprintf(b, "\n#### %s\n\n`%s`\n\n%s\n", strings.Join(s.Names, ", "), s.Example, s.Doc)
		if len(s.Params) == 0 {
			continue
		}
		b.WriteString("\n| parameter | default | |\n|---|---|---|\n")
		for _, p := range s.Params {
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", p.Name, p.Default, meaning(p.Doc, p.Kind))
		}
	}
}

func writeCommands(b *bytes.Buffer) {
	b.WriteString("\n## Commands\n\n| | |\n|---|---|\n")
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.HasSubCommands() {
				each(sub)
			} else if sub.Name() != "help" && sub.Name() != "completion" {
				fmt.Fprintf(b, "| `%s` | %s |\n", strings.TrimSuffix(sub.UseLine(), " [flags]"), sub.Short)
			}
		}
	}
	each(newRoot())
	fmt.Fprintf(b, `
| exit code | |
|---|---|
| %d | done; of run: stopped by a signal, cleanly |
| %d | something could not be done; the last line on standard error says what |
| %d | wrong flags or configuration: trying again does not help |
| %d | the tables are missing or of another version: `+"`outmill migrate up`"+` |
| %d | of run: stopped, but not within forwarder.shutdown, or by a second signal. What was not settled is sent again |
`, exitOK, exitFailed, exitUsage, exitSchema, exitUnclean)
}

func writeOperation(t *testing.T, b *bytes.Buffer) {
	b.WriteString(`
## Probes and metrics

| path | |
|---|---|
| ` + "`/livez`" + ` | 503 when the forwarder has not tried a heartbeat for a minute and a lease: only a restart helps. A database or broker that cannot be reached is no reason |
| ` + "`/readyz`" + ` | 200 when the last good heartbeat is younger than the lease (it holds shards, or would if others did not hold them all) and store and broker answer within two seconds. 503 otherwise, and while stopping, with the reason |
| ` + "`/metrics`" + ` | Prometheus |

They have no authentication: the default address is loopback. Reasons name hosts and users, never passwords.

| metric | |
|---|---|
`)
	store, err := memory.New(memory.Config{})
	require.NoError(t, err)
	m := newMetrics("default", "kafka")
	m.registry.MustRegister(newBacklogCollector(store, "default", 0))
	m.sample()
	families, err := m.registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "out") || strings.HasPrefix(name, "mess") {
			fmt.Fprintf(b, "| `%s` | %s |\n", name, f.GetHelp())
		}
	}
	b.WriteString("\nThe collectors of Go and of the process come along (`go_…`, `process_…`). All but `outmill_build_info` have the label `outbox_name`. At most 500 topics get series of their own; the rest count as `_other`.\n")
}

// sample gives each metric a series.
func (m *metrics) sample() {
	m.delay.WithLabelValues("")
	m.sent.WithLabelValues("", "", "", "")
	m.operation.WithLabelValues("", "", "", "")
	m.retries.WithLabelValues("", "")
	m.deadLetters.WithLabelValues("", "")
	m.poll.WithLabelValues("")
}
