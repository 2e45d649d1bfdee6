// Package connect opens a store or a broker by URL, so that a line of
// configuration swaps it.
//
//	store, err := connect.Store(ctx, "postgres://app:secret@db:5432/shop?schema=outbox")
//	broker, err := connect.Broker(ctx, "kafka://k1:9092,k2:9092?compression=zstd")
//
// Every option of a store or broker is a parameter of its URL. A scheme, host or
// parameter that does not exist is an error that lists what there is; all faults
// of a URL are reported at once. No error repeats a password, a parameter that
// is a secret, or a part of a URL that cannot be taken apart.
//
// In user names and passwords write / as %2F, ? as %3F, # as %23, @ as %40 and
// % as %25.
//
// This package links every driver and client. A program that uses one store and
// one broker imports their own packages instead.
package connect
