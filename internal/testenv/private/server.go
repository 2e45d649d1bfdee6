// Package private starts servers of a test's own, reached through a proxy, so
// that they may be cut off, stopped and killed, and tells what a broker must hold then.
package private

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/internal/testenv"
)

// Server is a server of the test's own.
type Server struct {
	Addr  string // the server's
	Proxy string // the same through a proxy; empty without one

	t       testing.TB
	service string // such as nats
	port    int
	env     []string
	api     string // of the proxy server
	name    string
}

// Start starts a service by its script, with more arguments for the server. Its
// data go when the test ends.
func Start(t testing.TB, service string, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, service: service, port: FreePort(t), name: service + "-" + watermill.NewShortUUID()}
	s.Addr = fmt.Sprintf("127.0.0.1:%d", s.port)
	upper := "OUTMILL_" + strings.ToUpper(service)
	s.env = []string{upper + "_PORT=" + strconv.Itoa(s.port), upper + "_ARGS=" + strings.Join(args, " ")}
	s.Script("start")
	t.Cleanup(func() { s.Script("wipe") })
	return s
}

// StartProxied is Start with a proxy before the server.
func StartProxied(t testing.TB, service string, args ...string) *Server {
	t.Helper()
	api := "http://" + testenv.Server(t, testenv.Toxiproxy)
	s := Start(t, service, args...)
	s.api, s.Proxy = api, fmt.Sprintf("127.0.0.1:%d", FreePort(t))
	s.call(http.MethodPost, "/proxies", map[string]any{"name": s.name, "listen": s.Proxy, "upstream": s.Addr, "enabled": true})
	t.Cleanup(func() { s.call(http.MethodDelete, "/proxies/"+s.name, nil) })
	return s
}

// FreePort finds a port that nobody listens on.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().(*net.TCPAddr).Port
}

// Script runs the service's script over this server: start, stop, crash, wipe.
func (s *Server) Script(verb string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 3*time.Minute)
	defer cancel()
	_, here, _, _ := runtime.Caller(0)
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(here), "..", "..", "..", "scripts", "services", s.service+".sh"), verb)
	cmd.Env = append(os.Environ(), s.env...)
	out, err := cmd.CombinedOutput()
	require.NoError(s.t, err, "%s.sh %s: %s", s.service, verb, out)
}

// Signal sends a signal to the server.
func (s *Server) Signal(sig syscall.Signal) {
	s.t.Helper()
	home := os.Getenv("OUTMILL_SERVICES_DIR")
	if home == "" {
		cache, err := os.UserCacheDir()
		require.NoError(s.t, err)
		home = filepath.Join(cache, "outmill-services")
	}
	text, err := os.ReadFile(filepath.Join(home, "run", fmt.Sprintf("%s-%d", s.service, s.port), s.service+".pid"))
	require.NoError(s.t, err)
	pid, err := strconv.Atoi(strings.Fields(string(text))[0])
	require.NoError(s.t, err)
	require.NoError(s.t, syscall.Kill(pid, sig))
}

// Enable opens the proxy, or closes it with a reset of what passes it.
func (s *Server) Enable(on bool) {
	s.t.Helper()
	s.call(http.MethodPost, "/proxies/"+s.name, map[string]any{"enabled": on})
}

// WithToxic spoils what passes the proxy while do runs.
func (s *Server) WithToxic(kind, stream string, attributes map[string]any, do func()) {
	s.t.Helper()
	s.call(http.MethodPost, "/proxies/"+s.name+"/toxics", map[string]any{
		"name": "toxic", "type": kind, "stream": stream, "attributes": attributes,
	})
	do()
	s.call(http.MethodDelete, "/proxies/"+s.name+"/toxics/toxic", nil)
}

// call asks the proxy server for something.
func (s *Server) call(method, path string, body any) {
	s.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(s.t, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.api+path, bytes.NewReader(text))
	require.NoError(s.t, err)
	req.Close = true // leave no idle connection behind
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	require.Less(s.t, resp.StatusCode, 300, "%s %s: %s", method, path, answer)
}
