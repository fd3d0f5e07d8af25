package proto

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Limits of keys, patterns and images.
const (
	// KeysListMax is the most keys that one answer lists, and KeysListDefault the number when a question has no limit.
	KeysListMax     = 10_000
	KeysListDefault = 100
	// PatternsPerAskMax is the most patterns in one question.
	PatternsPerAskMax = 16
	// ImageBytesMax bounds the image of a key that is renamed to another shard. Such an image fits one command with the
	// longest names, and the command fits one entry of the log.
	ImageBytesMax = CommandBytesMax - 1<<10
	// LargeImageBytesMax is the most bytes of an image in one answer. Before VersionAdds it bounds images sent in
	// pieces.
	LargeImageBytesMax = MessageBytesMax - 64<<10
	// UploadsBytesMax bounds the total size of the images that are being uploaded to a shard. SketchBytesMax bounds one
	// image: it may take all that room.
	UploadsBytesMax = 4 * LargeImageBytesMax
	SketchBytesMax  = UploadsBytesMax
	// UploadExpiryUS is the time without a new piece after which an incomplete image is removed, in shard time.
	UploadExpiryUS = 600_000_000
	// ImageBothVersion is the version of images, their second byte, from which on they contain the counts of both
	// half-lives.
	ImageBothVersion = 2
	// TTLMaxUS is the longest time to live that a key may have.
	TTLMaxUS = HalfLifeMaxUS
)

// CheckPattern refuses an empty pattern, one over KeyLenMax bytes, and one that ends in a backslash.
func CheckPattern(pattern []byte) *Error {
	switch n := len(pattern); {
	case n == 0:
		return ErrBadKey.Errorf("empty pattern: a pattern has 1 to %d bytes", KeyLenMax)
	case n > KeyLenMax:
		return ErrBadKey.Errorf("pattern of %d bytes: the limit is %d", n, KeyLenMax)
	}
	escaped := false
	for _, c := range pattern {
		escaped = c == '\\' && !escaped
	}
	if escaped {
		return ErrBadKey.Errorf("pattern %q ends in a backslash, which makes the next byte ordinary", pattern)
	}
	return nil
}

// checkKeysOrPatterns checks the keys and patterns of a question, which must have at least one of either.
func checkKeysOrPatterns(keys, patterns [][]byte) *Error {
	if n := len(patterns); n > PatternsPerAskMax {
		return ErrBadCount.Errorf("%d patterns: a question names %d at most", n, PatternsPerAskMax)
	}
	for _, pattern := range patterns {
		if err := CheckPattern(pattern); err != nil {
			return err
		}
	}
	if len(keys) == 0 && len(patterns) > 0 {
		return nil
	}
	return checkKeys(keys)
}

// QuestionPatterns returns the patterns that a question names; patterns of a baseline are last.
func QuestionPatterns(q *ebbv1.Question) [][]byte {
	switch ask := q.GetAsk().(type) {
	case *ebbv1.Question_Distribution:
		return ask.Distribution.GetPatterns()
	case *ebbv1.Question_Summary:
		return ask.Summary.GetPatterns()
	case *ebbv1.Question_Surprise:
		return slices.Concat(ask.Surprise.GetPatterns(), ask.Surprise.GetAgainstPatterns())
	case *ebbv1.Question_Graph:
		return ask.Graph.GetPatterns()
	case *ebbv1.Question_BitmapGroups:
		return ask.BitmapGroups.GetPatterns()
	}
	return nil
}

// Everywhere says whether a question must be asked of all shards: it names no key, or it names a pattern.
func Everywhere(q *ebbv1.Question) bool {
	return len(QuestionKeys(q)) == 0 || len(QuestionPatterns(q)) > 0
}

// CheckKind refuses an unknown kind; KIND_UNSPECIFIED passes.
func CheckKind(kind ebbv1.Kind) *Error {
	if kind < ebbv1.Kind_KIND_UNSPECIFIED || kind > KindMax {
		return ErrBadRequest.Errorf("kind %d is unknown: %s", kind, KindNames())
	}
	return nil
}

func checkKeysQuestion(q *ebbv1.KeysQuestion) *Error {
	if len(q.GetPattern()) > 0 {
		if err := CheckPattern(q.GetPattern()); err != nil {
			return err
		}
	}
	if err := CheckKind(q.GetKind()); err != nil {
		return err
	}
	if _, known := ebbv1.KeyOrder_name[int32(q.GetOrder())]; !known {
		return ErrBadRequest.Errorf("order %d is unknown: name, total or recent", q.GetOrder())
	}
	if q.GetLimit() > KeysListMax {
		return ErrBadCount.Errorf("%d keys: an answer lists 1 to %d", q.GetLimit(), KeysListMax)
	}
	byName := q.GetOrder() <= ebbv1.KeyOrder_KEY_ORDER_NAME
	if len(q.GetAfter()) > 0 && !byName {
		return ErrBadRequest.Errorf("after: only keys in the order of their names go on after one")
	}
	if n := len(q.GetAfter()); n > KeyLenMax {
		return ErrBadKey.Errorf("key of %d bytes: the limit is %d", n, KeyLenMax)
	}
	return CheckTime(q.GetAsOfUs())
}

func checkDescribeQuestion(q *ebbv1.DescribeQuestion) *Error {
	if err := CheckKey(q.GetKey()); err != nil {
		return err
	}
	return CheckTime(q.GetAsOfUs())
}

// CheckDelete checks everything about the request that does not depend on state.
func CheckDelete(req *ebbv1.DeleteRequest) *Error {
	return checkKeysRequest(req.GetNamespace(), req.GetKeys(), req.GetIdempotencyKey())
}

// CheckExpire checks everything about the request that does not depend on state.
func CheckExpire(req *ebbv1.ExpireRequest) *Error {
	if err := checkKeysRequest(req.GetNamespace(), req.GetKeys(), req.GetIdempotencyKey()); err != nil {
		return err
	}
	given := 0
	for _, is := range []bool{req.GetAtUs() != 0, req.GetTtlUs() != 0, req.GetNever()} {
		if is {
			given++
		}
	}
	if given != 1 {
		return ErrBadRequest.Errorf("until when? one of ttl_us, at_us and never must be given, and %d are", given).WithHint("never takes back what was said before")
	}
	if err := checkTTL(req.GetTtlUs()); err != nil {
		return err
	}
	return CheckTime(req.GetAtUs())
}

func checkTTL(us int64) *Error {
	if us < 0 || us > TTLMaxUS {
		return ErrBadTime.Errorf("%d µs to live: it must be above 0, and 100 years at most", us)
	}
	return nil
}

// CheckRename checks everything about the request that does not depend on state.
func CheckRename(req *ebbv1.RenameRequest) *Error {
	if err := checkKeysRequest(req.GetNamespace(), [][]byte{req.GetKey(), req.GetTo()}, req.GetIdempotencyKey()); err != nil {
		return err
	}
	if string(req.GetKey()) == string(req.GetTo()) {
		return ErrBadKey.Errorf("key %q has that name already", req.GetTo())
	}
	return nil
}

func checkKeysRequest(namespace string, keys [][]byte, id *ebbv1.IdempotencyKey) *Error {
	if namespace != "" {
		if err := CheckNamespaceName(namespace); err != nil {
			return err
		}
	}
	if id != nil && id.GetIssuedAtUs() <= 0 {
		return ErrBadTime.Errorf("idempotency key issued at %d µs: it must be after 1970-01-01", id.GetIssuedAtUs())
	}
	return checkKeys(keys)
}

// checkKeysCommand checks a command about keys from a client.
func checkKeysCommand(field int, raw []byte) *Error {
	switch field {
	case FieldCommandDelete:
		var c ebbv1.DeleteKeys
		if err := Decode(raw, &c); err != nil {
			return err
		}
		if c.Checksum != nil && len(c.GetKeys()) != 1 {
			return ErrBadRequest.Errorf("a checksum is of one key, and there are %d", len(c.GetKeys()))
		}
		return checkKeys(c.GetKeys())
	case FieldCommandExpire:
		var c ebbv1.ExpireKeys
		if err := Decode(raw, &c); err != nil {
			return err
		}
		if err := checkTTL(c.GetTtlUs()); err != nil {
			return err
		}
		if err := CheckTime(c.GetAtUs()); err != nil {
			return err
		}
		return checkKeys(c.GetKeys())
	}
	var c ebbv1.PutKey
	if err := Decode(raw, &c); err != nil {
		return err
	}
	if n := putsOf(raw); n > 1 {
		return ErrBadRequest.Errorf("%d things to put: an image, its upload, hashes, or the key it comes from", n)
	}
	if c.GetWhat() == nil {
		return ErrBadRequest.Errorf("nothing to put: an image, or the key it comes from")
	}
	_, from := c.GetWhat().(*ebbv1.PutKey_From)
	if c.GetMerge() && (from || c.GetOverwrite() || c.Replace != nil) {
		return ErrBadRequest.Errorf("an image merges with what a key holds, or takes its place: not both, " +
			"and a key that is renamed does not merge")
	}
	if from {
		return checkKeys([][]byte{c.GetKey(), c.GetFrom()})
	}
	return CheckKey(c.GetKey())
}

// putsOf is the number of fields in a serialised PutKey that say what to put. With several, builds that do not know all
// of the fields would use a different one.
func putsOf(raw []byte) (n int) {
	WalkFields(raw, func(num protowire.Number, _ uint64, _ []byte) bool {
		switch num {
		case fieldPutImage, fieldPutFrom, fieldPutUpload, fieldPutKMV:
			n++
		}
		return true
	})
	return n
}

// Fields of a PutKey.
const (
	fieldPutKey    = 1 // of a StoreBitmap too
	fieldPutImage  = 2
	fieldPutFrom   = 3
	fieldPutUpload = 6
	fieldPutMerge  = 7
	fieldPutKMV    = 8
)

// WithoutNewPuts returns a serialised PutKey without the fields that builds before storage version 11 do not know.
func WithoutNewPuts(raw []byte) (out []byte) {
	for rest := raw; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return raw
		}
		m := protowire.ConsumeFieldValue(num, typ, rest[n:])
		if m < 0 {
			return raw
		}
		if num < fieldPutUpload || num > fieldPutKMV {
			out = append(out, rest[:n+m]...)
		}
		rest = rest[n+m:]
	}
	return out
}

// checkPutPiece checks a piece of an image from a client.
func checkPutPiece(raw []byte) *Error {
	var c ebbv1.PutPiece
	if err := Decode(raw, &c); err != nil {
		return err
	}
	return CheckPutPiece(&c, SketchBytesMax)
}

// CheckPutPiece checks everything about a piece that does not depend on state. most bounds the size of its image, in
// bytes.
func CheckPutPiece(c *ebbv1.PutPiece, most uint64) *Error {
	n := uint64(len(c.GetData()))
	switch {
	case c.GetUpload() == 0:
		return ErrBadRequest.Errorf("a piece of an image without the number of its upload")
	case c.GetBytes() > most:
		return ErrKeyTooLarge.Errorf("an image of %d bytes: the limit is %d", c.GetBytes(), most)
	case n == 0 || c.GetOffset() > c.GetBytes() || n > c.GetBytes()-c.GetOffset():
		return ErrBadRequest.Errorf("a piece of %d bytes at %d, of an image of %d", n, c.GetOffset(), c.GetBytes())
	}
	return nil
}

// checkSourcesQuestion checks the number of sources, at most KeysListMax, and the name after which the list begins.
func checkSourcesQuestion(q *ebbv1.SourcesQuestion) *Error {
	if q.GetLimit() > KeysListMax {
		return ErrBadCount.Errorf("%d sources: an answer lists 1 to %d", q.GetLimit(), KeysListMax)
	}
	if n := len(q.GetAfter()); n > SourceNameLenMax {
		return ErrBadRequest.Errorf("after: a source name of %d bytes, and names have %d at most", n, SourceNameLenMax)
	}
	return nil
}
