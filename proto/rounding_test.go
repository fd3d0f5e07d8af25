package proto

import (
	"math"
	"testing"
)

// What can be added up without rounding is exact; the others are off by a thousand millionth at most.
func TestRoundingOf(t *testing.T) {
	tenth := 0.1
	for sum, want := range map[float64]float64{
		0: 0, 7: 0, -3: 0, 5.5: 0, 0.25: 0, 1 << 42: 0, 1 << 43: (1 << 43) * 1e-9,
		tenth: tenth * rounding, -tenth: tenth * rounding,
	} {
		if got := RoundingOf(sum); got != want {
			t.Errorf("%v: %v, want %v", sum, got, want)
		}
	}
}

// Nine million events of one fraction are off by no more than that.
func TestRoundingCoversSums(t *testing.T) {
	const n, amount = 9_000_000, 0.1
	sum := 0.0
	for range n {
		sum += amount
	}
	if off := math.Abs(sum - n*amount); off > RoundingOf(sum) || off < RoundingOf(sum)/100 {
		t.Errorf("the sum is off by %v, and covered is %v", off, RoundingOf(sum))
	}
}
