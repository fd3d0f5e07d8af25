package shard

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// A part is what one shard contributes to an answer, in bytes that need no state to be read: bins have their names,
// since ids differ between shards.
//
//	count         'c'  uvarint(keys)
//	distribution  'd'  uvarint(version)                    0: namespace unknown, and no more
//	                   decay floor flags                   one byte each; flags: 1 negative amounts, 2 found, 4 order-free
//	                   uvarint(half-life) threshold prior  doubles, 8 bytes little endian
//	                   uvarint(at)
//	                   missed                              only when order-free: a double, see total
//	                   distribution                        only when found, and so are the names
//	                   { uvarint(len) name }               one for each bin, by ascending id
const (
	partCount        = 'c'
	partEventClock   = 'C'
	partDistribution = 'd'

	flagNegative  = 1
	flagFound     = 2
	flagOrderFree = 4
	flagBounded   = 8 // of parts under linear decay
)

func appendEventClock(b []byte, c *ebbv1.EventClock) []byte {
	b = binary.AppendUvarint(append(b, partEventClock), c.GetEpoch())
	return binary.AppendUvarint(b, uint64(c.GetNowUs()))
}

func appendCount(b []byte, count uint64) []byte {
	return binary.AppendUvarint(append(b, partCount), count)
}

func (t *total) appendPart(b []byte, names binNames) []byte {
	b = append(b, partDistribution)
	b = binary.AppendUvarint(b, t.version)
	if t.version == 0 {
		return b
	}
	p, flags := &t.params, byte(0)
	if p.AllowNegative {
		flags |= flagNegative
	}
	if t.dist != nil {
		flags |= flagFound
	}
	if p.OrderFree {
		flags |= flagOrderFree
	}
	if p.Bounded && p.Decay == sketch.Linear {
		flags |= flagBounded
	}
	b = append(b, byte(p.Decay), byte(p.Floor), flags)
	b = binary.AppendUvarint(b, uint64(p.HalfLife))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(p.Threshold))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(p.Prior))
	b = binary.AppendUvarint(b, uint64(t.at))
	if p.OrderFree {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(t.missed))
	}
	if t.dist == nil {
		return b
	}
	b = t.dist.AppendBinary(b)
	for _, bin := range sortedBins(t.dist) {
		name := names.binName(bin)
		if len(b) > answerBytesMax {
			return b // it is refused, however long it is
		}
		b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
	}
	return b
}

func sortedBins(d *sketch.Distribution) []uint32 {
	bins := make([]uint32, 0, d.Len())
	d.Each(func(bin uint32) { bins = append(bins, bin) })
	slices.Sort(bins)
	return bins
}

// distributionPart is a decoded part that is a distribution.
type distributionPart struct {
	total
	dist  sketch.Distribution
	names map[uint32][]byte
}

func decodeDistributionPart(raw []byte) (*distributionPart, bool) {
	r := reader{rest: raw}
	if r.byte() != partDistribution {
		return nil, false
	}
	p := &distributionPart{}
	p.version = r.uvarint()
	if p.version == 0 {
		return p, !r.bad && len(r.rest) == 0
	}
	p.params.Decay, p.params.Floor = sketch.Decay(r.byte()), sketch.Floor(r.byte())
	flags := r.byte()
	p.params.HalfLife = sketch.Tick(r.uvarint())
	p.params.Threshold, p.params.Prior = r.float(), r.float()
	p.params.AllowNegative = flags&flagNegative != 0
	p.params.OrderFree, p.params.Bounded = flags&flagOrderFree != 0, flags&flagBounded != 0
	p.at = sketch.Tick(r.uvarint())
	if p.params.OrderFree {
		p.missed = r.float()
		r.bad = r.bad || !(p.missed >= 0 && p.missed <= math.MaxFloat64)
	}
	if r.bad || !validParams(&p.params) || p.at < 0 || p.at > clockMax {
		return nil, false
	}
	if flags&flagFound == 0 {
		return p, len(r.rest) == 0
	}
	return p, p.decodeBins(r.rest)
}

func validParams(p *sketch.Params) bool {
	return p.Decay >= sketch.HalfLife && p.Decay <= sketch.None &&
		p.Floor >= sketch.Prune && p.Floor <= sketch.Prior &&
		(p.Decay == sketch.None || p.HalfLife >= 1) && p.HalfLife <= proto.HalfLifeMaxUS &&
		p.Threshold >= 0 && p.Threshold <= math.MaxFloat64 && p.Prior >= 0 && p.Prior <= math.MaxFloat64
}

func (p *distributionPart) decodeBins(raw []byte) bool {
	rest, err := p.dist.Decode(raw)
	if err != nil {
		return false
	}
	r := reader{rest: rest}
	p.names = make(map[uint32][]byte, p.dist.Len())
	for _, bin := range sortedBins(&p.dist) {
		p.names[bin] = r.bytes()
	}
	p.total.dist = &p.dist
	return !r.bad && len(r.rest) == 0
}

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		r.bad = true
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *reader) float() float64 {
	if len(r.rest) < 8 {
		r.bad, r.rest = true, nil
		return 0
	}
	v := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return math.Float64frombits(v)
}

// mergedBinNames are the bin names of a merge over shards: ids in order of appearance.
type mergedBinNames struct {
	ids   map[string]uint32
	names [][]byte
}

func (v *mergedBinNames) binName(bin uint32) []byte { return v.names[bin] }

func (v *mergedBinNames) binNamed(name []byte) (bin uint32, ok bool) {
	bin, ok = v.ids[string(name)]
	return bin, ok
}

func (v *mergedBinNames) add(name []byte) uint32 {
	if bin, ok := v.ids[string(name)]; ok {
		return bin
	}
	bin := uint32(len(v.names))
	v.ids[string(name)] = bin
	v.names = append(v.names, name)
	return bin
}

// Merge folds the parts of shards into the answer. The parts are in the order of shards, so that equal parts give equal
// answers. A shard folds its keys in the same way. Parts evaluated at different times are scaled to the latest time.
// Parts under different settings are converted, at their own time, to the newest settings.
//
// If an answer carries an error, the result is that error. A part that does not decode is an error too (CORRUPT). The
// caller fills in the coverage.
func Merge(q *ebbv1.Question, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	for _, a := range answers {
		if a.GetError() != nil {
			return nil, proto.FromWire(a.Error)
		}
	}
	if len(answers) == 1 && answers[0].GetAnswer() != nil {
		return answers[0].GetAnswer(), nil
	}
	if len(proto.QuestionPatterns(q)) > 0 && q.GetGraph() == nil { // a graph names what matched
		return mergeMatched(q, answers)
	}
	return mergeParts(q, answers)
}

func mergeParts(q *ebbv1.Question, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	switch ask := q.GetAsk().(type) {
	case *ebbv1.Question_Distribution:
		return mergeDistributions(ask.Distribution, answers)
	case *ebbv1.Question_Summary:
		return mergeSummaries(ask.Summary, answers)
	case *ebbv1.Question_Surprise:
		return mergeSurprises(ask.Surprise, answers)
	case *ebbv1.Question_Overlap:
		return mergeOverlaps(ask.Overlap, answers)
	case *ebbv1.Question_Graph:
		return mergeGraphs(ask.Graph, answers)
	case *ebbv1.Question_Keys:
		return mergeKeys(ask.Keys, answers)
	case *ebbv1.Question_Match:
		return nil, errPart(len(answers) - 1) // one shard has the whole answer
	case *ebbv1.Question_Trend:
		return mergeTrends(ask.Trend, answers, nil)
	case *ebbv1.Question_Sources:
		return mergeSources(ask.Sources, answers)
	case *ebbv1.Question_CountKeys:
		return mergeCounts(answers)
	case *ebbv1.Question_EventClock:
		return mergeEventClocks(answers)
	}
	return nil, proto.ErrUnknownQuestion()
}

func mergeCounts(answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	sum := uint64(0)
	for i, a := range answers {
		r := reader{rest: a.GetPart()}
		kind := r.byte()
		sum += r.uvarint()
		if r.bad || kind != partCount || len(r.rest) > 0 {
			return nil, errPart(i)
		}
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_CountKeys{CountKeys: &ebbv1.KeyCount{Keys: sum}}}, nil
}

func errPart(i int) error {
	return proto.ErrCorrupt.Errorf("part %d of an answer does not decode", i)
}

func mergeDistributions(q *ebbv1.DistributionQuestion, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	parts := make([]*distributionPart, len(answers))
	for i, a := range answers {
		p, ok := decodeDistributionPart(a.GetPart())
		if !ok {
			return nil, errPart(i)
		}
		p.latest(a)
		parts[i] = p
	}
	t, err := foldParts(parts, &mergedBinNames{ids: map[string]uint32{}})
	if err != nil {
		return nil, err
	}
	d, err := t.answer(q)
	if err != nil {
		return nil, err
	}
	if !finite(d) {
		return nil, proto.ErrCorrupt.Errorf("the parts of an answer add up to no finite number")
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: d}}, nil
}

// latest sets the time of a part to the time of its answer, if the shard does not know the namespace.
func (p *distributionPart) latest(a *ebbv1.ShardAnswer) {
	if p.version == 0 {
		p.at = sketch.Tick(a.GetAsOfUs())
	}
}

// foldParts adds parts up, at the latest of their times and under the newest of their settings.
func foldParts(parts []*distributionPart, names *mergedBinNames) (*total, *proto.Error) {
	t, bins := total{binNames: names}, 0
	for _, p := range parts {
		if p.version > t.version {
			t.version, t.params = p.version, p.params
		}
		t.at = max(t.at, min(p.at, clockMax))
		t.missed += p.missed
		bins += p.dist.Len()
	}
	if bins > sketch.BinsMax {
		return nil, proto.ErrResponseTooLarge.Errorf("the parts of the answer have %d bins: the limit is %d", bins, sketch.BinsMax).
			WithHint("name fewer keys")
	}
	for _, p := range parts {
		if p.total.dist == nil {
			continue
		}
		if p.params != t.params {
			p.dist.Convert(&p.params, &t.params, p.at)
		}
		t.add(&p.dist, func(bin uint32) uint32 { return names.add(p.names[bin]) })
	}
	return &t, nil
}

// finite reports whether all numbers of an answer are finite. Numbers that Apply wrote are bounded; those in a part
// from elsewhere may not be.
func finite(d *ebbv1.Distribution) bool {
	if !number(d.Z) || !number(d.Z2) || !number(d.EffectiveN) {
		return false
	}
	return !slices.ContainsFunc(d.Bins, func(b *ebbv1.Bin) bool { return !number(b.Count) })
}

func number(x float64) bool { return math.Abs(x) <= math.MaxFloat64 }
