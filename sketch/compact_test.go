package sketch

import (
	"math"
	"testing"
)

// TestCompactIsAccurate: the promise is a relative error of at most 1e-5. Streams that are hard on short values: long
// ones, steady fractions that rounding to nearest would always round the same way, tiny and late amounts.
func TestCompactIsAccurate(t *testing.T) {
	steady := func(n float64, gap Tick) func(*rng, int) event {
		return func(_ *rng, i int) event { now := epoch + Tick(i)*gap; return event{now, now, 0, n} }
	}
	for _, c := range []struct {
		name   string
		decay  Decay
		events int
		next   func(*rng, int) event
	}{
		{"ones, an hour's worth of 16,000", HalfLife, 200_000, steady(1, hour/11_000)},
		{"ones, almost promoted", HalfLife, 200_000, steady(1, hour/11_300)},
		{"ones at one moment", HalfLife, 16_000, steady(1, 0)},
		{"tenths", None, 160_000, steady(0.1, 0)},
		{"tenths that fade", HalfLife, 200_000, steady(0.1, hour/11_000)},
		{"thousandths", None, 200_000, steady(0.001, 0)},
		{"0.7", None, 20_000, steady(0.7, 0)},
		{"millions", None, 10_000, steady(1e6, 0)},
		{"any amounts", HalfLife, 100_000, func(r *rng, i int) event {
			now := epoch + Tick(i)*hour/5000
			return event{now, now, uint32(r.below(3)), 2 * r.float()}
		}},
		{"late ones", HalfLife, 100_000, func(r *rng, i int) event {
			now := epoch + Tick(i)*hour/5000
			return event{now, now - Tick(r.below(int(20*hour))), uint32(r.below(3)), 1}
		}},
		{"large and then tiny", None, 100_000, func(_ *rng, i int) event {
			if i == 0 {
				return event{epoch, epoch, 0, 10_000}
			}
			return event{epoch, epoch, 0, 1e-4}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &Params{Decay: c.decay, HalfLife: hour, Threshold: 1e-3}
			short := *p
			short.Compact = true
			worst, now := 0.0, Tick(0)
			for seed := range rng(4) {
				var exact, d Distribution
				r := seed
				for i := range c.events {
					e := c.next(&r, i)
					e.n *= 1 + float64(seed)*1e-3
					now = e.now
					if err := exact.Add(p, e.now, e.t, e.bin, e.n); err != nil {
						t.Fatal(err)
					}
					if err := d.Add(&short, e.now, e.t, e.bin, e.n); err != nil {
						t.Fatal(err)
					}
					if i%97 == 0 {
						worst = max(worst, difference(&exact, &d, p, &short, now))
					}
				}
				worst = max(worst, difference(&exact, &d, p, &short, now))
			}
			t.Logf("worst relative error %.3g", worst)
			if worst > 1e-5 {
				t.Errorf("worst relative error %g, promised 1e-5", worst)
			}
		})
	}
}

// difference is the largest relative error of a count.
func difference(exact, d *Distribution, p, short *Params, now Tick) (worst float64) {
	r := d.At(short, now)
	for _, b := range exact.At(p, now).All(nil) {
		worst = max(worst, math.Abs(r.Count(b.ID)/b.Count-1))
	}
	return worst
}

// TestCompactIsUnbiased: over many streams the errors cancel out.
func TestCompactIsUnbiased(t *testing.T) {
	p := &Params{Decay: None, Compact: true}
	sum, squares, trials := 0.0, 0.0, 300
	for i := range trials {
		var d Distribution
		n := 0.3 + float64(i)*1e-3
		const adds = 3000
		for range adds {
			if err := d.Add(p, epoch, epoch, uint32(i), n); err != nil {
				t.Fatal(err)
			}
		}
		if d.form() != compact {
			t.Fatal("not compact")
		}
		e := d.At(p, epoch).Count(uint32(i))/(adds*n) - 1
		sum += e
		squares += e * e
	}
	rms := math.Sqrt(squares / float64(trials))
	bias := sum / float64(trials)
	t.Logf("bias %.3g, rms %.3g", bias, rms)
	if math.Abs(bias) > 4.5*rms/math.Sqrt(float64(trials)) {
		t.Errorf("bias %g at rms %g over %d trials", bias, rms, trials)
	}
}

func TestCompactPromotes(t *testing.T) {
	for _, c := range []struct {
		name string
		n    float64
		adds int
		want form
	}{
		{"small", 1, 100, compact},
		{"almost 2^14", 1, 1<<14 - 8, compact},
		{"past 2^14", 1, 1<<14 + 8, wide},
		{"a large amount", 20_000, 1, wide},
		{"almost 2^14 times a small amount", 0.125, 1<<14 - 8, compact},
		{"past 2^14 times a small amount", 0.125, 1<<14 + 8, wide},
		{"negative", -1, 1, wide},
	} {
		p := &Params{Decay: HalfLife, HalfLife: hour, Compact: true, AllowNegative: true}
		var d Distribution
		if err := d.Add(p, epoch, epoch, 9, 1); err != nil {
			t.Fatal(err)
		}
		for range c.adds {
			if err := d.Add(p, epoch, epoch, 1, c.n); err != nil {
				t.Fatal(err)
			}
		}
		if d.form() != c.want {
			t.Errorf("%s: form %d, want %d", c.name, d.form(), c.want)
		}
		if got := d.At(p, epoch).Count(1); math.Abs(got/(c.n*float64(c.adds))-1) > 1e-5 {
			t.Errorf("%s: count %v", c.name, got)
		}
	}
}

// TestSqueeze: what is representable comes back, and what is not becomes one of its two neighbours.
func TestSqueeze(t *testing.T) {
	r := rng(4)
	for range 100_000 {
		v := math.Ldexp(1+r.float(), r.below(126)-63)
		c, ok := squeeze(v, r.next()>>(64-compactCut))
		if !ok {
			t.Fatalf("%v does not fit", v)
		}
		got := expand(c)
		if math.Abs(got/v-1) > 0x1p-25 {
			t.Fatalf("%v becomes %v", v, got)
		}
		if again, _ := squeeze(got, 1<<compactCut-1); again != c {
			t.Fatalf("%v is not exact", got)
		}
	}
	for _, c := range []struct {
		v    float64
		want float64
		ok   bool
	}{
		{0, 0, true},
		{0x1p-63, 0x1p-63, true},
		{0x1p-64, 0, true},
		{0x1p63, 0x1p63, true},
		{0x1p64, 0, false},
		{-1, 0, false},
	} {
		if got, ok := squeeze(c.v, 0); ok != c.ok || ok && expand(got) != c.want {
			t.Errorf("squeeze(%v) = %v, %v", c.v, expand(got), ok)
		}
	}
}

// TestSize holds the memory that a distribution takes to the goals of a bin: 20, 15 and 15 bytes wide, 16, 11 and 11
// compact, less what keys and names need.
func TestSize(t *testing.T) {
	for _, c := range []struct {
		bins    int
		compact bool
		max     float64
	}{
		{10, false, 20.5},
		{50, false, 15.7},
		{260, false, 16.5},
		{10, true, 16},
		{50, true, 10.5},
		{260, true, 12.5},
	} {
		p := wideParams()
		p.Compact = c.compact
		total := 0
		for i := range 10 {
			total += filled(p, c.bins+i*c.bins/100).Size()
		}
		got := float64(total) / 10 / float64(c.bins)
		t.Logf("%d bins, compact %v: %.1f bytes a bin", c.bins, c.compact, got)
		if got > c.max {
			t.Errorf("more than %v", c.max)
		}
	}
}
