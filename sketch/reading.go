package sketch

import (
	"math"
	"slices"
)

// Bin is one category of an answer.
type Bin struct {
	ID    uint32
	Count float64
}

// Reading is a distribution evaluated at one time. It refers to the distribution, so it is valid until the next write
// to that. Its numbers do not depend on the order in which bins are stored.
type Reading struct {
	// Z is the sum of all amounts ever added, decayed, pruned bins included. Under Clamp it is the sum of the clamped
	// counts. Under Prior it includes the pseudo-counts. Under Linear it is the sum of the bins: only of visible bins,
	// unless Params.Bounded.
	Z float64
	// Z2 is the sum of |n| w^2, decayed at twice the rate; under Linear it is Z.
	Z2 float64
	// Other is Z less the visible bins: 0 under Clamp, and when it is within rounding (1e-9 of Z, 1e-5 when compact).
	Other float64
	// EffectiveN is Z^2/Z2 (of the unclamped Z): how many events of equal weight would give the same error. Under Prior
	// it includes the pseudo-counts.
	EffectiveN float64
	// Lost is by how much Z, and any one count, may be too low. The causes are removed bins below the threshold, and
	// the death of an earlier summary of the key (see Params.OrderFree). With negative amounts, the error may have
	// either sign.
	Lost float64
	// Entropy is the entropy of the visible bins, in bits.
	Entropy float64
	// Bins is the number of visible bins.
	Bins int
	// Brief says that the reading was made by Brief. Then Other and Entropy are 0, and Bins is an upper bound: the
	// number of stored bins.
	Brief bool
	// At is the time of evaluation, Last the time of the latest event.
	At, Last Tick

	d       *Distribution
	p       *Params
	scale   float64 // count of a stored unit
	cut     float64 // smaller stored values are invisible
	leaked  int64   // micro: what has leaked by At
	least   int64   // micro: smaller contents are invisible
	visible float64 // sum of visible counts
	plain   bool    // a count is value * scale: no clamp, no prior
}

// earliest is how many half-lives before its landmark a distribution can be read; earlier times read as that time.
const earliest = 256

// At reads the distribution at any time. It never writes. It takes time proportional to the number of bins.
func (d *Distribution) At(p *Params, at Tick) Reading { return d.read(p, at, false) }

// Brief is At for callers that need a few of many bins: all but Other, Entropy and Bins is the same. It visits no bins,
// unless Z is computed from them (under Clamp and Linear) or counts may be negative.
func (d *Distribution) Brief(p *Params, at Tick) Reading { return d.read(p, at, true) }

func (d *Distribution) read(p *Params, at Tick, brief bool) Reading {
	r := Reading{At: at, Last: d.last, Brief: brief, d: d, p: p, plain: p.Floor != Clamp && p.Floor != Prior}
	if d.form() == micro {
		r.leaked, r.least = p.leaked(at), p.microThreshold()
		r.Lost = d.shortAt(p, r.leaked)
		r.summarise()
		return r
	}
	if p.Decay != None {
		at = max(at, Tick((d.mark-earliest)*int64(p.HalfLife)))
	}
	w := p.weight(at, d.mark)
	r.scale = p.shrink(at, d.mark)
	r.cut = d.cut(p, w)
	if d.fresh() || d.faded(p, w) {
		r.Lost = p.LostAtBirth(at)
		return r
	}
	r.Lost = float64(d.lost * r.scale)
	r.summarise()
	return r
}

// WithRate is the reading as if the distribution had decayed by exp(-rate * seconds) since its last event, instead of
// by its own decay. Under Linear it is as if each bin had leaked rate counts a second. rate must be finite and not
// negative. No stored value changes.
func (r Reading) WithRate(rate float64) Reading {
	d, p := r.d, r.p
	seconds := float64(max(r.At-d.last, 0)) / 1e6
	n := Reading{At: r.At, Last: r.Last, Brief: r.Brief, d: d, p: p, plain: r.plain}
	if d.form() == micro {
		leak := toMicro(float64(rate * seconds))
		n.leaked, _ = sumLevels(p.leaked(d.last), min(leak, math.MaxInt64-p.leaked(d.last)))
		n.least = p.microThreshold()
		n.Lost = d.lost // since the last event it may have leaked faster or slower than under p
		n.summarise()
		return n
	}
	lives := float64(float64(rate*seconds) * math.Log2E)
	n.scale = float64(p.shrink(d.last, d.mark) * exp2Float(-lives))
	n.cut = d.cut(p, 1) / n.scale
	if d.fresh() || d.faded(p, 1/n.scale) {
		n.scale, n.Lost = 0, p.LostAtBirth(r.At)
		return n
	}
	n.Lost = float64(d.lost * n.scale)
	n.summarise()
	return n
}

// Left is the reading with bins below the threshold also visible: its Other is what removed bins had. It is r itself
// where bins below the threshold count as 0: without Params.OrderFree, and under Linear without Params.Bounded.
func (r Reading) Left() Reading {
	micro := r.d.form() == micro
	if r.Bins == 0 && r.Z2 == 0 || micro && !r.p.Bounded || !micro && !r.p.OrderFree {
		return r
	}
	n := Reading{At: r.At, Last: r.Last, Lost: r.Lost, d: r.d, p: r.p, scale: r.scale, leaked: r.leaked, plain: r.plain}
	n.least = 1
	n.cut = min(r.cut, faintest/r.scale)
	n.summarise()
	return n
}

// block is how many counts are computed at a time.
const block = 64

// alive says whether there is a visible bin.
func (r *Reading) alive() bool { return r.Bins > 0 }

// counts computes the counts of the bins from i on. An invisible bin is NaN, so that every comparison with it is false.
func (r *Reading) counts(i int, buf *[block]float64) []float64 {
	n := min(block, r.d.Len()-i)
	out := buf[:n]
	switch r.d.form() {
	case wide:
		r.wideCounts(r.d.values()[i:i+n], out)
	case compact:
		r.compactCounts(r.d.values()[i/2:], out)
	case micro:
		for j, level := range r.d.values()[i : i+n] {
			out[j] = r.drain(int64(level))
		}
	}
	if !r.plain {
		r.lift(out)
	}
	return out
}

func (r *Reading) wideCounts(values []uint64, out []float64) {
	scale, cut := r.scale, r.cut
	out = out[:len(values)]
	for j, b := range values {
		v := math.Float64frombits(b)
		c := float64(v * scale)
		if math.Abs(v) < cut {
			c = math.NaN()
		}
		out[j] = c
	}
}

// compactCounts reads two values from each word.
func (r *Reading) compactCounts(words []uint64, out []float64) {
	scale, cut := r.scale, r.cut
	for j := range out {
		v := expand(uint32(words[j/2] >> (j & 1 * 32)))
		c := float64(v * scale)
		if v < cut {
			c = math.NaN()
		}
		out[j] = c
	}
}

func (r *Reading) drain(level int64) float64 {
	content := level - r.leaked
	if content < r.least {
		return math.NaN()
	}
	return float64(content) / microPerCount
}

// lift applies the floors that keep every bin visible.
func (r *Reading) lift(counts []float64) {
	for j, c := range counts {
		if c != c {
			c = 0
		}
		if r.p.Floor == Clamp {
			counts[j] = max(1, c)
		} else {
			counts[j] = c + r.p.Prior
		}
	}
}

func (r *Reading) summarise() {
	d := r.d
	micro := d.form() == micro
	if micro && d.Len() > 0 && d.mark-r.leaked < r.p.leastLeft() && !r.p.keeps() {
		return
	}
	z := float64(d.z * r.scale)
	r.Z2 = float64(d.z2 * float64(r.scale*r.scale))
	if micro || !r.Brief || r.p.Floor == Clamp {
		r.sum(r.bound(z))
	}
	if micro {
		z = r.visible
		if !r.plain {
			z = r.sumUnlifted()
		}
		z += r.sumHidden()
		r.Z2 = z
	}
	if r.Brief {
		r.Bins = d.Len()
	}
	r.normalise(z)
	if r.Brief {
		r.Other = 0
		return
	}
	r.entropy()
}

// bound is an upper bound of all counts, unless there are negative ones.
func (r *Reading) bound(z float64) float64 {
	if r.d.form() == micro {
		z = float64(r.d.mark-r.leaked) / microPerCount
	}
	switch r.p.Floor {
	case Clamp:
		z = max(z, 1)
	case Prior:
		z += r.p.Prior
	}
	return float64(z * 2)
}

// sum counts and adds the visible bins. top is a guess of the largest count.
func (r *Reading) sum(top float64) {
	largest := r.sumScaled(top)
	if largest > top {
		r.sumScaled(largest)
	}
}

// sumScaled sums in units that fit counts up to top, and returns the largest count.
func (r *Reading) sumScaled(top float64) (largest float64) {
	var buf [block]float64
	var t tally
	t.scaleFor(top)
	bins := 0
	for i := 0; i < r.d.Len(); i += block {
		for _, c := range r.counts(i, &buf) {
			if c != c {
				continue
			}
			bins++
			if math.Abs(c) > largest {
				largest = math.Abs(c)
			}
			t.add(c)
		}
	}
	r.Bins, r.visible = bins, t.sum()
	return largest
}

// sumUnlifted is the sum of the counts before clamp and prior.
func (r *Reading) sumUnlifted() float64 {
	u := *r
	u.plain = true
	u.sum(r.bound(0))
	return u.visible
}

// sumHidden is the sum of the contents of bins below the threshold, under Linear.
func (r *Reading) sumHidden() float64 {
	if !r.p.Bounded {
		return 0
	}
	var t tally
	t.scaleFor(float64(r.least) / microPerCount)
	for _, level := range r.d.rawValues() {
		if content := int64(level) - r.leaked; content > 0 && content < r.least {
			t.add(float64(content) / microPerCount)
		}
	}
	return t.sum()
}

// normalise derives Z, Other and EffectiveN from z, the sum without clamp and prior.
func (r *Reading) normalise(z float64) {
	r.Z = z
	if r.Z2 > 0 && z > 0 {
		r.EffectiveN = float64(z*z) / r.Z2
	}
	switch r.p.Floor {
	case Clamp:
		r.Z = r.visible
		return
	case Prior:
		pseudo := float64(r.p.Prior * float64(r.Bins))
		r.Z += pseudo
		r.EffectiveN += pseudo
	}
	r.Other = r.rest(r.Z - r.visible)
}

// rest is other, or 0 if it is within the rounding of Z.
func (r *Reading) rest(other float64) float64 {
	noise := 1e-9
	if r.d.form() == compact {
		noise = 1e-5
	}
	if math.Abs(other) <= float64(noise*math.Abs(r.Z)) || other < 0 && !r.p.AllowNegative {
		return 0
	}
	return other
}

// entropy sums p log2(1/p) in fixed point, so that the order of summation does not matter.
func (r *Reading) entropy() {
	const unit = 1 << 58 // 2^24 bins have at most 24 bits of entropy, which stay below 2^63
	if r.Bins < 2 || r.visible <= 0 {
		return
	}
	var buf [block]float64
	h, inverse := int64(0), 1/r.visible
	for i := 0; i < r.d.Len(); i += block {
		for _, c := range r.counts(i, &buf) {
			if p := float64(c * inverse); p > 0x1p-1000 && p < 1 {
				h -= int64(float64(float64(p*roughLog2(p)) * unit))
			}
		}
	}
	r.Entropy = float64(h) / unit
}

// Count is the count of a bin: 0 when it is not visible.
func (r Reading) Count(bin uint32) float64 {
	if !r.alive() {
		return 0
	}
	i := r.d.find(bin)
	if i < 0 {
		return 0
	}
	var buf [block]float64
	base := i &^ (block - 1)
	c := r.counts(base, &buf)[i-base]
	if c != c {
		return 0
	}
	return c
}

// Short is by how much Count of a bin may be too low, besides rounding: Lost, plus the Hidden count of the bin.
func (r Reading) Short(bin uint32) float64 { return r.Lost + math.Abs(r.Hidden(bin)) }

// Hidden is the remaining count of a bin below the threshold, which Count takes as 0. Where amounts may be negative,
// Hidden may be negative, too.
func (r Reading) Hidden(bin uint32) float64 {
	if !r.plain {
		return 0
	}
	i := r.d.find(bin)
	if i < 0 {
		return 0
	}
	if r.d.form() == micro {
		content := int64(r.d.raw(i)) - r.leaked
		if !r.p.Bounded || content <= 0 || content >= r.p.microThreshold() {
			return 0
		}
		return float64(content) / microPerCount
	}
	if v := r.d.value(i); math.Abs(v) < r.cut {
		return float64(v * r.scale)
	}
	return 0
}

// P is the probability of a bin, Count/Z, with the interval of Interval for a count that may be too low by Short.
func (r Reading) P(bin uint32, confidence float64) (p, low, high float64) {
	return r.interval(r.Count(bin), r.Short(bin), confidence)
}

// Top appends the n most probable bins to dst: by count, largest first, then by id.
func (r Reading) Top(n int, dst []Bin) []Bin {
	dst, _ = r.top(n, dst)
	return dst
}

// top also returns the largest count that was left out, or a lower one if it does not tie with the last bin returned.
func (r *Reading) top(n int, dst []Bin) (bins []Bin, left float64) {
	n = min(n, r.Bins)
	if n <= 0 {
		return dst, math.Inf(-1)
	}
	base := len(dst)
	dst = slices.Grow(dst, n)
	s := newSelection(dst[base:base:base+n], n)
	if r.d.room > maximaMin {
		r.selectBlocks(&s)
	} else {
		for i := 0; i < r.d.Len(); i += block {
			r.offerBlock(i, &s)
		}
	}
	return dst[:base+len(s.sorted())], s.left
}

// TopTied is Top with all bins that tie with the n-th, for callers who break ties by name. It may return any number of
// bins.
func (r Reading) TopTied(n int, dst []Bin) []Bin {
	base := len(dst)
	dst, left := r.top(n, dst)
	if len(dst) == base || dst[len(dst)-1].Count != left {
		return dst
	}
	last, tied := dst[len(dst)-1], len(dst)
	r.eachFrom(last.Count, func(b Bin) {
		if b.Count == last.Count && b.ID > last.ID {
			dst = append(dst, b)
		}
	})
	slices.SortFunc(dst[tied:], compareBins)
	return dst
}

// All appends every visible bin to dst, in the order of Top.
func (r Reading) All(dst []Bin) []Bin {
	base := len(dst)
	dst = slices.Grow(dst, r.Bins)
	r.each(func(b Bin) { dst = append(dst, b) })
	slices.SortFunc(dst[base:], compareBins)
	return dst
}

// each calls f with every visible bin, in the order of storage.
func (r *Reading) each(f func(Bin)) {
	if !r.alive() {
		return
	}
	for i := 0; i < r.d.Len(); i += block {
		r.eachOf(i, f)
	}
}

// eachOf calls f with every visible bin of the block that begins at i.
func (r *Reading) eachOf(i int, f func(Bin)) {
	var buf [block]float64
	for j, c := range r.counts(i, &buf) {
		if c == c {
			f(Bin{ID: r.d.id(i + j), Count: c})
		}
	}
}
