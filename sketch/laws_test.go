package sketch

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestLaws is the table of how counts fade. Each row puts events into one bin at times given in half-lives after a
// start, and reads it.
func TestLaws(t *testing.T) {
	type ev struct{ at, n float64 }
	ln2 := math.Ln2
	for _, c := range []struct {
		name   string
		p      Params
		events []ev
		read   float64
		count  float64
		z      float64
		bins   int
	}{
		{"half in a half-life", Params{Decay: HalfLife}, []ev{{0, 8}}, 1, 4, 4, 1},
		{"a thousandth in ten", Params{Decay: HalfLife}, []ev{{0, 1024}}, 10, 1, 1, 1},
		{"not at all at once", Params{Decay: HalfLife}, []ev{{0, 8}}, 0, 8, 8, 1},
		{"between whole half-lives", Params{Decay: HalfLife}, []ev{{0.25, 8}}, 0.75, 8 / math.Sqrt2, 8 / math.Sqrt2, 1},
		{"each event by its own age", Params{Decay: HalfLife}, []ev{{0, 8}, {1, 8}, {2, 8}}, 3, 7, 7, 1},
		{"a late event weighs as if it had been in time", Params{Decay: HalfLife}, []ev{{2, 8}, {0, 8}}, 2, 10, 10, 1},
		{"below the threshold a bin is gone", Params{Decay: HalfLife, Threshold: 1}, []ev{{0, 8}}, 3.001, 0, 0, 0},
		{"at the threshold it is not", Params{Decay: HalfLife, Threshold: 1}, []ev{{0, 8}}, 3, 1, 1, 1},
		{"what has faded counts as nothing", Params{Decay: HalfLife, Threshold: 1}, []ev{{0, 8}, {4, 2}}, 4, 2, 2, 1},
		{"past a rebase", Params{Decay: HalfLife, Threshold: 1e-12}, []ev{{0, 1 << 20}, {40, 1}}, 40, 1 + 0x1p-20, 1 + 0x1p-20, 1},
		{"clamped to one", Params{Decay: HalfLife, Floor: Clamp, Threshold: 1e-3}, []ev{{0, 8}}, 5, 1, 1, 1},
		{"clamp leaves large counts", Params{Decay: HalfLife, Floor: Clamp, Threshold: 1e-3}, []ev{{0, 8}}, 2, 2, 2, 1},
		{"clamp is never written", Params{Decay: HalfLife, Floor: Clamp, Threshold: 1e-3}, []ev{{0, 8}, {4, 2}}, 4, 2.5, 2.5, 1},
		{"a clamped summary dies", Params{Decay: HalfLife, Floor: Clamp, Threshold: 1e-3}, []ev{{0, 8}}, 14, 0, 0, 0},
		{"prior adds", Params{Decay: HalfLife, Floor: Prior, Prior: 0.5, Threshold: 1e-3}, []ev{{0, 8}}, 1, 4.5, 4.5, 1},
		{"none keeps", Params{Decay: None}, []ev{{0, 8}, {100, 1}}, 1e5, 9, 9, 1},
		{"linear leaks ln 2 a half-life", Params{Decay: Linear}, []ev{{0, 8}}, 1, 8 - ln2, 8 - ln2, 1},
		{"linear goes on leaking", Params{Decay: Linear}, []ev{{0, 8}}, 10, 8 - 10*ln2, 8 - 10*ln2, 1},
		{"linear runs dry", Params{Decay: Linear}, []ev{{0, 8}}, 12, 0, 0, 0},
		{"and starts again from nothing", Params{Decay: Linear}, []ev{{0, 8}, {100, 1}}, 101, 1 - ln2, 1 - ln2, 1},
		{"linear and late", Params{Decay: Linear}, []ev{{2, 8}, {1, 3}}, 2, 11, 11, 1},
		{"linear and late into nothing", Params{Decay: Linear}, []ev{{1, 3}}, 2, 3 - ln2, 3 - ln2, 1},
		{"linear clamped", Params{Decay: Linear, Floor: Clamp}, []ev{{0, 8}}, 11, 1, 1, 1},
		{"negative amounts", Params{Decay: HalfLife, AllowNegative: true}, []ev{{0, 8}, {1, -1}}, 1, 3, 3, 1},
		{"below zero", Params{Decay: HalfLife, AllowNegative: true}, []ev{{0, -8}}, 1, -4, -4, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.p
			p.HalfLife = hour
			start := epoch / hour * hour
			var d Distribution
			now := start
			for _, e := range c.events {
				at := start + Tick(e.at*float64(hour))
				now = max(now, at)
				if err := d.Add(&p, now, at, 5, e.n); err != nil {
					t.Fatal(err)
				}
			}
			r := d.At(&p, start+Tick(c.read*float64(hour)))
			near := func(what string, got, want, tolerance float64) {
				t.Helper()
				if math.Abs(got-want) > tolerance {
					t.Errorf("%s = %v, want %v", what, got, want)
				}
			}
			tolerance := 1e-12 * math.Abs(c.count)
			if p.Decay == Linear {
				tolerance = 2e-6 // micro-counts
			}
			near("count", r.Count(5), c.count, tolerance)
			near("Z", r.Z, c.z, tolerance)
			if r.Bins != c.bins {
				t.Errorf("%d bins, want %d", r.Bins, c.bins)
			}
		})
	}
}

// TestForgetTable is the example of the Forget Table article: three bins get no more events. Under clamp the idle
// distribution tends to uniform. Under prune it keeps its shape and then vanishes.
func TestForgetTable(t *testing.T) {
	for _, c := range []struct {
		floor Floor
		hours Tick
		want  [3]float64
	}{
		{Prune, 0, [3]float64{0.7, 0.2, 0.1}},
		{Prune, 5, [3]float64{0.7, 0.2, 0.1}},
		{Clamp, 0, [3]float64{0.7, 0.2, 0.1}},
		{Clamp, 4, [3]float64{4.375 / 6.625, 1.25 / 6.625, 1 / 6.625}},
		{Clamp, 6, [3]float64{1.09375 / 3.09375, 1 / 3.09375, 1 / 3.09375}},
		{Clamp, 7, [3]float64{1. / 3, 1. / 3, 1. / 3}},
		{Clamp, 16, [3]float64{1. / 3, 1. / 3, 1. / 3}},
		{Prior, 16, [3]float64{1. / 3, 1. / 3, 1. / 3}},
		{Clamp, 17, [3]float64{}},
		{Prune, 17, [3]float64{}},
	} {
		p := &Params{Decay: HalfLife, HalfLife: hour, Floor: c.floor, Threshold: 1e-3, Prior: 1}
		var d Distribution
		for bin, n := range []float64{70, 20, 10} {
			if err := d.Add(p, epoch, epoch, uint32(bin), n); err != nil {
				t.Fatal(err)
			}
		}
		before := d.AppendBinary(nil)
		r := d.At(p, epoch+c.hours*hour)
		for bin, want := range c.want {
			got, low, high := r.P(uint32(bin), 0.95)
			tolerance := 1e-12
			if c.floor == Prior {
				tolerance = 1e-3
			}
			if math.Abs(got-want) > tolerance || low > got || got > high {
				t.Errorf("floor %d after %d h: p(%d) = %v in [%v, %v], want %v", c.floor, c.hours, bin, got, low, high, want)
			}
		}
		if string(before) != string(d.AppendBinary(nil)) {
			t.Error("reading wrote")
		}
	}
}

// TestOther: Z does not follow what pruning does, and the difference shows.
func TestOther(t *testing.T) {
	p := &Params{Decay: HalfLife, HalfLife: hour, Threshold: 1}
	var d Distribution
	for bin := range uint32(10) {
		if err := d.Add(p, epoch, epoch, bin, float64(1+bin)); err != nil {
			t.Fatal(err)
		}
	}
	at := epoch + 2*hour // of 1..10 the first three are below the threshold now
	for _, prune := range []bool{false, true} {
		if prune {
			var gone []uint32
			d.Prune(p, at, func(bin uint32) { gone = append(gone, bin) })
			if len(gone) != 3 || d.Len() != 7 {
				t.Errorf("pruned %v, %d left", gone, d.Len())
			}
		}
		r := d.At(p, at)
		if r.Bins != 7 || math.Abs(r.Z-55./4) > 1e-12 || math.Abs(r.Other-6./4) > 1e-12 {
			t.Errorf("pruned %v: %d bins, Z %v, other %v", prune, r.Bins, r.Z, r.Other)
		}
	}
	if r := d.At(p, at-hour); r.Bins != 7 {
		t.Errorf("an earlier reading shows %d bins", r.Bins)
	}
}

func TestAddRefuses(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		name string
		p    Params
		bin  uint32
		n    float64
		want error
	}{
		{"not a number", Params{}, 1, nan, ErrOverflow},
		{"infinite", Params{}, 1, inf, ErrOverflow},
		{"minus infinite", Params{AllowNegative: true}, 1, -inf, ErrOverflow},
		{"too large", Params{}, 1, 0x1p201, ErrOverflow},
		{"too large a sum", Params{}, 1, 0x1p199, ErrOverflow},
		{"too large a linear amount", Params{Decay: Linear}, 1, 1e13, ErrOverflow},
		{"too large a linear sum", Params{Decay: Linear}, 1, 0x1p63/1e6 - 1, ErrOverflow},
		{"negative", Params{}, 1, -1, ErrNegative},
		{"negative linear", Params{Decay: Linear}, 1, -1, ErrNegative},
		{"negative none", Params{Decay: None}, 1, -1, ErrNegative},
		{"a third bin", Params{BinsMax: 2}, 3, 1, ErrTooManyBins},
		{"a third linear bin", Params{Decay: Linear, BinsMax: 2}, 3, 1, ErrTooManyBins},
		{"no third bin", Params{BinsMax: 2}, 2, 1, nil},
		{"nothing", Params{}, 3, 0, nil},
		{"minus nothing", Params{}, 3, math.Copysign(0, -1), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.p
			p.HalfLife = hour
			first := 5.0
			if p.Decay != Linear {
				first = 0x1p199
			}
			var d Distribution
			for bin := uint32(1); bin <= 2; bin++ {
				if err := d.Add(&p, epoch, epoch, bin, first); err != nil {
					t.Fatal(err)
				}
			}
			before := d.AppendBinary(nil)
			if err := d.Add(&p, epoch, epoch, c.bin, c.n); err != c.want {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if c.n != 1 && string(before) != string(d.AppendBinary(nil)) {
				t.Error("it changed something")
			}
		})
	}
}

// TestDeath: the closed formula is never early and at most 2^-44 half-lives and some ticks late.
func TestDeath(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &Params{
			Decay:         rapid.SampledFrom([]Decay{HalfLife, Linear}).Draw(t, "decay"),
			HalfLife:      Tick(rapid.Int64Range(1e6, 3e15).Draw(t, "half-life")),
			Floor:         rapid.SampledFrom([]Floor{Prune, Clamp, Prior}).Draw(t, "floor"),
			Threshold:     rapid.Float64Range(1e-9, 10).Draw(t, "threshold"),
			Compact:       rapid.Bool().Draw(t, "compact"),
			AllowNegative: rapid.Bool().Draw(t, "negative"),
		}
		var d Distribution
		now := epoch
		for range rapid.IntRange(1, 20).Draw(t, "events") {
			n := rapid.Float64Range(1e-3, 1e9).Draw(t, "n")
			if p.AllowNegative && rapid.Bool().Draw(t, "minus") {
				n = -n
			}
			if err := d.Add(p, now, now, uint32(rapid.IntRange(0, 5).Draw(t, "bin")), n); err != nil {
				t.Fatal(err)
			}
			now += Tick(rapid.Int64Range(0, int64(p.HalfLife)).Draw(t, "gap"))
		}
		death := d.Death(p)
		if d.Len() > 0 && death < MaxTick && !d.Dead(p, death) {
			t.Fatalf("alive at its death %d", death)
		}
		margin := 10 + p.HalfLife/(1<<42)
		if death > now+margin && d.Dead(p, death-margin) {
			t.Fatalf("dead %d ticks before its death", margin)
		}
		if r := d.At(p, death); death < MaxTick && (r.Z != 0 || r.Other != 0 || r.Bins != 0 || len(r.All(nil)) != 0) {
			t.Fatalf("reads %+v when dead", r)
		}
	})
}

func TestNoneNeverDies(t *testing.T) {
	p := &Params{Decay: None}
	var d Distribution
	if got := d.Death(&Params{HalfLife: hour}); got != 0 {
		t.Errorf("an empty one dies at %d", got)
	}
	if err := d.Add(p, epoch, epoch, 1, 1e-9); err != nil {
		t.Fatal(err)
	}
	if d.Death(p) != MaxTick || d.Dead(p, MaxTick) {
		t.Error("plain counts died")
	}
	if c := d.At(p, MaxTick).Count(1); c != 1e-9 {
		t.Errorf("count %v", c)
	}
}

// TestDeadIsEmpty: whether or not a dead summary was removed makes no difference to what follows.
func TestDeadIsEmpty(t *testing.T) {
	for _, p := range everyParams() {
		if p.Decay == None {
			continue
		}
		var kept, removed Distribution
		for bin := range uint32(5) {
			if err := kept.Add(p, epoch, epoch, bin, 3); err != nil {
				t.Fatal(err)
			}
		}
		later := kept.Death(p)
		for _, d := range []*Distribution{&kept, &removed} {
			if err := d.Add(p, later, later, 2, 1); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := kept.AppendBinary(nil), removed.AppendBinary(nil); string(a) != string(b) {
			t.Errorf("%s: %x, want %x", name(p), a, b)
		}
	}
}

// TestMergeCommutes, to the bit, over different landmarks.
func TestMergeCommutes(t *testing.T) {
	for _, p := range everyParams() {
		t.Run(name(p), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				a, b := drawDistribution(t, p), drawDistribution(t, p)
				ab, ba := a.Clone(), b.Clone()
				ab.Merge(p, &b, nil)
				ba.Merge(p, &a, nil)
				if p.Decay == Linear {
					at := max(a.Last(), b.Last())
					if x, y := fmt.Sprint(ab.At(p, at).All(nil)), fmt.Sprint(ba.At(p, at).All(nil)); x != y {
						t.Fatalf("%s\n%s", x, y)
					}
					return
				}
				if x, y := ab.AppendBinary(nil), ba.AppendBinary(nil); string(x) != string(y) {
					t.Fatalf("%x\n%x", x, y)
				}
			})
		})
	}
}

// drawDistribution is one of up to 150 bins, written within 100 half-lives.
func drawDistribution(t *rapid.T, p *Params) Distribution {
	h := history{
		r:        rng(rapid.Uint64().Draw(t, "seed")),
		now:      epoch + Tick(rapid.IntRange(0, 60).Draw(t, "start"))*hour,
		bins:     rapid.IntRange(1, 150).Draw(t, "bins"),
		span:     20 * hour,
		negative: p.AllowNegative,
	}
	var d Distribution
	for range rapid.IntRange(0, 300).Draw(t, "events") {
		e := h.next()
		if err := d.Add(p, e.now, e.t, e.bin, e.n); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// TestMergeIsUnion: merging two is as good as one that saw all events.
func TestMergeIsUnion(t *testing.T) {
	p := &Params{Decay: HalfLife, HalfLife: hour, Threshold: 1e-20}
	rapid.Check(t, func(t *rapid.T) {
		h := history{r: rng(rapid.Uint64().Draw(t, "seed")), now: epoch, bins: 100, span: 20 * hour}
		var parts [2]Distribution
		var whole Distribution
		for range 300 {
			e := h.next()
			for _, d := range []*Distribution{&whole, &parts[h.r.below(2)]} {
				if err := d.Add(p, e.now, e.t, e.bin, e.n); err != nil {
					t.Fatal(err)
				}
			}
		}
		parts[0].Merge(p, &parts[1], nil)
		got, want := parts[0].At(p, h.now), whole.At(p, h.now)
		if math.Abs(got.Z/want.Z-1) > 1e-12 || math.Abs(got.Z2/want.Z2-1) > 1e-12 || got.Last != want.Last {
			t.Fatalf("Z %v %v, want %v %v", got.Z, got.Z2, want.Z, want.Z2)
		}
		for _, b := range want.All(nil) {
			if b.Count > 1e-9 && math.Abs(got.Count(b.ID)/b.Count-1) > 1e-9 {
				t.Fatalf("bin %d: %v, want %v", b.ID, got.Count(b.ID), b.Count)
			}
		}
	})
}

func TestMergeTranslatesBins(t *testing.T) {
	p := &Params{Decay: None}
	var a, b Distribution
	for bin := range uint32(3) {
		if err := b.Add(p, epoch, epoch, bin, float64(bin+1)); err != nil {
			t.Fatal(err)
		}
	}
	a.Merge(p, &b, func(bin uint32) uint32 { return 100 + bin/2 })
	if r := a.At(p, epoch); r.Count(100) != 3 || r.Count(101) != 3 || r.Bins != 2 {
		t.Errorf("%v", r.All(nil))
	}
}

// TestMergeOfIdleClamped: two idle summaries do not add up to more than an idle one.
func TestMergeOfIdleClamped(t *testing.T) {
	p := &Params{Decay: HalfLife, HalfLife: hour, Floor: Clamp, Threshold: 1e-3}
	var a, b Distribution
	for _, d := range []*Distribution{&a, &b} {
		if err := d.Add(p, epoch, epoch, 1, 4); err != nil {
			t.Fatal(err)
		}
	}
	a.Merge(p, &b, nil)
	if c := a.At(p, epoch+8*hour).Count(1); c != 1 {
		t.Errorf("count %v, want 1", c)
	}
}

// TestConvert: at the moment of a change counts stay what they are, and decay in the new way from there.
func TestConvert(t *testing.T) {
	var all []*Params
	for _, p := range everyParams() {
		if p.Floor == Prune && !p.AllowNegative {
			day := *p
			day.HalfLife = 24 * hour
			all = append(all, p, &day)
		}
	}
	for _, old := range all {
		for _, new := range all {
			convert(t, old, new)
		}
	}
}

func convert(t *testing.T, old, new *Params) {
	t.Helper()
	var d Distribution
	for bin := range uint32(100) {
		late := epoch - Tick(bin)*1e8
		if err := d.Add(old, epoch, late, bin, 20+float64(bin)); err != nil {
			t.Fatal(err)
		}
	}
	at := epoch + hour/3
	before := d.At(old, at)
	counts := before.All(nil)
	c := d.Clone()
	c.Convert(old, new, at)
	after, later := c.At(new, at), c.At(new, at+new.HalfLife)
	tolerance := 1e-12
	if old.Compact || new.Compact {
		tolerance = 1e-6
	}
	if old.Decay == Linear || new.Decay == Linear {
		tolerance = 1e-6
	}
	for _, b := range counts {
		want := b.Count
		if got := after.Count(b.ID); math.Abs(got/want-1) > tolerance {
			t.Fatalf("%s to %s: bin %d reads %v, was %v", name(old), name(new), b.ID, got, want)
		}
		switch new.Decay {
		case HalfLife:
			want /= 2
		case Linear:
			want -= math.Ln2
		}
		if got := later.Count(b.ID); math.Abs(got/want-1) > tolerance {
			t.Fatalf("%s to %s: bin %d reads %v a half-life on, want %v", name(old), name(new), b.ID, got, want)
		}
	}
	if new.Decay != Linear && math.Abs(after.Z/before.Z-1) > tolerance {
		t.Fatalf("%s to %s: Z reads %v, was %v", name(old), name(new), after.Z, before.Z)
	}
	if old.Decay != Linear && new.Decay != Linear && math.Abs(after.EffectiveN/before.EffectiveN-1) > 1e-9 {
		t.Fatalf("%s to %s: n_eff reads %v, was %v", name(old), name(new), after.EffectiveN, before.EffectiveN)
	}
}

// TestConvertTheDead: what was dead when its half-life grew does not come back.
func TestConvertTheDead(t *testing.T) {
	for _, old := range everyParams() {
		for _, new := range everyParams() {
			if old.Decay == None {
				continue
			}
			var d Distribution
			if err := d.Add(old, epoch, epoch, 1, 3); err != nil {
				t.Fatal(err)
			}
			longer := *new
			longer.HalfLife, longer.Threshold = 24*hour, 1e-12
			at := d.Death(old)
			d.Convert(old, &longer, at)
			if r := d.At(&longer, at); r.Z != 0 || r.Bins != 0 {
				t.Fatalf("%s to %s: reads Z %v, %d bins", name(old), name(new), r.Z, r.Bins)
			}
			gone := 0
			d.Prune(&longer, at, func(uint32) { gone++ })
			if gone != 1 || d.Len() != 0 {
				t.Fatalf("%s to %s: %d bins pruned", name(old), name(new), gone)
			}
		}
	}
}

// TestWithRate: at the distribution's own rate the answer is the same, and at another it decays from the last event.
func TestWithRate(t *testing.T) {
	p := &Params{Decay: HalfLife, HalfLife: hour, Threshold: 1e-3}
	var d Distribution
	if err := d.Add(p, epoch, epoch-hour, 1, 16); err != nil {
		t.Fatal(err)
	}
	if err := d.Add(p, epoch, epoch, 2, 4); err != nil {
		t.Fatal(err)
	}
	r := d.At(p, epoch+2*hour)
	for _, c := range []struct{ rate, one, two float64 }{
		{math.Ln2 / 3600, 2, 1},
		{0, 8, 4},
		{math.Ln2 / 7200, 4, 2},
		{1e-3, 8 * math.Exp(-7.2), 4 * math.Exp(-7.2)},
		{1, 0, 0},
		{1e300, 0, 0},
	} {
		got := r.WithRate(c.rate)
		if math.Abs(got.Count(1)-c.one) > 1e-12 || math.Abs(got.Count(2)-c.two) > 1e-12 || math.Abs(got.Z-c.one-c.two) > 1e-12 {
			t.Errorf("rate %v: %v, want %v and %v", c.rate, got.All(nil), c.one, c.two)
		}
	}
	if c := r.Count(1); math.Abs(c-2) > 1e-12 {
		t.Errorf("WithRate changed the reading: %v", c)
	}
	linear := &Params{Decay: Linear, HalfLife: hour}
	d = Distribution{}
	if err := d.Add(linear, epoch, epoch, 1, 16); err != nil {
		t.Fatal(err)
	}
	if c := d.At(linear, epoch+10e6).WithRate(0.5).Count(1); math.Abs(c-11) > 2e-6 {
		t.Errorf("linear at half a count a second: %v after 10 s, want 11", c)
	}
	if z := d.At(linear, epoch+10e6).WithRate(1e300).Z; z != 0 {
		t.Errorf("linear at a great rate: %v", z)
	}
}

// TestLeakedIsExact against math/big, at half-lives from a microsecond to a century.
func TestLeakedIsExact(t *testing.T) {
	r := rng(9)
	for range 20_000 {
		p := &Params{HalfLife: Tick(1 + r.next()>>(12+r.below(50)))}
		at := Tick(r.next() >> (8 + r.below(20)))
		x := newBig().Mul(bigLn2, bigOf(1e6))
		x.Mul(x, newBig().SetInt64(int64(at)))
		x.Quo(x, newBig().SetInt64(int64(p.HalfLife)))
		want, _ := x.Int64()
		got := p.leaked(at)
		// leakPerHalfLife has 60 bits
		if math.Abs(float64(got-want)) > 1+float64(want)*0x1p-59 {
			t.Fatalf("h=%d t=%d: %d, want %d", p.HalfLife, at, got, want)
		}
		if by := p.leakedBy(got); by != MaxTick && p.leaked(by) < got {
			t.Fatalf("h=%d: level %d is not reached at %d", p.HalfLife, got, by)
		}
	}
}

// What is left of a bin below the threshold has its sign.
func TestHidden(t *testing.T) {
	p := &Params{Decay: HalfLife, HalfLife: hour, Threshold: 0.1, AllowNegative: true, OrderFree: true}
	start := epoch / hour * hour
	var d Distribution
	for bin, n := range []float64{1, -1, 100} {
		if err := d.Add(p, start, start, uint32(bin), n); err != nil {
			t.Fatal(err)
		}
	}
	r := d.At(p, start+4*hour)
	for bin, want := range []float64{1. / 16, -1. / 16, 0} {
		if got := r.Hidden(uint32(bin)); math.Abs(got-want) > 1e-12 {
			t.Errorf("bin %d: %v is hidden, not %v", bin, got, want)
		}
		if got := r.Short(uint32(bin)); math.Abs(got-math.Abs(want)-r.Lost) > 1e-12 {
			t.Errorf("bin %d may have %v more", bin, got)
		}
	}
}
