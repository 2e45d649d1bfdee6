package rabbitmq

import (
	amqp "github.com/rabbitmq/amqp091-go"
)

// Topology maps a topic to where its records go. The functions have the types of
// watermill-amqp's Exchange.GenerateName and Publish.GenerateRoutingKey, so those
// of an existing configuration fit. They must be pure and safe for concurrent use.
type Topology struct {
	Exchange   func(topic string) string
	RoutingKey func(topic string) string

	declare func(ch *amqp.Channel, topic string) error
}

// DurableQueue sends to the queue that is called as the topic, as
// watermill-amqp's NewDurableQueueConfig does. With Config.Declare it makes that
// queue, durable, with args such as {"x-queue-type": "quorum"}.
func DurableQueue(args ...amqp.Table) Topology {
	var all amqp.Table
	for _, a := range args {
		for k, v := range a {
			if all == nil {
				all = amqp.Table{}
			}
			all[k] = v
		}
	}
	return Topology{
		Exchange:   func(string) string { return "" },
		RoutingKey: func(topic string) string { return topic },
		declare: func(ch *amqp.Channel, topic string) error {
			_, err := ch.QueueDeclare(topic, true, false, false, false, all)
			return err
		},
	}
}

// DurablePubSub sends to the fanout exchange that is called as the topic, as
// watermill-amqp's NewDurablePubSubConfig does. With Config.Declare it makes that
// exchange, durable. Queues are the consumers' to make: until there is one, records
// are unroutable.
func DurablePubSub() Topology {
	return Topology{
		Exchange:   func(topic string) string { return topic },
		RoutingKey: func(string) string { return "" },
		declare: func(ch *amqp.Channel, topic string) error {
			return ch.ExchangeDeclare(topic, amqp.ExchangeFanout, true, false, false, false, nil)
		},
	}
}

// DurableTopic sends to one topic exchange with the topic as the routing key, as
// watermill-amqp's NewDurableTopicConfig does. With Config.Declare it makes the
// exchange as that does: not durable, so that the two do not refuse each other's.
func DurableTopic(exchange string) Topology {
	return Topology{
		Exchange:   func(string) string { return exchange },
		RoutingKey: func(topic string) string { return topic },
		declare: func(ch *amqp.Channel, _ string) error {
			return ch.ExchangeDeclare(exchange, amqp.ExchangeTopic, false, false, false, false, nil)
		},
	}
}
