package rabbitmq_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/brokers/rabbitmq"
)

// One confirmation never comes: that record is unknown when the time is up, the
// others are not repeated.
func TestPublish_OneConfirmationOfManyNeverComes(t *testing.T) {
	const withheld = 37
	addr := forgetful(t, address(t), withheld)
	h := open(t, server(t), rabbitmq.Config{URL: "amqp://guest:guest@" + addr + "/", Channels: 1})
	topic := h.Topic()
	records := spread(numbered(topic, 100), 100)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := h.broker.Publish(ctx, records)
	require.Equal(t, map[int]string{withheld - 1: "unknown unavailable"}, states(t, err))

	// It was there. Sent again, it is there twice, under one id.
	require.Empty(t, publish(t, h.broker, records[withheld-1:withheld]))
	require.Len(t, h.read(topic, 101), 101)
}

// forgetful passes connections on and withholds the confirmation of one delivery
// tag. It takes confirmations of several messages apart.
func forgetful(t *testing.T, upstream string, withheld uint64) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				up, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", upstream)
				if err != nil {
					return
				}
				done := make(chan struct{})
				go func() { defer close(done); _, _ = io.Copy(up, c); _ = up.Close() }()
				withhold(c, up, withheld)
				_ = c.Close()
				<-done
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// withhold copies frames until one end is closed.
func withhold(to io.Writer, from io.Reader, withheld uint64) {
	acked := map[uint64]bool{withheld: true}
	for {
		head := make([]byte, 7)
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		frame := append(head, body...)
		out := frame
		if head[0] == 1 && binary.BigEndian.Uint32(body) == 60<<16|80 { // basic.ack
			tag, multiple := binary.BigEndian.Uint64(body[4:]), body[12]&1 == 1
			first := tag
			if multiple {
				first = 1
			}
			out = nil
			for n := first; n <= tag; n++ {
				if !acked[n] {
					acked[n] = true
					one := append([]byte(nil), frame...)
					binary.BigEndian.PutUint64(one[11:], n)
					one[19] = 0
					out = append(out, one...)
				}
			}
		}
		if _, err := to.Write(out); err != nil {
			return
		}
	}
}
