package tracing_test

import (
	"testing"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/internal/testenv"
)

func TestMain(m *testing.M) {
	// watermill-kafka's metrics library runs a meter for as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

func kafkaServer(t *testing.T) string {
	t.Helper()
	return testenv.Server(t, testenv.KafkaBrokers)
}

func fromTheStart() *sarama.Config {
	cfg := wkafka.DefaultSaramaSubscriberConfig()
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	return cfg
}

// promtool finds the tool, which is a part of Prometheus.
func promtool(t *testing.T) string {
	t.Helper()
	return testenv.Server(t, testenv.Promtool)
}
