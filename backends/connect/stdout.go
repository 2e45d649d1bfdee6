package connect

import (
	"context"
	"os"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/connect/internal/lines"
	"github.com/outmill/outmill/internal/settings"
)

type stdoutConfig struct{}

var stdoutBroker = define(
	Scheme{
		Names: []string{"stdout"}, Example: "stdout:",
		Doc: "Prints each record as a line of JSON. A record counts as delivered once the system has taken its line.",
	},
	[]settings.Setting[stdoutConfig]{},
	func(a address, _ *stdoutConfig) error { return a.nothing() },
	func(stdoutConfig) opening[backends.Broker] {
		return opening[backends.Broker]{
			open:  func(context.Context) (backends.Broker, error) { return lines.New(os.Stdout), nil },
			check: func() error { return nil },
		}
	},
)
