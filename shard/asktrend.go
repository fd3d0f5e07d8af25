package shard

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// partTrend is a part of the answer to a TrendQuestion:
//
//	trend  't'  tally tally        of the namespace, and of its slow namespace
//
//	tally  =    uvarint(len) distribution part
//	            uvarint(began) uvarint(from) had        of its exposure; had is a double, 8 bytes little endian
const partTrend = 't'

// changesDefault is how many rising and falling bins an answer names when the question gives no number.
const changesDefault = 10

// tally is a total, and the time for which it has been counted.
type tally struct {
	total
	began    sketch.Tick
	exposure sketch.Exposure
}

// tallyOf begins a tally under the settings of a namespace, which may be nil.
func (f *frame) tallyOf(ns *namespace, at sketch.Tick) *tally {
	t := &tally{total: total{at: at, binNames: f}}
	if ns != nil {
		t.version, t.params = ns.definition.GetVersion(), *ns.params()
		t.began, t.exposure = ns.watched()
	}
	return t
}

func (f *frame) askTrend(q *ebbv1.ShardQuestion, ask *ebbv1.TrendQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	if q.Beginnings {
		return f.askBeginnings(q, at)
	}
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, sketch.Tick(ask.AsOfUs), at)
	sides := [2]*tally{f.tallyOf(ns, at), f.tallyOf(nil, at)}
	if ns != nil {
		if err := f.tooCostly(q); err != nil {
			return f.unanswered(err)
		}
		if err := f.fold(&sides[0].total, ns, ask.Keys, q.Partial); err != nil {
			return f.unanswered(err)
		}
		if slow := f.slowOf(ns); slow != nil {
			sides[1] = f.tallyOf(slow, at)
			if err := f.fold(&sides[1].total, slow, ask.Keys, q.Partial); err != nil {
				return f.unanswered(err)
			}
		}
	}
	if q.Partial {
		return f.answerPart(sides[1].appendTally(sides[0].appendTally([]byte{partTrend}, f), f), at)
	}
	out, err := trend(ask, sides[0], sides[1])
	if err != nil {
		return f.unanswered(err)
	}
	return &ebbv1.ShardAnswer{
		Value:  &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Trend{Trend: out}}},
		AsOfUs: int64(at),
	}
}

func (t *tally) appendTally(b []byte, names binNames) []byte {
	raw := t.appendPart(nil, names)
	b = append(binary.AppendUvarint(b, uint64(len(raw))), raw...)
	return appendWatched(b, t.began, t.exposure)
}

// reading evaluates a tally for its rates: the bins as they were counted, without the effect of the floor.
func (t *tally) reading() (sketch.Reading, float64) {
	t.params.Floor = sketch.Prune
	d := t.dist
	if d == nil {
		d = new(sketch.Distribution)
	}
	exposure := 0.0
	if t.began > 0 && t.at > t.began {
		exposure = t.exposure.At(&t.params, t.at)
	}
	return d.At(&t.params, t.at), exposure
}

// trend compares two tallies whose bins have the same ids, with half-lives in either order.
func trend(q *ebbv1.TrendQuestion, fast, slow *tally) (*ebbv1.Trend, *proto.Error) {
	out := &ebbv1.Trend{Keys: q.Keys, AsOfUs: int64(fast.at), Confidence: cmp.Or(q.GetConfidence(), proto.DefaultConfidence), Total: unknownChange(nil)}
	if fast.version == 0 || slow.version == 0 || fast.params.Decay != sketch.HalfLife || slow.params.Decay != sketch.HalfLife {
		out.Warming = true
		for _, name := range q.GetBins() {
			out.Bins = append(out.Bins, unknownChange(name))
		}
		return out, nil
	}
	if slow.params.HalfLife < fast.params.HalfLife {
		fast, slow = slow, fast
	}
	now, fastSeen := fast.reading()
	usual, slowSeen := slow.reading()
	t := sketch.Trends(now, usual, fastSeen, slowSeen)
	out.Found = now.Bins+usual.Bins > 0 || now.Z > 0 || usual.Z > 0 // of bins below the threshold there are sums
	out.FastHalfLifeUs, out.SlowHalfLifeUs = int64(fast.params.HalfLife), int64(slow.params.HalfLife)
	out.SinceUs, out.Warming = int64(max(fast.began, slow.began)), t.Warming()
	out.Total = changeOf(nil, t.Total(out.Confidence))
	if !number(now.Z) || !number(now.Z2) || !number(usual.Z) || !number(usual.Z2) || infinite(out.Total) {
		return nil, errInfinite()
	}
	for _, name := range q.GetBins() {
		c := t.Of(0, 0, out.Confidence)
		if bin, ok := fast.binNames.binNamed(name); ok {
			c = t.Bin(bin, out.Confidence)
		}
		out.Bins = append(out.Bins, changeOf(name, c))
	}
	if slices.ContainsFunc(out.Bins, infinite) {
		return nil, errInfinite()
	}
	if out.Warming {
		return out, nil
	}
	top := int(cmp.Or(q.GetTop(), changesDefault))
	changes := changesOf(&t, now, usual, fast.binNames, out.Confidence)
	out.Rising = firstOf(changes, top, func(c *ebbv1.Change) float64 { return -c.ZScore })
	out.Falling = firstOf(changes, top, func(c *ebbv1.Change) float64 { return c.ZScore })
	if slices.ContainsFunc(out.Rising, infinite) || slices.ContainsFunc(out.Falling, infinite) {
		return nil, errInfinite()
	}
	const overhead = 2 + 8*9 + 4 // of a change in a message
	size := 0
	for _, c := range slices.Concat(out.Rising, out.Falling, out.Bins) {
		size += overhead + len(c.Bin)
	}
	if size > answerBytesMax {
		return nil, proto.ErrResponseTooLarge.Errorf("%d changes take %d bytes: the limit of an answer is %d", len(out.Rising)+len(out.Falling)+len(out.Bins), size, answerBytesMax).
			WithHint("ask for fewer")
	}
	return out, nil
}

// changesOf lists the changes of all bins that are visible in either reading.
func changesOf(t *sketch.Trend, now, usual sketch.Reading, names binNames, confidence float64) []*ebbv1.Change {
	counts := make(map[uint32][2]float64, usual.Bins)
	for i, r := range []sketch.Reading{now, usual} {
		for _, b := range r.All(nil) {
			c := counts[b.ID]
			c[i] = b.Count
			counts[b.ID] = c
		}
	}
	out := make([]*ebbv1.Change, 0, len(counts))
	for bin, c := range counts {
		out = append(out, changeOf(bytes.Clone(names.binName(bin)), t.Of(c[0], c[1], confidence)))
	}
	return out
}

// firstOf returns the changes for which by is negative, at most n: the smallest by by first, and then by name.
func firstOf(changes []*ebbv1.Change, n int, by func(*ebbv1.Change) float64) []*ebbv1.Change {
	var out []*ebbv1.Change
	for _, c := range changes {
		if by(c) < 0 {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *ebbv1.Change) int {
		return cmp.Or(cmp.Compare(by(a), by(b)), bytes.Compare(a.Bin, b.Bin))
	})
	return out[:min(n, len(out))]
}

// unknownChange is the change of a bin when nothing can be compared.
func unknownChange(bin []byte) *ebbv1.Change {
	return changeOf(bin, new(sketch.Trend).Of(0, 0, proto.DefaultConfidence))
}

func changeOf(bin []byte, c sketch.Change) *ebbv1.Change {
	return &ebbv1.Change{
		Bin: bin, FastRate: c.Fast, SlowRate: c.Slow, Bits: c.Bits, StdErrorBits: c.StdError, LowBits: c.Low, HighBits: c.High, ZScore: c.Z, PValue: c.P,
	}
}

// infinite says whether a number of a change is not finite: no shard counts so much, or for so short a time.
func infinite(c *ebbv1.Change) bool {
	return slices.ContainsFunc([]float64{c.FastRate, c.SlowRate, c.Bits, c.StdErrorBits, c.LowBits, c.HighBits, c.ZScore, c.PValue}, func(v float64) bool { return !number(v) })
}

func errInfinite() *proto.Error {
	return proto.ErrCorrupt.Errorf("the parts of an answer add up to no finite number")
}

func mergeTrends(
	q *ebbv1.TrendQuestion, answers []*ebbv1.ShardAnswer, begin *Beginnings,
) (*ebbv1.Answer, error) {
	var parts [2][]*distributionPart
	var seen [2][]*tally
	for i, a := range answers {
		r := reader{rest: a.GetPart()}
		kind := r.byte()
		for side := range parts {
			p, ok := decodeDistributionPart(r.bytes())
			t := &tally{began: sketch.Tick(r.uvarint()), exposure: sketch.Exposure{From: sketch.Tick(r.uvarint()), Had: r.float()}}
			if !ok || kind != partTrend || r.bad || !t.valid() {
				return nil, errPart(i)
			}
			t.version = p.version
			p.latest(a)
			parts[side], seen[side] = append(parts[side], p), append(seen[side], t)
		}
		if len(r.rest) > 0 {
			return nil, errPart(i)
		}
	}
	names := &mergedBinNames{ids: map[string]uint32{}}
	var sides [2]*tally
	for side := range sides {
		sum, err := foldParts(parts[side], names)
		if err != nil {
			return nil, err
		}
		sides[side] = longest(sum, seen[side])
		if w, known := begin.of(side, &sum.params, sum.at); known && sum.version != 0 {
			sides[side].began, sides[side].exposure = w.began, w.exposure
		}
	}
	out, err := trend(q, sides[0], sides[1])
	if err != nil {
		return nil, err
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Trend{Trend: out}}, nil
}

// valid says whether the numbers of a tally are ones that a shard may have written.
func (t *tally) valid() bool {
	return t.began >= 0 && t.began <= clockMax && t.exposure.From >= 0 && t.exposure.From <= clockMax && t.exposure.Had >= 0 && t.exposure.Had <= math.MaxFloat64
}

// longest gives a sum the exposure of the shard that has counted for the longest time, among those with the newest
// settings. A shard begins to count when it first learns of a namespace, which is the same time for all that are
// written to.
func longest(sum *total, parts []*tally) *tally {
	t := &tally{total: *sum}
	for _, p := range parts {
		if p.version != sum.version || p.began == 0 {
			continue
		}
		if t.began == 0 || p.exposure.At(&sum.params, sum.at) > t.exposure.At(&sum.params, sum.at) {
			t.exposure = p.exposure
		}
		if t.began == 0 || p.began < t.began {
			t.began = p.began
		}
	}
	return t
}

// trendCost is the cost that the slow namespace adds to a question, in bins.
func (f *frame) trendCost(ns *namespace, keys [][]byte) int {
	cost := 0
	if slow := f.slowOf(ns); slow != nil {
		for _, name := range keys {
			if key, ok := f.findKey(slow, name); ok {
				cost += 1 + f.summaries.record(key).bins()
			}
		}
	}
	return cost
}
