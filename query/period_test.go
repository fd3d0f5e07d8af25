package query

import (
	"math/rand/v2"
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

// Every moment is in the period that begins at or before it, and not in the next one; each period is read as it is written, and a key that ends with it lies on
// the shard of its family.
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
