package connect

import (
	"errors"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/rabbitmq"
	"github.com/outmill/outmill/internal/settings"
)

type rabbitConfig struct {
	rabbitmq.Config
	tls                           tlsConfig
	topology, exchange, queueType string
}

var rabbitBroker = define(
	Scheme{
		Names:   []string{"amqp", "amqps", "rabbitmq"},
		Example: "amqp://user:password@host:5672/vhost",
		Doc:     "RabbitMQ. amqps, or tls=true, encrypts. Without a port it is 5672, or 5671 encrypted; without a vhost it is /.",
	},
	append([]settings.Setting[rabbitConfig]{
		settings.Choice("topology", "Topology", "queue", "What a topic is: a durable queue, a durable fanout exchange (pubsub), or a routing key of one topic exchange (topic), as in Watermill's named configurations.",
			func(c *rabbitConfig) *string { return &c.topology }, same("queue"), same("pubsub"), same("topic")),
		settings.Text("exchange", "", "none", "The topic exchange, with topology=topic.", func(c *rabbitConfig) *string { return &c.exchange }),
		settings.Choice("queue_type", "", "the server's", "The type of queues that declare=true makes, with topology=queue.",
			func(c *rabbitConfig) *string { return &c.queueType }, same("classic"), same("quorum")),
		settings.Bool("declare", "Declare", "false", "Make what the topology names of the sender's side.", func(c *rabbitConfig) *bool { return &c.Declare }),
		settings.Bool("hold_unroutable", "HoldUnroutable", "false", "Hold a topic back until a queue is there. Otherwise a record that no queue gets is refused for good.",
			func(c *rabbitConfig) *bool { return &c.HoldUnroutable }),
		settings.Size("max_message_bytes", "MaxMessageBytes", "16MiB", "How large a payload may be. It must not exceed the server's max_message_size.",
			func(c *rabbitConfig) *int { return &c.MaxMessageBytes }),
		settings.Number("channels", "Channels", "2", "How many channels a call spreads its aggregates over.", func(c *rabbitConfig) *int { return &c.Channels }),
		settings.Text("name", "Name", "outmill", "How connections are called in the server's list.", func(c *rabbitConfig) *string { return &c.Name }),
		settings.Duration("dial_timeout", "DialTimeout", "30s", "Limit of one attempt to connect, handshakes included.", func(c *rabbitConfig) *time.Duration { return &c.DialTimeout }),
		settings.Duration("heartbeat", "Heartbeat", "10s", "How often each side shows that it lives.", func(c *rabbitConfig) *time.Duration { return &c.Heartbeat }),
	}, tlsParams(func(c *rabbitConfig) *tlsConfig { return &c.tls })...),
	readRabbit,
	func(c rabbitConfig) opening[backends.Broker] {
		return onDemand(func() (backends.Broker, error) { return asBroker(rabbitmq.New(c.Config)) })
	},
)

func readRabbit(a address, c *rabbitConfig) (err error) {
	var faults []error
	c.tls.on = c.tls.on || a.scheme == "amqps"
	if c.TLS, err = c.tls.build(); err != nil {
		faults = append(faults, err)
	}
	u := url.URL{Scheme: "amqp"}
	port := "5672"
	if c.tls.on {
		u.Scheme, port = "amqps", "5671"
	}
	if a.named {
		u.User = url.UserPassword(a.user, a.password)
	}
	vhost := strings.TrimPrefix(a.path, "/")
	a.path = ""
	hosts, err := a.onlyHosts(port)
	switch {
	case err != nil:
		faults = append(faults, err)
	case len(hosts) > 1:
		faults = append(faults, errors.New("several hosts are named: name one, such as that of a load balancer"))
	default:
		u.Host = hosts[0]
	}
	if vhost != "" {
		u.Path, u.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
	}
	c.URL = u.String()
	return errors.Join(append(faults, c.readTopology())...)
}

func (c *rabbitConfig) readTopology() error {
	var faults []error
	if c.exchange != "" && c.topology != "topic" {
		faults = append(faults, errors.New("exchange is set, but not topology=topic: add it, or take exchange away"))
	}
	if c.queueType != "" && (!c.Declare || c.topology != "" && c.topology != "queue") {
		faults = append(faults, errors.New("queue_type is of queues that Outmill declares: add declare=true and topology=queue, or take queue_type away"))
	}
	switch c.topology {
	case "pubsub":
		c.Topology = rabbitmq.DurablePubSub()
	case "topic":
		if c.exchange == "" {
			faults = append(faults, errors.New("topology=topic needs exchange"))
		}
		c.Topology = rabbitmq.DurableTopic(c.exchange)
	default:
		var args amqp.Table
		if c.queueType != "" {
			args = amqp.Table{"x-queue-type": c.queueType}
		}
		c.Topology = rabbitmq.DurableQueue(args)
	}
	return errors.Join(faults...)
}
