package proto

import (
	"strings"
	"time"
)

// LeapSecond is the message for a time that is refused because HasLeapSecond.
const LeapSecond = "the second 60, a leap second, is no time here: write the second before it or after it"

// HasLeapSecond says whether a date with a time of day has the second 60. RFC 3339 allows it and Unix time does not
// have it.
func HasLeapSecond(text string) bool {
	return len(text) > 18 && text[16:19] == ":60" && strings.IndexByte("Tt ", text[10]) >= 0
}

// LargeTime writes the T and the Z of a time in upper case; RFC 3339 also allows lower case.
func LargeTime(text string) string {
	z := len(text) - 1
	if z <= 10 || text[10] != 't' && text[z] != 'z' {
		return text
	}
	large := []byte(text)
	if large[10] == 't' {
		large[10] = 'T'
	}
	if large[z] == 'z' {
		large[z] = 'Z'
	}
	return string(large)
}

// ParseTime reads a time of RFC 3339.
func ParseTime(text string) (time.Time, error) { return time.Parse(time.RFC3339Nano, LargeTime(text)) }
