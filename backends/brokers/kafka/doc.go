// Package kafka publishes to Apache Kafka over franz-go, with the wire format of
// watermill-kafka's default marshaler: its subscriber reads the records
// unchanged. The key is the aggregate, so a topic's partitions keep its order.
//
//	broker, err := kafka.New(kafka.Config{Brokers: []string{"localhost:9092"}})
//
// Records are written with acks=all and sequence numbers by which the cluster
// knows repeats (an idempotent producer).
//
// # Order after a failure
//
// Kafka accepts later batches of a partition after it has refused an earlier
// one, and producers keep several on their way. Records therefore go out in waves:
// a wave is at most one record batch for each partition, which Kafka takes as a
// whole or not at all, and the next follows its answer. A batch of a thousand
// records of half a kilobyte is one wave. docs/decisions/0004 says more.
package kafka
