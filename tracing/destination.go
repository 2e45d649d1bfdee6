package tracing

import (
	"context"
	"log/slog"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// maxDestinations is how many topics have a name of their own in metrics where
// Config.Destination gives none.
const maxDestinations = 200

// destination is how a topic appears.
type destination struct {
	label attribute.KeyValue // in metrics
	name  string             // in span names

	plain   metric.MeasurementOption // outbox and label
	errored map[string]destinationOptions
	ok      destinationOptions
}

// destinationOptions are the attributes of a destination with one error type.
type destinationOptions struct {
	stored, sent, operation metric.MeasurementOption
}

// destinations remembers how topics appear.
type destinations struct {
	cfg     Config
	metrics *instruments

	mu     sync.RWMutex
	topics map[string]*destination
	named  map[attribute.KeyValue]*destination
	warned bool
}

func newDestinations(cfg Config, m *instruments) *destinations {
	return &destinations{cfg: cfg, metrics: m, topics: map[string]*destination{}, named: map[attribute.KeyValue]*destination{}}
}

// of returns how a topic appears.
func (d *destinations) of(topic string) *destination {
	d.mu.RLock()
	found := d.topics[topic]
	d.mu.RUnlock()
	if found != nil {
		return found
	}
	label := keyDestinationName.String(topic)
	if d.cfg.Destination != nil {
		if template := d.cfg.Destination(topic); template != "" {
			label = keyDestinationTemplate.String(template)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if found = d.named[label]; found == nil {
		if len(d.named) >= maxDestinations {
			label = keyDestinationName.String("_other")
			if !d.warned {
				d.warned = true
				d.cfg.Logger.Warn("more topics than metrics have names for: set Destination", slog.Int("limit", maxDestinations))
			}
		}
		if found = d.named[label]; found == nil {
			found = d.make(label)
			d.named[label] = found
		}
	}
	if len(d.topics) >= 10*maxDestinations {
		clear(d.topics) // names are made from ids: it is for speed only
	}
	d.topics[topic] = found
	return found
}

// make prepares the attributes of a destination. Counts of what must be seen at
// its first time begin at zero, or a rate would not show it.
func (d *destinations) make(label attribute.KeyValue) *destination {
	out := &destination{label: label, name: label.Value.AsString(), errored: map[string]destinationOptions{}}
	outbox := keyOutbox.String(d.cfg.Name)
	out.plain = metric.WithAttributeSet(attribute.NewSet(outbox, label))
	out.ok = d.options(label)
	ctx := context.Background()
	for _, reason := range reasons {
		d.metrics.deadLetters.Add(ctx, 0, metric.WithAttributes(outbox, label, keyReason.String(reason)))
	}
	return out
}

func (d *destinations) options(label attribute.KeyValue, more ...attribute.KeyValue) destinationOptions {
	with := func(a ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(a, more...)...))
	}
	system := keySystem.String(d.cfg.System)
	return destinationOptions{
		stored:    with(keyOutbox.String(d.cfg.Name), label),
		sent:      with(system, label, publishOperation[0]),
		operation: with(system, label, publishOperation[0], publishOperation[1]),
	}
}

// failed returns the attributes of a destination with an error type.
func (d *destinations) failed(dest *destination, errorType string) destinationOptions {
	if errorType == "" {
		return dest.ok
	}
	d.mu.RLock()
	o, found := dest.errored[errorType]
	d.mu.RUnlock()
	if found {
		return o
	}
	o = d.options(dest.label, keyErrorType.String(errorType))
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(dest.errored) < maxDestinations {
		dest.errored[errorType] = o
	}
	return o
}
