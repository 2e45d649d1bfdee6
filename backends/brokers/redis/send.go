package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/outmill/outmill/backends"
)

// send makes one transaction of a wave.
//
// The server answers thrice: to MULTI, for each command whether it may be part
// of the transaction, and to EXEC what came of each. If any may not, nothing of
// the transaction is done.
func (p *publish) send(ctx context.Context, wave []int) {
	pipe := p.session.client.Pipeline()
	multi := redis.NewStatusCmd(ctx, "multi")
	_ = pipe.Process(ctx, multi)
	queued := make([]*redis.StatusCmd, len(wave))
	for n, i := range wave {
		queued[n] = redis.NewStatusCmd(ctx, p.command(i)...)
		_ = pipe.Process(ctx, queued[n])
	}
	exec := redis.NewSliceCmd(ctx, "exec")
	_ = pipe.Process(ctx, exec)
	_, _ = pipe.Exec(ctx) // each command has its own error

	switch {
	case multi.Err() == nil && exec.Err() == nil:
		p.session.used = time.Now()
		p.take(ctx, wave, exec.Val())
	case multi.Err() == nil && said(exec.Err()):
		p.aborted(wave, queued, exec.Err())
	default:
		p.unsure(ctx, wave, cmp.Or(multi.Err(), exec.Err()))
	}
}

func (p *publish) command(i int) []any {
	r := &p.records[i]
	args := make([]any, 0, 12)
	args = append(args, "xadd", r.Topic)
	if n := p.cfg.maxLen(r.Topic); n > 0 {
		args = append(args, "maxlen", "~", n)
	}
	return append(args, "*", uuidField, r.MessageID, metadataField, p.entries[i].metadata, payloadField, r.Payload)
}

// said reports whether an error is the server's word, rather than silence.
func said(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// take takes in what came of the commands of a transaction that was done.
func (p *publish) take(ctx context.Context, wave []int, answers []any) {
	if len(answers) != len(wave) {
		p.unsure(ctx, wave, errors.New("the server's answer is not for this transaction"))
		return
	}
	for n, i := range wave {
		err, bad := answers[n].(error)
		switch {
		case !bad:
		case strings.HasPrefix(err.Error(), "WRONGTYPE"):
			p.fail(i, backends.Rejected, backends.Permanent(errors.New("redis: the topic is a key that holds no stream: name another topic or move the key away")))
		default:
			p.fail(i, backends.Rejected, fmt.Errorf("redis: %w", err))
		}
	}
}

// aborted takes in that nothing of a transaction was done. Where some commands
// alone were refused, their topics are unavailable and the others go again.
func (p *publish) aborted(wave []int, queued []*redis.StatusCmd, err error) {
	var again []int
	for n, i := range wave {
		refusal := queued[n].Err()
		switch topic := p.records[i].Topic; {
		case refusal == nil:
			again = append(again, i)
		case p.blocked[topic] != nil:
			p.fail(i, backends.NotSent, p.blocked[topic])
		default:
			p.blocked[topic] = unavailable(refusal)
			p.fail(i, backends.Rejected, p.blocked[topic])
		}
	}
	if len(again) == len(wave) {
		for _, i := range wave {
			p.fail(i, backends.Rejected, unavailable(err))
		}
		return
	}
	p.left = append(again, p.left...)
}

// unavailable is what the server's refusals come to: they speak of its state or
// of the user's rights, which an operator mends.
func unavailable(err error) error {
	remedy := ""
	for prefix, text := range map[string]string{
		"OOM":        ": raise maxmemory, or let consumers trim what they have read",
		"NOPERM":     ": grant XADD, MULTI and EXEC on the topic's key to the user",
		"READONLY":   ": name the primary, this is a replica",
		"MISCONF":    ": the server cannot write to its disk",
		"MOVED":      ": Redis Cluster is not supported",
		"NOREPLICAS": ": too few replicas are connected",
	} {
		if strings.HasPrefix(err.Error(), prefix) {
			remedy = text
		}
	}
	return backends.Unavailable(fmt.Errorf("redis: %w%s", err, remedy))
}
