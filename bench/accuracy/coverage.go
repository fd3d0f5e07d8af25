package accuracy

import (
	"math"
	"math/rand/v2"

	"github.com/ebbdb/ebb/sketch"
)

// Coverage is how often the intervals of a kind contain the truth.
type Coverage struct {
	Kind string `json:"kind"`
	// Stream is how events came: without decay, on time, late or in bursts.
	Stream string `json:"stream"`
	// Statistical intervals contain the truth with a confidence of 95%; the others do always, or more often.
	Statistical bool `json:"statistical"`
	// Inside is the share of the intervals that contain the truth.
	Inside float64 `json:"inside"`
	Checks int     `json:"checks"`
	// Within: Inside is at least 93%, and of statistical intervals at most 97%.
	Within bool `json:"within"`
}

// The share of intervals that should contain the truth.
const (
	CoverageLeast = 0.93
	CoverageMost  = 0.97
	// coverageEffective is the least effective number of events for which an interval is checked.
	coverageEffective = 30
)

// interval is the interval of one answer, and the truth.
type interval struct{ low, high, truth float64 }

// covered is a kind with a stream. A trial draws events, and returns intervals.
type covered struct {
	kind, stream string
	statistical  bool
	trial        func(r *rand.Rand) []interval
}

// Coverages tries each kind and stream trials times, at a confidence of 95%.
func Coverages(trials int) (out []Coverage) {
	for i, c := range allCovered() {
		inside, checks := 0, 0
		for trial := range trials {
			for _, x := range c.trial(rand.New(rand.NewPCG(uint64(trial), uint64(i)))) {
				checks++
				if x.low <= x.truth && x.truth <= x.high {
					inside++
				}
			}
		}
		out = append(out, coverage(c, inside, checks))
	}
	return out
}

func coverage(c covered, inside, checks int) Coverage {
	part := float64(inside) / float64(max(checks, 1))
	within := part >= CoverageLeast && (!c.statistical || part <= CoverageMost)
	return Coverage{c.kind, c.stream, c.statistical, part, checks, within && checks > 0}
}

func allCovered() (all []covered) {
	for _, stream := range []string{plainStream, "on time", "late", "bursty"} {
		all = append(all,
			covered{"distribution", stream, true, func(r *rand.Rand) []interval { return coverDistribution(r, stream) }},
			covered{"topk", stream, false, func(r *rand.Rand) []interval { return coverTopK(r, stream) }},
			covered{"countmin", stream, false, func(r *rand.Rand) []interval { return coverCountMin(r, stream) }},
			covered{"quantile", stream, false, func(r *rand.Rand) []interval { return coverQuantile(r, stream) }},
			covered{"distinct", stream, true, func(r *rand.Rand) []interval { return coverDistinct(r, stream) }},
			covered{"set", stream, true, func(r *rand.Rand) []interval { return coverSet(r, stream) }},
			covered{"morris", stream, true, func(r *rand.Rand) []interval { return coverMorris(r, stream) }},
		)
	}
	return append(all,
		covered{"distinct-window", "late", true, coverWindow},
		covered{"distinct-sliding", "late", true, func(r *rand.Rand) []interval { return coverSliding(r, "late") }},
		covered{"distinct-sliding", "bursty", true, func(r *rand.Rand) []interval { return coverSliding(r, "bursty") }},
		covered{"bloom-timed", "on time", false, func(r *rand.Rand) []interval { return coverTimed(r, "on time") }},
		covered{"bloom-timed", "bursty", false, func(r *rand.Rand) []interval { return coverTimed(r, "bursty") }},
		covered{"bloom-timed", "one burst", true, coverBurst},
		covered{"linear", plainStream, true, coverLinear},
		covered{"bloom", plainStream, true, coverBloom(10_000, 0.01, 22_000)},
		covered{"bloom, 500 at 2%", plainStream, true, coverBloom(500, 0.02, 20_000)},
		covered{"bloom, 1000 at 10%", plainStream, true, coverBloom(1000, 0.1, 20_000)},
		covered{"bloom, merged", plainStream, false, coverMerged},
		covered{"bloom-timed, merged", "one burst", false, coverMergedBurst},
	)
}

// plainStream is the stream of events that do not decay.
const plainStream = "no decay"

// coverageNow is the time at which a stream ends; the half-life is an hour.
const coverageNow = 1000 * decayedHour

// halfLifeOf returns the half-life of a stream; 0 for none.
func halfLifeOf(stream string) sketch.Tick {
	if stream == plainStream {
		return 0
	}
	return decayedHour
}

// arrival is the time of an event, and the clock when the event comes.
type arrival struct{ at, clock sketch.Tick }

// weight returns how much the event counts at coverageNow.
func (a arrival) weight(stream string) float64 {
	if stream == plainStream {
		return 1
	}
	return math.Exp2(-float64(coverageNow-a.at) / float64(decayedHour))
}

// arrivals draws n events over eight half-lives. Events come on time, up to many half-lives late, or in bursts of one
// time.
func arrivals(r *rand.Rand, stream string, n int) []arrival {
	const span = 8 * decayedHour
	out := make([]arrival, n)
	burst, left := sketch.Tick(0), 0
	for i := range out {
		clock := coverageNow - span + span*sketch.Tick(i+1)/sketch.Tick(n)
		at := clock
		switch stream {
		case "late":
			at -= sketch.Tick(r.ExpFloat64() * 3 * float64(decayedHour))
		case "bursty":
			if left == 0 {
				burst, left = clock, 1+r.IntN(1+n/10)
			}
			left--
			at = burst
		}
		out[i] = arrival{at, clock}
	}
	return out
}

// coverageBins are the probabilities of the bins that are drawn.
var coverageBins = []float64{0.4, 0.3, 0.2, 0.1}

func drawBin(r *rand.Rand) uint32 {
	u := r.Float64()
	for bin, p := range coverageBins {
		if u -= p; u < 0 {
			return uint32(bin)
		}
	}
	return 0
}

// coverDistribution checks the interval of a bin's probability. The truth is the probability with which events are
// drawn.
func coverDistribution(r *rand.Rand, stream string) (out []interval) {
	p := sketch.Params{Decay: sketch.HalfLife, HalfLife: halfLifeOf(stream), Threshold: 0.001, OrderFree: true}
	if p.HalfLife == 0 {
		p.Decay = sketch.None
	}
	var d sketch.Distribution
	for _, a := range arrivals(r, stream, 300+r.IntN(500)) {
		if err := d.Add(&p, a.clock, a.at, drawBin(r), 1); err != nil {
			panic(err) // cannot fail: 1 is a valid amount
		}
	}
	reading := d.At(&p, coverageNow)
	if reading.EffectiveN < coverageEffective {
		return nil
	}
	for bin, truth := range coverageBins {
		_, low, high := reading.P(uint32(bin), sketch.DefaultConfidence)
		out = append(out, interval{low, high, truth})
	}
	return out
}

// coverageItems is how many different items the counting kinds get.
const coverageItems = 400

func coverTopK(r *rand.Rand, stream string) (out []interval) {
	s := must(sketch.NewTopK(sketch.TopKParams{K: 10, HalfLife: halfLifeOf(stream)}))
	s.Born(coverageNow-8*decayedHour, 0.008/7)
	truth := make([]float64, coverageItems)
	often := rand.NewZipf(r, wordsZipf, 1, coverageItems-1)
	for _, a := range arrivals(r, stream, 2000) {
		id := often.Uint64()
		truth[id] += a.weight(stream)
		if err := s.Add(a.clock, a.at, itemName(id), 1); err != nil {
			panic(err)
		}
	}
	lost := s.Lost(coverageNow)
	for id, want := range truth {
		item := s.Item(coverageNow, itemName(uint64(id)))
		out = append(out, interval{item.Count - item.Err - 1e-9, item.Count + lost + 1e-9, want})
	}
	return out
}

func coverCountMin(r *rand.Rand, stream string) (out []interval) {
	c := must(sketch.NewCountMin(sketch.CountMinParams{Epsilon: 0.02, Delta: 0.01, HalfLife: halfLifeOf(stream)}))
	c.Born(coverageNow-8*decayedHour, 0.008/7)
	truth, hashes := make([]float64, coverageItems), make([]uint64, coverageItems)
	for id := range hashes {
		hashes[id] = r.Uint64()
	}
	often := rand.NewZipf(r, wordsZipf, 1, coverageItems-1)
	for _, a := range arrivals(r, stream, 2000) {
		id := often.Uint64()
		truth[id] += a.weight(stream)
		if err := c.Add(a.clock, a.at, hashes[id], 1); err != nil {
			panic(err)
		}
	}
	lost := c.Lost(coverageNow)
	for id, want := range truth {
		e := c.Estimate(coverageNow, hashes[id])
		out = append(out, interval{e.Count - e.Err - 1e-9, e.Count + lost + 1e-9, want})
	}
	return out
}

// coverQuantile checks the interval of a quantile. The truth is the quantile of the values that came.
func coverQuantile(r *rand.Rand, stream string) (out []interval) {
	q := must(sketch.NewQuantile(sketch.QuantileParams{HalfLife: halfLifeOf(stream), Threshold: 0.001}))
	q.CountAll()
	var values []weighted
	for _, a := range arrivals(r, stream, 500) {
		v := weighted{math.Exp(3 * r.NormFloat64()), a.weight(stream)}
		values = append(values, v)
		if err := q.Add(a.clock, a.at, v.value, 1); err != nil {
			panic(err) // cannot fail: the value is finite and positive
		}
	}
	reading := q.At(coverageNow)
	for _, part := range []float64{0.1, 0.5, 0.9} {
		low, high := reading.Bracket(part)
		// the smallest difference in rank may decide between two values
		least, most := weightedQuantile(values, part-1e-9), weightedQuantile(values, part+1e-9)
		low, high = low/(1+reading.Accuracy), high/(1-reading.Accuracy)
		truth := least
		if least < low && most >= low {
			truth = most
		}
		out = append(out, interval{low, high, truth})
	}
	return out
}

func coverDistinct(r *rand.Rand, stream string) []interval {
	if stream == plainStream {
		d := must(sketch.NewDistinct(sketch.DistinctParams{}))
		n := 10_000 + r.IntN(20_000)
		for range n {
			d.Add(r.Uint64())
		}
		value, stdErr := d.Estimate()
		return []interval{around(value, stdErr, float64(n))}
	}
	d := must(sketch.NewDistinctDecayed(sketch.DistinctDecayedParams{HalfLife: decayedHour, Registers: 256}))
	truth := 0.0
	for _, a := range arrivals(r, stream, 3000) {
		d.Add(a.clock, a.at, r.Uint64())
		truth += a.weight(stream)
	}
	value, stdErr := d.Estimate(coverageNow)
	if truth < coverageEffective {
		return nil
	}
	return []interval{around(value, stdErr, truth)}
}

func coverSet(r *rand.Rand, stream string) []interval {
	const k = 256
	if stream == plainStream {
		s := must(sketch.NewSet(sketch.SetParams{K: k, Signature: -1}))
		n := 4000 + r.IntN(4000)
		for range n {
			s.Add(r.Uint64(), nil)
		}
		e := s.Estimate()
		return []interval{around(e.Value, e.StdErr, float64(n))}
	}
	s := must(sketch.NewSetDecayed(sketch.SetDecayedParams{K: k, HalfLife: decayedHour}))
	truth := 0.0
	for _, a := range arrivals(r, stream, 4000) {
		s.Add(a.clock, a.at, r.Uint64(), nil)
		truth += a.weight(stream)
	}
	e := s.Estimate(coverageNow)
	if truth < coverageEffective {
		return nil
	}
	return []interval{around(e.Value, e.StdErr, truth)}
}

// coverMorris checks a counter that keeps the variance of its rounding.
func coverMorris(r *rand.Rand, stream string) []interval {
	m := must(sketch.NewMorris(sketch.MorrisParams{Bits: 16, HalfLife: halfLifeOf(stream), Measured: true}))
	m.Born(coverageNow-8*decayedHour, 0.008/7)
	truth := 0.0
	for _, a := range arrivals(r, stream, 1000+r.IntN(1000)) {
		if err := m.Add(a.clock, a.at, 1, r.Uint64()); err != nil {
			panic(err)
		}
		truth += a.weight(stream)
	}
	if truth < coverageEffective {
		return nil
	}
	low, high := m.Interval(coverageNow, sketch.DefaultConfidence)
	return []interval{{low, high, truth}}
}

func coverWindow(r *rand.Rand) []interval {
	w := &distinctWindow{DistinctWindow: must(sketch.NewDistinctWindow(sketch.DistinctWindowParams{
		Distinct: sketch.DistinctParams{Precision: 8}, Slice: decayedHour, Slices: windowSlices,
	}))}
	for range 4000 + r.IntN(4000) {
		w.add(r)
	}
	value, stdErr := w.Estimate(windowSpan-1, windowSpan)
	return []interval{around(value, stdErr, float64(w.n))}
}

func coverLinear(r *rand.Rand) []interval {
	l := must(sketch.NewLinearCounter(sketch.LinearParams{Capacity: linearCapacity}))
	n := 2000 + r.IntN(20_000)
	for range n {
		if err := l.Add(r.Uint64(), nil); err != nil {
			panic(err)
		}
	}
	e := l.Estimate()
	return []interval{around(e.Count, e.StandardError, float64(n))}
}

// coverBloom checks filters that grow by generations. Keys that an earlier generation seems to have are not added to
// the next one, and the estimate corrects for that.
func coverBloom(capacity uint64, falseRate float64, most int) func(r *rand.Rand) []interval {
	return func(r *rand.Rand) []interval {
		f := must(sketch.NewBloomScalable(sketch.BloomParams{Capacity: capacity, FalseRate: falseRate}))
		n := most/10 + r.IntN(most-most/10)
		for range n {
			f.Add(r.Uint64())
		}
		return []interval{withinBloom(f.State(), float64(n))}
	}
}

// coverMerged checks two filters that have from none to all of their keys in common, and keys added afterwards. The
// filters do not know how many keys they have in common, so the interval is wider than that of chance.
func coverMerged(r *rand.Rand) (out []interval) {
	p := sketch.BloomParams{Capacity: 500, FalseRate: 0.02}
	a := must(sketch.NewBloomScalable(p))
	p.Capacity <<= r.IntN(2)
	b := must(sketch.NewBloomScalable(p))
	n, both := 100+r.IntN(5000), r.Float64()*float64(r.IntN(3))/2
	union := n
	for range n {
		key := r.Uint64()
		a.Add(key)
		if r.Float64() < both {
			b.Add(key)
			continue
		}
		b.Add(r.Uint64())
		union++
	}
	if err := a.Merge(&b); err != nil {
		panic(err) // cannot fail: small filters with the same hash
	}
	out = append(out, withinBloom(a.State(), float64(union)))
	for range n {
		a.Add(r.Uint64())
	}
	return append(out, withinBloom(a.State(), float64(union+n)))
}

// coverMergedBurst checks filters that have from none to all of the keys of one generation in common.
func coverMergedBurst(r *rand.Rand) []interval {
	p := sketch.BloomTimedParams{Capacity: 500, FalseRate: 0.05, Window: decayedHour}
	a, b := must(sketch.NewBloomTimed(p)), must(sketch.NewBloomTimed(p))
	n, both := 50+r.IntN(5000), r.Float64()*float64(r.IntN(3))/2
	union := n
	for range n {
		key := r.Uint64()
		a.Add(coverageNow, coverageNow, key)
		if r.Float64() < both {
			continue
		}
		b.Add(coverageNow, coverageNow, r.Uint64())
		union++
	}
	common := r.IntN(1 + n)
	shared := rand.New(rand.NewPCG(uint64(n), 1))
	for range common { // they are in different layers of the two filters
		key := shared.Uint64()
		a.Add(coverageNow, coverageNow, key)
		b.Add(coverageNow, coverageNow, key)
	}
	if err := a.Merge(&b); err != nil {
		panic(err) // cannot fail: small filters with the same hash
	}
	return []interval{withinBloom(a.State(coverageNow), float64(union+common))}
}

// withinBloom returns the interval that a server answers.
func withinBloom(s sketch.BloomState, truth float64) interval {
	low, high := around(s.KeysLeast, s.KeysError, truth), around(s.KeysMost, s.KeysError, truth)
	return interval{min(low.low, s.Keys), high.high, truth}
}

// coverSliding checks the interval of a window. Its lower end is the estimate for the slices that are wholly in the
// window.
func coverSliding(r *rand.Rand, stream string) []interval {
	const longest = 8 * decayedHour
	w := must(sketch.NewDistinctSliding(sketch.DistinctSlidingParams{
		Distinct: sketch.DistinctParams{Precision: 6}, Window: longest,
	}))
	window, truth := decayedHour*sketch.Tick(1+r.IntN(8)), 0.0
	for _, a := range arrivals(r, stream, 3000+r.IntN(3000)) {
		w.Add(a.clock, a.at, r.Uint64())
		if a.at > coverageNow-window {
			truth++
		}
	}
	touched, whole := w.Union(coverageNow, window), w.Within(coverageNow, window)
	value, stdErr := touched.Estimate()
	out := around(value, stdErr, truth)
	value, stdErr = whole.Estimate()
	out.low = min(out.low, around(value, stdErr, truth).low)
	return []interval{out}
}

// coverTimed checks the interval of the number of bins that are found, each counted once. It is wide if several
// generations may have the same bins.
func coverTimed(r *rand.Rand, stream string) []interval {
	f := must(sketch.NewBloomTimed(sketch.BloomTimedParams{Capacity: 500, FalseRate: 0.01, Window: decayedHour}))
	things, latest := 1+r.IntN(4000), map[uint64]sketch.Tick{}
	for _, a := range arrivals(r, stream, 20_000) {
		key := uint64(r.IntN(things)) * 0x9e3779b97f4a7c15
		f.Add(a.clock, a.at, key)
		latest[key] = a.at
	}
	truth, oldest := 0.0, (coverageNow/f.Span()-sketch.BloomTimedParts)*f.Span()
	for _, at := range latest {
		if at >= oldest {
			truth++
		}
	}
	return []interval{withinBloom(f.State(coverageNow), truth)}
}

// coverBurst checks a single generation: no other one has its bins, so the interval is that of chance.
func coverBurst(r *rand.Rand) []interval {
	f := must(sketch.NewBloomTimed(sketch.BloomTimedParams{Capacity: 500, FalseRate: 0.01, Window: decayedHour}))
	n := 50 + r.IntN(20_000)
	for range n {
		f.Add(coverageNow, coverageNow, r.Uint64())
	}
	return []interval{withinBloom(f.State(coverageNow), float64(n))}
}

func around(value, stdErr, truth float64) interval {
	low, high := sketch.Around(value, stdErr, sketch.DefaultConfidence)
	return interval{low, high, truth}
}
