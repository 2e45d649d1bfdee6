package rabbitmq

import (
	"errors"
	"fmt"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/outmill/outmill/backends"
)

// uuidHeader is where watermill-amqp's default marshaler keeps the message id.
const uuidHeader = "_watermill_message_uuid"

// What the fixed parts of a header frame take at most, and each header beside
// its key and value.
const (
	frameOverhead  = 64
	headerOverhead = 6
)

// shortBytes is how long a name in AMQP may be.
const shortBytes = 255

// publishing makes a message. It holds the record's payload, which the client
// has copied when its publish returns.
func publishing(r *backends.Record) amqp.Publishing {
	headers := make(amqp.Table, len(r.Metadata)+5)
	for k, v := range r.Headers() {
		headers[k] = v
	}
	headers[uuidHeader] = r.MessageID
	return amqp.Publishing{Headers: headers, DeliveryMode: amqp.Persistent, MessageId: r.MessageID, Body: r.Payload}
}

// fault settles what need not go to the server to be refused: sent, it would
// cost the channel or the connection.
func (r *run) fault(rec *backends.Record, exchange, key string) failure {
	if err := r.refused[exchange]; err != nil {
		if backends.ClassOf(err) == backends.PermanentFailure {
			return failure{backends.Rejected, err}
		}
		return failure{backends.NotSent, err}
	}
	if err := r.impossible(rec, exchange, key); err != nil {
		return failure{backends.Rejected, backends.Permanent(err)}
	}
	return failure{}
}

func (r *run) impossible(rec *backends.Record, exchange, key string) error {
	size := frameOverhead + len(rec.MessageID)
	for k, v := range rec.Headers() {
		switch {
		case len(k) > shortBytes:
			return fmt.Errorf("rabbitmq: a metadata key has %d bytes, at most %d are possible", len(k), shortBytes)
		case k == "CC" || k == "BCC":
			return fmt.Errorf("rabbitmq: metadata %s is an order to the server: name it otherwise", k)
		}
		size += headerOverhead + len(k) + len(v)
	}
	size += headerOverhead + len(uuidHeader) + len(rec.MessageID)
	frame := r.session.conn.Config.FrameSize
	switch {
	case rec.Topic == "":
		return errors.New("rabbitmq: the topic is empty")
	case len(exchange) > shortBytes || len(key) > shortBytes:
		return fmt.Errorf("rabbitmq: exchange and routing key have %d and %d bytes, at most %d are possible", len(exchange), len(key), shortBytes)
	case !utf8.ValidString(exchange) || !utf8.ValidString(key):
		return errors.New("rabbitmq: exchange or routing key is no UTF-8")
	case len(rec.MessageID) > shortBytes:
		return fmt.Errorf("rabbitmq: the message id has %d bytes, at most %d are possible", len(rec.MessageID), shortBytes)
	case rec.Metadata.Get(uuidHeader) != "":
		return fmt.Errorf("rabbitmq: metadata %s is reserved for the message id", uuidHeader)
	case frame > 0 && size > frame:
		return fmt.Errorf("rabbitmq: metadata takes %d bytes, the server allows %d in a frame", size, frame)
	case len(rec.Payload) > r.cfg.MaxMessageBytes:
		return fmt.Errorf("rabbitmq: the payload has %d bytes, MaxMessageBytes allows %d", len(rec.Payload), r.cfg.MaxMessageBytes)
	}
	return nil
}
