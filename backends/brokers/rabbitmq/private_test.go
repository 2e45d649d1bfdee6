package rabbitmq_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/internal/testenv"
)

// proxy stands before a server and can cut it off.
type proxy struct {
	t         testing.TB
	api, name string
	addr      string
}

func startProxy(t testing.TB, upstream string) *proxy {
	t.Helper()
	p := &proxy{t: t, api: "http://" + testenv.Server(t, testenv.Toxiproxy), name: name("rabbitmq")}
	p.addr = fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1))
	p.call(http.MethodPost, "/proxies", map[string]any{"name": p.name, "listen": p.addr, "upstream": upstream, "enabled": true})
	t.Cleanup(func() { p.call(http.MethodDelete, "/proxies/"+p.name, nil) })
	return p
}

func (p *proxy) url() string { return "amqp://guest:guest@" + p.addr + "/" }

// call asks the proxy server for something.
func (p *proxy) call(method, path string, body any) {
	p.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(p.t, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.api+path, bytes.NewReader(text))
	require.NoError(p.t, err)
	req.Close = true // leave no idle connection behind
	resp, err := http.DefaultClient.Do(req)
	require.NoError(p.t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	require.Less(p.t, resp.StatusCode, 300, "%s %s: %s", method, path, answer)
}

func (p *proxy) enable(on bool) {
	p.t.Helper()
	p.call(http.MethodPost, "/proxies/"+p.name, map[string]any{"enabled": on})
}

func (p *proxy) addToxic(kind, stream string, attributes map[string]any) {
	p.t.Helper()
	p.call(http.MethodPost, "/proxies/"+p.name+"/toxics", map[string]any{
		"name": kind + stream, "type": kind, "stream": stream, "attributes": attributes,
	})
}

func (p *proxy) removeToxic(kind, stream string) {
	p.t.Helper()
	p.call(http.MethodDelete, "/proxies/"+p.name+"/toxics/"+kind+stream, nil)
}

// withToxic spoils the connection, both ways, while do runs.
func (p *proxy) withToxic(kind string, attributes map[string]any, do func()) {
	p.t.Helper()
	for _, stream := range []string{"upstream", "downstream"} {
		p.addToxic(kind, stream, attributes)
	}
	do()
	for _, stream := range []string{"upstream", "downstream"} {
		p.removeToxic(kind, stream)
	}
}

// freePorts finds n free ports in a row and returns the first. They are below
// those that the system gives to clients, which would take them meanwhile.
func freePorts(t testing.TB, n int) int {
	t.Helper()
	for range 100 {
		first, open := 20000+rand.IntN(12000), []net.Listener{}
		for i := range n {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
			if err != nil {
				break
			}
			open = append(open, l)
		}
		for _, l := range open {
			require.NoError(t, l.Close())
		}
		if len(open) == n {
			return first
		}
	}
	t.Fatalf("no %d free ports side by side", n)
	return 0
}

// private is a RabbitMQ of the test's own, which it may kill.
type private struct {
	t    *testing.T
	port int
}

func startPrivate(t *testing.T) *private {
	t.Helper()
	server(t) // where there is no RabbitMQ, there is none to be started
	p := &private{t: t, port: freePorts(t, 5)}
	t.Cleanup(func() { p.script("wipe") })
	p.script("start")
	return p
}

func (p *private) addr() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }
func (p *private) url() string  { return "amqp://guest:guest@" + p.addr() + "/" }

// script runs the service script over this server.
func (p *private) script(args ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join("..", "..", "..", "scripts", "services", "rabbitmq.sh"), args...)
	cmd.Env = append(os.Environ(), "OUTMILL_RABBITMQ_PORT="+strconv.Itoa(p.port))
	out, err := cmd.CombinedOutput()
	require.NoError(p.t, err, "rabbitmq.sh %v: %s", args, out)
}

func (p *private) ctl(args ...string) {
	p.t.Helper()
	p.script(append([]string{"ctl"}, args...)...)
}

// signal sends a signal to the server that the script started.
func (p *private) signal(s syscall.Signal) {
	p.t.Helper()
	home := os.Getenv("OUTMILL_SERVICES_DIR")
	if home == "" {
		cache, err := os.UserCacheDir()
		require.NoError(p.t, err)
		home = filepath.Join(cache, "outmill-services")
	}
	text, err := os.ReadFile(filepath.Join(home, "run", fmt.Sprintf("rabbitmq-%d", p.port), "rabbitmq.pid"))
	require.NoError(p.t, err)
	pid, err := strconv.Atoi(strings.Fields(string(text))[0])
	require.NoError(p.t, err)
	require.NoError(p.t, syscall.Kill(pid, s))
}
