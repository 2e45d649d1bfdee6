package storetest

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/memory"
)

// Ways in which appending can be wrong.
var appendFaults = map[string]fault{
	"a repeated id is dropped": {"Append/one message id", withPublish(func() publishFunc {
		seen := map[string]bool{}
		return func(p message.Publisher, topic string, msgs []*message.Message) error {
			var kept []*message.Message
			for _, m := range msgs {
				if !seen[m.UUID] {
					kept = append(kept, m)
				}
				seen[m.UUID] = true
			}
			return p.Publish(topic, kept...)
		}
	})},
	"a supplied sequence is ignored": {"Append/sequences count", withPublish(func() publishFunc {
		return func(p message.Publisher, topic string, msgs []*message.Message) error {
			for _, m := range msgs {
				backends.SetSequence(m, 0)
			}
			return p.Publish(topic, msgs...)
		}
	})},
	"sequences count across topics": {"Append/sequences count", withPublish(func() publishFunc {
		last := map[string]int64{}
		return func(p message.Publisher, topic string, msgs []*message.Message) error {
			for _, m := range msgs {
				if a := backends.Aggregate(m); a != "" {
					last[a]++
					backends.SetSequence(m, last[a])
				}
			}
			return p.Publish(topic, msgs...)
		}
	})},
	"a call is sorted by id": {"Append/call order", withPublish(func() publishFunc {
		return func(p message.Publisher, topic string, msgs []*message.Message) error {
			return p.Publish(topic, byUUID(msgs)...)
		}
	})},
	"a refused message ends the transaction": {"Append/bad messages", withPublish(func() publishFunc {
		var failed error
		return func(p message.Publisher, topic string, msgs []*message.Message) error {
			if failed == nil {
				failed = p.Publish(topic, msgs...)
			}
			return failed
		}
	})},
	"the good messages of a refused call are kept": {"Append/bad messages", withPublish(func() publishFunc {
		return func(p message.Publisher, topic string, msgs []*message.Message) error {
			var first error
			for _, m := range msgs {
				if err := p.Publish(topic, m); err != nil && first == nil {
					first = err
				}
			}
			return first
		}
	})},
	"the end of a transaction is not noticed": {"Append/an ended transaction", withPublish(func() publishFunc {
		return func(p message.Publisher, topic string, msgs []*message.Message) error {
			_ = p.Publish(topic, msgs...)
			return nil
		}
	})},
	"a call of many is cut": {"Append/many", withPublish(func() publishFunc {
		return func(p message.Publisher, topic string, msgs []*message.Message) error {
			return p.Publish(topic, msgs[:min(len(msgs), 65535/8)]...)
		}
	})},
}

type publishFunc func(p message.Publisher, topic string, msgs []*message.Message) error

func withPublish(make func() publishFunc) func(*memory.Store) Store {
	return func(s *memory.Store) Store {
		publish := make()
		return &broken{Store: s, begin: func(s *memory.Store) Tx {
			return &publishTx{memoryTx{s.Begin(), s}, publish}
		}}
	}
}

type publishTx struct {
	memoryTx
	publish publishFunc
}

func (t *publishTx) Publisher() message.Publisher {
	return publishing{t.memoryTx.Publisher(), t.publish}
}

type publishing struct {
	message.Publisher
	publish publishFunc
}

func (p publishing) Publish(topic string, msgs ...*message.Message) error {
	return p.publish(p.Publisher, topic, msgs)
}

// readFunc stands in for a reader's Read.
type readFunc func(r backends.Reader, ctx context.Context, l backends.Lease, w backends.Want) ([]backends.Record, error)

func withRead(make func() readFunc) func(*memory.Store) Store {
	return withReader(func(r backends.Reader) *brokenReader { return &brokenReader{Reader: r, read: make()} })
}
