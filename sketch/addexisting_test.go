package sketch

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// An event that AddExisting takes leaves what the long way leaves, to the bit, and one that it does not take changes
// nothing.
func TestAddExistingIsAdd(t *testing.T) {
	hits, misses := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := &Params{
			Decay:         rapid.SampledFrom([]Decay{HalfLife, HalfLife, None}).Draw(t, "decay"),
			HalfLife:      rapid.SampledFrom([]Tick{1_000, 3_600_000_000}).Draw(t, "half-life"),
			Threshold:     rapid.SampledFrom([]float64{0, 1e-9, 0.01, 3}).Draw(t, "threshold"),
			Compact:       rapid.Bool().Draw(t, "compact"),
			AllowNegative: rapid.IntRange(0, 9).Draw(t, "negative") == 0,
			Floor:         rapid.SampledFrom([]Floor{0, 0, Clamp}).Draw(t, "floor"),
		}
		bins := uint32(rapid.SampledFrom([]int{3, 30, 100, 700}).Draw(t, "bins"))
		var d Distribution
		now := Tick(1_700_000_000_000_000)
		present := p.Now(now)
		for bin := range rapid.SampledFrom([]uint32{0, bins}).Draw(t, "there") {
			if err := d.addWeighted(p, &present, now, bin, float64(1+bin%5)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range rapid.IntRange(1, 200).Draw(t, "events") {
			if rapid.IntRange(0, 9).Draw(t, "later") == 0 {
				now += rapid.SampledFrom([]Tick{1, p.HalfLife / 3, 5 * p.HalfLife, 40 * p.HalfLife}).Draw(t, "step")
				present = p.Now(now)
			}
			bin := rapid.Uint32Range(0, bins).Draw(t, "bin")
			n := rapid.SampledFrom([]float64{1, 1, 2.5, 0x1p-70, 0x1p-120, 0x1p199, -1}).Draw(t, "n")
			if n < 0 && !p.AllowNegative {
				n = 1
			}
			long, short, before := d.Clone(), d.Clone(), d.Clone()
			err := long.addWeighted(p, &present, now, bin, n)
			if !short.AddExisting(p, &present, bin, n) {
				misses++
				if !reflect.DeepEqual(short, before) {
					t.Fatalf("event %d: changed by what was not taken:\n%+v\n%+v", i, short, before)
				}
			} else if hits++; err != nil || !reflect.DeepEqual(short, long) {
				t.Fatalf("event %d: %v\n%+v, the long way\n%+v", i, err, short, long)
			}
			d = long
		}
	})
	if hits < misses/10 {
		t.Fatalf("%d events of %d were taken: this shows little", hits, hits+misses)
	}
}
