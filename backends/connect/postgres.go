package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/internal/settings"
)

// postgresConfig is a store's, and what the driver is told.
type postgresConfig struct {
	postgres.Config
	driver []string // name='value'
}

var postgresStore = define(
	Scheme{
		Names:   []string{"postgres", "postgresql"},
		Example: "postgres://user:password@host:5432/database?schema=outbox",
		Doc:     "Postgres 13 or newer, the primary. Several hosts may be named, with commas between them, along with target_session_attrs=read-write.",
	},
	append(outboxParams(
		func(c *postgresConfig) *int { return &c.MaxPayload },
		func(c *postgresConfig) *time.Duration { return &c.Retention },
		func(c *postgresConfig) *string { return &c.Prefix },
		settings.Choice("sequences", "Sequences", "on", "Whether a record with an aggregate is given the next number of its topic and aggregate.",
			func(c *postgresConfig) *postgres.Sequences { return &c.Sequences },
			settings.Option[postgres.Sequences]{Name: "on", Value: postgres.On}, settings.Option[postgres.Sequences]{Name: "off", Value: postgres.Off}),
		settings.Text("schema", "Schema", "the first of search_path", "Where the tables are.",
			func(c *postgresConfig) *string { return &c.Schema }),
		settings.Bool("pooler", "Pooler", "false", "Work behind a pooler that hands each transaction to another session, such as PgBouncer in transaction mode.",
			func(c *postgresConfig) *bool { return &c.Pooler }),
	), postgresDriver()...),
	func(a address, c *postgresConfig) error {
		if !a.slashes {
			return errors.New("no host is named: write postgres://user:password@host:5432/database")
		}
		database := strings.TrimPrefix(a.path, "/")
		if strings.Contains(database, "/") {
			return errors.New("the database's name holds a /: one name may follow the host")
		}
		_, host := a.params["host"]
		_, service := a.params["service"]
		switch {
		case len(a.hosts) > 0 && host:
			return errors.New("hosts are named twice: in front of the path, and by the parameter host")
		case len(a.hosts) == 0 && !host && !service:
			return errors.New("no host is named: write postgres://user:password@host:5432/database, or the folder of a socket as ?host=/var/run/postgresql")
		}
		var hosts, ports []string
		for _, h := range a.hosts {
			name, port, err := net.SplitHostPort(h)
			if err != nil {
				name, port = strings.Trim(h, "[]"), "5432"
			}
			hosts, ports = append(hosts, name), append(ports, port)
		}
		c.add("host", strings.Join(hosts, ","))
		c.add("port", strings.Join(ports, ","))
		c.add("user", a.user)
		c.add("password", a.password)
		c.add("dbname", database)
		return nil
	},
	func(c postgresConfig) opening[Outbox] {
		open := func(ctx context.Context) (Outbox, error) {
			store, err := postgres.Open(ctx, strings.Join(c.driver, " "), c.Config)
			if err != nil {
				return nil, driverFault(err)
			}
			return store, nil
		}
		return lazily(open)
	},
)

// driverFault: the store says of what the driver does not take that the URL
// cannot be parsed.
func driverFault(err error) error {
	if strings.Contains(err.Error(), "the URL cannot be parsed") {
		return errors.New("the driver refuses a parameter's value: look at the ssl, pool and timeout parameters, and at the files that they name")
	}
	return err
}

// lazily is the opening of a store that connects at its first use.
func lazily(open func(context.Context) (Outbox, error)) opening[Outbox] {
	return opening[Outbox]{
		open: open,
		check: func() error {
			store, err := open(context.Background())
			if err != nil {
				return err
			}
			return store.Close()
		},
		migration: func() (string, error) {
			store, err := open(context.Background())
			if err != nil {
				return "", err
			}
			text, err := store.MigrationSQL()
			return text, errors.Join(err, store.Close())
		},
	}
}

var quoteDriver = strings.NewReplacer(`\`, `\\`, `'`, `\'`)

func (c *postgresConfig) add(name, value string) {
	if value != "" {
		c.driver = append(c.driver, fmt.Sprintf("%s='%s'", name, quoteDriver.Replace(value)))
	}
}

// postgresDriver are the parameters that are the driver's.
func postgresDriver() []settings.Setting[postgresConfig] {
	var out []settings.Setting[postgresConfig]
	for _, p := range [][2]string{
		{"sslmode", "disable, allow, prefer, require, verify-ca or verify-full."},
		{"sslrootcert", "File of the certificates to trust."},
		{"sslcert", "File of the client's certificate."},
		{"sslkey", "File of the client's key."},
		{"sslpassword", "Password of that file."},
		{"sslsni", "0: do not name the host when encryption begins."},
		{"host", "Folder of the server's socket, in place of a host."},
		{"passfile", "File of passwords."},
		{"service", "Entry of the service file."},
		{"servicefile", "That file."},
		{"target_session_attrs", "read-write: go to the host that takes writes."},
		{"connect_timeout", "Seconds for one attempt to connect."},
		{"application_name", "How the server lists the connections."},
		{"search_path", "Schemas in which tables are looked for."},
		{"options", "Options of the server, such as -c statement_timeout=5s."},
		{"default_query_exec_mode", "exec behind a pooler; pooler=true sets it."},
		{"pool_max_conns", "Most connections. A forwarder needs one for each worker, and two. Default: 8, or the number of cores if that is more."},
		{"pool_min_conns", "Fewest connections."},
		{"pool_max_conn_lifetime", "How long a connection is used."},
		{"pool_max_conn_lifetime_jitter", "By how much that may differ at random."},
		{"pool_max_conn_idle_time", "How long a connection may be idle."},
		{"pool_health_check_period", "How often idle connections are looked at."},
	} {
		name := p[0]
		out = append(out, settings.Setting[postgresConfig]{
			Info: settings.Info{Name: name, Kind: "driver", Default: "the driver's", Doc: p[1], Secret: name == "sslpassword"},
			Set: func(c *postgresConfig, v string) error {
				c.add(name, v)
				return nil
			},
		})
	}
	return out
}
