package query

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func TestParsePeriod(t *testing.T) {
	for _, c := range []struct {
		text   string
		starts string // "": no such period
	}{
		{"2011", "2011-01-01T00"},
		{"0000", "0000-01-01T00"},
		{"2011-11", "2011-11-01T00"},
		{"2011-00", ""},
		{"2011-13", ""},
		{"2011-11-30", "2011-11-30T00"},
		{"2011-11-31", ""},
		{"2012-02-29", "2012-02-29T00"},
		{"2011-02-29", ""},
		{"2011-11-00", ""},
		{"2011-11-01T23", "2011-11-01T23"},
		{"2011-11-01T24", ""},
		{"2011-W01", "2011-01-03T00"},
		{"2009-W01", "2008-12-29T00"},
		{"2009-W53", "2009-12-28T00"},
		{"2011-W53", ""},
		{"2011-W00", ""},
		{"2011-Q4", "2011-10-01T00"},
		{"2011-Q0", ""},
		{"2011-Q5", ""},
		{"1969-12-31T23", "1969-12-31T23"},
	} {
		p, looks, err := ParsePeriod(c.text)
		switch {
		case !looks:
			t.Errorf("%s looks like no period", c.text)
		case c.starts == "" && err == nil:
			t.Errorf("%s starts at %v: there is none", c.text, p.Start())
		case c.starts != "" && (err != nil || p.Start().Format("2006-01-02T15") != c.starts || p.String() != c.text):
			t.Errorf("%s is %v from %v, %v", c.text, p, p.Start(), err)
		}
	}
	for _, text := range []string{"", "201", "20111", "2011-1", "2011-w44", "2011-11-01t13", "2011/11", "yyyy", "2011-q4", "2011-Q44"} {
		if _, looks, err := ParsePeriod(text); looks || err != nil {
			t.Errorf("%q is a period", text)
		}
	}
}

// Every moment is in the period that begins at or before it, and not in the next one; each period is read as it is
// written, and a key that ends with it lies on the shard of its family.
func TestPeriods(t *testing.T) {
	rng := rand.New(rand.NewPCG(20, 11))
	begin, length := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), int64(9000*365*86400)
	for range 20_000 {
		at := time.Unix(begin+rng.Int64N(length), 0).UTC()
		for u := ebbv1.PlanUnit_PLAN_UNIT_HOUR; u <= ebbv1.PlanUnit_PLAN_UNIT_YEAR; u++ {
			p := PeriodAt(u, at)
			next := Period{u, p.Number + 1}
			if p.Start().After(at) || !next.Start().After(at) || PeriodAt(u, p.Start()) != p {
				t.Fatalf("%v is in the %s from %v to %v", at, unitNames[u], p.Start(), next.Start())
			}
			again, looks, err := ParsePeriod(p.String())
			if !looks || err != nil || again != p {
				t.Fatalf("%v is read as %v: %v", p, again, err)
			}
			if route := proto.Route([]byte("play/" + p.String())); string(route) != "play" {
				t.Fatalf("play/%v routes by %s", p, route)
			}
		}
	}
}

// What is within a period begins in it and fills it.
func TestWithin(t *testing.T) {
	for _, c := range []struct {
		of          string
		unit        ebbv1.PlanUnit
		first, last string
	}{
		{"2011", ebbv1.PlanUnit_PLAN_UNIT_QUARTER, "2011-Q1", "2011-Q4"},
		{"2012", ebbv1.PlanUnit_PLAN_UNIT_DAY, "2012-01-01", "2012-12-31"},
		{"2011-Q4", ebbv1.PlanUnit_PLAN_UNIT_MONTH, "2011-10", "2011-12"},
		{"2012-02", ebbv1.PlanUnit_PLAN_UNIT_DAY, "2012-02-01", "2012-02-29"},
		{"2011-W52", ebbv1.PlanUnit_PLAN_UNIT_DAY, "2011-12-26", "2012-01-01"},
		{"2011-11-01", ebbv1.PlanUnit_PLAN_UNIT_HOUR, "2011-11-01T00", "2011-11-01T23"},
	} {
		p, _, _ := ParsePeriod(c.of)
		if first, last := p.Within(c.unit); first.String() != c.first || last.String() != c.last {
			t.Errorf("%s: from %v to %v", c.of, first, last)
		}
	}
}

// The keys of a range are those of all its periods.
func TestKeys(t *testing.T) {
	keys := Keys(&ebbv1.PlanRange{Family: []byte("a/b"), First: "2011-12-30", Last: "2012-01-02"})
	want := []string{"a/b/2011-12-30", "a/b/2011-12-31", "a/b/2012-01-01", "a/b/2012-01-02"}
	if len(keys) != len(want) {
		t.Fatalf("%q", keys)
	}
	for i := range want {
		if string(keys[i]) != want[i] {
			t.Errorf("%q: want %q", keys[i], want[i])
		}
	}
}

// Whatever stands between its family and it, a date is one: as Spool wrote them, compact, and with an hour. What only
// looks like one is none.
func TestParseKey(t *testing.T) {
	for _, c := range []struct{ key, family, text, starts string }{
		{"play/2011-11-01", "play", "2011-11-01", "2011-11-01T00"},
		{"play:2011-11-01", "play", "2011-11-01", "2011-11-01T00"},
		{"play-2011-11-01", "play", "2011-11-01", "2011-11-01T00"},
		{"play.2011-11-01", "play", "2011-11-01", "2011-11-01T00"},
		{"play_2011-11-01", "play", "2011-11-01", "2011-11-01T00"},
		{"a/b:c:2011-11", "a/b:c", "2011-11", "2011-11-01T00"},
		{"play:2011-11-01T13", "play", "2011-11-01T13", "2011-11-01T13"},
		{"play:2011-W44", "play", "2011-W44", "2011-10-31T00"},
		{"play_2011-Q4", "play", "2011-Q4", "2011-10-01T00"},
		{"play:2011", "play", "2011", "2011-01-01T00"},
		{"play:201111", "play", "201111", "2011-11-01T00"},
		{"play:20111101", "play", "20111101", "2011-11-01T00"},
		{"play/20111101", "play", "20111101", "2011-11-01T00"},
		{"play.2011110113", "play", "2011110113", "2011-11-01T13"},
		{"play_20111101T13", "play", "20111101T13", "2011-11-01T13"},
		{"play/0000", "play", "0000", "0000-01-01T00"},
	} {
		s, p, ok := ParseKey(c.key)
		if !ok || s.Family != c.family || s.Text(p) != c.text || p.Start().Format("2006-01-02T15") != c.starts {
			t.Errorf("%s is %+v, %v, %t", c.key, s, p, ok)
			continue
		}
		if key := string(s.Key(p)); key != c.key {
			t.Errorf("%s is written %s", c.key, key)
		}
		next := Period{p.Unit, p.Number + 1}
		if s2, p2, ok := ParseKey(string(s.Key(next))); !ok || s2 != s || p2 != next {
			t.Errorf("after %s comes %s, which is not of the family", c.key, s.Key(next))
		}
	}
	for _, key := range []string{
		"", "2011-11-01", ":2011-11-01", "play2011-11-01", "play+2011-11-01", "play:2011-11-31",
		"play:20111131", "play:99999999",
		"user-1234", "user:18001231", "play:2011110124", "play:201113", "play/2011-13", "play:2011-11-01t13", "play:123456",
	} {
		if s, p, ok := ParseKey(key); ok {
			t.Errorf("%q is a period: %+v %v", key, s, p)
		}
	}
}

// Ranges of keys as Spool wrote them, and others, are those of all their periods.
func TestRangesOfOtherKeys(t *testing.T) {
	for text, want := range map[string][]string{
		"count(play:2011-12-31 .. 2012-01-01)":           {"play:2011-12-31", "play:2012-01-01"},
		"count(play:2011-12-31 .. play:2012-01-01)":      {"play:2011-12-31", "play:2012-01-01"},
		"count(play_20111231 .. 20120101)":               {"play_20111231", "play_20120101"},
		"count(play.2011123123 .. 2012010100)":           {"play.2011123123", "play.2012010100"},
		"count(\"play-20111231T23\" .. 20120101T00)":     {"play-20111231T23", "play-20120101T00"},
		"count(a/play:2011-12 .. a/play:2012-01)":        {"a/play:2011-12", "a/play:2012-01"},
		"count(play/20111231 .. 20120101)":               {"play/20111231", "play/20120101"},
		"count(play/2011-12-31 .. play/2012-01-01)":      {"play/2011-12-31", "play/2012-01-01"},
		"cohort(play:2011-12-31 .. 2012-01-01 by month)": {"play:2011-12-31", "play:2012-01-01"},
	} {
		plan, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		r := plan.GetCount().GetOf().GetTerm().GetRange()
		if r == nil {
			r = plan.GetCohort().GetOf().GetRange()
		}
		var keys []string
		for _, key := range Keys(r) {
			keys = append(keys, string(key))
		}
		if !slices.Equal(keys, want) {
			t.Errorf("%s: %q, want %q", text, keys, want)
		}
		if err := Check(plan); err != nil {
			t.Errorf("%s is written %s: %v", text, Text(plan), err)
		}
	}
	for _, text := range []string{
		"count(play:2011-12-31 .. play/2012-01-01)", "count(play:2011-12-31 .. other:2012-01-01)",
		"count(play:2011-12-31 .. 20120101)",
		"count(play:2011-12-31 .. 2012-01)", "count(play:2011-12-31 .. 2011-12-30)", "count(play:2011-12-31 .. 2011-12-32)",
		"count(play:99999999 .. 20120101)",
	} {
		if plan, err := Parse(text); err == nil {
			t.Errorf("%s is read as %s", text, Text(plan))
		}
	}
}

// Families that are written differently are different ones, also if a name ends like a separator and a form.
func TestStem(t *testing.T) {
	stems := map[string]string{}
	for _, key := range []string{
		"play/2011-11-01", "play:2011-11-01", "play:20111101", "play:20111101T13", "play:0/2011-11-01", "play:0:2011-11-01",
		"play:1/2011-11-01", "play/0/2011-11-01",
	} {
		s, _, ok := ParseKey(key)
		if other := stems[s.Stem()]; !ok || other != "" {
			t.Errorf("%s has the stem %q of %s", key, s.Stem(), other)
		}
		stems[s.Stem()] = key
	}
}
