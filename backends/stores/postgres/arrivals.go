package postgres

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/outmill/outmill/backends"
	"github.com/outmill/outmill/backends/stores/internal/records"
	"github.com/outmill/outmill/backends/stores/internal/scan"
)

// take reads the rows. Values are scanned in place: this is the hot path.
func (a *arrivals) take(rows pgx.Rows) error {
	var (
		kind                        int32
		shard                       int16
		id                          int64
		attempts                    int32
		messageID, topic, aggregate pgtype.Text
		sequence                    pgtype.Int8
		payload, metadata           []byte
		created                     pgtype.Timestamptz
		wait                        pgtype.Float8
		parked                      bool
	)
	to := []any{
		&kind, &shard, &id, &messageID, &topic, &aggregate, &sequence, &payload, &metadata, &created,
		&attempts, &wait, &parked,
	}
	for rows.Next() {
		payload, metadata = nil, nil
		if err := rows.Scan(to...); err != nil {
			return err
		}
		ref := backends.Ref{Shard: int(shard), ID: id}
		switch kind {
		case 0:
			a.token, a.snap, a.now = messageID.String, topic.String, created.Time
		case 1:
			a.fresh = append(a.fresh, ref)
		default:
			row := scan.Row{
				Record: backends.Record{
					Ref: ref, MessageID: messageID.String, Topic: topic.String, Aggregate: aggregate.String,
					Sequence: sequence.Int64, CreatedAt: created.Time.UTC(), Attempts: int(attempts),
				},
				Wait: time.Duration(wait.Float64 * float64(time.Second)), Parked: parked,
			}
			if err := a.add(row, payload, metadata); err != nil {
				return err
			}
		}
	}
	return rows.Err()
}

func (a *arrivals) add(row scan.Row, payload, metadata []byte) error {
	if row.Drop = payload == nil; !row.Drop {
		md, err := decodeMetadata(metadata)
		if err != nil {
			return fmt.Errorf("record %d of shard %d: %w", row.ID, row.Shard, err)
		}
		row.Payload, row.Metadata = payload, md
		row.Age = max(0, a.now.Sub(row.CreatedAt))
	}
	a.found.Add(row)
	return nil
}

// decodeMetadata also reads what something else than a publisher wrote: what is
// no string is kept as its JSON text. One odd row must not stop the others.
func decodeMetadata(metadata []byte) (message.Metadata, error) {
	if md, err := records.DecodeMetadata(metadata); err == nil {
		return md, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(metadata, &values); err != nil {
		return nil, errors.New("the metadata is not a JSON object")
	}
	md := make(message.Metadata, len(values))
	for k, v := range values {
		var s string
		if json.Unmarshal(v, &s) != nil || string(v) == "null" {
			s = string(v)
		}
		md[k] = s
	}
	return md, nil
}
