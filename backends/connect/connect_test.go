package connect_test

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/outmill/outmill/backends/brokers/kafka"
	"github.com/outmill/outmill/backends/brokers/nats"
	"github.com/outmill/outmill/backends/brokers/rabbitmq"
	"github.com/outmill/outmill/backends/brokers/redis"
	"github.com/outmill/outmill/backends/connect"
	"github.com/outmill/outmill/backends/stores/memory"
	"github.com/outmill/outmill/backends/stores/mysql"
	"github.com/outmill/outmill/backends/stores/postgres"
	"github.com/outmill/outmill/backends/stores/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore_IsTheEnginesOwnType(t *testing.T) {
	for url, want := range map[string]any{
		"postgres://app:pw@db:5432/shop": (*postgres.Store)(nil),
		"postgresql://h1:1,h2,[::1]:3/shop?target_session_attrs=read-write&pool_max_conns=12&sslmode=disable&schema=outbox&prefix=a_&retention=24h&sequences=OFF&pooler=true": (*postgres.Store)(nil),
		"postgres:///shop?host=/var/run/postgresql":                                             (*postgres.Store)(nil),
		"mysql://app:p%40s%2Fs@db/shop?prefix=a_&retention=1h&tls=skip-verify&read_timeout=30s": (*mysql.Store)(nil),
		"mariadb://app@db:3307/shop":                                                            (*mysql.Store)(nil),
		"mysql:///shop?socket=/run/mysqld/mysqld.sock":                                          (*mysql.Store)(nil),
		"postgres://app:%2F%3F%23%40%25%27%5C%20@db/shop":                                       (*postgres.Store)(nil),
		"sqlite:" + filepath.Join(t.TempDir(), "a%3Fb.db"):                                      (*sqlite.Store)(nil),
		"sqlite://" + filepath.Join(t.TempDir(), "a.db") + "?prefix=b":                          (*sqlite.Store)(nil),
		" MEMORY:?max_payload=1KiB ":                                                            (*memory.Store)(nil),
	} {
		require.NoError(t, connect.CheckStore(url), url)
		store, err := connect.Store(t.Context(), url)
		require.NoError(t, err, url)
		require.IsType(t, want, store)
		require.NoError(t, store.Close())
		text, err := connect.MigrationSQL(url)
		require.NoError(t, err)
		require.Equal(t, strings.TrimSpace(strings.ToLower(url)) != "memory:?max_payload=1kib", strings.Contains(text, "create table"))
	}
}

func TestBroker_IsTheAdaptersOwnType(t *testing.T) {
	for _, url := range []string{
		"kafka://k1", "kafka://k1:9092,[::1]/?compression=ZSTD&client_id=a&max_message_bytes=2MB&dial_timeout=1s&allow_auto_topic_creation=true",
		"kafka://app:p%40ss@k1:9093?sasl=scram-sha-512&tls=true&tls_server_name=k&tls_insecure=true",
	} {
		require.NoError(t, connect.CheckBroker(url), url)
		broker, err := connect.Broker(t.Context(), url)
		require.NoError(t, err, url)
		require.IsType(t, (*kafka.Broker)(nil), broker)
		require.NoError(t, broker.Close(t.Context()))
	}
	for url, want := range map[string]any{
		"amqp://guest:guest@localhost": (*rabbitmq.Broker)(nil),
		"amqps://app:p%40s%2Fs@h:1/a%2Fb?topology=topic&exchange=events&tls_server_name=h": (*rabbitmq.Broker)(nil),
		"nats://app:p%40ss@h1,h2:1?tls=true&max_pending=10&ack_timeout=1s":                 (*nats.Broker)(nil),
		"nats://h?token=a": (*nats.Broker)(nil),
		"redis://h":        (*redis.Broker)(nil),
		"rediss://app:p%40ss@h:1/3?max_len=100000&max_lens=orders:0,a:b:5&timeout=1s":          (*redis.Broker)(nil),
		"rabbitmq://h?tls=true&declare=true&queue_type=quorum&channels=4&hold_unroutable=true": (*rabbitmq.Broker)(nil),
	} {
		require.NoError(t, connect.CheckBroker(url), url)
		broker, err := connect.Broker(t.Context(), url)
		require.NoError(t, err, url)
		require.IsType(t, want, broker)
		require.NoError(t, broker.Close(t.Context()))
	}
	broker, err := connect.Broker(t.Context(), "stdout:")
	require.NoError(t, err)
	require.NoError(t, broker.Close(t.Context()))
}

// A check has no effects.
func TestCheck_MakesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	require.NoError(t, connect.CheckStore("sqlite:"+path))
	_, err := connect.MigrationSQL("sqlite:" + path)
	require.NoError(t, err)
	require.NoFileExists(t, path)
	_, err = connect.Store(t.Context(), "sqlite:"+path+"?existing=true")
	require.ErrorContains(t, err, "the file is not there")
	require.NoFileExists(t, path)
}

// Each field of a configuration can be reached by URL. Those that are no
// parameter are named here, with where they come from.
func TestParams_ReachEveryOption(t *testing.T) {
	elsewhere := map[string]string{"Brokers": "the hosts", "SASL": "user, password and sasl", "URL": "the URL itself", "Servers": "the hosts", "Addr": "the host", "DB": "the path", "Auth": "the user"}
	for scheme, config := range map[string]any{
		"postgres": postgres.Config{}, "sqlite": sqlite.Config{}, "memory": memory.Config{}, "kafka": kafka.Config{},
		"amqp": rabbitmq.Config{}, "nats": nats.Config{}, "redis": redis.Config{}, "mysql": mysql.Config{},
	} {
		fields := connect.Fields(scheme)
		require.NotEmpty(t, fields, scheme)
		for i := range reflect.TypeOf(config).NumField() {
			name := reflect.TypeOf(config).Field(i).Name
			if elsewhere[name] == "" {
				require.Contains(t, fields, name, "%s: the option %s has no parameter", scheme, name)
			}
		}
	}
}

func TestParams_AreDescribed(t *testing.T) {
	for _, s := range append(connect.Stores(), connect.Brokers()...) {
		require.NotEmpty(t, s.Doc)
		require.NotEmpty(t, s.Example)
		for _, p := range s.Params {
			require.NotEmpty(t, p.Doc, p.Name)
			require.NotEmpty(t, p.Default, p.Name)
		}
	}
}

// Every URL has a secret somewhere; none of the faults may tell it, nor what Mask
// leaves.
func TestSecrets_AreNeverTold(t *testing.T) {
	for _, url := range []string{
		"postgres://app:hunter2@db:port/shop", "postgres://app:hunter2@/shop", "postgres://app:hunter2@db/shop/more",
		"postgres://app:hun/hunter2@db/shop", "postgres://app:hun?hunter2=1&a@db/shop", "postgres://app:hun#hunter2@db/shop",
		"postgres://app:%hunter2@db/shop", "postgres://app:hunter2@db/shop?nonesuch=hunter2", "postgres://app:hunter2@db/shop?pool_max_conns=hunter2",
		"postgres://app:hunter2@db/shop?sslmode=verify-full&sslrootcert=/nowhere/hunter2", "postgres://app@hunter2:x@db/shop",
		"postgres://app:hunter2", "hunter2", "app:hunter2@tcp(db)/shop", "postgres:app:hunter2@db", "postgress://app:hunter2@db/shop",
		"sqlite://app:hunter2@db/x", "memory:hunter2", "kafka://app:hunter2@k1", "kafka://app:hunter2@k1:99999?sasl=PLAIN",
		"kafka://app:hunter2@k1/topic?sasl=PLAIN", "kafka://k1?tls=true&tls_ca=/hunter2", "kafka://k1?tls=true&tls_cert=/hunter2&tls_key=/hunter2",
		"kafka://:hunter2@k1?sasl=PLAIN", "kafka://app:hunter2@k1?sasl=PLAIN&sasl=PLAIN", "stdout://app:hunter2@x", "kafka://app:hun\x01hunter2@k1?sasl=PLAIN",
	} {
		faults := 0
		for _, err := range []error{connect.CheckStore(url), connect.CheckBroker(url)} {
			if err != nil {
				faults++
				require.NotContains(t, err.Error(), "hunter2", url)
			}
		}
		require.Equal(t, 2, faults, "%s is a mistake for both", url)
		if !strings.Contains(url, "/hunter2") && !strings.Contains(url, "conns=hunter2") && !strings.HasPrefix(url, "memory:") {
			require.NotContains(t, connect.Mask(url), "hunter2", url)
		}
	}
}

func TestMask_KeepsWhatMayBeShown(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://app:hunter2@h1:5432,h2/shop?schema=a&sslpassword=hunter2&nonesuch=hunter2": "postgres://app:***@h1:5432,h2/shop?nonesuch=***&schema=a&sslpassword=***",
		"sqlite:a b.db?prefix=x": "sqlite:a%20b.db?prefix=x",
		"kafka://k1":             "kafka://k1",
		"kafka://app@k1":         "kafka://app@k1",
		"hunter2":                "(not shown: it cannot be read)",
		"kafka://a:%zz@k1":       "(not shown: it cannot be read)",
	} {
		require.Equal(t, want, connect.Mask(url))
	}
}

// Whatever is given, there is an answer and no panic, and what is masked can be
// masked again.
func FuzzMask(f *testing.F) {
	for _, s := range []string{"postgres://a:b@c:1/d?e=f", "sqlite:x?y", "kafka://[::1]:9,b", "://", "a:%", "kafka://@?=&"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, url string) {
		masked := connect.Mask(url)
		if !strings.HasPrefix(masked, "(") {
			require.Equal(t, masked, connect.Mask(masked))
		}
		_ = connect.CheckBroker(url)
	})
}
