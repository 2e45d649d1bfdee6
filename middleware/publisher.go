package middleware

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
)

// decorated is a publisher with a look at each call before it.
type decorated struct {
	message.Publisher
	look func(topic string, msgs []*message.Message) (string, error)
}

// Publish implements message.Publisher.
func (d decorated) Publish(topic string, msgs ...*message.Message) error {
	topic, err := d.look(topic, msgs)
	if err != nil {
		return err
	}
	return d.Publisher.Publish(topic, msgs...)
}

// each looks at every message and reports all faults at once. A nil message is
// left to the publisher, which names it.
func each(next message.Publisher, look func(topic string, i int, msg *message.Message) error) message.Publisher {
	return decorated{next, func(topic string, msgs []*message.Message) (string, error) {
		var faults []error
		for i, msg := range msgs {
			if msg != nil {
				faults = append(faults, look(topic, i, msg))
			}
		}
		return topic, errors.Join(faults...)
	}}
}

// Aggregate names the aggregate of messages that have none: what derive returns.
// An empty name leaves a message without. An error of derive stops the call.
func Aggregate(next message.Publisher, derive func(topic string, msg *message.Message) (string, error)) message.Publisher {
	return each(next, func(topic string, i int, msg *message.Message) error {
		if backends.Aggregate(msg) != "" {
			return nil
		}
		name, err := derive(topic, msg)
		if err != nil {
			return fmt.Errorf("message %d (%q): derive the aggregate: %w", i, msg.UUID, err)
		}
		if name != "" {
			backends.SetAggregate(msg, name)
		}
		return nil
	})
}

// MaxPayload refuses messages that the broker would refuse for their size, with a
// [backends.MessageError]. Set it below the broker's limit, which counts key and
// headers too.
func MaxPayload(next message.Publisher, limit int) message.Publisher {
	return each(next, func(_ string, i int, msg *message.Message) error {
		if len(msg.Payload) <= limit {
			return nil
		}
		return &backends.MessageError{
			Index: i, MessageID: msg.UUID, Field: "payload",
			Problem: fmt.Sprintf("has %d bytes, at most %d are allowed", len(msg.Payload), limit),
			Remedy:  "publish a reference to where it is stored",
		}
	})
}

// RequireMetadata refuses messages without a value for each of the keys, such as
// an event's type or its schema's version, with a [backends.MessageError].
func RequireMetadata(next message.Publisher, keys ...string) message.Publisher {
	return each(next, func(_ string, i int, msg *message.Message) error {
		var faults []error
		for _, key := range keys {
			if msg.Metadata.Get(key) == "" {
				faults = append(faults, &backends.MessageError{
					Index: i, MessageID: msg.UUID, Field: "metadata[" + key + "]",
					Problem: "is missing", Remedy: "set it before publishing",
				})
			}
		}
		return errors.Join(faults...)
	})
}

// RouteTopic publishes to the topic that route names, in place of the one in the
// call. An error of route stops the call.
func RouteTopic(next message.Publisher, route func(topic string) (string, error)) message.Publisher {
	return decorated{next, func(topic string, _ []*message.Message) (string, error) {
		to, err := route(topic)
		if err != nil {
			return "", fmt.Errorf("route topic %q: %w", topic, err)
		}
		return to, nil
	}}
}
