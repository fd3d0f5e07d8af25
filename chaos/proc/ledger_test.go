package proc

import (
	"strings"
	"testing"
	"time"
)

// The ledger's two inequalities, at their edges.
func TestLedgerAudits(t *testing.T) {
	var l Ledger
	l.Begin([]string{"a", "a", "a", "a", "b"})
	l.End([]string{"a"}, Acknowledged)
	l.End([]string{"a"}, Unknown)
	l.End([]string{"a"}, Refused)
	if got, want := l.Totals(), (Totals{Acknowledged: 1, Unknown: 1, Refused: 1, Open: 2}); got != want {
		t.Errorf("totals %+v, want %+v", got, want)
	}
	floors := l.Floors()
	for _, c := range []struct {
		counted     float64
		lost, twice bool
	}{{0, true, false}, {1, false, false}, {3, false, false}, {4, false, true}} { // one acknowledged, one unknown, one under way
		lost, twice := l.Audit(floors, map[string]float64{"a": c.counted})
		if (len(lost) > 0) != c.lost || (len(twice) > 0) != c.twice {
			t.Errorf("%v counted: lost %v, twice %v", c.counted, lost, twice)
		}
	}
	l.End([]string{"a"}, Acknowledged)
	if lost, _ := l.Audit(floors, map[string]float64{"a": 1}); len(lost) > 0 {
		t.Errorf("what was acknowledged after a read began need not be in it: %v", lost)
	}
	if lost, _ := l.Audit(l.Floors(), map[string]float64{"a": 1}); len(lost) != 1 || !strings.Contains(lost[0], "a: 1 is counted, 2 was acknowledged") {
		t.Errorf("%v", lost)
	}
}

// A process that gains descriptors all the time is found, or goroutines, be they few of many; one that fills up at
// first is not, and nothing is said of one that was started again.
func TestTrends(t *testing.T) {
	const whole = 10 * time.Minute
	var all []Sample
	for at := time.Duration(0); at <= whole; at += 5 * time.Second {
		s := Sample{At: at, Since: 1, Goroutines: 100, Descriptors: 50, Resident: 100 << 20}
		leaks, fills, slowly, restarted := s, s, s, s
		leaks.Node, leaks.Descriptors = "leaks", 50+at.Seconds()/6
		fills.Node, fills.Resident = "fills", min(100<<20, at.Seconds()*1e6)
		slowly.Node, slowly.Goroutines = "slowly", 250+at.Seconds()/15
		restarted.Node, restarted.Goroutines = "restarted", 10*at.Seconds()
		if at > whole*3/4 {
			restarted.Since = 2
		}
		all = append(all, leaks, fills, slowly, restarted)
	}
	grows := map[string]bool{}
	for _, trend := range Trends(all, whole) {
		if trend.Node == "restarted" {
			t.Errorf("%v", trend)
		}
		grows[trend.Node+" "+trend.What] = trend.Grows()
	}
	want := map[string]bool{
		"leaks goroutines": false, "leaks open descriptors": true, "leaks resident bytes": false,
		"fills goroutines": false, "fills open descriptors": false, "fills resident bytes": false,
		"slowly goroutines": true, "slowly open descriptors": false, "slowly resident bytes": false, // 20 more, of 250
	}
	if len(grows) != len(want) {
		t.Errorf("judged %v", grows)
	}
	for what, grew := range want {
		if grows[what] != grew {
			t.Errorf("%s: grows %v, want %v", what, grows[what], grew)
		}
	}
}

// Families that this machine cannot do are left out, and it is said why; one that is all that was asked for is an
// error.
func TestChooseSkips(t *testing.T) {
	able, skipped, err := Choose([]string{"kill", "clock-jump"})
	if err != nil || len(able) != 1 || able[0].Name != "kill" || len(skipped) != 1 || skipped[0].Family != "clock-jump" || skipped[0].Why == "" {
		t.Errorf("%d able, skipped %v, %v", len(able), skipped, err)
	}
	if _, _, err := Choose([]string{"clock-jump"}); err == nil || !strings.Contains(err.Error(), "clock-jump cannot be done here") {
		t.Errorf("%v", err)
	}
}
