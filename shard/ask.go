package shard

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

const (
	// costMax is the most bins that one question may visit in one shard.
	costMax = 1 << 23
	// briefAbove is how many bins a key may have for its top to be answered together with what needs a visit to each
	// bin. So many visits take a fifth of a millisecond.
	briefAbove = 1 << 14
	// answerBytesMax leaves some room in a message for what surrounds an answer.
	answerBytesMax = proto.MessageBytesMax - 64<<10
	// bodyCost is what it costs to find a summary of another kind, in bins. bytesPerCost is how many of its bytes cost
	// as much to read or merge as a bin.
	bodyCost     = 16
	bytesPerCost = 8
	// compareCost is the cost to compare a bin with a baseline, in bins read.
	compareCost = 64
	// matchCost is the cost to look for phrases in a byte of text.
	matchCost = 16
)

// Cost returns how many bins (or keys, to count them) a question visits: about
// a nanosecond each to read, and ten to merge.
func (f *frame) Cost(q *ebbv1.ShardQuestion) int {
	if len(proto.QuestionPatterns(q.GetQuestion())) > 0 {
		return f.namedCost(q) + f.matchCost()
	}
	return f.namedCost(q)
}

// CostTo returns the cost of a question, and whether it is above a limit. For a question about bitmaps that costs more
// than limit, the cost is not computed further.
func (f *frame) CostTo(q *ebbv1.ShardQuestion, limit int) (cost int, more bool) {
	switch q.GetQuestion().GetAsk().(type) {
	case *ebbv1.Question_Bitmap, *ebbv1.Question_BitmapGroups, *ebbv1.Question_BitmapCohort:
		cost = f.bitmapWorkTo(q.Question, limit).cost()
	default:
		cost = f.Cost(q)
	}
	return cost, cost > limit
}

// CostsMore reports whether the cost of a question is above a limit, without finding out by how much.
func (f *frame) CostsMore(q *ebbv1.ShardQuestion, than int) bool {
	_, more := f.CostTo(q, than)
	return more
}

// namedCost is the cost of the keys that a question names, or of all keys if the question is about a namespace.
func (f *frame) namedCost(q *ebbv1.ShardQuestion) int {
	switch ask := q.GetQuestion().GetAsk().(type) {
	case *ebbv1.Question_Distribution, *ebbv1.Question_Surprise, *ebbv1.Question_Trend:
		cost := 0
		if ns := f.lookup([]byte(q.Question.Namespace)); ns != nil {
			keys, against := proto.QuestionSides(q.Question)
			for _, side := range [...][][]byte{keys, against} {
				for _, name := range proto.DistinctKeys(side) {
					if key, ok := f.findKey(ns, name); ok {
						cost += 1 + f.summaries.record(key).bins()
					}
				}
			}
			if q.Question.GetTrend() != nil {
				cost += f.trendCost(ns, q.Question.GetTrend().GetKeys())
			}
		}
		if q.Question.GetSurprise() != nil || q.Question.GetTrend() != nil {
			cost *= compareCost
		}
		return cost
	case *ebbv1.Question_Summary, *ebbv1.Question_Overlap, *ebbv1.Question_Graph:
		return f.bodyCost(q.Question.Namespace, proto.DistinctKeys(proto.QuestionKeys(q.Question)))
	case *ebbv1.Question_Keys:
		return f.listCost(ask.Keys)
	case *ebbv1.Question_Describe, *ebbv1.Question_Export:
		return f.describeCost(q.Question)
	case *ebbv1.Question_Match:
		return bodyCost + matchCost*len(q.Question.GetMatch().GetText())
	case *ebbv1.Question_Bitmap, *ebbv1.Question_BitmapGroups, *ebbv1.Question_BitmapCohort:
		return f.bitmapWork(q.Question).cost()
	case *ebbv1.Question_Names:
		return nameCost*len(ask.Names.GetNames()) + bytesPerCost*len(ask.Names.GetIds())
	case *ebbv1.Question_Sources:
		return int(f.sources.live)
	case *ebbv1.Question_CountKeys:
		return int(f.summaries.keys.slots)
	}
	return 0
}

// bodyCost is the cost to read the summaries of keys of other kinds than distributions, by what they hold.
func (f *frame) bodyCost(namespace string, keys [][]byte) int {
	cost := bodyCost * len(keys)
	ns := f.lookup([]byte(namespace))
	if ns == nil {
		return cost
	}
	for _, name := range keys {
		if key, ok := f.findKey(ns, name); ok {
			if b := f.summary(key).body; b != nil {
				cost += mergedBytes(b) / bytesPerCost
			}
		}
	}
	return cost
}

// Ask answers one question; it never writes. at is the time of the answer if the question names none. A shard or
// namespace whose clock is ahead of that time answers as of its own clock. A namespace on event time answers as of its
// own clock unless the question names a later time. The answer has the time that was used. With q.Partial set it is a
// part for Merge.
func (f *frame) Ask(q *ebbv1.ShardQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	return f.AskWithin(q, at, unlimited)
}

// ask answers a question whose size does not depend on patterns.
func (f *frame) ask(q *ebbv1.ShardQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	switch ask := q.GetQuestion().GetAsk().(type) {
	case *ebbv1.Question_Overlap:
		return f.askOverlap(q, ask.Overlap, at)
	case *ebbv1.Question_Keys:
		return f.askKeys(q, ask.Keys, at)
	case *ebbv1.Question_Describe:
		return f.askDescribe(q, ask.Describe, at)
	case *ebbv1.Question_Export:
		return f.askExport(q, ask.Export)
	case *ebbv1.Question_Match:
		return f.askMatch(q, ask.Match, at)
	case *ebbv1.Question_Trend:
		return f.askTrend(q, ask.Trend, at)
	case *ebbv1.Question_Bitmap, *ebbv1.Question_BitmapGroups, *ebbv1.Question_BitmapCohort:
		return f.askBitmap(q, at)
	case *ebbv1.Question_Names:
		return f.askNames(q, ask.Names, at)
	case *ebbv1.Question_Sources:
		return f.askSources(q, ask.Sources, at)
	case *ebbv1.Question_CountKeys:
		return f.askCount(q, at)
	case *ebbv1.Question_EventClock:
		return f.askEventClock(q)
	}
	return f.unanswered(proto.ErrUnknownQuestion())
}

// unanswered returns an answer with the error; nil when there was no room for an answer, see AskWithin.
func (f *frame) unanswered(err *proto.Error) *ebbv1.ShardAnswer {
	if err == errNoRoom {
		return nil
	}
	return &ebbv1.ShardAnswer{Error: err.WithShard(uint32(f.id)).Wire()}
}

// evaluation returns the time at which a namespace is evaluated.
func (f *frame) evaluation(ns *namespace, asOf, at sketch.Tick) sketch.Tick {
	if ns == nil { // there is nothing to evaluate
		return min(cmp.Or(asOf, at, f.now), clockMax)
	}
	clock := ns.clock(f.now)
	if asOf == 0 || ns.onEventTime() {
		asOf = max(asOf, at) // of an event clock: see Floor
	}
	return min(max(asOf, clock), clockMax)
}

func (f *frame) findKey(ns *namespace, name []byte) (key uint32, ok bool) {
	return f.keys.find(tagOf(name, ns.seed), ns.space, name)
}

// present returns the distribution of a key at a time, under the present settings; nil if there is nothing. A key that
// was last touched under older settings is converted on a copy.
func (f *frame) present(ns *namespace, sum *summary, at sketch.Tick) *sketch.Distribution {
	if sum.rewound {
		return nil
	}
	if sum.era == ns.presentEra() {
		if sum.due <= at && ns.dead(&sum.dist, at) {
			return nil
		}
		return &sum.dist
	}
	d := sum.dist.Clone()
	if !ns.convert(&d, sum.era) || ns.dead(&d, at) {
		return nil
	}
	return &d
}

func (f *frame) askDistribution(
	q *ebbv1.ShardQuestion, ask *ebbv1.DistributionQuestion, at sketch.Tick, room int,
) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, sketch.Tick(ask.AsOfUs), at)
	t := total{at: at, binNames: f}
	if ns != nil {
		t.version, t.params = ns.definition.GetVersion(), *ns.params()
		if err := f.tooCostly(q); err != nil {
			return f.unanswered(err)
		}
		fits := func(bins int) bool { return distributionBytes(q, bins, true) <= room }
		if err := f.foldAll(&t, ns, ask.Keys, ask.Patterns, q.Partial, 1, fits); err != nil {
			return f.unanswered(err)
		}
	}
	if q.Partial {
		return f.answerPart(t.appendPart(appendMatched(nil, ask.Patterns, t.matched), f), at)
	}
	d, err := t.answer(ask)
	if err != nil {
		return f.unanswered(err)
	}
	d.Matched = t.matched
	return &ebbv1.ShardAnswer{
		Value:  &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: d}}},
		AsOfUs: int64(at),
	}
}

func (f *frame) tooCostly(q *ebbv1.ShardQuestion) *proto.Error {
	return f.overCost(f.namedCost(q))
}

func (f *frame) overCost(cost int) *proto.Error {
	if cost > costMax {
		return proto.ErrResponseTooLarge.Errorf("the question costs as much as reading %d bins in shard %d: the limit is %d", cost, f.id, costMax).WithHint("name fewer keys")
	}
	return nil
}

// fold adds up the distributions of keys, each key once. A single distribution is read without a copy.
func (f *frame) fold(t *total, ns *namespace, keys [][]byte, partial bool) *proto.Error {
	keys = proto.DistinctKeys(keys)
	for _, name := range keys {
		key, ok := f.findKey(ns, name)
		if !ok || f.expired(key, t.at) {
			t.missed += ns.params().LostAtBirth(t.at)
			continue
		}
		sum := f.summary(key)
		if sum.body != nil {
			if !ended(sum.body, ns.params(), t.at) {
				return otherKind(name, sum.kind(), ebbv1.Kind_KIND_DISTRIBUTION)
			}
			t.missed += ns.params().LostAtBirth(t.at)
			continue
		}
		d := f.present(ns, &sum, t.at)
		switch {
		case d == nil:
			t.missed += ns.params().LostAtBirth(t.at)
		case len(keys) == 1 && !partial:
			t.dist = d
		default:
			t.add(d, nil)
		}
	}
	return nil
}

// foldKey adds one key that is alive.
func (f *frame) foldKey(t *total, ns *namespace, key uint32) *proto.Error {
	sum := f.summary(key)
	if sum.body != nil {
		return otherKind(f.keys.bytesOf(key), sum.kind(), ebbv1.Kind_KIND_DISTRIBUTION)
	}
	if d := f.present(ns, &sum, t.at); d != nil {
		t.add(d, nil)
	}
	return nil
}

// otherKind refuses a question about one kind that names a key of another.
func otherKind(key []byte, is, asked ebbv1.Kind) *proto.Error {
	e := proto.ErrWrongKind.Errorf("key %s is a %s", quote(key), proto.KindName(is))
	switch {
	case is == ebbv1.Kind_KIND_DISTRIBUTION:
		return e.WithHint("ask for its distribution: ebb dist, ebb top, ebb get")
	case is == ebbv1.Kind_KIND_BITMAP:
		return e.WithHint("ask for its ids: ebb bits count, ebb bits ids")
	case asked == ebbv1.Kind_KIND_BITMAP:
		return e.WithHint("name keys that hold bitmaps: ebb bits set KEY ID...")
	case is == ebbv1.Kind_KIND_STRING:
		return e.WithHint("ask for its value: ebb string get")
	case is == ebbv1.Kind_KIND_PHRASES && asked == ebbv1.Kind_KIND_DISTRIBUTION:
		return e.WithHint("ask for its phrases: ebb phrases list, ebb match")
	case asked == ebbv1.Kind_KIND_PHRASES:
		return e.WithHint("name a key that holds phrases: ebb phrases add KEY PHRASE...")
	case asked == ebbv1.Kind_KIND_DISTRIBUTION:
		return e.WithHint("ask for its summary: ebb estimate")
	}
	return e.WithHint("name keys of one kind")
}

func (f *frame) answerPart(part []byte, at sketch.Tick) *ebbv1.ShardAnswer {
	if len(part) > answerBytesMax {
		return f.unanswered(proto.ErrResponseTooLarge.Errorf("the part of shard %d has %d bytes: the limit is %d", f.id, len(part), answerBytesMax).
			WithHint("name fewer keys"))
	}
	return &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: part}, AsOfUs: int64(at)}
}

// alive says whether a key has not expired and anything is left of what it holds.
func (f *frame) alive(ns *namespace, key uint32, at sketch.Tick) bool {
	if f.expired(key, at) {
		return false
	}
	r := f.summaries.record(key)
	if r.due() > at && r.era() == ns.presentEra()&eraMask && (r.form() != recordBody || f.kind(key) != ebbv1.Kind_KIND_MORRIS) {
		return true // see due-is-never-late; a cleanup may be late by what the estimate of a body's death errs, but a Morris counter may be at zero before
	}
	sum := f.summary(key)
	if sum.body != nil {
		return !ended(sum.body, ns.params(), at)
	}
	return f.present(ns, &sum, at) != nil
}

// askCount counts the keys of a namespace that are alive.
func (f *frame) askCount(q *ebbv1.ShardQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, 0, at)
	count := uint64(0)
	if ns != nil {
		slow := f.slowKeys(ns)
		var name []byte
		for key := range f.summaries.keys.all {
			if !f.lists(ns, slow, key, at) {
				continue
			}
			if name = f.keys.appendName(name[:0], key); !isPart(ns, name) {
				count++
			}
		}
	}
	if q.Partial {
		return f.answerPart(appendCount(nil, count), at)
	}
	return &ebbv1.ShardAnswer{
		Value:  &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_CountKeys{CountKeys: &ebbv1.KeyCount{Keys: count}}}},
		AsOfUs: int64(at),
	}
}

// binNames returns the names of bins.
type binNames interface {
	binName(bin uint32) []byte
	binNamed(name []byte) (bin uint32, ok bool)
}

func (f *frame) binName(bin uint32) []byte { return f.bins.bytesOf(bin) }

func (f *frame) binNamed(name []byte) (bin uint32, ok bool) {
	return f.bins.find(tagOf(name, 0), name)
}

// total is a sum of distributions of one namespace, evaluated at one time:
// over keys of a shard, and then over shards.
type total struct {
	version  uint64 // of the namespace's definition; 0: the namespace is unknown
	params   sketch.Params
	at       sketch.Tick
	dist     *sketch.Distribution // nil: nothing found
	owned    bool                 // dist is our own, and not a key's
	matched  uint64               // how many keys the patterns found
	missed   float64              // what missing keys that were named may have held; see sketch.Params.LostAtBirth
	binNames binNames
}

// add adds one distribution under the total's params. Where the order of events
// matters its faded bins are left out first, so that the sum does not depend on when they were pruned.
func (t *total) add(d *sketch.Distribution, remap func(uint32) uint32) {
	if !t.owned {
		t.dist, t.owned = new(sketch.Distribution), true
	}
	if t.params.OrderFree {
		t.dist.MergeAt(&t.params, d, t.at, remap)
		return
	}
	visible := d.Clone()
	visible.Prune(&t.params, t.at, nil)
	t.dist.Merge(&t.params, &visible, remap)
}

// answer evaluates the total.
func (t *total) answer(q *ebbv1.DistributionQuestion) (*ebbv1.Distribution, *proto.Error) {
	d := &ebbv1.Distribution{
		Keys:       q.Keys,
		AsOfUs:     int64(t.at),
		Confidence: confidence(q),
		Decay:      decayNames[t.params.Decay],
		HalfLifeUs: int64(t.params.HalfLife),
		Floor:      floorNames[t.params.Floor],
	}
	d.Signed = t.params.AllowNegative
	if t.dist == nil || vanished(&t.params, t.dist, t.at) {
		d.Bins, d.Lost = absent(q), t.missed
		return d, nil
	}
	r := t.reading(q)
	r.Lost += t.missed
	if q.Rate != nil {
		r = r.WithRate(*q.Rate)
		r.Lost += t.missed
	}
	d.Found, d.Lost = true, r.Lost
	d.Z, d.Z2, d.Other, d.EffectiveN, d.EntropyBits = r.Z, r.Z2, r.Other, r.EffectiveN, r.Entropy
	d.BinsTotal, d.Brief = uint32(r.Bins), r.Brief
	d.LastEventUs = int64(r.Last)
	var err *proto.Error
	d.Bins, err = t.bins(q, r)
	return d, err
}

// reading evaluates the total. For the top of a single key with very many bins, it evaluates only what the top needs.
func (t *total) reading(q *ebbv1.DistributionQuestion) sketch.Reading {
	if _, top := q.GetSelect().(*ebbv1.DistributionQuestion_Top); top && !t.owned && t.dist.Len() > briefAbove {
		return t.dist.Brief(&t.params, t.at)
	}
	return t.dist.At(&t.params, t.at)
}

func confidence(q *ebbv1.DistributionQuestion) float64 {
	if q.GetConfidence() == 0 {
		return proto.DefaultConfidence
	}
	return q.GetConfidence()
}

var decayNames = [...]ebbv1.Decay{
	sketch.HalfLife: ebbv1.Decay_DECAY_HALF_LIFE,
	sketch.Linear:   ebbv1.Decay_DECAY_LINEAR,
	sketch.None:     ebbv1.Decay_DECAY_NONE,
}

var floorNames = [...]ebbv1.Floor{
	sketch.Prune: ebbv1.Floor_FLOOR_PRUNE,
	sketch.Clamp: ebbv1.Floor_FLOOR_CLAMP,
	sketch.Prior: ebbv1.Floor_FLOOR_PRIOR,
}

// absent answers the listed bins of a missing key.
func absent(q *ebbv1.DistributionQuestion) []*ebbv1.Bin {
	var out []*ebbv1.Bin
	for _, name := range q.GetBins().GetBins() {
		out = append(out, &ebbv1.Bin{Bin: name, PHigh: 1})
	}
	return out
}

// bins selects bins: listed ones as listed, others by count, largest first,
// and by name among equals.
func (t *total) bins(q *ebbv1.DistributionQuestion, r sketch.Reading) ([]*ebbv1.Bin, *proto.Error) {
	var buf [32]sketch.Bin
	switch sel := q.GetSelect().(type) {
	case *ebbv1.DistributionQuestion_Bins:
		return t.listed(sel.Bins.GetBins(), confidence(q), r), nil
	case *ebbv1.DistributionQuestion_Top:
		n := int(min(sel.Top, proto.TopMax))
		bins := r.TopTied(n, buf[:0])
		t.orderTies(bins)
		return t.write(bins[:min(n, len(bins))], confidence(q), r)
	}
	if r.Bins > binsMost {
		return nil, proto.ErrResponseTooLarge.Errorf("%d bins take more than %d bytes: that is the limit of an answer", r.Bins, answerBytesMax).
			WithHint("ask for the top n")
	}
	bins := r.All(buf[:0])
	t.orderTies(bins)
	return t.write(bins, confidence(q), r)
}

func (t *total) listed(names [][]byte, confidence float64, r sketch.Reading) []*ebbv1.Bin {
	out := make([]*ebbv1.Bin, len(names))
	for i, name := range names {
		out[i] = &ebbv1.Bin{Bin: name}
		if bin, ok := t.binNames.binNamed(name); ok {
			out[i].Count, out[i].Hidden = r.Count(bin), r.Hidden(bin)
			out[i].P, out[i].PLow, out[i].PHigh = r.P(bin, confidence)
			continue
		}
		out[i].P, out[i].PLow, out[i].PHigh = r.Interval(0, confidence)
	}
	return out
}

// orderTies puts bins of equal count into the order of their names.
func (t *total) orderTies(bins []sketch.Bin) {
	for i := 0; i < len(bins); {
		end := i + 1
		for end < len(bins) && bins[end].Count == bins[i].Count {
			end++
		}
		if end-i > 1 {
			slices.SortFunc(bins[i:end], func(a, b sketch.Bin) int {
				return bytes.Compare(t.binNames.binName(a.ID), t.binNames.binName(b.ID))
			})
		}
		i = end
	}
}

// write makes the bins of an answer, with a copy of their names: the answer is still used when the state may no longer
// be read.
func (t *total) write(bins []sketch.Bin, confidence float64, r sketch.Reading) ([]*ebbv1.Bin, *proto.Error) {
	const overhead = 2 + 4*9 + 4 // of a bin in a message
	size := 0
	for _, b := range bins {
		size += overhead + len(t.binNames.binName(b.ID))
	}
	if size > answerBytesMax {
		return nil, proto.ErrResponseTooLarge.Errorf("%d bins take %d bytes: the limit of an answer is %d", len(bins), size, answerBytesMax).
			WithHint("ask for the top n")
	}
	out := make([]*ebbv1.Bin, len(bins))
	messages := make([]ebbv1.Bin, len(bins))
	names := make([]byte, 0, size-overhead*len(bins))
	for i, b := range bins {
		at := len(names)
		names = append(names, t.binNames.binName(b.ID)...)
		m := &messages[i]
		m.Bin, m.Count = names[at:len(names):len(names)], b.Count
		m.P, m.PLow, m.PHigh = r.Interval(b.Count, confidence)
		out[i] = m
	}
	return out, nil
}
