package connect

import (
	"context"
	"errors"
	"strings"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/outmill/outmill/backends/stores/mysql"
	"github.com/outmill/outmill/internal/settings"
)

type mysqlConfig struct {
	mysql.Config
	driver *driver.Config

	tls, socket          string
	connect, read, write time.Duration
}

var mysqlStore = define(
	Scheme{
		Names:   []string{"mysql", "mariadb"},
		Example: "mysql://user:password@host:3306/database",
		Doc:     "MySQL 8.4 or newer, MariaDB 10.6 or newer, the primary. Without a port it is 3306.",
	},
	outboxParams(
		func(c *mysqlConfig) *int { return &c.MaxPayload },
		func(c *mysqlConfig) *time.Duration { return &c.Retention },
		func(c *mysqlConfig) *string { return &c.Prefix },
		settings.Choice("sequences", "Sequences", "on", "Whether a record with an aggregate is given the next number of its topic and aggregate.",
			func(c *mysqlConfig) *mysql.Sequences { return &c.Sequences },
			settings.Option[mysql.Sequences]{Name: "on", Value: mysql.On}, settings.Option[mysql.Sequences]{Name: "off", Value: mysql.Off}),
		settings.Choice("tls", "", "false", "Encrypt connections: true checks the server's certificate, skip-verify takes any, preferred encrypts where the server can.",
			func(c *mysqlConfig) *string { return &c.tls }, same("false"), same("true"), same("skip-verify"), same("preferred")),
		settings.Text("socket", "", "none", "The server's socket, in place of a host.", func(c *mysqlConfig) *string { return &c.socket }),
		settings.Duration("connect_timeout", "", "10s", "Limit of one attempt to connect.", func(c *mysqlConfig) *time.Duration { return &c.connect }),
		settings.Duration("read_timeout", "", "none", "Limit of one read from the connection.", func(c *mysqlConfig) *time.Duration { return &c.read }),
		settings.Duration("write_timeout", "", "none", "Limit of one write to the connection.", func(c *mysqlConfig) *time.Duration { return &c.write }),
	),
	readMySQL,
	func(c mysqlConfig) opening[Outbox] {
		return lazily(func(ctx context.Context) (Outbox, error) {
			store, err := mysql.Open(ctx, c.driver.FormatDSN(), c.Config)
			if err != nil {
				return nil, err
			}
			return store, nil
		})
	},
)

func readMySQL(a address, c *mysqlConfig) error {
	var faults []error
	d := driver.NewConfig()
	d.User, d.Passwd, d.TLSConfig = a.user, a.password, c.tls
	d.Timeout, d.ReadTimeout, d.WriteTimeout = c.connect, c.read, c.write
	if d.Timeout == 0 {
		d.Timeout = 10 * time.Second
	}
	if d.DBName = strings.TrimPrefix(a.path, "/"); d.DBName == "" || strings.Contains(d.DBName, "/") {
		faults = append(faults, errors.New("no database is named, or more than one name follows the host: write mysql://user:password@host:3306/database"))
	}
	if c.socket != "" && len(a.hosts) > 0 {
		faults = append(faults, errors.New("a host and a socket are named: take one away"))
	}
	if c.socket != "" {
		d.Net, d.Addr = "unix", c.socket
	} else {
		a.path = ""
		hosts, err := a.onlyHosts("3306")
		switch {
		case err != nil:
			faults = append(faults, err)
		case len(hosts) > 1:
			faults = append(faults, errors.New("several hosts are named: name one, the primary"))
		default:
			d.Net, d.Addr = "tcp", hosts[0]
		}
	}
	c.driver = d
	return errors.Join(faults...)
}
