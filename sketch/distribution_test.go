package sketch_test

import (
	"testing"

	"github.com/ebbdb/ebb/sketch"
)

func TestHalvesInAHalfLife(t *testing.T) {
	p := &sketch.Params{Decay: sketch.HalfLife, HalfLife: 3_600_000_000, Threshold: 0.001}
	var d sketch.Distribution
	now := sketch.Tick(1_700_000_000_000_000)
	for range 100 {
		if err := d.Add(p, now, now, 7, 1); err != nil {
			t.Fatal(err)
		}
	}
	for halvings, want := 0, 100.0; halvings < 10; halvings, want = halvings+1, want/2 {
		got := d.At(p, now+sketch.Tick(halvings)*p.HalfLife).Count(7)
		if diff := got/want - 1; diff > 1e-12 || diff < -1e-12 {
			t.Errorf("after %d half-lives: %v, want %v", halvings, got, want)
		}
	}
}
