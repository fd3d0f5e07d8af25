package main

import (
	"io"
	"math"
	"strings"
	"testing"
)

// TestBound compares with values from a table: mean 3, standard deviation 1.5811 and t(4) = 2.132.
func TestBound(t *testing.T) {
	mean, upper := bound([]float64{1, 2, 3, 4, 5})
	if want := 3 + 2.132*math.Sqrt(2.5/5); mean != 3 || math.Abs(upper-want) > 1e-9 {
		t.Errorf("mean %v, upper %v; want 3 and %v", mean, upper, want)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		sample []float64
		want   float64
	}{{[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}, {[]float64{7}, 7}} {
		if got := median(c.sample); got != c.want {
			t.Errorf("median %v, want %v", got, c.want)
		}
	}
}

// TestReportNamesEachCostOverTheLimit has changes of 1% in all costs but one of 20%.
func TestReportNamesEachCostOverTheLimit(t *testing.T) {
	costs := costsOf(loads)
	changes := make([][]float64, len(costs))
	for i := range changes {
		changes[i] = []float64{math.Log(1.01), math.Log(1.01), math.Log(1.01)}
	}
	if err := report(io.Discard, costs, changes, 5); err != nil {
		t.Errorf("all within the limit: %v", err)
	}
	changes[2] = []float64{math.Log(1.2), math.Log(1.2), math.Log(1.2)}
	err := report(io.Discard, costs, changes, 5)
	if err == nil || !strings.HasPrefix(err.Error(), costs[2]) || strings.Contains(err.Error(), "\n") {
		t.Errorf("want an error about %q alone, got %v", costs[2], err)
	}
	if report(io.Discard, costs, changes, 0) != nil {
		t.Error("no limit")
	}
}

func TestLoadsLike(t *testing.T) {
	for text, want := range map[string]int{"": len(loads), "read": 3, "shared": 1, "none": 0} {
		if got := loadsLike(text); len(got) != want {
			t.Errorf("%d loads have %q in their name, want %d", len(got), text, want)
		}
	}
}
