// Package inboxtest runs consumers as processes, over real Watermill subscribers,
// and treats them badly.
package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/consumer"
	"github.com/outmill/outmill/internal/testenv"
	"github.com/outmill/outmill/middleware"
)

// childVariable makes the test program a consumer; its value is the name of the
// schema, the topic and the consumer group.
const childVariable = "OUTMILL_INBOXTEST_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := child(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	store, err := postgres.Open(ctx, os.Getenv(testenv.PostgresURL), postgres.Config{Schema: name})
	if err != nil {
		return err
	}
	defer store.Close()
	inbox, err := consumer.New(store, consumer.Config{Name: "billing", MaxAttempts: -1, SweepInterval: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	sub, err := kafkaSubscriber(name)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bill", name, sub, bill(name)).AddMiddleware(middleware.Inbox(inbox))
	swept := make(chan error, 1)
	go func() { swept <- inbox.Run(ctx) }()
	err = router.Run(ctx)
	stop()
	return errors.Join(err, <-swept)
}

func kafkaSubscriber(group string) (message.Subscriber, error) {
	cfg := wkafka.DefaultSaramaSubscriberConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	cfg.Consumer.Group.Session.Timeout = 6 * time.Second
	cfg.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	return wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: brokers(), Unmarshaler: wkafka.DefaultMarshaler{}, ConsumerGroup: group, OverwriteSaramaConfig: cfg,
	}, watermill.NopLogger{})
}

func brokers() []string { return strings.Split(os.Getenv(testenv.KafkaBrokers), ",") }

// bill notes what it handled in the inbox's transaction, and then fails, panics or
// is slow now and then.
func bill(schema string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		tx, ok := postgres.TxFromContext(msg.Context())
		if !ok {
			return errors.New("no transaction")
		}
		sequence, _ := backends.Sequence(msg)
		_, err := tx.Exec(msg.Context(), `insert into `+schema+`.effects (aggregate, sequence) values ($1, $2)`, backends.Aggregate(msg), sequence)
		if err != nil {
			return err
		}
		switch n := rand.IntN(1000); {
		case n < 10:
			return errors.New("random failure")
		case n < 15:
			panic("random panic")
		case n < 25:
			select {
			case <-time.After(50 * time.Millisecond):
			case <-msg.Context().Done():
				return msg.Context().Err()
			}
		}
		return nil
	}
}

// process is a child. Only what was started here is signalled.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	log *strings.Builder
}

func start(t *testing.T, name string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.CommandContext(context.WithoutCancel(t.Context()), self), log: &strings.Builder{}}
	p.cmd.Env = append(os.Environ(), childVariable+"="+name)
	p.cmd.Stderr = p.log
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("consumer %d said:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

// kill ends a child as a power cut would.
func (p *process) kill() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGKILL))
	_ = p.cmd.Wait() // says that it was killed
}

// stop asks a child to stop and wants a clean exit.
func (p *process) stop() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(p.t, p.cmd.Wait(), "a consumer told to stop did not exit with 0")
}
