package sketch

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// What is computed once for a time weighs what it would by itself, to the bit.
func TestNowWeighsAsAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Params{Decay: rapid.SampledFrom([]Decay{HalfLife, None}).Draw(t, "decay"), HalfLife: Tick(rapid.Int64Range(1, int64(HalfLifeMax)).Draw(t, "half-life"))}
		at := Tick(rapid.Int64Range(0, 1<<56).Draw(t, "at"))
		present := p.landmark(at)
		mark := rapid.Int64Range(max(present-1100, 0), max(present, min(present+1100, math.MaxInt64/int64(p.HalfLife)))).Draw(t, "landmark")
		now := p.Now(at)
		if got, want := now.weight(mark), p.weight(at, mark); math.Float64bits(got) != math.Float64bits(want) {
			t.Fatalf("%v, not %v", got, want)
		}
	})
}
