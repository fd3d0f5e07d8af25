package sketch

import (
	"fmt"
	"math"
	"math/big"
	"testing"
)

// oracle is a distribution under half-life or none in exact arithmetic: sums of 256 bits, seen from one landmark for
// ever.
type oracle struct {
	p      *Params
	origin Tick
	bins   map[uint32]*big.Float
	z, z2  *big.Float
	// 2^x for x = i*step/h and for x = i/h
	step         Tick
	coarse, fine []*big.Float
}

func newOracle(p *Params, origin Tick) *oracle {
	o := &oracle{p: p, origin: Tick(p.landmark(origin) * int64(p.HalfLife)), step: Tick(math.Sqrt(float64(p.HalfLife))) + 1}
	o.fine = powers(o.step, 1, p.HalfLife)
	o.coarse = powers(p.HalfLife/o.step+1, o.step, p.HalfLife)
	o.clear()
	return o
}

// powers are 2^(i*step/h) for i in 0..n-1.
func powers(n, step, h Tick) []*big.Float {
	x := newBig().Mul(bigLn2, bigOf(float64(step)))
	factor := bigExp(x.Quo(x, bigOf(float64(h))))
	all := []*big.Float{bigOf(1)}
	for i := Tick(1); i < n; i++ {
		all = append(all, newBig().Mul(all[i-1], factor))
	}
	return all
}

func (o *oracle) clear() {
	o.bins = map[uint32]*big.Float{}
	o.z, o.z2 = newBig(), newBig()
}

func (o *oracle) weight(t Tick) *big.Float {
	if o.p.Decay == None {
		return bigOf(1)
	}
	k := floorDiv(int64(t-o.origin), int64(o.p.HalfLife))
	r := t - o.origin - Tick(k)*o.p.HalfLife
	w := newBig().Mul(o.coarse[r/o.step], o.fine[r%o.step])
	return w.SetMantExp(w, int(k))
}

func (o *oracle) floor(threshold float64, at Tick) *big.Float {
	return newBig().Mul(bigOf(threshold), o.weight(at))
}

func (o *oracle) dead(at Tick) bool {
	return o.p.Decay != None && o.z.Cmp(o.floor(o.p.threshold(), at)) < 0
}

func (o *oracle) add(now, t Tick, bin uint32, n float64) {
	if o.dead(now) {
		o.clear()
	}
	w := o.weight(t)
	inc := newBig().Mul(bigOf(n), w)
	if inc.Cmp(o.floor(faintest, now)) < 0 {
		return
	}
	v := o.bins[bin]
	if v == nil || v.Cmp(o.floor(o.p.binThreshold(), now)) < 0 {
		v = newBig()
	}
	o.bins[bin] = v.Add(v, inc)
	o.z.Add(o.z, inc)
	o.z2.Add(o.z2, newBig().Mul(inc, w))
}

// read is a stored value as of a time, 0 below the floor.
func (o *oracle) read(v *big.Float, threshold float64, at Tick) *big.Float {
	if v == nil || o.dead(at) || v.Cmp(o.floor(threshold, at)) < 0 {
		return newBig()
	}
	return newBig().Quo(v, o.weight(at))
}

func (o *oracle) count(bin uint32, at Tick) *big.Float {
	return o.read(o.bins[bin], o.p.binThreshold(), at)
}

func (o *oracle) sum(at Tick) *big.Float {
	s := newBig()
	for _, v := range o.bins {
		s.Add(s, o.read(v, o.p.binThreshold(), at))
	}
	return s
}

// event is one increment of a random history.
type event struct {
	now, t Tick
	bin    uint32
	n      float64
}

// history makes events whose times stand still, creep and leap, a fifth of them late, with amounts of all sizes.
type history struct {
	r        rng
	now      Tick
	bins     int
	negative bool
	span     Tick // the largest leap
}

func (h *history) next() event {
	switch x := h.r.below(10_000); {
	case x < 9_000:
		h.now += Tick(h.r.below(1_000_000))
	case x < 9_900:
		h.now += Tick(h.r.below(int(hour / 4)))
	case x < 9_998:
		h.now += Tick(h.r.below(int(8 * hour)))
	default:
		h.now += Tick(h.r.below(int(h.span)))
	}
	e := event{now: h.now, t: h.now, n: 1}
	e.bin = uint32(h.r.below(1 + h.r.below(h.bins)))
	switch h.r.below(50) {
	case 0:
		e.t -= Tick(h.r.below(int(200 * hour)))
	case 1, 2, 3, 4, 5, 6, 7, 8, 9:
		e.t -= Tick(h.r.below(int(6 * hour)))
	}
	switch h.r.below(8) {
	case 0:
		e.n = h.r.float() * 1e6
	case 1:
		e.n = h.r.float() * 1e-3
	case 2, 3:
		e.n = h.r.float() * 3
	}
	if h.negative && h.r.below(4) == 0 {
		e.n = -e.n
	}
	return e
}

// TestMillionEvents holds a million random increments, reads, rebases, prunings and passages through bytes at random
// times against exact arithmetic.
func TestMillionEvents(t *testing.T) {
	events := 1_000_000
	if testing.Short() {
		events = 50_000
	}
	for i, p := range []*Params{
		{Decay: HalfLife, HalfLife: hour, Floor: Prune, Threshold: 1e-3},
		{Decay: HalfLife, HalfLife: hour - 12_345_677, Floor: Prune, Threshold: 1e-9},
		{Decay: HalfLife, HalfLife: hour, Floor: Clamp, Threshold: 1e-3},
		{Decay: None, HalfLife: hour},
	} {
		t.Run(fmt.Sprintf("decay=%d/floor=%d/threshold=%g", p.Decay, p.Floor, p.Threshold), func(t *testing.T) {
			t.Parallel()
			n := events
			if i > 0 {
				n /= 5
			}
			againstOracle(t, p, n)
		})
	}
}

func againstOracle(t *testing.T, p *Params, events int) {
	o := newOracle(p, epoch)
	h := history{r: rng(7), now: epoch, bins: 200, span: 300 * hour}
	var d Distribution
	worst := 0.0
	within := func(what string, got float64, want *big.Float) {
		t.Helper()
		e := apart(got, want)
		worst = max(worst, e)
		if e > 1e-9 {
			w, _ := want.Float64()
			t.Fatalf("%s = %v, want %v: off by %.3g", what, got, w, e)
		}
	}
	for i := range events {
		e := h.next()
		if err := d.Add(p, e.now, e.t, e.bin, e.n); err != nil {
			t.Fatal(err)
		}
		o.add(e.now, e.t, e.bin, e.n)
		disturb(t, &d, p, &h)
		if h.r.below(20) > 0 && i != events-1 {
			continue
		}
		at := h.now + Tick(h.r.below(int(5*hour)))
		checkReading(t, &d, o, at, within, h.r.below(50) == 0)
	}
	t.Logf("worst relative error %.3g over %d events", worst, events)
}

// disturb does at random times what must make no difference.
func disturb(t *testing.T, d *Distribution, p *Params, h *history) {
	if mark := p.landmark(h.now); mark > d.mark && h.r.below(50) == 0 {
		d.rebase(d.mark + 1 + int64(h.r.below(int(mark-d.mark))))
	}
	switch h.r.below(2000) {
	case 0:
		d.Prune(p, h.now, nil)
	case 1:
		*d = d.Clone()
	case 2:
		b := d.AppendBinary(nil)
		*d = Distribution{}
		if rest, err := d.Decode(b); err != nil || len(rest) > 0 {
			t.Fatalf("decode: %v, %d bytes left", err, len(rest))
		}
	}
}

func checkReading(t *testing.T, d *Distribution, o *oracle, at Tick, within func(string, float64, *big.Float), all bool) {
	t.Helper()
	r := d.At(o.p, at)
	if o.p.Floor != Clamp {
		z := o.read(o.z, o.p.threshold(), at)
		within("Z", r.Z, z)
		zf, _ := z.Float64()
		if other, _ := newBig().Sub(z, o.sum(at)).Float64(); math.Abs(r.Other-other) > 1e-9*zf {
			t.Fatalf("Other = %v, want %v of %v", r.Other, other, zf)
		}
		if !o.dead(at) {
			w := o.weight(at)
			within("Z2", r.Z2, newBig().Quo(o.z2, w.Mul(w, w)))
		}
	}
	bins := uint32(3)
	if all {
		bins = 200
	}
	for bin := range bins {
		want := o.count(bin, at)
		if f, _ := want.Float64(); o.p.Floor == Clamp && !o.dead(at) && o.bins[bin] != nil && f < 1 {
			want = bigOf(1)
		}
		within(fmt.Sprintf("count of %d", bin), r.Count(bin), want)
	}
}

// TestBitExact: whenever landmarks move, faded bins go, or a distribution passes through bytes, its values stay the
// same to the bit, and so do its answers.
func TestBitExact(t *testing.T) {
	for _, p := range everyParams() {
		if p.Decay == Linear {
			continue
		}
		t.Run(name(p), func(t *testing.T) {
			t.Parallel()
			for seed := range 8 {
				bitExact(t, p, seed)
			}
		})
	}
}

func bitExact(t *testing.T, p *Params, seed int) {
	events := history{r: rng(seed), now: epoch, bins: 100, span: 100 * hour, negative: p.AllowNegative}
	chance := history{r: rng(seed + 1000)}
	var calm, disturbed Distribution
	for range 4_000 {
		e := events.next()
		for _, d := range []*Distribution{&calm, &disturbed} {
			if err := d.Add(p, e.now, e.t, e.bin, e.n); err != nil {
				t.Fatal(err)
			}
		}
		chance.now = events.now
		disturb(t, &disturbed, p, &chance)
		if chance.r.below(100) == 0 {
			at := events.now + Tick(chance.r.below(int(40*hour)))
			if a, b := answer(&calm, p, at), answer(&disturbed, p, at); a != b {
				t.Fatalf("calm      %s\ndisturbed %s", a, b)
			}
		}
	}
	align(&calm, &disturbed)
	calm.Prune(p, events.now, nil)
	disturbed.Prune(p, events.now, nil)
	if a, b := calm.AppendBinary(nil), disturbed.AppendBinary(nil); string(a) != string(b) {
		t.Fatalf("seed %d: bytes differ:\n%x\n%x", seed, a, b)
	}
}

// align moves both to the later landmark.
func align(a, b *Distribution) {
	mark := max(a.mark, b.mark)
	for _, d := range []*Distribution{a, b} {
		if d.mark < mark {
			d.rebase(mark)
		}
	}
}

// answer is all that a reading says, to the bit.
func answer(d *Distribution, p *Params, at Tick) string {
	r := d.At(p, at)
	return fmt.Sprintf("%x %x %x %x %x %d %d %x", r.Z, r.Z2, r.Other, r.EffectiveN, r.Entropy, r.Bins, r.Last, r.All(nil))
}

// everyParams is every combination of decay, floor, precision and sign.
func everyParams() (all []*Params) {
	for _, decay := range []Decay{HalfLife, Linear, None} {
		for _, floor := range []Floor{Prune, Clamp, Prior} {
			for _, compact := range []bool{false, true} {
				for _, negative := range []bool{false, true} {
					all = append(all, &Params{
						Decay: decay, HalfLife: hour, Floor: floor, Threshold: 1e-3, Prior: 0.5,
						Compact: compact, AllowNegative: negative,
					})
				}
			}
		}
	}
	return all
}

func name(p *Params) string {
	s := []string{"", "half-life", "linear", "none"}[p.Decay] + []string{"", "/prune", "/clamp", "/prior"}[p.Floor]
	if p.Compact {
		s += "/compact"
	}
	if p.AllowNegative {
		s += "/negative"
	}
	return s
}
