// Command tracing shows one trace from an HTTP request to a handler, through the
// outbox, with the time that the message waited there. Nothing to install.
//
//	go run ./examples/tracing
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/pubsub"
	"github.com/outmill/outmill/backends/stores/sqlite"
	"github.com/outmill/outmill/forwarder"
	"github.com/outmill/outmill/tracing"
)

const topic = "orders"

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Stdout, 300*time.Millisecond); err != nil {
		fmt.Fprintln(os.Stderr, "tracing:", err)
		os.Exit(1)
	}
}

// shop is a service that takes orders and one that ships them.
type shop struct {
	store   *sqlite.Store
	tel     *tracing.Telemetry
	tracer  trace.Tracer
	shipped chan struct{}
}

// run places an order, lets its message wait for so long, and draws the trace.
func run(ctx context.Context, out io.Writer, wait time.Duration) (err error) {
	dir, err := os.MkdirTemp("", "outmill-tracing-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "shop.db"), sqlite.Config{})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	if err := store.Migrate(ctx); err != nil {
		return err
	}

	// In place of the picture an exporter: otlptracehttp.New(ctx), say.
	picture := &picture{}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(picture))
	defer func() { err = errors.Join(err, provider.Shutdown(context.WithoutCancel(ctx))) }()

	tel, err := tracing.New(tracing.Config{Outbox: store, TracerProvider: provider})
	if err != nil {
		return err
	}
	defer func() { _ = tel.Close() }()
	s := &shop{store: store, tel: tel, tracer: provider.Tracer("shop"), shipped: make(chan struct{})}

	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	defer func() { _ = channel.Close() }()
	messages, err := channel.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	go s.ship(messages) // ends with the channel
	if err := s.order(ctx); err != nil {
		return err
	}
	pause(ctx, wait) // the forwarder comes later
	if err := s.forward(ctx, channel); err != nil {
		return err
	}
	return picture.draw(out)
}

// order sends a request to the service's own HTTP server.
func (s *shop) order(ctx context.Context) error {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(s.place), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }() // ends with Close
	defer func() { _ = server.Close() }()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listener.Addr().String()+"/orders", http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusCreated {
		return fmt.Errorf("the order was refused: %s", answer.Status)
	}
	return nil
}

// place is the business request. What traces HTTP is the service's own affair:
// otelhttp, say.
func (s *shop) place(w http.ResponseWriter, r *http.Request) {
	ctx, span := s.tracer.Start(r.Context(), "POST /orders", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	if err := s.insert(ctx); err != nil {
		http.Error(w, "the order could not be stored", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func (s *shop) insert(ctx context.Context) error {
	tx, err := s.store.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	msg := message.NewMessageWithContext(ctx, watermill.NewUUID(), []byte(`{"order": 42}`))
	backends.SetAggregate(msg, "order-42")
	if err := s.tel.Publisher(s.store.Publisher(tx)).Publish(topic, msg); err != nil {
		return err
	}
	return tx.Commit()
}

// forward runs a forwarder until the order has been shipped.
func (s *shop) forward(ctx context.Context, channel *gochannel.GoChannel) error {
	broker, err := pubsub.New(channel, pubsub.Config{})
	if err != nil {
		return err
	}
	fwd, err := forwarder.New(s.store, broker, forwarder.Config{Hooks: s.tel.Forwarder()})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- fwd.Run(ctx) }()
	select {
	case <-s.shipped:
	case <-ctx.Done():
	}
	stop()
	return <-done
}

// ship handles messages. Their creation context is in the metadata.
func (s *shop) ship(messages <-chan *message.Message) {
	for msg := range messages {
		ctx := propagation.TraceContext{}.Extract(msg.Context(), propagation.MapCarrier(msg.Metadata))
		_, span := s.tracer.Start(ctx, "process "+topic, trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(attribute.String("messaging.message.id", msg.UUID)))
		span.End()
		close(s.shipped)
		msg.Ack()
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
