package tracing

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
)

// The messaging conventions are in development: what they name is named here and
// nowhere else, and a change of version is one that users see.
const (
	scope     = "github.com/outmill/outmill/tracing"
	schemaURL = semconv.SchemaURL
)

// Attributes.
const (
	keySystem              = semconv.MessagingSystemKey
	keyOperationName       = semconv.MessagingOperationNameKey
	keyDestinationName     = semconv.MessagingDestinationNameKey
	keyDestinationTemplate = semconv.MessagingDestinationTemplateKey
	keyMessageID           = semconv.MessagingMessageIDKey
	keyConversationID      = semconv.MessagingMessageConversationIDKey
	keyBatchCount          = semconv.MessagingBatchMessageCountKey
	keyKafkaKey            = semconv.MessagingKafkaMessageKeyKey
	keyErrorType           = semconv.ErrorTypeKey

	keyOutbox         = attribute.Key("outbox.name")
	keyShard          = attribute.Key("outbox.shard.id")
	keySequence       = attribute.Key("outbox.message.sequence")
	keyAge            = attribute.Key("outbox.message.age")
	keyAttempt        = attribute.Key("outbox.publish.attempt")
	keyReplayed       = attribute.Key("outbox.replayed")
	keyOutcome        = attribute.Key("outbox.outcome")
	keyBatchRead      = attribute.Key("outbox.batch.claimed")
	keyBatchPublished = attribute.Key("outbox.batch.published")
	keyBatchFailed    = attribute.Key("outbox.batch.failed")
	keyReplayCount    = attribute.Key("outbox.replay.count")
	keyReplayKind     = attribute.Key("outbox.replay.kind")
	keyLink           = attribute.Key("outbox.link.type")

	keyState      = attribute.Key("outbox.message.state")
	keyReason     = attribute.Key("outbox.dead_letter.reason")
	keyPollResult = attribute.Key("outbox.poll.result")
	keyLeaseEvent = attribute.Key("outbox.lease.event")
)

// Operations.
var (
	createOperation  = []attribute.KeyValue{keyOperationName.String("create"), semconv.MessagingOperationTypeCreate}
	publishOperation = []attribute.KeyValue{keyOperationName.String("publish"), semconv.MessagingOperationTypeSend}
)

// Link types.
var (
	linkCreation = keyLink.String("creation")
	linkBatch    = keyLink.String("forwarder_batch")
	linkPrevious = keyLink.String("previous_attempt")
	linkReplay   = keyLink.String("replay")
)

// Outcomes of a publish span, the worst last.
const (
	outcomeDelivered = "delivered"
	outcomeReleased  = "released"
	outcomeRetry     = "retry"
	outcomeDead      = "dead_lettered"
)

// Instruments whose names the conventions give.
var (
	sentMessages      = messagingconv.ClientSentMessages{}
	operationDuration = messagingconv.ClientOperationDuration{}
)

// Buckets, in seconds but for batches. The conventions' own are not set by the
// package that names their instruments.
var (
	conventionBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	delayBuckets      = []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	batchBuckets      = []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000}
)

// Metadata keys that are not the propagator's.
const (
	// ReplayContextKey holds the context of the replay that published a message
	// again, in the form of a traceparent.
	ReplayContextKey = "outbox_replay_traceparent"
	// ReplayedKey is "true" on a message that was published again by a replay.
	ReplayedKey = "outbox_replayed"

	correlationKey = "correlation_id" // Watermill's
	baggageKey     = "baggage"
)
