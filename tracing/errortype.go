package tracing

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/outmill/outmill/backends"
)

// Error types: the closed list of what error.type says. An error of the type
// interface{ ErrorType() string } adds its own.
const (
	errorTimeout        = "timeout"
	errorCanceled       = "canceled"
	errorUnavailable    = "broker_unavailable"
	errorUnauthorized   = "unauthorized"
	errorUnroutable     = "unroutable"
	errorTooLarge       = "too_large"
	errorUnserializable = "unserializable"
	errorInvalid        = "invalid"
	errorLeaseLost      = "lease_lost"
	errorRejected       = "rejected"
	errorOther          = "_OTHER"
)

// words are what brokers and their clients say, in upper case without
// underscores, with what it means. The first that is found counts.
var words = []struct{ text, means string }{
	{"TOO LARGE", errorTooLarge},
	{"TOO BIG", errorTooLarge},
	{"MAXMESSAGEBYTES", errorTooLarge},
	{"MAXIMUM PAYLOAD", errorTooLarge},
	{"AUTHORIZATION FAILED", errorUnauthorized},
	{"AUTHENTICATION FAILED", errorUnauthorized},
	{"PERMISSIONS VIOLATION", errorUnauthorized},
	{"ACCESS REFUSED", errorUnauthorized},
	{"NOPERM", errorUnauthorized},
	{"UNKNOWN TOPIC", errorUnroutable},
	{"NO ROUTE", errorUnroutable},
	{"NO RESPONDERS", errorUnroutable},
	{"NO STREAM", errorUnroutable},
	{"UNROUTABLE", errorUnroutable},
	{"MARSHAL", errorUnserializable},
	{"CONNECTION REFUSED", errorUnavailable},
	{"CONNECTION RESET", errorUnavailable},
}

// ErrorType names an error, however it is wrapped or joined: timeout, canceled,
// broker_unavailable, unauthorized, unroutable, too_large, unserializable,
// invalid, lease_lost, rejected, or _OTHER. It quotes nothing of it.
func ErrorType(err error) string {
	var own interface{ ErrorType() string }
	var timeout net.Error
	var fault *backends.MessageError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &own):
		if name := own.ErrorType(); name != "" && len(name) <= maxNameBytes {
			return name
		}
	case errors.Is(err, backends.ErrLeaseLost):
		return errorLeaseLost
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return errorTimeout
	case errors.Is(err, context.Canceled):
		return errorCanceled
	case errors.As(err, &fault):
		if fault.Field == "payload" {
			return errorTooLarge
		}
		return errorInvalid
	}
	text := strings.ReplaceAll(strings.ToUpper(err.Error()), "_", " ")
	for _, w := range words {
		if strings.Contains(text, w.text) {
			return w.means
		}
	}
	switch backends.ClassOf(err) {
	case backends.UnavailableFailure:
		return errorUnavailable
	case backends.PermanentFailure:
		return errorRejected
	}
	return errorOther
}

// errorType asks the user's function first.
func (t *Telemetry) errorType(err error) string {
	if err == nil {
		return ""
	}
	if t.cfg.ErrorType != nil {
		if name := t.cfg.ErrorType(err); name != "" {
			return name
		}
	}
	return ErrorType(err)
}

// Reasons why a record was given up.
var reasons = []string{"attempts_exhausted", errorUnroutable, errorTooLarge, errorUnserializable, errorUnauthorized, errorRejected}

// deadReason says why a record was given up.
func (t *Telemetry) deadReason(err error) string {
	if backends.ClassOf(err) != backends.PermanentFailure {
		return "attempts_exhausted"
	}
	switch name := ErrorType(err); name {
	case errorUnroutable, errorTooLarge, errorUnserializable, errorUnauthorized:
		return name
	}
	return errorRejected
}
