package sketch

import (
	"math"
	"math/rand/v2"
	"testing"
)

// sampled is a distribution of n events, drawn with these probabilities at times up to now.
func sampled(t *testing.T, rng *rand.Rand, p *Params, n int, probabilities []float64) *Distribution {
	t.Helper()
	d := new(Distribution)
	for i := range n {
		x, bin := rng.Float64(), 0
		for x -= probabilities[0]; x > 0 && bin < len(probabilities)-1; x -= probabilities[bin] {
			bin++
		}
		if err := d.Add(p, epoch+Tick(i)*1000, epoch+Tick(i)*1000, uint32(bin), 1); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func plainParams() *Params {
	return &Params{Decay: None, Floor: Prune, Threshold: 0.001, BinsMax: 1000}
}

// Two samples of one distribution are called different as rarely as the test promises, also where bins are rare.
func TestCompareFalseAlarms(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0x616c61726d))
	p := plainParams()
	probabilities := make([]float64, 60) // 1/rank: most bins are rare
	for i := range probabilities {
		probabilities[i] = 1 / (float64(1+i) * 4.68)
	}
	const trials = 1000
	for _, sizes := range [][2]int{{200, 200}, {2000, 300}, {50, 5000}} {
		alarms := 0
		for range trials {
			a, b := sampled(t, rng, p, sizes[0], probabilities), sampled(t, rng, p, sizes[1], probabilities)
			if Compare(a.At(p, epoch+1e9), b.At(p, epoch+1e9)).P < 0.05 {
				alarms++
			}
		}
		if rate := float64(alarms) / trials; rate < 0.02 || rate > 0.10 {
			t.Errorf("%v events: %.3f of the trials were called different at 0.05", sizes, rate)
		}
	}
}

// A burst in one bin is found, and named first; so is a bin that the baseline never had.
func TestCompareFindsABurst(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 0x6275727374))
	p := plainParams()
	usual := []float64{0.5, 0.3, 0.15, 0.05}
	burst := []float64{0.3, 0.2, 0.1, 0.4}
	c := Compare(sampled(t, rng, p, 300, burst).At(p, epoch+1e9), sampled(t, rng, p, 3000, usual).At(p, epoch+1e9))
	if c.P > 1e-9 || c.Bins[0].ID != 3 || c.Bins[0].Lift < 2.5 || c.Bins[0].Lift > 3.5 || c.Freedom != 3 {
		t.Errorf("%+v", c)
	}
	novel := []float64{0.4, 0.3, 0.1, 0, 0.2}
	c = Compare(sampled(t, rng, p, 300, novel).At(p, epoch+1e9), sampled(t, rng, p, 3000, usual).At(p, epoch+1e9))
	if c.P > 1e-9 || c.Bins[0].ID != 4 || c.Bins[0].Baseline != 0 || c.Bins[0].Lift < 5 {
		t.Errorf("%+v", c)
	}
}

// A bin that was rare, or never there, and holds all of few events is no chance, though it is too rare for the G-test;
// and what may be chance is said to be.
func TestCompareFindsARareBin(t *testing.T) {
	p := plainParams()
	made := func(counts ...float64) Reading {
		d := new(Distribution)
		for bin, n := range counts {
			if n == 0 {
				continue
			}
			for range int(n) {
				if err := d.Add(p, 1, 1, uint32(bin), 1); err != nil {
					t.Fatal(err)
				}
			}
		}
		return d.At(p, 1)
	}
	usual := []float64{10, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 0}
	all := func(bin, n int) Reading {
		counts := make([]float64, 12)
		counts[bin] = float64(n)
		return made(counts...)
	}
	for _, c := range []struct {
		what        string
		r, baseline Reading
		below       float64
		above       float64
	}{
		{"50 of a bin that was never there", all(11, 50), made(usual...), 1e-50, 0},
		{"8 of it", all(11, 8), made(usual...), 1e-10, 0},
		{"20 of a bin of 1%", all(0, 20), made(usual...), 1e-20, 0},
		{"2 of a bin of 10%", all(1, 2), made(usual...), 1, 0.05},
		{"one of a bin that was never there", all(11, 1), made(usual...), 1, 0.01},
		{"20 others against a baseline of one bin", all(1, 20), made(30), 1e-5, 0},
		{"the same", made(usual...), made(usual...), 1.1, 0.99},
	} {
		if got := Compare(c.r, c.baseline); got.P > c.below || got.P < c.above {
			t.Errorf("%s: p = %v (G %v, %d degrees of freedom), want %v to %v", c.what, got.P, got.G, got.Freedom, c.above, c.below)
		}
	}
}

// Lift says whether a bin is more probable than in the baseline or less, however few events there are: also of a bin
// that came in one of the two only. The other way round it is the same, with the other sign.
func TestLiftHasTheSignOfTheDifference(t *testing.T) {
	p := plainParams()
	made := func(counts map[uint32]float64) Reading {
		d := new(Distribution)
		for bin, n := range counts {
			if err := d.Add(p, epoch, epoch, bin, n); err != nil {
				t.Fatal(err)
			}
		}
		return d.At(p, epoch)
	}
	rng := rand.New(rand.NewPCG(5, 0x6c696674))
	drawn := func() map[uint32]float64 {
		counts := map[uint32]float64{}
		for range 1 + rng.IntN(12) {
			counts[uint32(rng.IntN(20))] = float64(1 + rng.IntN(1<<rng.IntN(18)))
		}
		return counts
	}
	check := func(a, b Reading) {
		t.Helper()
		swapped := map[uint32]float64{}
		for _, bin := range Compare(b, a).Bins {
			swapped[bin.ID] = bin.Lift
		}
		for _, bin := range Compare(a, b).Bins {
			if (bin.P < bin.Baseline) != (bin.Lift < 0) || (bin.P > bin.Baseline) != (bin.Lift > 0) {
				t.Errorf("bin %d: P %g, usually %g, and a lift of %g", bin.ID, bin.P, bin.Baseline, bin.Lift)
			}
			if math.Abs(bin.Lift+swapped[bin.ID]) > 1e-9 {
				t.Errorf("bin %d: a lift of %g, and of %g the other way round", bin.ID, bin.Lift, swapped[bin.ID])
			}
		}
	}
	check(made(map[uint32]float64{1: 1, 2: 1}), made(map[uint32]float64{1: 50000, 2: 50000, 3: 100}))
	for range 500 {
		check(made(drawn()), made(drawn()))
	}
	c := Compare(made(map[uint32]float64{1: 8000, 2: 2000}), made(map[uint32]float64{1: 2000, 2: 8000}))
	for _, bin := range c.Bins {
		if want := math.Log2(bin.P / bin.Baseline); math.Abs(bin.Lift-want) > 0.01 {
			t.Errorf("of many events: a lift of %g, want %g", bin.Lift, want)
		}
	}
}

// The distance is that of the definition: 0 for the same, 1 for those that share nothing, and the same both ways round.
func TestCompareIsADistance(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 0x646973))
	p := plainParams()
	a := sampled(t, rng, p, 500, []float64{0.7, 0.2, 0.1}).At(p, epoch+1e9)
	b := sampled(t, rng, p, 400, []float64{0.1, 0.2, 0.3, 0.4}).At(p, epoch+1e9)
	other := new(Distribution)
	if err := other.Add(p, epoch, epoch, 99, 5); err != nil {
		t.Fatal(err)
	}
	if c := Compare(a, a); c.JensenShannon != 0 || c.G > 1e-9 || c.P < 0.999 {
		t.Errorf("with itself: %+v", c)
	}
	if c := Compare(a, other.At(p, epoch)); math.Abs(c.JensenShannon-1) > 1e-12 {
		t.Errorf("with what shares no bin: %v", c.JensenShannon)
	}
	ab, ba := Compare(a, b), Compare(b, a)
	if math.Abs(ab.JensenShannon-ba.JensenShannon) > 1e-12 || math.Abs(ab.G-ba.G) > 1e-9 || ab.Freedom != ba.Freedom || math.Abs(ab.P-ba.P) > 1e-12 {
		t.Errorf("one way %+v\nother way %+v", ab, ba)
	}
	if math.Sqrt(ab.JensenShannon) > math.Sqrt(Compare(a, other.At(p, epoch)).JensenShannon)+math.Sqrt(Compare(other.At(p, epoch), b).JensenShannon) {
		t.Error("the triangle inequality does not hold")
	}
	if c := Compare(a, new(Distribution).At(p, epoch)); c.P != 1 || c.G != 0 || len(c.Bins) != 0 {
		t.Errorf("with nothing: %+v", c)
	}
}

// Of the same proportions in another size the distance is 0, never less by rounding.
func TestCompareIsNeverBelowZero(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 0x7a65726f))
	p := plainParams()
	below := 0
	for range 300 {
		scale := 0.1 + rng.ExpFloat64()
		a, b := new(Distribution), new(Distribution)
		for bin := range uint32(30) {
			n := rng.ExpFloat64() + 0.01
			if a.Add(p, epoch, epoch, bin, n) != nil || b.Add(p, epoch, epoch, bin, n*scale) != nil {
				t.Fatal("cannot add")
			}
		}
		if c := Compare(a.At(p, epoch), b.At(p, epoch)); c.JensenShannon < 0 || c.JensenShannon > 1e-12 {
			below++
		}
	}
	if below > 0 {
		t.Errorf("%d of 300 distances are not 0", below)
	}
}

// A known table: 2 x 2 with counts 30 70 and 50 50 has G = 8.4028 with 1 degree, P = 0.003746 (by hand, and by R's
// chi-square).
func TestCompareKnownTable(t *testing.T) {
	p := plainParams()
	table := func(x, y float64) Reading {
		d := new(Distribution)
		for range int(x) {
			if err := d.Add(p, epoch, epoch, 1, 1); err != nil {
				t.Fatal(err)
			}
		}
		for range int(y) {
			if err := d.Add(p, epoch, epoch, 2, 1); err != nil {
				t.Fatal(err)
			}
		}
		return d.At(p, epoch)
	}
	c := Compare(table(30, 70), table(50, 50))
	if math.Abs(c.G-8.4028) > 1e-3 || c.Freedom != 1 || c.Single || math.Abs(c.P-0.003746) > 1e-5 {
		t.Errorf("G %v, %d degrees, P %v", c.G, c.Freedom, c.P)
	}
}

// An event is as surprising as it is rare, and what never was no more than the number of events allows.
func TestSurprise(t *testing.T) {
	p := plainParams()
	d := new(Distribution)
	if got := d.At(p, epoch).Surprise(1); got != 0 {
		t.Errorf("of nothing known: %v bits", got)
	}
	for bin, n := range map[uint32]float64{1: 512, 2: 256, 3: 255, 4: 1} {
		for range int(n) {
			if err := d.Add(p, epoch, epoch, bin, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := d.At(p, epoch)
	for bin, want := range map[uint32]float64{1: 1, 2: 2, 3: 2.005, 4: math.Log2(1026.5 / 1.5), 99: math.Log2(1026.5 / 0.5)} {
		if got := r.Surprise(bin); math.Abs(got-want) > 0.01 {
			t.Errorf("bin %d: %v bits, want %v", bin, got, want)
		}
	}
}

// To fade changes neither what is likely nor, as all events fade alike, how many they are worth.
func TestCompareForgets(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 0x666164))
	p := &Params{Decay: HalfLife, HalfLife: 3600e6, Floor: Prune, Threshold: 1e-6, BinsMax: 1000}
	a := sampled(t, rng, p, 200, []float64{0.5, 0.3, 0.2})
	b := sampled(t, rng, p, 200, []float64{0.2, 0.3, 0.5})
	now := Compare(a.At(p, epoch+1e6), b.At(p, epoch+1e6))
	later := Compare(a.At(p, epoch+9*3600e6), b.At(p, epoch+9*3600e6))
	if math.Abs(now.JensenShannon-later.JensenShannon) > 1e-9 || now.P > 1e-4 || math.Abs(now.G-later.G) > 1e-6 || now.Freedom != 2 {
		t.Errorf("now %+v\nlater %+v", now, later)
	}
}

// What has faded below the threshold is as probable as it was, as long as its bins are there. The comparison reports
// what removed bins had, since that is compared with nothing.
func TestCompareBelowTheThreshold(t *testing.T) {
	for _, p := range []*Params{
		{Decay: HalfLife, HalfLife: hour, Threshold: 0.001, OrderFree: true},
		{Decay: HalfLife, HalfLife: hour, Threshold: 0.001, OrderFree: true, Compact: true},
		{Decay: HalfLife, HalfLife: hour, Threshold: 0.001, OrderFree: true, AllowNegative: true},
		{Decay: Linear, HalfLife: hour, Threshold: 0.1, OrderFree: true, Bounded: true},
	} {
		of := func(at Tick) *Distribution {
			d := new(Distribution)
			for bin := range uint32(8) {
				if err := d.Add(p, at, at, bin, 1); err != nil {
					t.Fatal(err)
				}
			}
			return d
		}
		later := epoch + 11*hour
		if p.Decay == Linear {
			later = p.leakedBy(p.leaked(epoch) + 920_000)
		}
		old, young := of(epoch), of(later)
		c := Compare(old.At(p, later).Left(), young.At(p, later).Left())
		if c.JensenShannon > 1e-6 || c.P < 0.99 || c.Other != 0 || c.BaselineOther != 0 || len(c.Bins) != 8 {
			t.Errorf("%s: the same, of which one has faded: %+v", name(p), c)
		}
		got, want := old.At(p, later).Left().Surprise(3), young.At(p, later).Left().Surprise(3)
		if math.Abs(got-want) > 0.1 {
			t.Errorf("%s: an event has %v bits, in what has not faded %v", name(p), got, want)
		}
		if p.Decay == Linear {
			continue
		}
		old.Prune(p, later, nil)
		c = Compare(old.At(p, later).Left(), young.At(p, later).Left())
		if old.Len() != 0 || c.Other != 1 || c.BaselineOther != 0 || math.Abs(c.JensenShannon-0.5) > 1e-6 {
			t.Errorf("%s: bins were removed: %+v", name(p), c)
		}
		if c = Compare(young.At(p, later).Left(), old.At(p, later).Left()); c.Other != 0 || c.BaselineOther != 1 {
			t.Errorf("%s: bins were removed from the baseline: %+v", name(p), c)
		}
	}
}

// Where what is below the threshold counts as nothing, it is not compared; nor is a summary that has died.
func TestLeftOfNothing(t *testing.T) {
	for _, p := range []*Params{
		{Decay: HalfLife, HalfLife: hour, Threshold: 0.001},
		{Decay: Linear, HalfLife: hour, Threshold: 0.1},
		{Decay: HalfLife, HalfLife: hour, Threshold: 0.001, OrderFree: true},
		{Decay: Linear, HalfLife: hour, Threshold: 0.1, OrderFree: true, Bounded: true},
	} {
		var d Distribution
		for bin := range uint32(2) {
			if err := d.Add(p, epoch, epoch, bin, 1+float64(bin)); err != nil {
				t.Fatal(err)
			}
		}
		at := epoch + 11*hour - hour/2
		if p.Decay == Linear {
			at = p.leakedBy(p.leaked(epoch) + 920_000)
		}
		want := 1
		if p.OrderFree {
			want = 2
		}
		if r := d.At(p, at).Left(); r.Bins != want || len(r.All(nil)) != want {
			t.Errorf("%s: %d bins have something left, want %d", name(p), r.Bins, want)
		}
		for _, r := range []Reading{d.At(p, epoch+20*hour).Left(), new(Distribution).At(p, epoch).Left()} {
			if r.Bins != 0 || r.Z != 0 || len(r.All(nil)) != 0 {
				t.Errorf("%s: of what has died %d bins and %v are left", name(p), r.Bins, r.Z)
			}
		}
	}
}

// Counts that cancel each other are no probabilities: what is below zero does not happen, and the distance stays one.
func TestCompareNegativeCounts(t *testing.T) {
	p := &Params{Decay: None, Floor: Prune, Threshold: 0.001, BinsMax: 10, AllowNegative: true}
	of := func(counts ...float64) Reading {
		d := new(Distribution)
		for i, n := range counts {
			if err := d.Add(p, epoch, epoch, uint32(i), n); err != nil {
				t.Fatal(err)
			}
		}
		return d.At(p, epoch)
	}
	c := Compare(of(10, -9), of(5, 5))
	if c.JensenShannon < 0 || c.JensenShannon > 1 || c.Bins[0].P < 0 || c.Bins[0].P > 1 || c.Bins[1].P < 0 || c.Bins[1].P > 1 || math.Abs(c.JensenShannon-0.3113) > 1e-3 {
		t.Errorf("%+v", c)
	}
}

func BenchmarkCompare(b *testing.B) {
	p := plainParams()
	var d, base Distribution
	r := rng(1)
	for range 20_000 {
		for _, x := range []*Distribution{&d, &base} {
			if err := x.Add(p, epoch, epoch, uint32(r.below(260)), 1); err != nil {
				b.Fatal(err)
			}
		}
	}
	one, other := d.At(p, epoch), base.At(p, epoch)
	for b.Loop() {
		Compare(one, other)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/260, "ns/bin")
}
