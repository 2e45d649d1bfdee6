package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outmill/outmill/backends"
)

// ack is the server's answer for one record.
type ack struct {
	Stream   string    `json:"stream"`
	Sequence uint64    `json:"seq"`
	Error    *apiError `json:"error"`
}

type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

// Error quotes the server.
func (e *apiError) Error() string {
	return fmt.Sprintf("nats: %s (error %d)", e.Description, e.ErrCode)
}

// Errors of a stream that mean one record, and the one that says that a copy of
// the record is still on its way.
const (
	tooLarge        = 10054
	headersTooLarge = 10097
	copyUnderWay    = 10158
)

// lookLimit is how long it may take to learn whether a subject has a stream.
const lookLimit = 2 * time.Second

// take takes an answer in.
func (p *publish) take(ctx context.Context, m *nats.Msg) {
	token := p.session.tokenOf(m)
	i, ok := p.waiting[token]
	if !ok {
		return // given up before
	}
	name := p.records[i].Topic
	t := p.topics[name]
	t.heard = time.Now()
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		p.unheard(ctx, name)
		return
	}
	delete(p.waiting, token)
	t.waiting--
	var a ack
	err := json.Unmarshal(m.Data, &a)
	switch {
	case err == nil && a.Error != nil:
		p.refused(i, t, a.Error)
	case err == nil && a.Stream != "" && a.Sequence > 0:
		p.accepted(i)
	default: // some subscriber's, or that of a copy which is not stored yet
		p.fail(i, backends.Unknown, backends.Unavailable(errors.New("nats: an answer came that is no acknowledgement of a stream")))
	}
}

// refused settles a record that the stream did not take. The server's own
// troubles, a full stream among them, are no fault of the record.
func (p *publish) refused(i int, t *topic, e *apiError) {
	switch {
	case e.ErrCode == tooLarge, e.ErrCode == headersTooLarge:
		p.fail(i, backends.Rejected, backends.Permanent(e))
	case e.ErrCode == copyUnderWay:
		p.fail(i, backends.Unknown, backends.Unavailable(e))
	case e.Code >= 500:
		t.err, t.state = backends.Unavailable(e), backends.NotSent
		p.fail(i, backends.Rejected, t.err)
	default:
		p.fail(i, backends.Rejected, e)
	}
}

// unheard settles a topic that nobody listens to. Only where the server's own
// list has no stream for it does it not exist: a stream whose leader changes
// does not listen either.
func (p *publish) unheard(ctx context.Context, name string) {
	exists, err := p.hasStream(ctx, name)
	switch {
	case err != nil:
		err = backends.Unavailable(fmt.Errorf("nats: no stream answers for the topic, and whether there is one cannot be told: %w", err))
	case exists:
		err = backends.Unavailable(errors.New("nats: the topic's stream does not answer: it may have no leader"))
	default:
		err = backends.Permanent(errors.New("nats: the topic's subject belongs to no stream: create one"))
	}
	p.block(name, err, backends.Rejected)
}

// hasStream asks the server for the streams of a subject.
func (p *publish) hasStream(ctx context.Context, subject string) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookLimit, errors.New("no answer in time"))
	defer cancel()
	ask, err := json.Marshal(map[string]string{"subject": subject})
	if err != nil {
		return false, err
	}
	m, err := p.session.conn.RequestWithContext(ctx, "$JS.API.STREAM.NAMES", ask)
	if err != nil {
		return false, err
	}
	var list struct {
		Streams []string  `json:"streams"`
		Error   *apiError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &list); err != nil {
		return false, errors.New("the list of streams cannot be read")
	}
	if list.Error != nil {
		return false, list.Error
	}
	return len(list.Streams) > 0, nil
}

// refers reports whether an error of the server's names a subject.
func refers(err error, subject string) bool {
	return strings.Contains(err.Error(), `"`+subject+`"`)
}
