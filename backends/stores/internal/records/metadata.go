package records

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// EncodeMetadata returns metadata without its reserved keys as a JSON object
// with sorted keys.
func EncodeMetadata(md message.Metadata) []byte {
	if len(md) == 0 {
		return []byte("{}")
	}
	kept := make(map[string]string, len(md))
	for k, v := range md {
		if !reserved(k) {
			kept[k] = v
		}
	}
	b, err := json.Marshal(kept)
	if err != nil { // a map of strings always has a JSON form
		panic(err)
	}
	return b
}

// DecodeMetadata is the reverse of EncodeMetadata. It never returns nil without
// an error.
func DecodeMetadata(b []byte) (message.Metadata, error) {
	if len(b) == 0 || string(b) == "{}" {
		return message.Metadata{}, nil
	}
	var md message.Metadata
	if err := json.Unmarshal(b, &md); err != nil {
		return nil, fmt.Errorf("metadata column is not a JSON object of strings: %w", err)
	}
	if md == nil {
		md = message.Metadata{}
	}
	return md, nil
}
