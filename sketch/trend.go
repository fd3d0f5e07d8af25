package sketch

import "math"

// Exposure is how long a summary has counted events, decayed as its counts are: the count that one event a second would
// have, every second since the summary began. It is Had seconds at From, and grows and fades from there as counts do.
// The zero value has no exposure yet.
type Exposure struct {
	From Tick
	Had  float64
}

// At is the exposure in seconds at a time, under params that apply since From. It tends to HalfLife/ln 2.
//
//	E(t) = Had * w + h/ln 2 * (1 - w),    w = 2^-((t-From)/h)
func (e Exposure) At(p *Params, t Tick) float64 {
	since := max(t-e.From, 0)
	if p.Decay == None {
		return e.Had + float64(since)/1e6
	}
	w := p.shrink(since, 0)
	return float64(e.Had*w) + float64(lasting(p.HalfLife)*(1-w))
}

// lasting is the limit of an exposure after infinite time, in seconds.
func lasting(h Tick) float64 { return float64(h) / 1e6 / math.Ln2 }

// Trend compares the rates of events under two half-lives that counted the same events. F and S are the counts under
// the fast and the slow one, Ef and Es the exposures. The excess of the slow one is the past, with weight 0 for the
// present:
//
//	B = S - F,  Eb = Es - Ef
//
// So events come at the rate F/Ef now, and came at B/Eb before. Counts of independent events vary like counts of F/φ
// events of weight one. φ is the mean of their squared weights divided by the mean of their weights. If the rate has
// not changed, F's part of both is binomial, and its probability is the part of the exposures. The score test and
// Wilson's interval for it (Wilson 1927) give z, p-value and bounds. The small correlation of F and B is known and
// corrected.
type Trend struct {
	fast, slow   Reading
	ef, es, eb   float64 // exposures in seconds
	unitF, unitB float64 // φ
	share        float64 // expected share of the present, p0
	gain         float64 // factor of n, for the correlation
	ratio        float64 // Ef/Es
	ready        bool
}

// warmShare is the largest part of the fast exposure that may be older than the slow summary when the two are compared.
const warmShare = 1. / 16

// readyShare is the part of the slow exposure that must belong to the past.
const readyShare = 1e-6

// Trends compares two readings of the same time. fast has the shorter half-life; the exposures are at that time, in
// seconds. Neither reading may have a floor other than Prune, or negative amounts. The zero Trend is Warming.
func Trends(fast, slow Reading, fastExposure, slowExposure float64) Trend {
	t := Trend{fast: fast, slow: slow, ef: fastExposure, es: slowExposure}
	hf, hs := lasting(fast.p.HalfLife), lasting(slow.p.HalfLife)
	ageF, ageS := age(t.ef, hf), age(t.es, hs)
	t.eb = t.es - t.ef
	older := exp2Float(-ageS/(hf*math.Ln2)) - exp2Float(-ageF/(hf*math.Ln2))
	if !(t.ef > 0) || !(t.eb > float64(readyShare*t.es)) || older > float64(warmShare*t.ef/hf) {
		return t
	}
	t.ready = true
	both := hf * hs / (hf + hs)
	qf, qs := squares(hf/2, ageF), squares(hs/2, ageS)
	qfs := squares(both, min(ageF, ageS))
	t.unitF, t.unitB = qf/t.ef, (qs-2*qfs+qf)/t.eb
	if fast.Z > 0 {
		t.unitF = min(1, max(t.unitF, fast.Z2/fast.Z)) // fresher than usual: fewer events than their weight suggests
	}
	f, b := t.ef/t.unitF, t.eb/t.unitB
	t.share, t.ratio = f/(f+b), t.ef/t.es
	apart := t.unitF/t.ef + t.unitB/t.eb
	t.gain = apart / max(apart-float64(2*(qfs-qf)/float64(t.ef*t.eb)), apart/64)
	return t
}

// age is for how many seconds a summary must have counted to have this exposure, if full is its limit. It may be
// infinite.
func age(exposure, full float64) float64 {
	w := 1 - exposure/full
	if !(w > 0) {
		return math.Inf(1)
	}
	return float64(-full * math.Ln2 * Log2(w))
}

// squares is the exposure, after age seconds, of weights whose exposure has the limit full.
func squares(full, age float64) float64 {
	return float64(full * (1 - exp2Float(-age/(full*math.Ln2))))
}

// Warming says that there is not enough past yet for a comparison.
func (t *Trend) Warming() bool { return !t.ready }

// Change is the change of a rate.
type Change struct {
	Fast, Slow float64 // events a second under each half-life, corrected for the exposures
	// Bits is log2 of the fast rate over the slow one, smoothed by one event at equal rates: above 0 for more than
	// usual. Its maximum is log2 of the slow exposure over the fast one, for entirely new events. Low and High are its
	// bounds; -64 stands for a fast rate of 0.
	Bits, StdError, Low, High float64
	// Z is the score for the hypothesis that the rate has not changed; it is normal under this hypothesis. P is the
	// probability that chance alone gives a score as far from 0, on either side.
	Z, P float64
}

// bitsMax bounds a change in bits.
const bitsMax = 64

// Bin is the change of one bin, at a confidence from 0.5 to 0.9999.
func (t *Trend) Bin(bin uint32, confidence float64) Change {
	return t.Of(t.fast.Count(bin), t.slow.Count(bin), confidence)
}

// Total is the change of all bins together, at a confidence from 0.5 to 0.9999.
func (t *Trend) Total(confidence float64) Change {
	return t.Of(t.fast.Z, t.slow.Z, confidence)
}

// Of is the change of anything with these counts, at a confidence from 0.5 to 0.9999.
func (t *Trend) Of(fast, slow, confidence float64) Change {
	fast, slow = max(fast, 0), max(slow, 0)
	c := Change{P: 1, Low: -bitsMax, High: bitsMax}
	if t.ef > 0 {
		c.Fast = fast / t.ef
	}
	if t.es > 0 {
		c.Slow = slow / t.es
	}
	if !t.ready {
		return c
	}
	now, before := fast/t.unitF, max(slow-fast, 0)/t.unitB
	n := now + before
	p := (now + t.share) / (n + 1)
	c.Bits, c.StdError = t.bits(p), t.stdError(p, n)
	low, high := 0.0, 1.0
	if n > 0 {
		r := Reading{Z: n, EffectiveN: float64(n * t.gain)}
		_, low, high = r.Interval(now, confidence)
		c.Z = float64((now/n - t.share) * math.Sqrt(float64(n*t.gain)/float64(t.share*(1-t.share))))
		c.P = math.Erfc(math.Abs(c.Z) / math.Sqrt2)
	}
	c.Low, c.High = min(t.bits(low), c.Bits), max(t.bits(high), c.Bits)
	return c
}

// bits is log2 of the fast rate over the slow one when a part p of n belongs to the present.
//
//	rho = (F/Ef) / (B/Eb) = p/(1-p) * (1-p0)/p0,   fast/slow = 1 / (a + (1-a)/rho),   a = Ef/Es
func (t *Trend) bits(p float64) float64 {
	present := float64(p * (1 - t.share))
	before := float64((1 - p) * t.share)
	below := float64(t.ratio*present) + float64((1-t.ratio)*before)
	if !(present > 0) {
		return -bitsMax
	}
	return min(max(Log2(present/below), -bitsMax), bitsMax)
}

// stdError is the standard error of bits, by its derivative.
func (t *Trend) stdError(p, n float64) float64 {
	p = min(p, 1-0x1p-53)
	rho := p / (1 - p) * (1 - t.share) / t.share
	slope := (1 - t.ratio) / (float64(t.ratio*rho) + 1 - t.ratio)
	return slope / (math.Ln2 * math.Sqrt(float64(p*(1-p))*(float64(n*t.gain)+1)))
}
