package connect

import (
	"context"
	"errors"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/nats"
	"github.com/outmill/outmill/internal/settings"
)

type natsConfig struct {
	nats.Config
	tls tlsConfig
}

var natsBroker = define(
	Scheme{
		Names:   []string{"nats"},
		Example: "nats://host:4222,host:4222",
		Doc:     "NATS JetStream. The subject is the topic, and a stream must take it. Without a port it is 4222.",
	},
	append([]settings.Setting[natsConfig]{
		settings.Text("name", "Name", "outmill", "How the client names itself.", func(c *natsConfig) *string { return &c.Name }),
		settings.Hidden(settings.Text("token", "", "none", "A token, in place of a user.", func(c *natsConfig) *string { return &c.Auth.Token })),
		settings.Text("credentials_file", "", "none", "File with a JWT and a seed, in place of a user.", func(c *natsConfig) *string { return &c.Auth.CredentialsFile }),
		settings.Text("seed_file", "", "none", "File with the seed of an nkey, in place of a user.", func(c *natsConfig) *string { return &c.Auth.SeedFile }),
		settings.Number("max_pending", "MaxPending", "1000", "How many records of a call may wait for the server's word at once.", func(c *natsConfig) *int { return &c.MaxPending }),
		settings.Duration("ack_timeout", "AckTimeout", "5s", "How long a topic may give no answer at all while records wait for one.", func(c *natsConfig) *time.Duration { return &c.AckTimeout }),
		settings.Duration("dial_timeout", "DialTimeout", "5s", "Limit of one attempt to connect to one server.", func(c *natsConfig) *time.Duration { return &c.DialTimeout }),
	}, tlsParams(func(c *natsConfig) *tlsConfig { return &c.tls })...),
	func(a address, c *natsConfig) (err error) {
		c.Auth.User, c.Auth.Password = a.user, a.password
		hosts, err := a.onlyHosts("4222")
		for _, h := range hosts {
			c.Servers = append(c.Servers, "nats://"+h)
		}
		faults := []error{err}
		c.TLS, err = c.tls.build()
		return errors.Join(append(faults, err)...)
	},
	func(c natsConfig) opening[backends.Broker] {
		return onDemand(func() (backends.Broker, error) { return asBroker(nats.New(c.Config)) })
	},
)

// asBroker is an adapter as a broker: a nil one is none.
func asBroker[B backends.Broker](b B, err error) (backends.Broker, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// onDemand is the opening of a broker that holds nothing open before its first use.
func onDemand(make func() (backends.Broker, error)) opening[backends.Broker] {
	return opening[backends.Broker]{
		open: func(context.Context) (backends.Broker, error) { return make() },
		check: func() error {
			_, err := make()
			return err
		},
	}
}
