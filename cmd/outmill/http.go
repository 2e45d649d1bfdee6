package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// checkHTTP wants an address that can be listened on.
func (c config) checkHTTP() error {
	if c.HTTP == httpOff {
		return nil
	}
	_, port, err := net.SplitHostPort(c.HTTP)
	if err != nil {
		return fmt.Errorf("http is %q: write host:port, :port for all addresses, or off", c.HTTP)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("http has the port %q: a number from 0 to 65535 is needed", port)
	}
	return nil
}

// serve answers on an address until stop is called. A failure while it serves is
// logged: the forwarder goes on.
func serve(ctx context.Context, address string, h *health, m *metrics, log *slog.Logger) (stop func(), err error) {
	if address == httpOff {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("http: cannot listen on %s: %w", address, errors.Unwrap(err))
	}
	log.Info("serving /livez, /readyz and /metrics", "address", listener.Addr().String())
	server := &http.Server{Handler: routes(h, m), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
	done := make(chan struct{})
	go func() { // ends with the server
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("probes and metrics are no longer served", "error", err)
		}
	}()
	return func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if server.Shutdown(limit) != nil {
			_ = server.Close() // requests that hang are cut off
		}
		<-done
	}, nil
}

func routes(h *health, m *metrics) http.Handler {
	mux := http.NewServeMux()
	probe := func(path string, ask func(context.Context) error) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			if err := ask(r.Context()); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = fmt.Fprintln(w, err) // who asked may be gone
				return
			}
			_, _ = fmt.Fprintln(w, "ok")
		})
	}
	probe("/livez", func(context.Context) error { return h.live() })
	probe("/readyz", h.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Timeout: 2 * backlogLimit}))
	return mux
}
