package rabbitmq

import (
	"net"
	"sync"
)

// wireBuffer is how much is gathered before it is written.
const wireBuffer = 64 << 10

// wire is a connection that gathers what is written while it is held, since the
// client flushes after each message. Closing it ends a write that hangs, which
// nothing else does.
type wire struct {
	net.Conn

	mu   sync.Mutex
	held int
	buf  []byte
}

// Write implements net.Conn.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held > 0 && len(w.buf)+len(p) <= wireBuffer {
		w.buf = append(w.buf, p...)
		return len(p), nil
	}
	if err := w.flush(); err != nil {
		return 0, err
	}
	if w.held > 0 && len(p) <= wireBuffer/2 {
		w.buf = append(w.buf, p...)
		return len(p), nil
	}
	return w.Conn.Write(p)
}

// hold gathers until as many calls of release.
func (w *wire) hold() {
	w.mu.Lock()
	w.held++
	w.mu.Unlock()
}

// release writes what was gathered. If that fails, the connection is of no use
// and is closed: what the client took for written was not.
func (w *wire) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held--
	if w.flush() != nil {
		w.kill()
	}
}

func (w *wire) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.Conn.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}

// kill closes the socket at once. Safe at any time, any number of times.
func (w *wire) kill() { _ = w.Close() }
