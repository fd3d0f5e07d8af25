package accuracy

import "testing"

// Of 95% intervals as many contain the truth as they say, for every kind, with and without decay, late and in bursts.
func TestIntervalsContainTheTruth(t *testing.T) {
	trials := 1500
	if testing.Short() {
		trials = 300
	}
	for _, c := range Coverages(trials) {
		t.Logf("%s, %s: %.2f%% of %d", c.Kind, c.Stream, 100*c.Inside, c.Checks)
		if !c.Within && !testing.Short() {
			t.Errorf("%s, %s: %.2f%% of %d intervals contain the truth", c.Kind, c.Stream, 100*c.Inside, c.Checks)
		}
		if c.Checks < trials/2 {
			t.Errorf("%s, %s: %d intervals of %d trials", c.Kind, c.Stream, c.Checks, trials)
		}
	}
}

// A share of intervals that is too small or, where they are of chance, too large is not within.
func TestCoverage(t *testing.T) {
	for _, c := range []struct {
		statistical bool
		inside      int
		within      bool
	}{{true, 950, true}, {true, 929, false}, {true, 971, false}, {false, 1000, true}, {false, 929, false}} {
		if got := coverage(covered{statistical: c.statistical}, c.inside, 1000).Within; got != c.within {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if coverage(covered{}, 0, 0).Within {
		t.Error("no interval at all is within")
	}
}
