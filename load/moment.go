package load

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// TimeUnit says how a file writes times.
type TimeUnit uint8

const (
	// Autodetect takes text with '-' for a date, and tells numbers by their size:
	// below 1e11 seconds, below 1e14 milliseconds, else microseconds. (1e11
	// seconds is the year 5138, 1e11 milliseconds is March 1973.)
	Autodetect   TimeUnit = iota
	Seconds               // since 1970
	Milliseconds          // since 1970
	Microseconds          // since 1970
	// RFC3339 also takes "2006-01-02 15:04:05" and "2006-01-02", as UTC.
	RFC3339
)

var unitNames = map[string]TimeUnit{
	"": Autodetect, "auto": Autodetect, "s": Seconds, "ms": Milliseconds, "us": Microseconds, "µs": Microseconds, "rfc3339": RFC3339,
}

// ParseTimeUnit parses auto, s, ms, us or rfc3339.
func ParseTimeUnit(text string) (TimeUnit, error) {
	u, ok := unitNames[strings.ToLower(text)]
	if !ok {
		return 0, fmt.Errorf("time unit %q: it is auto, s, ms, us or rfc3339", text)
	}
	return u, nil
}

// parseTime parses the text of a time.
func parseTime(text string, unit TimeUnit) (time.Time, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return time.Time{}, fmt.Errorf("bad time: it is empty")
	}
	if unit == RFC3339 || unit == Autodetect && strings.IndexByte(text[1:], '-') > 0 {
		return parseDate(text)
	}
	return parseNumber(text, unit)
}

var dateLayouts = []string{
	time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999", "2006-01-02T15:04", "2006-01-02",
}

func parseDate(text string) (time.Time, error) {
	for _, layout := range dateLayouts {
		if t, err := time.Parse(layout, text); err == nil {
			return inRange(t, text)
		}
	}
	return time.Time{}, fmt.Errorf("bad time %s: it is not like 2006-01-02T15:04:05Z", quote(text))
}

func parseNumber(text string, unit TimeUnit) (time.Time, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || strings.Trim(fraction, "0123456789") != "" {
		return parseFloatTime(text, unit)
	}
	if text[0] == '-' {
		return time.Time{}, fmt.Errorf("bad time %s: it is before 1970", quote(text))
	}
	per := unit.micros(float64(n))
	if n > math.MaxInt64/per {
		return time.Time{}, fmt.Errorf("bad time %s: it is out of range", quote(text))
	}
	us := n * per
	if fraction != "" {
		f, _ := strconv.ParseFloat("0."+fraction, 64) // digits only
		us += int64(math.Round(f * float64(per)))
	}
	return inRange(time.UnixMicro(us).UTC(), text)
}

// parseFloatTime parses numbers like 1.3e9.
func parseFloatTime(text string, unit TimeUnit) (time.Time, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) {
		return time.Time{}, fmt.Errorf("bad time %s: it is not a number", quote(text))
	}
	us := f * float64(unit.micros(math.Abs(f)))
	if math.Abs(us) > 1<<62 {
		return time.Time{}, fmt.Errorf("bad time %s: it is out of range", quote(text))
	}
	return inRange(time.UnixMicro(int64(us)).UTC(), text)
}

// micros is how many microseconds the unit has, for a number of that size.
func (u TimeUnit) micros(size float64) int64 {
	switch {
	case u == Seconds || u == Autodetect && size < 1e11:
		return 1_000_000
	case u == Milliseconds || u == Autodetect && size < 1e14:
		return 1_000
	}
	return 1
}

func inRange(t time.Time, text string) (time.Time, error) {
	if t.Year() > 9999 {
		return time.Time{}, fmt.Errorf("bad time %s: it is out of range", quote(text))
	}
	if err := proto.CheckTime(t.UnixMicro()); err != nil {
		return time.Time{}, fmt.Errorf("bad time %s: it is before 1970", quote(text))
	}
	return t, nil
}

// quote shows text from a file, shortened and escaped.
func quote(text string) string {
	if len(text) > 40 {
		text = text[:40] + "..."
	}
	return strconv.QuoteToASCII(text)
}
