package sketch

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"
)

// TestTop against a sort of all bins, for sizes around every boundary.
func TestTop(t *testing.T) {
	r := rng(11)
	for _, p := range everyParams() {
		for _, bins := range []int{0, 1, 2, 63, 64, 65, 127, 128, 129, 500} {
			var d Distribution
			for i := range bins {
				// few different amounts, so that many tie
				if err := d.Add(p, epoch, epoch, uint32(i*7919)%65_521, float64(1+r.below(20))); err != nil {
					t.Fatal(err)
				}
			}
			reading := d.At(p, epoch+hour/2)
			want := sorted(reading, &d)
			if got := reading.All(nil); !slices.Equal(got, want) {
				t.Fatalf("%s, %d bins: all %v, want %v", name(p), bins, got, want)
			}
			for _, n := range []int{-1, 0, 1, 2, 10, 24, 25, 64, 65, 499, 500, 1_000_000} {
				top := want[:max(0, min(n, len(want)))]
				prefix := []Bin{{ID: 1 << 31, Count: -1}}
				got := reading.Top(n, prefix)
				if !slices.Equal(got[1:], top) || got[0] != prefix[0] {
					t.Fatalf("%s, top %d of %d bins: %v, want %v", name(p), n, bins, got[1:], top)
				}
				tied := len(top)
				for tied > 0 && tied < len(want) && want[tied].Count == want[tied-1].Count {
					tied++
				}
				if got := reading.TopTied(n, nil); !slices.Equal(got, want[:tied]) {
					t.Fatalf("%s, top %d of %d with ties: %v, want %v", name(p), n, bins, got, want[:tied])
				}
			}
		}
	}
}

// sorted asks for each bin by itself.
func sorted(r Reading, d *Distribution) []Bin {
	all := []Bin{}
	d.Each(func(bin uint32) {
		if c := r.Count(bin); c != 0 {
			all = append(all, Bin{bin, c})
		}
	})
	sort.Slice(all, func(i, j int) bool { return before(all[i], all[j]) })
	return all
}

// TestSumsHaveNoOrder: the same bins in another order of storage answer the same, to the bit.
func TestSumsHaveNoOrder(t *testing.T) {
	for _, p := range everyParams() {
		var d, back Distribution
		for _, i := range []int{0, 1} {
			for j := range 300 {
				bin := []int{j, 299 - j}[i]
				if err := []*Distribution{&d, &back}[i].Add(p, epoch, epoch-Tick(bin)*1e8, uint32(bin), 1+float64(bin)/7); err != nil {
					t.Fatal(err)
				}
			}
		}
		// Z is summed by Add, in the order of events
		back.z, back.z2 = d.z, d.z2
		if d.form() == compact {
			for i := range d.Len() {
				back.setRaw(back.find(d.id(i)), d.raw(i))
			}
		}
		if a, b := answer(&d, p, epoch+hour), answer(&back, p, epoch+hour); a != b {
			t.Errorf("%s:\n%.300s\n%.300s", name(p), a, b)
		}
	}
}

func TestTally(t *testing.T) {
	r := rng(5)
	for range 200 {
		values := make([]float64, 1+r.below(2000))
		top, want := 0.0, newBig()
		for i := range values {
			values[i] = math.Ldexp(r.float()-0.3, r.below(60)-30)
			top = max(top, math.Abs(values[i]))
			want.Add(want, bigOf(values[i]))
		}
		sum := func() float64 {
			var s tally
			s.scaleFor(top)
			for _, v := range values {
				s.add(v)
			}
			return s.sum()
		}
		got := sum()
		if diff := math.Abs(got - first(want.Float64())); diff > top*float64(len(values))*0x1p-74+math.Abs(got)*0x1p-53 {
			t.Fatalf("sum %v is off by %v", got, diff)
		}
		slices.Sort(values)
		if again := sum(); again != got {
			t.Fatalf("sorted, the sum is %v instead of %v", again, got)
		}
	}
	var none tally
	none.scaleFor(0)
	none.add(0)
	if none.sum() != 0 {
		t.Errorf("nothing sums to %v", none.sum())
	}
}

func first[A, B any](a A, _ B) A { return a }

func TestEntropy(t *testing.T) {
	p := &Params{Decay: None}
	for _, c := range []struct {
		counts []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{5}, 0},
		{[]float64{1, 1}, 1},
		{[]float64{1, 1, 1, 1}, 2},
		{[]float64{3, 1}, 2 - 0.75*math.Log2(3)},
		{[]float64{0.5, 0.25, 0.125, 0.125}, 1.75},
		{[]float64{1e50, 1}, 0},
		{slices.Repeat([]float64{0.1}, 1000), math.Log2(1000)},
	} {
		var d Distribution
		for bin, n := range c.counts {
			if err := d.Add(p, epoch, epoch, uint32(bin), n); err != nil {
				t.Fatal(err)
			}
		}
		if got := d.At(p, epoch).Entropy; math.Abs(got-c.want) > 1e-11 {
			t.Errorf("entropy of %.20v = %v, want %v", c.counts, got, c.want)
		}
	}
}

func TestIntervalTable(t *testing.T) {
	for _, c := range []struct {
		count, z, n, confidence float64
		p, low, high            float64
	}{
		// Wilson's own formula, worked by hand with z = 1.959964
		{50, 100, 100, 0.95, 0.5, 0.403831, 0.596169},
		{0, 100, 100, 0.95, 0, 0, 0.036993},
		{100, 100, 100, 0.95, 1, 0.963007, 1},
		{1, 10, 10, 0.95, 0.1, 0.017876, 0.404150},
		{5, 10, 10, 0.99, 0.5, 0.184226, 0.815774},
		{5, 10, 0, 0.95, 0.5, 0, 1},
		{5, 10, 10, 7, 0.5, 0.236593, 0.763407}, // as 0.95
		{-1, 10, 10, 0.95, 0, 0, 0.277533},
		{0, 0, 0, 0.95, 0, 0, 1},
	} {
		r := Reading{Z: c.z, EffectiveN: c.n}
		p, low, high := r.Interval(c.count, c.confidence)
		if math.Abs(p-c.p) > 1e-6 || math.Abs(low-c.low) > 1e-6 || math.Abs(high-c.high) > 1e-6 {
			t.Errorf("%+v: %.6f in [%.6f, %.6f]", c, p, low, high)
		}
	}
}

func TestNormalQuantile(t *testing.T) {
	for c := 0.001; c < 0.99999; c += 0.0007 {
		z := normalQuantile(c)
		if got := math.Erf(z / math.Sqrt2); math.Abs(got-c) > 1e-8 {
			t.Fatalf("quantile of %v is %v, which covers %v", c, z, got)
		}
	}
	if z := normalQuantile(0.9999999); math.Abs(z-5.3267238) > 1e-6 {
		t.Errorf("quantile %v", z)
	}
}

// TestIntervalCovers: 95% intervals of a decaying stream cover the true probability about that often.
func TestIntervalCovers(t *testing.T) {
	p := &Params{Decay: HalfLife, HalfLife: hour, Threshold: 1e-6}
	for _, truth := range []float64{0.02, 0.3, 0.5} {
		r := rng(truth * 1000)
		covered, trials := 0, 600
		for range trials {
			var d Distribution
			now := epoch
			for range 1500 {
				now += hour / 150
				bin := uint32(0)
				if r.float() < truth {
					bin = 1
				}
				if err := d.Add(p, now, now, bin, 1); err != nil {
					t.Fatal(err)
				}
			}
			if _, low, high := d.At(p, now).P(1, 0.95); low <= truth && truth <= high {
				covered++
			}
		}
		if got := float64(covered) / float64(trials); math.Abs(got-0.95) > 0.03 {
			t.Errorf("p = %v: %v of 95%% intervals cover it", truth, got)
		}
	}
}

// TestManyBins grows past every layout and back.
func TestManyBins(t *testing.T) {
	t.Parallel()
	for _, p := range []*Params{wideParams(), compactParams(), {Decay: Linear, HalfLife: hour}} {
		var d Distribution
		counts := map[uint32]float64{}
		r := rng(8)
		for i := range 150_000 {
			bin := uint32(r.next())
			n := float64(1 + r.below(9))
			if err := d.Add(p, epoch, epoch, bin, n); err != nil {
				t.Fatal(err)
			}
			counts[bin] += n
			if i%10_007 == 0 {
				if err := d.check(); err != nil {
					t.Fatal(err)
				}
			}
		}
		reading := d.At(p, epoch)
		if reading.Bins != len(counts) {
			t.Fatalf("%d bins, want %d", reading.Bins, len(counts))
		}
		for bin, want := range counts {
			if got := reading.Count(bin); math.Abs(got/want-1) > 1e-6 {
				t.Fatalf("bin %d: %v, want %v", bin, got, want)
			}
		}
		gone, size := 0, d.Size()
		fade := *p
		fade.Threshold = 8.5
		d.Prune(&fade, epoch, func(uint32) { gone++ })
		if err := d.check(); err != nil {
			t.Fatal(err)
		}
		if d.Len()+gone != len(counts) || d.Size() > size/4 {
			t.Errorf("%d gone, %d left of %d, %d bytes of %d", gone, d.Len(), len(counts), d.Size(), size)
		}
		for _, b := range d.At(&fade, epoch).All(nil) {
			if math.Abs(b.Count/counts[b.ID]-1) > 1e-6 {
				t.Fatal(fmt.Sprint(b, counts[b.ID]))
			}
		}
	}
}

// TestReadsNeverWrite, nor allocate when there is room.
func TestReadsNeverWrite(t *testing.T) {
	for _, p := range everyParams() {
		d := filled(p, 200)
		before := d.AppendBinary(nil)
		dst := make([]Bin, 0, 200)
		allocations := testing.AllocsPerRun(10, func() {
			r := d.At(p, epoch+3*hour)
			dst = r.All(r.Top(10, r.WithRate(1e-4).Top(5, dst[:0]))[:0])
			r.P(7, 0.95)
			d.Death(p)
			d.Dead(p, epoch)
		})
		if allocations != 0 {
			t.Errorf("%s: %v allocations", name(p), allocations)
		}
		if string(before) != string(d.AppendBinary(nil)) {
			t.Errorf("%s: reading wrote", name(p))
		}
	}
}

// TestTouch: it can be called with anything, and finds what is there.
func TestTouch(t *testing.T) {
	var none Distribution
	none.Touch(7)
	for _, bins := range []int{1, 2, 63, 64, 65, 300, 70_000} {
		for _, p := range []*Params{wideParams(), compactParams()} {
			d := filled(p, bins)
			before := d.AppendBinary(nil)
			for bin := range uint32(1000) {
				d.Touch(bin)
			}
			if string(before) != string(d.AppendBinary(nil)) {
				t.Fatal("touching wrote")
			}
			likely := 0
			for i := range min(bins, 1000) {
				if s := d.slots(); s.n > 0 && s.likely(uint32(i*7)) == d.find(uint32(i*7)) {
					likely++
				}
			}
			if d.room > scanMax && likely < min(bins, 1000)/2 {
				t.Errorf("%d bins: only %d of %d are found in four slots", bins, likely, min(bins, 1000))
			}
		}
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	for _, p := range everyParams() {
		d := filled(p, 200)
		i := 0
		if n := testing.AllocsPerRun(1000, func() {
			i++
			if err := d.Add(p, epoch+Tick(i), epoch, uint32(i%200*7), 1); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name(p), n)
		}
	}
}
