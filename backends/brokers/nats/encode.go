package nats

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/outmill/outmill/backends"
)

// uuidHeader is where watermill-nats keeps the message id.
const uuidHeader = "_watermill_message_uuid"

// maxSubject leaves room in the line that names subject and reply, of which a
// server takes 4,096 bytes.
const maxSubject = 1024

// encode makes a message of a record, or says why none can be made.
func encode(r *backends.Record) (*nats.Msg, error) {
	if !validSubject(r.Topic) {
		return nil, errors.New("the topic is no subject: tokens parted by dots, not empty, without spaces, '*' and '>', " +
			"the first without '$' at its start and not _INBOX")
	}
	if changed(r.MessageID) || changed(r.Aggregate) {
		return nil, errors.New("the message id or the aggregate holds a line break or begins or ends with a space, " +
			"which NATS headers do not keep")
	}
	if r.Metadata.Get(uuidHeader) != "" {
		return nil, fmt.Errorf("metadata %s is reserved for the message id", uuidHeader)
	}
	h := make(nats.Header, len(r.Metadata)+6)
	for k, v := range r.Headers() {
		switch {
		case !validKey(k):
			return nil, errors.New("a metadata key is empty or has characters that no header's name may have")
		case len(k) >= 5 && strings.EqualFold(k[:5], "nats-"):
			return nil, errors.New("a metadata key begins with Nats-: the server would take it as a command")
		case k == "Status" && len(r.Payload) == 0:
			return nil, errors.New("metadata Status without a payload: clients would take it as the server's word")
		}
		h[k] = []string{v}
	}
	h[uuidHeader] = []string{r.MessageID}
	h[nats.MsgIdHdr] = []string{identity(r)}
	return &nats.Msg{Subject: r.Topic, Header: h, Data: r.Payload}, nil
}

// identity names the row, so that the server can tell a repeat. The message id
// alone does not: it is the application's, and a stream may hold it twice. The
// row's number alone does not either: two outboxes may feed one stream.
func identity(r *backends.Record) string {
	h := sha256.New()
	var n [8]byte
	for _, x := range []int64{int64(r.Shard), r.ID, r.Sequence, r.CreatedAt.UnixNano()} {
		binary.BigEndian.PutUint64(n[:], uint64(x))
		_, _ = h.Write(n[:])
	}
	for _, s := range []string{r.MessageID, r.Topic, r.Aggregate} {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:])
		_, _ = h.Write([]byte(s))
	}
	var sum [sha256.Size]byte
	return base64.RawURLEncoding.EncodeToString(h.Sum(sum[:0])[:18])
}

// validSubject keeps out what is no subject, and the subjects that command the
// server or answer a request.
func validSubject(s string) bool {
	if s == "" || len(s) > maxSubject || s[0] == '$' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f || c == '*' || c == '>' {
			return false
		}
	}
	first, _, _ := strings.Cut(s, ".")
	return first != "_INBOX" && s[0] != '.' && s[len(s)-1] != '.' && !strings.Contains(s, "..")
}

// changed reports whether a header's value would arrive as another.
func changed(s string) bool {
	return strings.ContainsAny(s, "\r\n") || strings.Trim(s, " \t") != s
}

// validKey reports whether a header may have this name.
func validKey(k string) bool {
	for i := range len(k) {
		c := k[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return k != ""
}
