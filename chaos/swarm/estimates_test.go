package swarm

import (
	"math"
	"testing"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/sketch"
)

// morrisMisses is the chance that a morris of so many events is off by more than 6 of its standard errors and a slack,
// for each number of events up to most: its register is followed through all that it may become.
func morrisMisses(t *testing.T, most int, slack float64) (worst float64, at int) {
	t.Helper()
	m, err := sketch.NewMorris(sketch.MorrisParams{Bits: 16})
	if err != nil {
		t.Fatal(err)
	}
	a := m.Params().A
	power := make([]float64, most+1) // of 1+a
	for c := range power {
		power[c] = math.Pow(1+a, float64(c))
	}
	chances := make([]float64, most+1) // of each register
	chances[0] = 1
	for n := 1; n <= most; n++ {
		missed := 0.0
		for c := n; c >= 0; c-- {
			here := chances[c] * (1 - 1/power[c])
			if c > 0 {
				here += chances[c-1] / power[c-1]
			}
			chances[c] = here
			stands := (power[c] - 1) / a
			if math.Abs(stands-float64(n)) > 6*stands*math.Sqrt(a/2)+slack {
				missed += here
			}
		}
		if missed > worst {
			worst, at = missed, n
		}
	}
	return worst, at
}

// A read of a morris that is as it should be is taken for a wrong one less than once in 1e8, however few events there
// are; with the slack of the other kinds it would be once in 2,400.
func TestMorrisSlack(t *testing.T) {
	if worst, at := morrisMisses(t, 1500, slackOf(ebb.KindMorris)); worst >= 1e-8 {
		t.Errorf("of %d events %.2g of the registers are off by more than is allowed", at, worst)
	}
	if worst, at := morrisMisses(t, 100, slackOf(ebb.KindSet)); worst < 1e-4 {
		t.Errorf("a slack of %v would do: %.2g at most, of %d events", slackOf(ebb.KindSet), worst, at)
	}
}
