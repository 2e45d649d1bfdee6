// Package redis publishes to Redis streams by go-redis, with the wire format of
// watermill-redisstream's default marshaller: its subscriber reads the records
// unchanged. The stream's key is the topic.
//
//	broker, err := redis.New(redis.Config{Addr: "localhost:6379"})
//
// A batch is one transaction (MULTI, XADD…, EXEC) on one connection: the server
// takes all of it or nothing, in its order, with one fsync. Redis cannot tell a
// repeat, so that a record whose outcome was unknown may be there twice.
//
// What EXEC has answered is as durable as the server's settings: with
// appendfsync always it is on disk, with everysec up to a second of acknowledged
// records is lost when the machine fails, and without an append-only file all
// since the last snapshot. A failover loses what the replica did not have.
//
// One server is supported, which may be a primary with replicas; Redis Cluster is not.
package redis
