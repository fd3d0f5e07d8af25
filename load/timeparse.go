package load

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// TimeUnit is the unit or the form of the times in a file.
type TimeUnit uint8

const (
	// Autodetect takes text with '-', '/' or ':' for a date. It finds the unit of a number by its size: below 1e11
	// seconds, below 1e14 milliseconds, else microseconds. (1e11 seconds is the year 5138, 1e11 milliseconds is March
	// 1973.) Digits that may also be a date, such as 20150226, or a year are refused: see AmbiguousTime.
	Autodetect   TimeUnit = iota
	Seconds               // since 1970
	Milliseconds          // since 1970
	Microseconds          // since 1970
	// RFC3339 also takes dates and times of day as Autodetect does.
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

// timeReader reads the times of one file. The zero value reads times as Autodetect does, in UTC.
type timeReader struct {
	unit    TimeUnit
	layouts []string       // of Options.TimeFormat; none without
	zone    *time.Location // of times that name no zone; nil: UTC
	latest  int            // index of the layout that the last time had: most files have only one
	unzoned string         // the first text that named no zone, where no option names one
}

// newTimeReader makes a timeReader from options. The error says what is wrong with TimeFormat.
func newTimeReader(o *Options) (*timeReader, error) {
	layouts, err := parseTimeFormat(o.TimeFormat)
	if err != nil {
		return nil, err
	}
	return &timeReader{unit: o.TimeUnit, layouts: layouts, zone: o.Zone}, nil
}

// location returns the zone of times that name none.
func (m *timeReader) location() *time.Location {
	if m.zone == nil {
		return time.UTC
	}
	return m.zone
}

// parse reads the text of a time.
func (m *timeReader) parse(text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return time.Time{}, fmt.Errorf("bad time: it is empty")
	case len(m.layouts) > 0:
		return m.parseAs(m.layouts, text, "")
	case m.unit == RFC3339 || looksLikeDate(text):
		return m.parseAs(dateLayouts, proto.LargeTime(text), "2006-01-02T15:04:05Z")
	}
	if a := ambiguous(text); a != nil && m.unit == Autodetect {
		return time.Time{}, a
	}
	return parseNumber(text, m.unit)
}

// looksLikeDate reports whether a text has a separator of a date or of a time of day, and is no number such as 1.3e-9.
func looksLikeDate(text string) bool {
	if len(text) < 2 || !strings.ContainsAny(text[1:], "-/:") {
		return false
	}
	_, err := proto.ParseNumber(text)
	return err != nil
}

// dateLayouts are the layouts of a date, alone or with a time of day, with or without a zone. Fractions of seconds are
// read too.
var dateLayouts = func() (all []string) {
	for _, date := range []string{"2006-01-02", "2006/01/02"} {
		all = append(all, date)
		for _, clock := range []string{"T15:04:05", " 15:04:05", "T15:04", " 15:04"} {
			for _, zone := range []string{"Z07:00", " Z07:00", "Z0700", " Z0700", " UTC", ""} {
				all = append(all, date+clock+zone)
			}
		}
	}
	return all
}()

func (m *timeReader) parseAs(layouts []string, text, wanted string) (time.Time, error) {
	for i := range layouts {
		i = (m.latest + i) % len(layouts)
		utc := strings.HasSuffix(layouts[i], "UTC")
		zone := m.location()
		if utc {
			zone = time.UTC
		}
		t, err := time.ParseInLocation(layouts[i], text, zone)
		if err != nil {
			continue
		}
		m.latest = i
		if m.zone == nil && !utc && m.unzoned == "" && !strings.Contains(layouts[i], "07") {
			m.unzoned = text
		}
		return inRange(t, text)
	}
	switch {
	case len(m.layouts) > 0:
		return time.Time{}, fmt.Errorf("bad time %s: it is not as --time-format says", quote(text))
	case proto.HasLeapSecond(text):
		return time.Time{}, fmt.Errorf("bad time %s: %s", quote(text), proto.LeapSecond)
	}
	return time.Time{}, fmt.Errorf("bad time %s: it is not like %s; --time-format describes others", quote(text), wanted)
}

// AmbiguousTime is an error about digits that may be a date or a number since 1970.
type AmbiguousTime struct {
	Text   string
	Date   time.Time // the digits read as a date
	Format string    // of Date, for Options.TimeFormat
	Number time.Time // the digits read as a number since 1970
	Unit   string    // of Number: s, ms or us
}

// Error names both readings and how to write each of them.
func (a *AmbiguousTime) Error() string {
	what := "date"
	if len(a.Text) == len(yearLayout) {
		what = "year that begins on"
	}
	return fmt.Sprintf("bad time %s: it may be the %s %s, or %s after 1970, which is %s; "+
		"say which with --time-format %s or --time-unit %s",
		quote(a.Text), what, a.date(), a.number(), a.Number.Format(time.RFC3339), a.Format, a.Unit)
}

func (a *AmbiguousTime) date() string {
	if a.Date.Equal(a.Date.Truncate(24 * time.Hour)) {
		return a.Date.Format(time.DateOnly)
	}
	return a.Date.Format(time.RFC3339)
}

func (a *AmbiguousTime) number() string {
	return a.Text + " " + map[string]string{"s": "seconds", "ms": "milliseconds", "us": "microseconds"}[a.Unit]
}

// Readings returns both readings in RFC 3339.
func (a *AmbiguousTime) Readings() (date, number string) {
	return a.date(), a.Number.Format(time.RFC3339)
}

const yearLayout = "2006"

// compactDates are years, and dates without separators, which look like numbers. Dates with an hour and no minute are
// left out: as seconds since 1970, such digits are times from 2032 on, which files write so.
var compactDates = []struct {
	layout, format string
	first, last    int // year
}{
	{yearLayout, "%Y", 1000, 2999},
	{"20060102", "%Y%m%d", 1900, 2099},
	{"200601021504", "%Y%m%d%H%M", 1900, 2099},
	{"20060102150405", "%Y%m%d%H%M%S", 1900, 2099},
}

// Ambiguous returns both readings of digits that may be a date or year as well as a number since 1970. Dates are from
// 1900 to 2099, years from 1000 to 2999. It returns nil for any other text.
func Ambiguous(text string) *AmbiguousTime { return ambiguous(text) }

func ambiguous(text string) *AmbiguousTime {
	for _, c := range compactDates {
		if len(text) != len(c.layout) || strings.Trim(text, "0123456789") != "" {
			continue
		}
		date, err := time.Parse(c.layout, text)
		if err != nil || date.Year() < c.first || date.Year() > c.last {
			continue
		}
		number, err := parseNumber(text, Autodetect)
		if err != nil {
			continue // it cannot be a number since 1970: the date is the only reading
		}
		unit := map[int64]string{1_000_000: "s", 1_000: "ms", 1: "us"}
		size, _ := strconv.ParseFloat(text, 64) // cannot fail: only digits
		return &AmbiguousTime{Text: text, Date: date, Format: c.format, Number: number, Unit: unit[Autodetect.micros(size)]}
	}
	return nil
}

// ParseDate reads a date, with or without a time of day and a zone; without a zone it is in UTC. ok reports whether the
// text is such a date.
func ParseDate(text string) (at time.Time, ok bool) {
	text = proto.LargeTime(text)
	for _, layout := range dateLayouts {
		if t, err := time.Parse(layout, text); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// ParseZone reads the name of a zone, such as Europe/Berlin, UTC or Local, or an offset east of Greenwich, such as
// +02:00.
func ParseZone(text string) (*time.Location, error) {
	if t, err := time.Parse("Z07:00", text); err == nil {
		_, seconds := t.Zone()
		return time.FixedZone(text, seconds), nil
	}
	zone, err := time.LoadLocation(text)
	if err != nil || text == "" {
		return nil, fmt.Errorf("time zone %q is not known here: write it as Europe/Berlin, UTC, Local or +02:00", text)
	}
	return zone, nil
}

// ParseTime reads a time as people write it. It takes RFC 3339, or a date with or without a time of day, in UTC if no
// zone is named. It also takes a number since 1970, whose unit follows from its size: see Autodetect. Digits that may
// be a date or a number give an *AmbiguousTime.
func ParseTime(text string) (time.Time, error) {
	var m timeReader
	return m.parse(text)
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
		f, _ := strconv.ParseFloat("0."+fraction, 64) // cannot fail: only digits
		us += int64(math.Round(f * float64(per)))
	}
	return inRange(time.UnixMicro(us).UTC(), text)
}

// parseFloatTime parses numbers like 1.3e9.
func parseFloatTime(text string, unit TimeUnit) (time.Time, error) {
	f, err := proto.ParseNumber(text)
	if err != nil || math.IsNaN(f) {
		return time.Time{}, fmt.Errorf("bad time %s: it is not a number, nor like 2006-01-02T15:04:05Z; "+
			"--time-format describes others", quote(text))
	}
	us := f * float64(unit.micros(math.Abs(f)))
	if math.Abs(us) > 1<<62 {
		return time.Time{}, fmt.Errorf("bad time %s: it is out of range", quote(text))
	}
	return inRange(time.UnixMicro(int64(us)).UTC(), text)
}

// micros returns how many microseconds the unit has; for Autodetect, the size of the number decides the unit.
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

// quote returns a text from a file, shortened and escaped.
func quote(text string) string {
	if len(text) > 40 {
		text = text[:40] + "..."
	}
	return strconv.QuoteToASCII(text)
}
