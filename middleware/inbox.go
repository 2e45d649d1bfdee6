package middleware

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/consumer"
)

// Inbox makes a router's handler handle each message once, in order within its
// aggregate: see package consumer. Add it to the one handler that the consumer
// serves, and as the innermost of its middlewares but CorrelationID:
//
//	tracing, Recoverer, CircuitBreaker, Throttle, Retry, Timeout, Inbox, CorrelationID, handler
//
// A Retry inside it would run the handler several times in one transaction, and
// PoisonQueue inside it would commit what a failed handler wrote. Outside it,
// PoisonQueue leaves gaps that are never filled, and InstantAck and Deduplicator
// lose messages. A router adds its own middlewares in the order of the calls, so
// one that is added after this lands inside.
func Inbox(c *consumer.Consumer) message.HandlerMiddleware { return c.Wrap }
