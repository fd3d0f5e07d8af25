package main

import (
	"math"
	"testing"
)

// TestBound compares with values from a table: mean 3, standard deviation 1.5811 and t(4) = 2.132.
func TestBound(t *testing.T) {
	mean, upper := bound([]float64{1, 2, 3, 4, 5})
	if want := 3 + 2.132*math.Sqrt(2.5/5); mean != 3 || math.Abs(upper-want) > 1e-9 {
		t.Errorf("mean %v, upper %v; want 3 and %v", mean, upper, want)
	}
}
