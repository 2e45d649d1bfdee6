package nats_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/nats"
	"github.com/outmill/outmill/internal/testenv/private"
)

// startCluster starts three servers of a cluster, by name.
func startCluster(t *testing.T) (byName map[string]*private.Server, urls []string) {
	var routes []string
	for range 3 {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", private.FreePort(t)))
	}
	byName = map[string]*private.Server{}
	for i, route := range routes {
		name := fmt.Sprint("n", i)
		s := private.Start(t, "nats", "-n", name, "--cluster_name", "c", "--cluster", route, "--routes", strings.Join(routes, ","))
		byName[name] = s
		urls = append(urls, "nats://"+s.Addr)
	}
	return byName, urls
}

// A stream of three replicas whose leader is killed, and then one whose leader
// stops in good order, with batches on their way: the others take over, nothing
// is refused for good, nothing is lost or out of order.
func TestFault_LeaderKilledAndStopped(t *testing.T) {
	server(t) // where there is no NATS, there is none to be started
	servers, urls := startCluster(t)
	h := open(t, strings.Join(urls, ","), nats.Config{Servers: urls, AckTimeout: time.Second})
	topic := "t-" + watermill.NewShortUUID()
	var stream jetstream.Stream
	require.Eventually(t, func() bool { // the cluster must have found itself
		var err error
		stream, err = h.js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: topic, Replicas: 3, Storage: jetstream.MemoryStorage})
		return err == nil
	}, time.Minute, 100*time.Millisecond)
	w := private.NewSender(t, h, topic)
	w.All(w.Batch(100))

	for round, end := range []func(*private.Server){
		func(s *private.Server) { s.Signal(syscall.SIGKILL) },
		func(s *private.Server) { s.Script("stop") },
	} {
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		leader := servers[info.Cluster.Leader]
		require.NotNil(t, leader, "leader %q", info.Cluster.Leader)
		ended := make(chan time.Time, 1)
		go func() {
			<-time.After(20 * time.Millisecond)
			end(leader)
			ended <- time.Now()
		}()
		var waiting []backends.Record
		for waiting == nil {
			waiting, _ = w.Try(w.Batch(200), 2*time.Second)
			if len(ended) > 0 && waiting == nil {
				waiting = w.Batch(200)
			}
		}
		since := <-ended
		w.All(waiting)
		require.Less(t, time.Since(since), 20*time.Second, "round %d", round)
		t.Logf("round %d: went on %v after the leader's end", round, time.Since(since))
		leader.Script("start")
		require.Eventually(t, func() bool { // no second loss before the first is made good
			info, err := stream.Info(t.Context())
			if err != nil || info.Cluster.Leader == "" {
				return false
			}
			for _, p := range info.Cluster.Replicas {
				if !p.Current || p.Offline {
					return false
				}
			}
			return len(info.Cluster.Replicas) == 2
		}, time.Minute, 100*time.Millisecond)
		w.All(w.Batch(200))
	}
	w.Check()
}
