package tracing

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/outmill/outmill/backends"
)

// Publisher makes a publisher of an outbox write the creation context into each
// message's metadata before it is stored, and count what is stored. A message
// that carries a context already keeps it and gets no span. If storing fails,
// what was written is taken off again.
//
// The context is that of the span in the message's own context
// ([message.Message.SetContext], [message.NewMessageWithContext], or what a
// cqrs.EventBus was given). A transaction that is rolled back later leaves a
// span without a message.
func (t *Telemetry) Publisher(next message.Publisher) message.Publisher {
	return t.PublisherIn(context.Background(), next)
}

// PublisherIn is [Telemetry.Publisher] for messages whose own context carries no
// span: ctx is what they are published in.
func (t *Telemetry) PublisherIn(ctx context.Context, next message.Publisher) message.Publisher {
	return publisher{tel: t, ctx: ctx, next: next}
}

type publisher struct {
	tel  *Telemetry
	ctx  context.Context
	next message.Publisher
}

// Close implements message.Publisher.
func (p publisher) Close() error {
	if p.next == nil {
		return nil
	}
	return p.next.Close()
}

// Publish implements message.Publisher.
func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	if p.next == nil {
		return errNilPublisher
	}
	if len(msgs) == 0 {
		return p.next.Publish(topic)
	}
	t := p.tel
	dest := t.names.of(topic)
	made := make([]created, 0, len(msgs))
	for _, msg := range msgs {
		if msg != nil { // the publisher names it
			made = append(made, t.create(p.ctx, dest, topic, msg))
		}
	}
	if len(msgs) == 1 && len(made) == 1 && made[0].span != nil {
		// The database's own span belongs below the message's.
		before := msgs[0].Context()
		msgs[0].SetContext(made[0].ctx)
		defer msgs[0].SetContext(before)
	}
	start := time.Now()
	err := p.next.Publish(topic, msgs...)
	took := time.Since(start)

	name := t.errorType(err)
	for _, c := range made {
		c.end(err, name)
	}
	ctx := p.ctx
	if len(made) > 0 {
		ctx = made[0].ctx
	}
	t.metrics.stored.Add(ctx, int64(len(msgs)), t.names.failed(dest, name).stored)
	t.metrics.storeDuration.Record(ctx, seconds(took), t.outboxOnly(name))
	return err
}

// created is a message that is being stored.
type created struct {
	ctx  context.Context
	span trace.Span // nil: none was made
	undo func()
}

func (c created) end(err error, errorType string) {
	if err != nil && c.undo != nil {
		c.undo()
	}
	if c.span == nil {
		return
	}
	if err != nil {
		c.span.SetStatus(codes.Error, "")
		c.span.SetAttributes(keyErrorType.String(errorType))
	}
	c.span.End()
}

// create gives a message its creation context.
func (t *Telemetry) create(ambient context.Context, dest *destination, topic string, msg *message.Message) created {
	t.carry.settle(msg.Metadata)
	ctx := msg.Context()
	if !trace.SpanContextFromContext(ctx).IsValid() {
		if outer := trace.SpanFromContext(ambient); outer.SpanContext().IsValid() {
			ctx = trace.ContextWithSpan(ctx, outer)
		}
		if bag := baggage.FromContext(ambient); bag.Len() > 0 && baggage.FromContext(ctx).Len() == 0 {
			ctx = baggage.ContextWithBaggage(ctx, bag)
		}
	}
	if t.carry.creation(msg.Metadata).IsValid() {
		return created{ctx: ctx}
	}
	if t.cfg.NoCreateSpans {
		return created{ctx: ctx, undo: t.carry.inject(ctx, msg)}
	}
	ctx, span := t.tracer.Start(ctx, "create "+dest.name,
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(t.createAttributes(dest, topic, msg)...))
	if !span.SpanContext().IsValid() { // there is no tracer
		return created{ctx: ctx}
	}
	return created{ctx: ctx, span: span, undo: t.carry.inject(ctx, msg)}
}

func (t *Telemetry) createAttributes(dest *destination, topic string, msg *message.Message) []attribute.KeyValue {
	attrs := t.messageAttributes(make([]attribute.KeyValue, 0, 12), createOperation, dest, topic)
	attrs = append(attrs, keyMessageID.String(msg.UUID))
	if id := msg.Metadata[correlationKey]; id != "" {
		attrs = append(attrs, keyConversationID.String(id))
	}
	if n, ok := backends.Sequence(msg); ok {
		attrs = append(attrs, keySequence.Int64(n))
	}
	return t.withAggregate(attrs, backends.Aggregate(msg))
}

// messageAttributes are what spans of messages have in common.
func (t *Telemetry) messageAttributes(attrs, operation []attribute.KeyValue, dest *destination, topic string) []attribute.KeyValue {
	attrs = append(attrs, keySystem.String(t.cfg.System), t.outbox(), keyDestinationName.String(topic))
	attrs = append(attrs, operation...)
	if dest.label.Key == keyDestinationTemplate {
		attrs = append(attrs, dest.label)
	}
	return attrs
}

func (t *Telemetry) withAggregate(attrs []attribute.KeyValue, aggregate string) []attribute.KeyValue {
	if t.cfg.Aggregates && aggregate != "" {
		attrs = append(attrs, keyKafkaKey.String(aggregate))
	}
	return attrs
}
