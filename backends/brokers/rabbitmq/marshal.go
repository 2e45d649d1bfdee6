package rabbitmq

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

// TolerantMarshaler is a marshaler for watermill-amqp (its Config.Marshaler) with
// the default one's wire format. It also reads messages to which a server has
// added headers that are no strings: a quorum queue counts deliveries, a dead
// letter exchange tells where a message has been. The default marshaler fails on
// those, and a subscriber then nacks a message until the queue drops it.
//
// Numbers and flags become text, everything else is left out.
type TolerantMarshaler struct{}

// Marshal implements watermill-amqp's Marshaler.
func (TolerantMarshaler) Marshal(msg *message.Message) (amqp.Publishing, error) {
	headers := make(amqp.Table, len(msg.Metadata)+1)
	for k, v := range msg.Metadata {
		headers[k] = v
	}
	headers[uuidHeader] = msg.UUID
	return amqp.Publishing{Headers: headers, DeliveryMode: amqp.Persistent, Body: msg.Payload}, nil
}

// Unmarshal implements watermill-amqp's Marshaler. It never fails.
func (TolerantMarshaler) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	id, _ := d.Headers[uuidHeader].(string)
	msg := message.NewMessage(id, d.Body)
	for k, v := range d.Headers {
		if k == uuidHeader {
			continue
		}
		switch v := v.(type) {
		case string:
			msg.Metadata[k] = v
		case bool, int8, uint8, int16, uint16, int32, uint32, int64, float32, float64, int:
			msg.Metadata[k] = fmt.Sprint(v)
		}
	}
	return msg, nil
}
