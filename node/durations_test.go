package node

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A quantile is at least the exact one, and at most an eighth more; what was counted before does not matter.
func TestDurations(t *testing.T) {
	var d durations
	d.note(time.Hour)
	before := d.counted()
	rng := rand.New(rand.NewPCG(1, 2))
	all := make([]time.Duration, 5000)
	for i := range all {
		all[i] = time.Duration(1) << rng.IntN(40)
		all[i] += time.Duration(rng.Int64N(int64(all[i])))
		d.note(all[i])
	}
	slices.Sort(all)
	now := d.counted().since(before)
	for _, share := range []float64{0.001, 0.5, 0.99, 1} {
		exact := all[int(share*float64(len(all)))-1]
		if got := now.quantile(share); got < exact || float64(got) > float64(exact)*1.125+1 {
			t.Errorf("quantile %v: %v, want %v", share, got, exact)
		}
	}
	if got := (counted{}).quantile(0.5); got != 0 {
		t.Errorf("of nothing %v", got)
	}
	atMost, n, seconds := d.histogram()
	if n != 5001 || seconds < 3600 || atMost[float64(1<<20)*1e-9] != uint64(len(all)-len(slices.DeleteFunc(slices.Clone(all), func(t time.Duration) bool { return t < 1<<20 }))) {
		t.Errorf("%d in %v s: %v", n, seconds, atMost)
	}
}
