package rabbitmq_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/brokers/rabbitmq"
)

// Every fault is named at once, and no secret with them.
func TestNew_Faults(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  rabbitmq.Config
		want []string
	}{
		"nothing":       {rabbitmq.Config{}, []string{"URL is empty"}},
		"another kind":  {rabbitmq.Config{URL: "kafka://u:hunter2@h"}, []string{"URL is not valid"}},
		"a bad port":    {rabbitmq.Config{URL: "amqp://u:hunter2@h:port"}, []string{"URL is not valid"}},
		"TLS without s": {rabbitmq.Config{URL: "amqp://u:hunter2@h", TLS: &tls.Config{}}, []string{"TLS is set"}},
		"half a topology": {
			rabbitmq.Config{URL: "amqp://h", Topology: rabbitmq.Topology{Exchange: strings.ToUpper}},
			[]string{"Topology needs both"},
		},
		"declare what": {
			rabbitmq.Config{URL: "amqp://h", Declare: true, Topology: rabbitmq.Topology{Exchange: strings.ToUpper, RoutingKey: strings.ToUpper}},
			[]string{"Declare is set"},
		},
		"all at once": {
			rabbitmq.Config{URL: "http://u:hunter2@h", MaxMessageBytes: 1, Channels: 17, Name: strings.Repeat("n", 256), DialTimeout: -1, Heartbeat: 1},
			[]string{"URL", "MaxMessageBytes is 1", "Channels is 17", "Name has 256", "DialTimeout", "Heartbeat"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rabbitmq.New(c.cfg)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.Equal(t, len(c.want), strings.Count(err.Error(), "rabbitmq: "))
			require.NotContains(t, err.Error(), "hunter2")
			for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
				require.NotContains(t, fmt.Sprintf(verb, c.cfg), "hunter2")
			}
		})
	}
}

// A wrong password is unavailable, and not told.
func TestPublish_WrongPassword(t *testing.T) {
	h := open(t, server(t), rabbitmq.Config{URL: "amqp://guest:hunter2@" + address(t) + "/"})
	err := h.broker.Publish(t.Context(), numbered("t", 1))
	require.ErrorContains(t, err, "403")
	require.NotContains(t, err.Error(), "hunter2")
}

// TLS goes by Config.TLS, and a server of another name is refused.
func TestPublish_TLS(t *testing.T) {
	addr, roots := tlsFront(t, address(t))
	h := open(t, server(t), rabbitmq.Config{
		URL: "amqps://guest:guest@" + addr + "/", TLS: &tls.Config{RootCAs: roots, ServerName: "rabbitmq.test"},
	})
	topic := h.Topic()
	require.Empty(t, publish(t, h.broker, spread(numbered(topic, 2000), 100)))
	require.Len(t, h.read(topic, 2000), 2000)

	h = open(t, server(t), rabbitmq.Config{URL: "amqps://guest:guest@" + addr + "/", TLS: &tls.Config{RootCAs: roots, ServerName: "other.test"}})
	var mismatch x509.HostnameError
	require.ErrorAs(t, h.broker.Publish(t.Context(), numbered(topic, 1)), &mismatch)
}

// tlsFront takes TLS connections and passes them on in the clear.
func tlsFront(t *testing.T, upstream string) (addr string, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"rabbitmq.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots = x509.NewCertPool()
	roots.AddCert(parsed)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { passOn(tls.Server(c, server), upstream) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String(), roots
}

func passOn(c net.Conn, upstream string) {
	defer func() { _ = c.Close() }()
	up, err := net.DialTimeout("tcp", upstream, 5*time.Second) //nolint:noctx // the test server is there or not
	if err != nil {
		return
	}
	done := make(chan struct{})
	go func() { defer close(done); _, _ = io.Copy(up, c); _ = up.Close() }()
	_, _ = io.Copy(c, up)
	_ = c.Close()
	<-done
}
