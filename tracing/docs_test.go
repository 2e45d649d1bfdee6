package tracing_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/outmill/outmill/tracing"
)

const docs = "../docs/observability/"

// foreign series come from others' exporters, with their labels.
var foreign = map[string][]string{
	"kafka_consumergroup_lag":       {"consumergroup", "topic"},
	"rabbitmq_queue_messages_ready": {"queue"},
}

// emitted lists the series of a day, as Prometheus names them, with their labels.
func emitted(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo())
	require.NoError(t, err)
	inWorld(t, func(w *world) {
		day(w)
		families, err := registry.Gather()
		require.NoError(w, err)
		for _, f := range families {
			labels := map[string]bool{"job": true, "instance": true, "otel_metric_overflow": true}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = true
				}
			}
			out[f.GetName()] = labels
			if f.GetType().String() == "HISTOGRAM" {
				bucket := map[string]bool{"le": true}
				for l := range labels {
					bucket[l] = true
				}
				out[f.GetName()+"_bucket"], out[f.GetName()+"_count"], out[f.GetName()+"_sum"] = bucket, labels, labels
			}
		}
	}, measured, func(c *tracing.Config) { c.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)) })
	for name, labels := range foreign {
		out[name] = map[string]bool{}
		for _, l := range labels {
			out[name][l] = true
		}
	}
	return out
}

var (
	series    = regexp.MustCompile(`\b((?:outbox|inbox|messaging|kafka|rabbitmq)_[a-z_]+)(\{[^}]*\})?`)
	selectors = regexp.MustCompile(`([a-z_]+)(?:=~|!=|=|!~)"`)
	grouping  = regexp.MustCompile(`\bby \(([^)]*)\)`)
	anyName   = regexp.MustCompile(`\{__name__[^}]*\}`)
)

// unknown lists what an expression names that does not exist.
func unknown(expr string, known map[string]map[string]bool) (out []string) {
	labels := map[string]bool{}
	rest := grouping.ReplaceAllString(anyName.ReplaceAllString(expr, ""), "")
	for _, m := range series.FindAllStringSubmatch(rest, -1) {
		if strings.HasPrefix(m[0], m[1]+"{") || !isLabel(m[1], known) {
			if known[m[1]] == nil {
				out = append(out, m[1])
				continue
			}
		}
		for l := range known[m[1]] {
			labels[l] = true
		}
		for _, s := range selectors.FindAllStringSubmatch(m[2], -1) {
			if !known[m[1]][s[1]] {
				out = append(out, m[1]+"{"+s[1]+"}")
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, l := range strings.Split(m[1], ",") {
			if l = strings.TrimSpace(l); l != "" && !labels[l] && len(labels) > 0 {
				out = append(out, "by "+l)
			}
		}
	}
	return out
}

// isLabel reports whether a word is a label, which selectors hold too.
func isLabel(word string, known map[string]map[string]bool) bool {
	for _, labels := range known {
		if labels[word] {
			return true
		}
	}
	return false
}

// No panel and no rule names a series or a label that the code does not emit, and
// all that it emits is on a panel.
func TestDocs_NameWhatIsEmitted(t *testing.T) {
	known := emitted(t)
	require.NotEmpty(t, unknown(`rate(outbox_invented_total[5m])`, known), "the check sees what is not there")
	require.NotEmpty(t, unknown(`outbox_backlog_count{outbox_invented="a"}`, known))
	require.NotEmpty(t, unknown(`max by (outbox_invented) (outbox_backlog_count)`, known))

	raw, err := os.ReadFile(docs + "dashboard.json")
	require.NoError(t, err)
	var dashboard any
	require.NoError(t, json.Unmarshal(raw, &dashboard))
	exprs := expressions(dashboard)
	require.Greater(t, len(exprs), 30)
	for _, e := range exprs {
		require.Empty(t, unknown(e, known), e)
	}
	all := strings.Join(exprs, "\n")
	for name := range known {
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		if name != "target_info" {
			require.True(t, strings.Contains(all, name) || strings.Contains(all, base), "%s is on no panel", name)
		}
	}

	rules, err := os.ReadFile(docs + "rules.yml")
	require.NoError(t, err)
	readme, err := os.ReadFile(docs + "README.md")
	require.NoError(t, err)
	alerts := 0
	for _, rule := range strings.Split(string(rules), "- alert: ")[1:] {
		alerts++
		name, body, _ := strings.Cut(rule, "\n")
		expr, _, _ := strings.Cut(body, "labels:")
		require.Empty(t, unknown(expr, known), name)
		require.Contains(t, string(readme), "### "+name+"\n", "no runbook line")
	}
	require.GreaterOrEqual(t, alerts, 14)
}

// expressions collects every "expr" of a document.
func expressions(v any) (out []string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if e, ok := x.(string); ok && k == "expr" {
				out = append(out, e)
				continue
			}
			out = append(out, expressions(x)...)
		}
	case []any:
		for _, x := range v {
			out = append(out, expressions(x)...)
		}
	}
	return out
}

// Each alert fires when it should and stops.
func TestDocs_AlertsFireAndResolve(t *testing.T) {
	rules, err := os.ReadFile(docs + "rules.yml")
	require.NoError(t, err)
	tests, err := os.ReadFile(docs + "rules_test.yml")
	require.NoError(t, err)
	for _, rule := range strings.Split(string(rules), "- alert: ")[1:] {
		name, _, _ := strings.Cut(rule, "\n")
		var fires, quiet bool
		for _, c := range strings.Split(string(tests), "alertname: "+name+"\n")[1:] {
			c = strings.TrimSpace(c)
			quiet = quiet || strings.HasPrefix(c, "exp_alerts: []")
			fires = fires || strings.HasPrefix(c, "exp_alerts:\n")
		}
		require.True(t, fires && quiet, "%s has no test for firing and for being over", name)
	}
	promtool := promtool(t)
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = docs
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}
