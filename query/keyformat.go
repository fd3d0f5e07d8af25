package query

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Separators are the characters that may stand before a period in a key.
const Separators = "/:-._"

// Years in which a period is recognised after a separator other than '/', or without dashes. The bounds keep a number
// such as user-1234 from being read as a year.
const (
	yearFirst = 1970
	yearLast  = 2199
)

// KeyFormat is the format of the keys of a family of periods: play/2011-11-01, play:20111101, play_20111101T13.
type KeyFormat struct {
	Family    string
	Separator byte // one of Separators
	form      periodForm
}

// periodForm is the format of a period.
type periodForm uint8

const (
	dashed   periodForm = iota // 2011, 2011-Q4, 2011-11, 2011-W44, 2011-11-01, 2011-11-01T13
	compact                    // 201111, 20111101, 2011110113
	compactT                   // 20111101T13; its days and months are compact
)

// periodShape is a shape of a period at the end of a key.
type periodShape struct {
	unit  ebbv1.PlanUnit
	form  periodForm
	shape string // 0 stands for any digit
}

// periodShapes are all shapes, longer ones first.
var periodShapes = []periodShape{
	{ebbv1.PlanUnit_PLAN_UNIT_HOUR, dashed, "0000-00-00T00"},
	{ebbv1.PlanUnit_PLAN_UNIT_HOUR, compactT, "00000000T00"},
	{ebbv1.PlanUnit_PLAN_UNIT_DAY, dashed, "0000-00-00"},
	{ebbv1.PlanUnit_PLAN_UNIT_HOUR, compact, "0000000000"},
	{ebbv1.PlanUnit_PLAN_UNIT_WEEK, dashed, "0000-W00"},
	{ebbv1.PlanUnit_PLAN_UNIT_DAY, compact, "00000000"},
	{ebbv1.PlanUnit_PLAN_UNIT_QUARTER, dashed, "0000-Q0"},
	{ebbv1.PlanUnit_PLAN_UNIT_MONTH, dashed, "0000-00"},
	{ebbv1.PlanUnit_PLAN_UNIT_MONTH, compact, "000000"},
	{ebbv1.PlanUnit_PLAN_UNIT_YEAR, dashed, "0000"},
}

// layouts are the layouts of package time for compact periods.
var layouts = map[periodForm]map[ebbv1.PlanUnit]string{
	compact: {
		ebbv1.PlanUnit_PLAN_UNIT_HOUR: "2006010215", ebbv1.PlanUnit_PLAN_UNIT_DAY: "20060102",
		ebbv1.PlanUnit_PLAN_UNIT_MONTH: "200601",
	},
	compactT: {
		ebbv1.PlanUnit_PLAN_UNIT_HOUR: "20060102T15", ebbv1.PlanUnit_PLAN_UNIT_DAY: "20060102",
		ebbv1.PlanUnit_PLAN_UNIT_MONTH: "200601",
	},
}

// ParseKey splits the key of a period into its format and its period. ok is false for any other key, including a key
// with a date that does not exist.
func ParseKey(key string) (s KeyFormat, p Period, ok bool) {
	for _, shape := range periodShapes {
		at := len(key) - len(shape.shape)
		if at < 2 || strings.IndexByte(Separators, key[at-1]) < 0 || !shaped(key[at:], shape.shape) {
			continue
		}
		s = KeyFormat{Family: key[:at-1], Separator: key[at-1], form: shape.form}
		if p, ok = shape.read(key[at:]); ok && s.plausible(p) {
			return s, p, true
		}
	}
	return KeyFormat{}, Period{}, false
}

// read parses a text that has the shape as a period.
func (s *periodShape) read(text string) (Period, bool) {
	if s.form == dashed {
		return read(s.unit, text)
	}
	digits := strings.ReplaceAll(text, "T", "")
	long := digits[:4] + "-" + digits[4:6]
	if len(digits) > 6 {
		long += "-" + digits[6:8]
	}
	if len(digits) > 8 {
		long += "T" + digits[8:10]
	}
	return read(s.unit, long)
}

// plausible says whether the period is accepted: always after a slash and with dashes, otherwise only in the years
// above.
func (s KeyFormat) plausible(p Period) bool {
	if s.Separator == '/' && s.form == dashed {
		return true
	}
	year := p.Start().Year()
	return year >= yearFirst && year <= yearLast
}

// Text writes a period as the end of a key of the family.
func (s KeyFormat) Text(p Period) string {
	if layout := layouts[s.form][p.Unit]; layout != "" {
		return p.Start().Format(layout)
	}
	return p.String()
}

// Key writes the key of a period of the family.
func (s KeyFormat) Key(p Period) []byte {
	return fmt.Appendf(nil, "%s%c%s", s.Family, s.Separator, s.Text(p))
}

// Stem identifies the family: its name, its separator and its form.
func (s KeyFormat) Stem() string {
	return s.Family + string(rune(s.Separator)) + strconv.Itoa(int(s.form))
}
