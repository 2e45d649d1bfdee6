package lines_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokertest"
	"github.com/outmill/outmill/backends/connect/internal/lines"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// paper is a writer that can be made to hang and to fail.
type paper struct {
	mu     sync.Mutex
	b      bytes.Buffer
	frozen chan struct{} // closed by Thaw
	fail   error
	short  int // with fail: so much is written all the same
}

func (p *paper) Write(text []byte) (int, error) {
	p.mu.Lock()
	frozen := p.frozen
	p.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		p.b.Write(text[:p.short])
		return p.short, p.fail
	}
	return p.b.Write(text)
}

func (p *paper) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// harness is the broker over a paper, for the conformance suite.
type harness struct {
	*paper
	broker *lines.Broker
	topics int
}

func open(t testing.TB) brokertest.Harness {
	h := &harness{paper: &paper{}}
	h.broker = lines.New(h.paper)
	t.Cleanup(func() { require.NoError(t, h.broker.Close(context.WithoutCancel(t.Context()))) })
	return h
}

func (h *harness) Broker() backends.Broker { return h.broker }

func (h *harness) Topic() string {
	h.topics++
	return fmt.Sprintf("topic-%d", h.topics)
}

func (h *harness) Freeze() { h.mu.Lock(); h.frozen = make(chan struct{}); h.mu.Unlock() }
func (h *harness) Thaw()   { h.mu.Lock(); close(h.frozen); h.frozen = nil; h.mu.Unlock() }
func (h *harness) Down()   { h.mu.Lock(); h.fail = errors.New("the disk is full"); h.mu.Unlock() }
func (h *harness) Up()     { h.mu.Lock(); h.fail = nil; h.mu.Unlock() }

func (h *harness) Read(ctx context.Context, topic string, n int) ([]brokertest.Message, error) {
	for {
		var out []brokertest.Message
		scan := bufio.NewScanner(strings.NewReader(h.String()))
		scan.Buffer(nil, 64<<20)
		for scan.Scan() {
			var l lines.Line
			if err := json.Unmarshal(scan.Bytes(), &l); err != nil {
				return nil, err
			}
			if l.Topic == topic {
				out = append(out, message(l))
			}
		}
		if len(out) >= n {
			return out, scan.Err()
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d lines: %w", len(out), n, ctx.Err())
		}
	}
}

// message is a line as the record that it stands for.
func message(l lines.Line) brokertest.Message {
	payload := l.PayloadBase64
	var text string
	switch {
	case json.Unmarshal(l.Payload, &text) == nil:
		payload = []byte(text)
	case l.Payload != nil:
		payload = l.Payload
	}
	r := backends.Record{Topic: l.Topic, Aggregate: l.Aggregate, Sequence: l.Sequence, CreatedAt: l.CreatedAt, Metadata: l.Metadata}
	m := brokertest.Message{ID: l.MessageID, Payload: payload, Headers: map[string]string{}}
	for k, v := range r.Headers() {
		m.Headers[k] = v
	}
	return m
}

func TestBroker(t *testing.T) { brokertest.Run(t, open) }

func TestLines_APayloadOfAnyKind(t *testing.T) {
	for payload, want := range map[string]string{
		`{"a": [1, 2.50]}`: `"payload":{"a":[1,2.50]}`, `[]`: `"payload":[]`, `17`: `"payload":"17"`, `"x"`: `"payload":"\"x\""`,
		"two\nlines": `"payload":"two\nlines"`, "{broken": `"payload":"{broken"`, "\xff\x00": `"payload_base64":"/wA="`, "": `"payload":""`,
	} {
		p := &paper{}
		require.NoError(t, lines.New(p).Publish(t.Context(), []backends.Record{{MessageID: "m", Topic: "t", Payload: []byte(payload)}}))
		require.Equal(t, `{"message_id":"m","topic":"t","created_at":"0001-01-01T00:00:00Z",`+want+"}\n", p.String())
	}
}

// What was broken off in the middle of a line does not spoil the next one.
func TestLines_AfterAHalfWrittenLine(t *testing.T) {
	p := &paper{fail: errors.New("the disk is full"), short: 7}
	b, record := lines.New(p), []backends.Record{{MessageID: "m", Topic: "t"}}
	err := b.Publish(t.Context(), record)
	require.Equal(t, backends.UnavailableFailure, backends.ClassOf(err))
	p.mu.Lock()
	p.fail = nil
	p.mu.Unlock()
	require.NoError(t, b.Publish(t.Context(), record))
	half, whole, _ := strings.Cut(p.String(), "\n")
	require.Len(t, half, 7)
	require.True(t, json.Valid([]byte(whole)), whole)
}
