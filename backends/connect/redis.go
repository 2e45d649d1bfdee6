package connect

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/brokers/redis"
	"github.com/outmill/outmill/internal/settings"
)

type redisConfig struct {
	redis.Config
	tls tlsConfig
}

var redisBroker = define(
	Scheme{
		Names:   []string{"redis", "rediss"},
		Example: "redis://user:password@host:6379/0",
		Doc:     "Redis streams, one for each topic. The path is the number of the database. rediss, or tls=true, encrypts. Without a port it is 6379.",
	},
	append([]settings.Setting[redisConfig]{
		settings.Text("client_name", "ClientName", "outmill", "How the client names itself.", func(c *redisConfig) *string { return &c.ClientName }),
		settings.Size("max_message_bytes", "MaxMessageBytes", "64MiB", "How large a record may be with its metadata. It must not exceed the server's proto-max-bulk-len.",
			func(c *redisConfig) *int { return &c.MaxMessageBytes }),
		{
			Info: settings.Info{Name: "max_len", Field: "MaxLen", Kind: "number", Default: "all", Doc: "About how many entries a stream keeps; the oldest are dropped, read or not."},
			Set:  func(c *redisConfig, v string) (err error) { c.MaxLen, err = entries(v); return err },
		},
		{
			Info: settings.Info{Name: "max_lens", Field: "MaxLens", Kind: "list", Default: "none", Doc: "max_len of single topics: orders:100000,audit:0, where 0 keeps all."},
			Set:  setMaxLens,
		},
		settings.Duration("dial_timeout", "DialTimeout", "5s", "Limit of one attempt to connect.", func(c *redisConfig) *time.Duration { return &c.DialTimeout }),
		settings.Duration("timeout", "Timeout", "10s", "Limit of the wait for the server's answer.", func(c *redisConfig) *time.Duration { return &c.Timeout }),
	}, tlsParams(func(c *redisConfig) *tlsConfig { return &c.tls })...),
	func(a address, c *redisConfig) (err error) {
		var faults []error
		c.Auth.User, c.Auth.Password = a.user, a.password
		if db := strings.TrimPrefix(a.path, "/"); db != "" {
			if c.DB, err = strconv.Atoi(db); err != nil {
				faults = append(faults, errors.New("the path is no number of a database: write redis://host:6379/0"))
			}
		}
		c.tls.on = c.tls.on || a.scheme == "rediss"
		c.TLS, err = c.tls.build()
		faults = append(faults, err)
		a.path = ""
		hosts, err := a.onlyHosts("6379")
		switch {
		case err != nil:
			faults = append(faults, err)
		case len(hosts) > 1:
			faults = append(faults, errors.New("several hosts are named: name one, the primary"))
		default:
			c.Addr = hosts[0]
		}
		return errors.Join(faults...)
	},
	func(c redisConfig) opening[backends.Broker] {
		return onDemand(func() (backends.Broker, error) { return asBroker(redis.New(c.Config)) })
	},
)

func entries(v string) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("is %q: a whole number is needed", v)
	}
	return n, nil
}

func setMaxLens(c *redisConfig, v string) (err error) {
	c.MaxLens = map[string]int64{}
	for pair := range strings.SplitSeq(v, ",") {
		i := strings.LastIndexByte(pair, ':')
		if i < 1 {
			return fmt.Errorf("has %q: topic:number is needed, with commas between", pair)
		}
		if c.MaxLens[pair[:i]], err = entries(pair[i+1:]); err != nil {
			return fmt.Errorf("of the topic %q %w", pair[:i], err)
		}
	}
	return nil
}
