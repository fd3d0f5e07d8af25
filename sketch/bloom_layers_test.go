package sketch

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The estimates of filters that have grown are right on average, and as often off as their standard errors say.
func TestEstimatesOfGrownFilters(t *testing.T) {
	for _, c := range []struct {
		capacity uint64
		rate     float64
		keys     int
		trials   int
	}{
		{10_000, 0.01, 400_000, 60},
		{500, 0.02, 20_000, 200},
		{1000, 0.1, 20_000, 200},
		{64, 0.5, 20_000, 200},
		{10_000, 0.01, 9_000, 400},
		{10_000, 0.01, 40, 2000},
		{10_000, 0.01, 7, 2000},
		{500, 0.02, 1, 10},
		{200_000, 0.2, 1_000_000, 12},
	} {
		if testing.Short() && c.keys*c.trials > 8_000_000 {
			c.trials = 10
		}
		sum, within := 0.0, 0
		for trial := range c.trials {
			r := rand.New(rand.NewPCG(uint64(trial), uint64(c.keys)))
			f, err := NewBloomScalable(BloomParams{Capacity: c.capacity, FalseRate: c.rate})
			if err != nil {
				t.Fatal(err)
			}
			for range c.keys {
				f.Add(r.Uint64())
			}
			s := f.State()
			off := (s.Keys - float64(c.keys)) / s.KeysError
			sum += off
			if math.Abs(off) <= 1.96 {
				within++
			}
			if s.KeysLeast != s.Keys || s.KeysMost != s.Keys {
				t.Fatalf("%+v counts keys twice", s)
			}
		}
		n := float64(c.trials)
		mean, share := sum/n, float64(within)/n
		t.Logf("%d keys, capacity %d at %v: off by %.2f standard errors on average, %.3f within", c.keys, c.capacity,
			c.rate, mean, share)
		few := 3 * math.Sqrt(0.95*0.05/n)
		if math.Abs(mean) > 0.1+4/math.Sqrt(n) && c.keys > 1 || share < 0.95-few-0.01 {
			t.Errorf("%d keys, capacity %d at %v: off by %.2f standard errors on average, %.3f within", c.keys,
				c.capacity, c.rate, mean, share)
		}
	}
}
