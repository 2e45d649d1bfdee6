package connect

import (
	"errors"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/internal/settings"
)

type kafkaConfig struct {
	kafka.Config
	tls tlsConfig
}

var kafkaBroker = define(
	Scheme{
		Names:   []string{"kafka"},
		Example: "kafka://host:9092,host:9092",
		Doc:     "Kafka. Topics come from the messages, the key is the aggregate. Without a port it is 9092. A user in front of the hosts takes the parameter sasl.",
	},
	append([]settings.Setting[kafkaConfig]{
		settings.Text("client_id", "ClientID", "outmill", "How the client names itself.", func(c *kafkaConfig) *string { return &c.ClientID }),
		settings.Size("max_message_bytes", "MaxMessageBytes", "1000000", "How large a record may be with its key and headers, before compression. It must not exceed what the topics allow.",
			func(c *kafkaConfig) *int { return &c.MaxMessageBytes }),
		settings.Choice("compression", "Compression", "none", "How batches are compressed.", func(c *kafkaConfig) *string { return &c.Compression },
			same("none"), same("gzip"), same("snappy"), same("lz4"), same("zstd")),
		settings.Bool("allow_auto_topic_creation", "AllowAutoTopicCreation", "false", "Let the brokers make topics that do not exist. Otherwise a record for such a topic is refused for good.",
			func(c *kafkaConfig) *bool { return &c.AllowAutoTopicCreation }),
		settings.Duration("dial_timeout", "DialTimeout", "5s", "Limit of one attempt to connect.", func(c *kafkaConfig) *time.Duration { return &c.DialTimeout }),
		settings.Choice("sasl", "", "off", "How the user in front of the hosts is authenticated.", func(c *kafkaConfig) *string { return &c.SASL.Mechanism },
			same("PLAIN"), same("SCRAM-SHA-256"), same("SCRAM-SHA-512")),
	}, tlsParams(func(c *kafkaConfig) *tlsConfig { return &c.tls })...),
	func(a address, c *kafkaConfig) (err error) {
		c.SASL.User, c.SASL.Password = a.user, a.password
		var faults []error
		switch {
		case a.named && c.SASL.Mechanism == "":
			faults = append(faults, errors.New("a user is named, but not how to authenticate: add sasl=PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"))
		case !a.named && c.SASL.Mechanism != "":
			faults = append(faults, errors.New("sasl is set, but no user: write kafka://user:password@host:9092"))
		}
		c.Brokers, err = a.onlyHosts("9092")
		faults = append(faults, err)
		c.TLS, err = c.tls.build()
		return errors.Join(append(faults, err)...)
	},
	func(c kafkaConfig) opening[backends.Broker] {
		return onDemand(func() (backends.Broker, error) { return asBroker(kafka.New(c.Config)) })
	},
)

// same is an option that is its own value.
func same(name string) settings.Option[string] {
	return settings.Option[string]{Name: name, Value: name}
}
