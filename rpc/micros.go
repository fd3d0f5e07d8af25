package rpc

import (
	"strconv"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto"
)

// microsLeast is the smallest number that is accepted as a time in microseconds, except 0 and 1, the beginning of 1970.
// It is a time of 1973-03-03. Times up to the year 5138 in milliseconds are below it, and so are times in seconds. So
// the unit of a smaller number is unclear. Earlier times are read and written in RFC 3339.
const microsLeast = 100_000_000_000_000

// isWritten reports whether a field is a time that callers write: a number there must be in microseconds.
func isWritten(fd protoreflect.FieldDescriptor) bool {
	return isMoment(fd) || fd.FullName() == "ebb.v1.IdempotencyKey.issued_at_us" || fd.FullName() == "ebb.v1.CreateTokenRequest.expires_us"
}

// isEarly reports whether a time in microseconds is too early to be read again as a number.
func isEarly(n int64) bool { return n > 1 && n < microsLeast }

// checkMicros refuses a number that is no time in microseconds. The error names the time that may have been meant.
func checkMicros(n int64) *proto.Error {
	if !isEarly(n) { // others are refused where times are
		return nil
	}
	meant := meantBy(n).UTC()
	hint := "if " + meant.Format(time.RFC3339) + " is meant, write it so"
	if !isEarly(meant.UnixMicro()) {
		hint += " or as " + strconv.FormatInt(meant.UnixMicro(), 10)
	}
	return proto.ErrBadTime.Errorf("%d in microseconds since 1970 is %s", n, time.UnixMicro(n).UTC().Format(time.RFC3339Nano)).
		WithHint(hint + "; a time before 1973-03-03 is written in RFC 3339")
}

// meantBy reads a number as a date without separators, or else as seconds or milliseconds since 1970, by its size.
func meantBy(n int64) time.Time {
	text := strconv.FormatInt(n, 10)
	for _, layout := range []string{"20060102", "200601021504", "20060102150405"} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() >= 1900 && t.Year() < 2100 {
			return t
		}
	}
	if n < 100_000_000_000 {
		return time.Unix(n, 0)
	}
	return time.UnixMilli(n)
}
