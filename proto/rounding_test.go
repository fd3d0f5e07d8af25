package proto

import "testing"

// What can be added up without rounding is exact; the others are off by a hundred thousand millionth at most.
func TestRoundingOf(t *testing.T) {
	for sum, want := range map[float64]float64{
		0: 0, 7: 0, -3: 0, 5.5: 0, 0.25: 0, 1 << 42: 0, 1 << 43: (1 << 43) * 1e-11, 0.1: 0.1 * 1e-11, -0.1: 0.1 * 1e-11,
	} {
		if got := RoundingOf(sum); got != want {
			t.Errorf("%v: %v, want %v", sum, got, want)
		}
	}
}
