package query

import (
	"fmt"
	"strconv"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A Period is an hour, a day, a week (from Monday, ISO 8601), a month, a quarter or a year, in UTC.
//
//	hour     2011-11-01T13   since 1970
//	day      2011-11-01      since 1970
//	week     2011-W44        since the week of 1970-01-01
//	month    2011-11         since year 0
//	quarter  2011-Q4         since year 0
//	year     2011            since year 0
type Period struct {
	Unit   ebbv1.PlanUnit
	Number int64 // in that unit, counted from the origin in the table
}

// shapes of periods after a slash, in which 0 stands for any digit. They are the shapes of proto.Route; ParseKey knows
// more.
var shapes = []struct {
	unit  ebbv1.PlanUnit
	shape string
}{
	{ebbv1.PlanUnit_PLAN_UNIT_YEAR, "0000"},
	{ebbv1.PlanUnit_PLAN_UNIT_QUARTER, "0000-Q0"},
	{ebbv1.PlanUnit_PLAN_UNIT_MONTH, "0000-00"},
	{ebbv1.PlanUnit_PLAN_UNIT_WEEK, "0000-W00"},
	{ebbv1.PlanUnit_PLAN_UNIT_DAY, "0000-00-00"},
	{ebbv1.PlanUnit_PLAN_UNIT_HOUR, "0000-00-00T00"},
}

// ParsePeriod parses a period. looks says whether the text has the shape of a period; err says that no such period
// exists.
func ParsePeriod(text string) (p Period, looks bool, err error) {
	for _, s := range shapes {
		if !shaped(text, s.shape) {
			continue
		}
		p, ok := read(s.unit, text)
		if !ok {
			return p, true, fmt.Errorf("there is no %s %s", unitNames[s.unit], text)
		}
		return p, true, nil
	}
	return p, false, nil
}

func shaped(text, shape string) bool {
	if len(text) != len(shape) {
		return false
	}
	for i := range len(text) {
		digit := text[i] >= '0' && text[i] <= '9'
		if shape[i] == '0' && !digit || shape[i] != '0' && text[i] != shape[i] {
			return false
		}
	}
	return true
}

// read parses a text that has the shape of a period; false if no such period exists.
func read(unit ebbv1.PlanUnit, text string) (Period, bool) {
	part := func(from, to int) int {
		n, _ := strconv.Atoi(text[from:to]) // digits, as the shape says
		return n
	}
	year, month, day, hour := part(0, 4), 1, 1, 0
	switch unit {
	case ebbv1.PlanUnit_PLAN_UNIT_WEEK:
		week := part(6, 8)
		monday := time.Date(year, 1, 4, 0, 0, 0, 0, time.UTC) // always in week 1
		monday = monday.AddDate(0, 0, -(int(monday.Weekday())+6)%7+7*(week-1))
		y, w := monday.ISOWeek()
		return PeriodAt(unit, monday), y == year && w == week
	case ebbv1.PlanUnit_PLAN_UNIT_QUARTER:
		month = 3*part(6, 7) - 2
	case ebbv1.PlanUnit_PLAN_UNIT_HOUR:
		hour = part(11, 13)
		fallthrough
	case ebbv1.PlanUnit_PLAN_UNIT_DAY:
		day = part(8, 10)
		fallthrough
	case ebbv1.PlanUnit_PLAN_UNIT_MONTH:
		month = part(5, 7)
	}
	t := time.Date(year, time.Month(month), day, hour, 0, 0, 0, time.UTC)
	y, m, d := t.Date()
	same := y == year && int(m) == month && d == day && t.Hour() == hour
	return PeriodAt(unit, t), same
}

// PeriodAt returns the period of a unit in which t lies.
func PeriodAt(unit ebbv1.PlanUnit, t time.Time) Period {
	switch unit {
	case ebbv1.PlanUnit_PLAN_UNIT_HOUR:
		return Period{unit, floorDiv(t.Unix(), 3600)}
	case ebbv1.PlanUnit_PLAN_UNIT_DAY:
		return Period{unit, floorDiv(t.Unix(), 86400)}
	case ebbv1.PlanUnit_PLAN_UNIT_WEEK:
		return Period{unit, floorDiv(floorDiv(t.Unix(), 86400)+3, 7)} // 1970-01-01 was a Thursday
	}
	year, m, _ := t.UTC().Date()
	month := 12*int64(year) + int64(m) - 1
	switch unit {
	case ebbv1.PlanUnit_PLAN_UNIT_MONTH:
		return Period{unit, month}
	case ebbv1.PlanUnit_PLAN_UNIT_QUARTER:
		return Period{unit, floorDiv(month, 3)}
	}
	return Period{unit, int64(year)}
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// Start returns the first moment of the period.
func (p Period) Start() time.Time {
	months := func(n int64) time.Time {
		year := floorDiv(n, 12)
		return time.Date(int(year), time.Month(n-12*year+1), 1, 0, 0, 0, 0, time.UTC)
	}
	switch p.Unit {
	case ebbv1.PlanUnit_PLAN_UNIT_HOUR:
		return time.Unix(p.Number*3600, 0).UTC()
	case ebbv1.PlanUnit_PLAN_UNIT_DAY:
		return time.Unix(p.Number*86400, 0).UTC()
	case ebbv1.PlanUnit_PLAN_UNIT_WEEK:
		return time.Unix((7*p.Number-3)*86400, 0).UTC()
	case ebbv1.PlanUnit_PLAN_UNIT_MONTH:
		return months(p.Number)
	case ebbv1.PlanUnit_PLAN_UNIT_QUARTER:
		return months(3 * p.Number)
	}
	return months(12 * p.Number)
}

// Within returns the first and the last period of a shorter unit in p.
func (p Period) Within(unit ebbv1.PlanUnit) (first, last Period) {
	end := Period{p.Unit, p.Number + 1}.Start()
	return PeriodAt(unit, p.Start()), PeriodAt(unit, end.Add(-time.Nanosecond))
}

// String writes the period as the end of a key.
func (p Period) String() string {
	t := p.Start()
	switch p.Unit {
	case ebbv1.PlanUnit_PLAN_UNIT_HOUR:
		return t.Format("2006-01-02T15")
	case ebbv1.PlanUnit_PLAN_UNIT_DAY:
		return t.Format("2006-01-02")
	case ebbv1.PlanUnit_PLAN_UNIT_WEEK:
		year, week := t.ISOWeek()
		return fmt.Sprintf("%04d-W%02d", year, week)
	case ebbv1.PlanUnit_PLAN_UNIT_MONTH:
		return t.Format("2006-01")
	case ebbv1.PlanUnit_PLAN_UNIT_QUARTER:
		return fmt.Sprintf("%04d-Q%d", t.Year(), (int(t.Month())+2)/3)
	}
	return t.Format("2006")
}

var unitNames = map[ebbv1.PlanUnit]string{
	ebbv1.PlanUnit_PLAN_UNIT_HOUR: "hour", ebbv1.PlanUnit_PLAN_UNIT_DAY: "day", ebbv1.PlanUnit_PLAN_UNIT_WEEK: "week",
	ebbv1.PlanUnit_PLAN_UNIT_MONTH: "month", ebbv1.PlanUnit_PLAN_UNIT_QUARTER: "quarter", ebbv1.PlanUnit_PLAN_UNIT_YEAR: "year",
}

// Ends returns the first and the last period of a valid range.
func Ends(r *ebbv1.PlanRange) (first, last Period) {
	_, first, _ = ParseKey(rangeKey(r, r.GetFirst()))
	_, last, _ = ParseKey(rangeKey(r, r.GetLast()))
	return first, last
}

// rangeKey is the key of a period of a range, as it is written.
func rangeKey(r *ebbv1.PlanRange, period string) string {
	separator := r.GetSeparator()
	if separator == "" {
		separator = "/"
	}
	return string(r.GetFamily()) + separator + period
}

// Keys returns the keys of all periods of a valid range.
func Keys(r *ebbv1.PlanRange) [][]byte {
	format, p, _ := ParseKey(rangeKey(r, r.GetFirst()))
	_, last := Ends(r)
	keys := make([][]byte, 0, last.Number-p.Number+1)
	for ; p.Number <= last.Number; p.Number++ {
		keys = append(keys, format.Key(p))
	}
	return keys
}
