package query

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// units of durations in microseconds, the longest first. A year has 365.25 days.
var units = []struct {
	name string
	us   int64
}{
	{"y", 36525 * 864_000_000},
	{"w", 7 * 86_400_000_000},
	{"d", 86_400_000_000},
	{"h", 3_600_000_000},
	{"m", 60_000_000},
	{"s", 1_000_000},
	{"ms", 1_000},
	{"us", 1},
}

// duration parses a number with a unit, such as 10m, from leastUS to 100 years. It returns microseconds.
func (p *parser) duration(what string, leastUS int64) int64 {
	t := p.token
	us, err := ParseDuration(t.value)
	if t.class != word || t.namespace != "" || err != nil || us < leastUS || us > proto.HalfLifeMaxUS {
		p.unexpected(fmt.Sprintf("%s: a number with a unit (us, ms, s, m, h, d, w or y) from %s to 100 years, as 10m",
			what, durationText(leastUS)))
		return 0
	}
	p.advance()
	return us
}

// durationMaxUS is about the longest span that a time.Duration can hold: 291 years.
const durationMaxUS = 9.2e15

// ParseDuration parses a duration and returns microseconds. The language, the command line and HTTP use it. It accepts
// the durations of Go, such as 1h30m, and numbers of days (d), weeks (w) and years of 365.25 days (y).
func ParseDuration(text string) (us int64, err error) {
	for _, u := range units[:3] {
		number, is := strings.CutSuffix(text, u.name)
		if !is {
			continue
		}
		v, err := strconv.ParseFloat(number, 64)
		out := v * float64(u.us)
		if err != nil || strings.Trim(number, "+-.0123456789") != "" || !(math.Abs(out) < durationMaxUS) {
			return 0, fmt.Errorf("duration %q", text)
		}
		return int64(out), nil
	}
	d, err := time.ParseDuration(text)
	return d.Microseconds(), err
}

// durationText writes a duration as a whole number of the longest unit that allows it.
func durationText(us int64) string {
	for _, u := range units {
		if us%u.us == 0 && us != 0 {
			return strconv.FormatInt(us/u.us, 10) + u.name
		}
	}
	return "0s"
}
