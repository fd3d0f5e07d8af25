package query

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ebbdb/ebb/proto"
)

// units of durations in microseconds, the longest first.
var units = []struct {
	name string
	us   int64
}{
	{"w", 7 * 86_400_000_000},
	{"d", 86_400_000_000},
	{"h", 3_600_000_000},
	{"m", 60_000_000},
	{"s", 1_000_000},
	{"ms", 1_000},
	{"us", 1},
}

// duration takes a number with a unit, as 10m, from least up to 100 years.
func (p *parser) duration(what string, leastUS int64) int64 {
	t := p.token
	us, ok := parseDuration(t.value)
	if t.class != word || t.namespace != "" || !ok || us < leastUS || us > proto.HalfLifeMaxUS {
		p.unexpected(fmt.Sprintf("%s: a whole number of us, ms, s, m, h, d or w from %s to 100 years, as 10m", what, durationText(leastUS)))
		return 0
	}
	p.advance()
	return us
}

func parseDuration(text string) (us int64, ok bool) {
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz")
	n, err := strconv.ParseInt(digits, 10, 64)
	for _, u := range units {
		if text[len(digits):] == u.name {
			return n * u.us, err == nil && n >= 0 && n <= (1<<63-1)/u.us
		}
	}
	return 0, false
}

// durationText writes a duration in the longest unit of which it is a whole number.
func durationText(us int64) string {
	for _, u := range units {
		if us%u.us == 0 && us != 0 {
			return strconv.FormatInt(us/u.us, 10) + u.name
		}
	}
	return "0s"
}
