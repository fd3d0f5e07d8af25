package sketch

import (
	"math"
	"testing"
)

// What a summary is short of adds up, and fades by its half-life.
func TestLoseAddsUp(t *testing.T) {
	const h, now = 1000, 20_000
	top, err := NewTopK(TopKParams{K: 4, HalfLife: h})
	if err != nil {
		t.Fatal(err)
	}
	cells, err := NewCountMin(CountMinParams{Epsilon: 0.01, Delta: 0.01, HalfLife: h})
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]interface {
		Born(Tick, float64)
		Lose(Tick, float64)
		Lost(Tick) float64
	}{"topk": &top, "countmin": &cells} {
		s.Born(now, 2)
		s.Lose(now+h, 3)
		if got := s.Lost(now + 2*h); !(got >= 2 && got < 2.001) { // (2/2 + 3) / 2
			t.Errorf("%s is short of %v", name, got)
		}
	}
	m, err := NewMorris(MorrisParams{Bits: 16, A: 0.01, HalfLife: h, Measured: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Add(now, now, 1000, 7); err != nil {
		t.Fatal(err)
	}
	before := m.Estimate(now).StandardError
	m.Lose(now, 50)
	if got := m.Estimate(now).StandardError; math.Abs(got-before-50) > 1e-6 {
		t.Errorf("the standard error was %v, and is %v", before, got)
	}
}
