// Package lines is a broker that writes each record as a line of JSON.
package lines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/outmill/outmill/backends"
)

// Broker writes lines. A record is accepted once the writer has taken its line.
// It is safe for concurrent use.
type Broker struct {
	out  io.Writer
	turn chan struct{} // holds a token while nobody writes

	mu     sync.Mutex
	closed bool
	broken bool // the last write ended within a line
}

// New makes a broker of a writer, which stays the caller's to close.
func New(out io.Writer) *Broker {
	b := &Broker{out: out, turn: make(chan struct{}, 1)}
	b.turn <- struct{}{}
	return b
}

// Publish implements [backends.Broker]. The batch is written at once. When ctx
// ends before the writer has taken it, its outcome is unknown, and later batches
// wait until that write returns.
func (b *Broker) Publish(ctx context.Context, records []backends.Record) error {
	if len(records) == 0 {
		return nil
	}
	text, err := encode(records)
	if err != nil {
		return err
	}
	select {
	case <-b.turn:
	case <-ctx.Done():
		return b.notSent(len(records), fmt.Errorf("an earlier write has not returned: %w", context.Cause(ctx)))
	}
	b.mu.Lock()
	closed, broken := b.closed, b.broken
	b.mu.Unlock()
	if err := ctx.Err(); closed || err != nil {
		b.turn <- struct{}{}
		if closed {
			err = backends.ErrClosed
		}
		return b.notSent(len(records), err)
	}
	if broken {
		text = append([]byte("\n"), text...)
	}
	written := make(chan error, 1)
	go func() { // ends with the write
		n, err := b.out.Write(text)
		b.mu.Lock()
		b.broken = n > 0 && text[n-1] != '\n' || n == 0 && broken
		b.mu.Unlock()
		b.turn <- struct{}{}
		written <- err
	}()
	select {
	case err = <-written:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return backends.Unavailable(fmt.Errorf("stdout: write: %w", err))
	}
	return nil
}

func (b *Broker) notSent(n int, err error) error {
	e := &backends.PartialError{Failures: make([]backends.Failure, n)}
	for i := range e.Failures {
		e.Failures[i] = backends.Failure{Index: i, State: backends.NotSent, Err: backends.Unavailable(fmt.Errorf("stdout: %w", err))}
	}
	return e
}

// Close implements [backends.Broker]. It waits for a write that is under way.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	select {
	case <-b.turn:
		b.turn <- struct{}{}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stdout: a write has not returned: %w", context.Cause(ctx))
	}
}

// Line is what is written of a record.
type Line struct {
	MessageID string            `json:"message_id"`
	Topic     string            `json:"topic"`
	Aggregate string            `json:"aggregate,omitempty"`
	Sequence  int64             `json:"sequence,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	// Payload is the payload itself where that is a JSON object or array, else a
	// string. What is no UTF-8 stands in PayloadBase64.
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 []byte          `json:"payload_base64,omitempty"`
}

func encode(records []backends.Record) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i := range records {
		r := &records[i]
		line := Line{
			MessageID: r.MessageID, Topic: r.Topic, Aggregate: r.Aggregate, Sequence: r.Sequence,
			CreatedAt: r.CreatedAt.UTC(), Metadata: r.Metadata,
		}
		switch {
		case isDocument(r.Payload):
			line.Payload = r.Payload
		case utf8.Valid(r.Payload):
			text, err := json.Marshal(string(r.Payload))
			if err != nil {
				return nil, errors.New("stdout: a payload cannot be written as a string")
			}
			line.Payload = text
		default:
			line.PayloadBase64 = r.Payload
		}
		if err := enc.Encode(line); err != nil {
			return nil, errors.New("stdout: a record cannot be written as JSON")
		}
	}
	return b.Bytes(), nil
}

func isDocument(payload []byte) bool {
	trimmed := bytes.TrimSpace(payload)
	return len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') && utf8.Valid(payload) && json.Valid(payload)
}
