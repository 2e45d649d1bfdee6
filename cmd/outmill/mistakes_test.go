package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/backends/connect"
)

// good is a file without a mistake, for those that follow to spoil.
const good = `store: postgres://app:s3cr3t@db:5432/shop
broker: kafka://k1:9092,k2:9092
`

// Each wrong file, and the exact words in which a person is told. FILE stands for
// the file's path.
var wrongFiles = []struct{ name, file, told string }{
	{"a setting misspelt", good + "forwarder: {bach: 10}\n", `FILE: there is no setting "forwarder.bach": did you mean "forwarder.batch"? there are SETTINGS`},
	{"a setting under no heading", good + "max_attempts: 3\n", `FILE: there is no setting "max_attempts": did you mean "forwarder.max_attempts"? there are SETTINGS`},
	{"a heading misspelt", good + "forwader: {batch: 10}\n", `FILE: there is no setting "forwader.batch": did you mean "forwarder.batch"? there are SETTINGS`},
	{"a setting of nobody", good + "color: red\n", `FILE: there is no setting "color": there are SETTINGS`},
	{"no store", "broker: kafka://k1:9092\n", "store is not set: set it, or store_file, in the file, by OUTMILL_STORE or by --store"},
	{"no broker", "store: sqlite:shop.db\n", "broker is not set: set it, or broker_file, in the file, by OUTMILL_BROKER or by --broker"},
	{"an empty file", "", `store is not set: set it, or store_file, in the file, by OUTMILL_STORE or by --store
broker is not set: set it, or broker_file, in the file, by OUTMILL_BROKER or by --broker`},
	{"an empty value", "store: ''\nbroker: kafka://k1:9092\n", "FILE: store is empty: leave it out for the default"},
	{"a value left out", "store: sqlite:shop.db\nbroker:\n", "FILE: broker is empty: leave it out for the default"},
	{"a setting twice", good + "http: off\nhttp: :8080\n", "FILE: line 4: http is there twice: keep one"},
	{"tabs", good + "forwarder:\n\tbatch: 10\n", "FILE: line 4 is not YAML: indent with spaces, and put values that begin with a special character into quotes"},
	{"no space behind the colon", good + "log.level:debug\n", `FILE: line 3 is not YAML: a colon needs a space behind it, and a value that holds ": " or " #" needs quotes`},
	{"no YAML at all", "s3cr3t\n", "FILE: the file must hold lines of the form key: value"},
	{"a heading with a value", good + "forwarder: fast\n", "FILE: forwarder is a heading: put its settings under it, indented"},
	{"a list for one value", good + "http: [':8080', ':8081']\n", "FILE: http is a list: one value is needed"},
	{"a mapping for one value", good + "http: {address: ':8080'}\n", `FILE: there is no setting "http.address": there are SETTINGS`},
	{"no number", good + "forwarder: {workers: many}\n", `FILE: forwarder.workers is "many": a whole number is needed`},
	{"too many", good + "forwarder: {workers: 65}\n", "forwarder.workers is 65, allowed is 1 to 64"},
	{"zero", good + "forwarder: {batch: 0}\n", "FILE: forwarder.batch is 0: leave it out for the default"},
	{"a duration without a unit", good + "forwarder: {lease: 15}\n", `FILE: forwarder.lease is "15": a duration with its unit is needed, such as 500ms, 15s or 24h`},
	{"a lease too short for a publish", good + "forwarder: {lease: 12s, publish_timeout: 10s}\n", "forwarder.lease is 12s, allowed is at least 15s, one and a half times forwarder.publish_timeout"},
	{"waits the wrong way round", good + "forwarder: {retry_min: 10m, retry_max: 1m}\n", "forwarder.retry_max is 1m0s, allowed is at least forwarder.retry_min, which is 10m0s"},
	{"a poll longer than the lease", good + "forwarder: {poll_max: 1m}\n", "forwarder.poll_max is 1m0s, allowed is forwarder.poll_min to forwarder.lease, which are 5ms and 15s"},
	{"a choice misspelt", good + "forwarder: {poison: pork}\n", `FILE: forwarder.poison is "pork": did you mean "park"? allowed is park, skip, block`},
	{"a level that is none", good + "log: {level: verbose}\n", `FILE: log.level is "verbose": allowed is debug, info, warn, error`},
	{"a topic's name left empty", good + "forwarder: {allow: [orders, '']}\n", "FILE: forwarder.allow has an empty entry at place 2: take the comma away, or name it"},
	{"a topic with a comma", good + "forwarder: {allow: ['orders,bills']}\n", "FILE: forwarder.allow has an entry at place 1 with a comma in it: write an entry for each"},
	{"an address without a port", good + "http: localhost\n", `http is "localhost": write host:port, :port for all addresses, or off`},
	{"a port that is none", good + "http: localhost:http\n", `http has the port "http": a number from 0 to 65535 is needed`},
	{"store and store_file", good + "store_file: /run/secrets/store\n", "store and store_file are both set: keep one"},
	{"a file of secrets that is not there", "store_file: /nowhere/store\nbroker: kafka://k1:9092\n", "store_file names a file that cannot be read: no such file or directory"},
	{"a scheme misspelt", "store: postgress://app:s3cr3t@db/shop\nbroker: kafka://k1:9092\n", `store: there is no scheme "postgress": did you mean "postgres"? there are STORES`},
	{"a broker for a store", "store: kafka://k1:9092\nbroker: kafka://k1:9092\n", `store: there is no scheme "kafka": there are STORES`},
	{"no scheme", "store: s3cr3t@db/shop\nbroker: kafka://k1:9092\n", "store: this is no URL with a scheme (it is not shown, for it may hold a secret): write one of EXAMPLES"},
	{"a driver's own form", "store: 'app:s3cr3t@tcp(db:3306)/shop'\nbroker: kafka://k1:9092\n", `store: there is no scheme "app": there are STORES`},
	{"no host", "store: postgres:///shop\nbroker: kafka://k1:9092\n", "store: postgres: no host is named: write postgres://user:password@host:5432/database, or the folder of a socket as ?host=/var/run/postgresql"},
	{"a host for a file", "store: sqlite://shop.db\nbroker: kafka://k1:9092\n", "store: sqlite: a host is named: write sqlite:file.db for a file in the working directory, sqlite:/folder/file.db for another"},
	{"a path for Kafka", "store: sqlite:shop.db\nbroker: kafka://k1:9092/orders\n", "broker: kafka: a path follows the hosts, and there is nothing that it could name: take it away"},
	{"a user without a way to log in", "store: sqlite:shop.db\nbroker: kafka://app:s3cr3t@k1:9092\n", "broker: kafka: a user is named, but not how to authenticate: add sasl=PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"},
	{"a parameter misspelt", "store: postgres://app:s3cr3t@db/shop?retension=24h\nbroker: kafka://k1:9092\n", `store: postgres: there is no parameter "retension": did you mean "retention"? there are POSTGRES`},
	{"a parameter twice", "store: sqlite:shop.db?prefix=a&prefix=b\nbroker: kafka://k1:9092\n", "store: sqlite: a parameter is given twice: keep one (prefix)"},
	{"a parameter's value misspelt", "store: sqlite:shop.db\nbroker: kafka://k1:9092?compression=zsdt\n", `broker: kafka: compression is "zsdt": did you mean "zstd"? allowed is none, gzip, snappy, lz4, zstd`},
	{"a size that is none", "store: sqlite:shop.db?max_payload=big\nbroker: kafka://k1:9092\n", `store: sqlite: max_payload is "big": a size is needed, such as 65536, 64KiB or 16MiB`},
	{"a prefix that no table may have", "store: sqlite:shop.db?prefix=Shop-1\nbroker: kafka://k1:9092\n", `store: sqlite: prefix: "Shop-1": only lower-case letters, digits and underscores are allowed, and no digit first`},
	{"a message size out of bounds", "store: sqlite:shop.db\nbroker: kafka://k1:9092?max_message_bytes=10\n", "broker: kafka: max_message_bytes is 10, allowed is 1024 to 1073741824"},
	{"a password that is not escaped", "store: postgres://app:s3/cr3t@db/shop\nbroker: kafka://k1:9092\n", "store: postgres: the URL holds an @ behind a / or a ?: in user, password and parameters write / as %2F, ? as %3F and @ as %40"},
	{"a password with a question mark", "store: postgres://app:s3?cr3t=1@db/shop\nbroker: kafka://k1:9092\n", "store: postgres: the URL holds an @ behind a / or a ?: in user, password and parameters write / as %2F, ? as %3F and @ as %40"},
	{"a password with a percent", "store: postgres://app:s3%cr3t@db/shop\nbroker: kafka://k1:9092\n", "store: postgres: the password holds a % that begins no escape: write % as %25"},
	{"tls settings without tls", "store: sqlite:shop.db\nbroker: kafka://k1:9092?tls_ca=ca.pem\n", "broker: kafka: tls is off, but other tls parameters are set: add tls=true"},
	{"stdout with a path", "store: sqlite:shop.db\nbroker: stdout:/tmp/file\n", "broker: stdout: nothing but parameters may follow stdout: take the rest away"},
	{"several mistakes at once", "store: postgres://app:s3cr3t@db/shop?poler=true&max_payload=1TB\nbroker: kafka://k1:9092?acks=1\nforwarder: {workers: 65, lease: 1s}\n", `store: postgres: max_payload is "1TB": a size is needed, such as 65536, 64KiB or 16MiB
store: postgres: there is no parameter "poler": did you mean "pooler"? there are POSTGRES
broker: kafka: there is no parameter "acks": there are KAFKA
forwarder.workers is 65, allowed is 1 to 64
forwarder.lease is 1s, allowed is at least 15s, one and a half times forwarder.publish_timeout`},
}

// Lists that grow with the program stand for themselves in the table.
func placeholders(path string) *strings.Replacer {
	var settings, stores, examples []string
	for _, s := range all() {
		settings = append(settings, s.Name)
	}
	params := map[string]string{}
	for _, s := range connect.Stores() {
		stores, examples = append(stores, s.Names...), append(examples, s.Example)
		params[s.Names[0]] = paramNames(s)
	}
	for _, s := range connect.Brokers() {
		params[s.Names[0]] = paramNames(s)
	}
	return strings.NewReplacer("FILE", path, "SETTINGS", strings.Join(settings, ", "), "STORES", strings.Join(stores, ", "),
		"EXAMPLES", strings.Join(examples, ", "), "POSTGRES", params["postgres"], "KAFKA", params["kafka"])
}

func paramNames(s connect.Scheme) string {
	names := make([]string, len(s.Params))
	for i, p := range s.Params {
		names[i] = p.Name
	}
	return strings.Join(names, ", ")
}

func TestConfig_FiftyMistakesEachInItsOwnWords(t *testing.T) {
	require.GreaterOrEqual(t, len(wrongFiles), 50)
	for _, m := range wrongFiles {
		t.Run(m.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "outmill.yaml")
			require.NoError(t, os.WriteFile(path, []byte(m.file), 0o600))
			err := checked(sources{file: path})
			var e *exitError
			require.ErrorAs(t, err, &e)
			require.Equal(t, exitUsage, e.code)
			require.Equal(t, placeholders(path).Replace(m.told), err.Error())
			require.NotContains(t, strings.ReplaceAll(err.Error(), "/", ""), "cr3t", "a secret is told")
		})
	}
}

// checked is outmill config check.
func checked(s sources) error {
	l, err := load(s)
	if err != nil {
		return err
	}
	return l.check()
}

func TestConfig_AGoodFileIsGood(t *testing.T) {
	for name, text := range map[string]string{
		"plain":    good,
		"comments": "# ours\n" + good + "forwarder:\n",
		"dotted":   good + "forwarder.batch: 10\nlog.level: debug\n",
		"all": good + `http: 'off'
log: {format: json, level: WARN}
metrics: {name: shop, interval: 10s}
forwarder:
  {name: a, workers: 2, batch: 10, batch_bytes: 64KiB, publish_timeout: 1s, lease: 5s, shutdown: 9s, max_attempts: -1,
   retry_min: 2s, retry_max: 3s, poll_min: 1ms, poll_max: 2s, poison: block, allow: [a, b]}
`,
	} {
		require.NoError(t, checked(sources{file: file(t, text)}), name)
	}
}

func TestConfig_FileThenEnvironmentThenFlags(t *testing.T) {
	path := file(t, good+"forwarder: {batch: 1, workers: 1, lease: 20s}\nhttp: 'off'")
	root := newRoot()
	run, _, err := root.Find([]string{"run"})
	require.NoError(t, err)
	require.NoError(t, run.ParseFlags([]string{"--workers", "3", "--allow", "a, b"}))
	l, err := load(sources{
		environ: []string{configVariable + "=" + path, "OUTMILL_FORWARDER_BATCH=2", "OUTMILL_FORWARDER_WORKERS=2", "OUTMILL_HTTP="}, flags: run.Flags(),
	})
	require.NoError(t, err)
	require.Equal(t, "3 2 20s off", fmt.Sprint(l.Forwarder.Workers, " ", l.Forwarder.Batch, " ", l.Forwarder.Lease, " ", l.HTTP))
	require.Equal(t, []string{"a", "b"}, l.Forwarder.Allow)
	require.Equal(t, "flag environment file", l.from["forwarder.workers"]+" "+l.from["forwarder.batch"]+" "+l.from["forwarder.lease"])
}

// A cluster sets variables after the names of its services: they are not ours.
func TestConfig_VariablesOfOthers(t *testing.T) {
	ours := []string{"OUTMILL_STORE=sqlite:a.db", "OUTMILL_BROKER=stdout:"}
	require.NoError(t, checked(sources{environ: append(ours, "OUTMILL_SERVICE_HOST=10.0.0.1", "OUTMILL_PORT=tcp://10.0.0.1:80", "OUTMILL_POSTGRES_URL=x")}))
	require.EqualError(t, checked(sources{environ: append(ours, "OUTMILL_FORWARDER_BACH=10", "OUTMILL_LOG_FORMAT=xml")}),
		"environment: there is no variable OUTMILL_FORWARDER_BACH: did you mean OUTMILL_FORWARDER_BATCH?\n"+
			`environment: log.format is "xml": allowed is text, json`)
}

// What the documentation calls a default is one: with and without saying it, the
// configuration is the same.
func TestConfig_TheDefaultsAreAsDocumented(t *testing.T) {
	for _, s := range all() {
		switch s.Default {
		case "none", "the host's name", "all topics":
			continue
		}
		said := defaults()
		require.NoError(t, s.Set(&said, s.Default), s.Name)
		effective := func(c config) string {
			c.Forwarder = c.Forwarder.Effective()
			c.Forwarder.Logger = nil
			return fmt.Sprintf("%+v", c)
		}
		require.Equal(t, effective(defaults()), effective(said), s.Name)
	}
}
