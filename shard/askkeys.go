package shard

import (
	"bytes"
	"cmp"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// partKeys is a part of the answer to a KeysQuestion: as many keys as it asks for at most, in its order.
//
//	keys   'k'  KeyList, serialised
const partKeys = 'k'

// listCost is the cost to look through all names, and to read the totals if keys are listed by total.
func (f *frame) listCost(q *ebbv1.KeysQuestion) int {
	cost := f.matchCost()
	if q.GetOrder() != ebbv1.KeyOrder_KEY_ORDER_TOTAL || cost > 1<<17 {
		return cost // large enough to be answered on a view
	}
	for key := range f.summaries.keys.all {
		cost += f.totalCost(key)
	}
	return cost
}

// totalCost is the cost to read what a key holds.
func (f *frame) totalCost(key uint32) int {
	sum := f.summary(key)
	if sum.body == nil {
		return 1 + sum.dist.Len()
	}
	return bodyCost + mergedBytes(sum.body)/bytesPerCost
}

// candidate is a key that may be among the first.
type candidate struct {
	key   uint32
	score float64
}

// shortlist keeps the first n keys in the order of a question.
type shortlist struct {
	f     *frame
	n     int
	found []candidate
}

// add adds a key. From time to time it drops those that are not among the first.
func (l *shortlist) add(c candidate) {
	if l.found = append(l.found, c); len(l.found) >= 2*l.n+64 {
		l.cut()
	}
}

func (l *shortlist) cut() {
	slices.SortFunc(l.found, func(a, b candidate) int {
		return cmp.Or(-cmp.Compare(a.score, b.score), bytes.Compare(l.f.keys.bytesOf(a.key), l.f.keys.bytesOf(b.key)))
	})
	l.found = l.found[:min(l.n, len(l.found))]
}

func listLimit(q *ebbv1.KeysQuestion) int { return int(cmp.Or(q.GetLimit(), proto.KeysListDefault)) }

func (f *frame) askKeys(q *ebbv1.ShardQuestion, ask *ebbv1.KeysQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, sketch.Tick(ask.AsOfUs), at)
	out := &ebbv1.KeyList{AsOfUs: int64(at)}
	if ns != nil {
		if err := f.list(out, ns, ask, at); err != nil {
			return f.unanswered(err)
		}
	}
	if q.Partial {
		return f.answerPart(appendKeys(out), at)
	}
	return &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Keys{Keys: out}}}, AsOfUs: int64(at)}
}

func appendKeys(list *ebbv1.KeyList) []byte {
	part, err := pb.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{partKeys}, list)
	if err != nil {
		panic("shard: " + err.Error()) // a message without strings or required fields always serialises
	}
	return part
}

func (f *frame) list(out *ebbv1.KeyList, ns *namespace, q *ebbv1.KeysQuestion, at sketch.Tick) *proto.Error {
	text := q.GetPattern()
	if len(text) == 0 {
		text = []byte("**")
	}
	first, cost := shortlist{f: f, n: listLimit(q)}, 0
	err := f.matching(ns, compilePatterns([][]byte{text}), at, func(key uint32) *proto.Error {
		sum := f.summary(key)
		if q.GetKind() != 0 && sum.kind() != q.GetKind() || len(q.GetAfter()) > 0 && bytes.Compare(f.keys.bytesOf(key), q.GetAfter()) <= 0 {
			return nil
		}
		out.Matched++
		c := candidate{key: key}
		switch q.GetOrder() {
		case ebbv1.KeyOrder_KEY_ORDER_TOTAL:
			cost += f.totalCost(key)
			if err := f.overCost(cost); err != nil {
				return err
			}
			c.score = f.info(ns, key, at).GetTotal().GetValue()
		case ebbv1.KeyOrder_KEY_ORDER_RECENT:
			c.score = float64(sum.last())
		}
		first.add(c)
		return nil
	})
	if err != nil {
		return err
	}
	first.cut()
	for _, c := range first.found {
		out.Keys = append(out.Keys, f.info(ns, c.key, at))
	}
	return nil
}

// last is the time of the latest event, 0 if it is not known.
func (sum *summary) last() sketch.Tick {
	if sum.body != nil {
		return sum.body.last()
	}
	return sum.dist.Last()
}

// info returns what is known of a key that was found.
func (f *frame) info(ns *namespace, key uint32, at sketch.Tick) *ebbv1.KeyInfo {
	sum, p := f.summary(key), ns.params()
	info := &ebbv1.KeyInfo{
		Key: bytes.Clone(f.keys.bytesOf(key)), Kind: sum.kind(), LastEventUs: int64(sum.last()),
		ExpiresUs: int64(f.expiries.at(key)), Shard: uint32(f.id),
	}
	if sum.body != nil {
		var s ebbv1.Summary
		sum.body.answer(&ebbv1.SummaryQuestion{}, at, &s)
		if !proto.BySlice(ns.definition) { // else its ids are elsewhere
			info.Total = s.Total
		}
		info.FadesUs = never(deathOf(sum.body, p))
		if halving(sum.body) {
			info.HalfLifeUs = int64(halfLifeOf(sum.body))
		}
		return info
	}
	own := f.counted(ns, key)
	d := f.present(ns, &own, at)
	if d == nil {
		d = new(sketch.Distribution)
	}
	r := d.At(p, at)
	info.Total, info.Bins = upTo(r.Z, r.Lost), uint32(d.Len())
	info.FadesUs = never(f.fades(ns, info.Key, d.Death(p), at))
	if f.isSlow(ns, key) {
		info.Bins = uint32(sum.dist.Len())
	}
	if p.AllowNegative {
		info.Total.Low -= r.Lost
	}
	if p.Decay == sketch.HalfLife {
		info.HalfLifeUs = int64(p.HalfLife)
	}
	return info
}

// never converts a time, MaxTick to 0.
func never(t sketch.Tick) int64 {
	if t == sketch.MaxTick {
		return 0
	}
	return int64(t)
}

// mergeKeys returns the first keys of all shards. Totals of shards that were evaluated at different times, as under an
// event clock, fade to the latest of these times.
func mergeKeys(q *ebbv1.KeysQuestion, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	out := &ebbv1.KeyList{}
	lists := make([]*ebbv1.KeyList, len(answers))
	for i, a := range answers {
		list := new(ebbv1.KeyList)
		if raw, ok := bytes.CutPrefix(a.GetPart(), []byte{partKeys}); !ok || pb.Unmarshal(raw, list) != nil || !validList(list) {
			return nil, errPart(i)
		}
		lists[i] = list
		out.Matched += list.Matched
		out.AsOfUs = max(out.AsOfUs, list.AsOfUs)
	}
	for _, list := range lists {
		for _, info := range list.Keys {
			fade(info, out.AsOfUs-list.AsOfUs)
		}
		out.Keys = append(out.Keys, list.Keys...)
	}
	slices.SortFunc(out.Keys, func(a, b *ebbv1.KeyInfo) int {
		by := 0
		switch q.GetOrder() {
		case ebbv1.KeyOrder_KEY_ORDER_TOTAL:
			by = -cmp.Compare(a.GetTotal().GetValue(), b.GetTotal().GetValue())
		case ebbv1.KeyOrder_KEY_ORDER_RECENT:
			by = -cmp.Compare(a.GetLastEventUs(), b.GetLastEventUs())
		}
		return cmp.Or(by, bytes.Compare(a.Key, b.Key))
	})
	out.Keys = out.Keys[:min(len(out.Keys), listLimit(q))]
	return &ebbv1.Answer{Value: &ebbv1.Answer_Keys{Keys: out}}, nil
}

// validList reports whether a list from elsewhere has valid keys and finite numbers.
func validList(list *ebbv1.KeyList) bool {
	return list.AsOfUs >= 0 && list.AsOfUs <= int64(clockMax) && !slices.ContainsFunc(list.Keys, func(info *ebbv1.KeyInfo) bool {
		t := info.GetTotal()
		return proto.CheckKey(info.GetKey()) != nil || info.GetHalfLifeUs() < 0 ||
			!number(t.GetValue()) || !number(t.GetStdError()) || !number(t.GetLow()) || !number(t.GetHigh())
	})
}

func fade(info *ebbv1.KeyInfo, age int64) {
	if age == 0 || info.GetHalfLifeUs() == 0 || info.GetTotal() == nil {
		return
	}
	left := sketch.Weight(sketch.Tick(-age), 0, sketch.Tick(info.HalfLifeUs))
	t := info.Total
	t.Value, t.StdError, t.Low, t.High = t.Value*left, t.StdError*left, t.Low*left, t.High*left
}

// describeCost is the cost to read the one key that a question names.
func (f *frame) describeCost(q *ebbv1.Question) int {
	cost := 0
	if ns := f.lookup([]byte(q.GetNamespace())); ns != nil {
		for _, name := range proto.QuestionKeys(q) {
			if slow := f.slowOf(ns); slow != nil && q.GetExport().GetBoth() { // an image with both counts has it too
				if other, ok := f.findKey(slow, name); ok {
					cost += describeBin * f.totalCost(other)
				}
			}
			if key, ok := f.findKey(ns, name); ok {
				cost += describeBin * f.totalCost(key)
				if r := f.summaries.record(key); r.form() == recordBitmap {
					cost += int(r.bitmap().leaves) * leafSlices
				}
			}
		}
	}
	return cost
}

// describeBin is the cost to serialise a bin, in bins read.
const describeBin = 16

func (f *frame) askDescribe(q *ebbv1.ShardQuestion, ask *ebbv1.DescribeQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, sketch.Tick(ask.AsOfUs), at)
	out := &ebbv1.KeyDescription{Key: &ebbv1.KeyInfo{Key: ask.Key, Shard: uint32(f.id)}, AsOfUs: int64(at)}
	if ns != nil {
		if key, ok := f.there(ns, ask.Key, at); ok {
			f.describe(out, ns, key, at)
		}
	}
	return &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Describe{Describe: out}}}, AsOfUs: int64(at)}
}

func (f *frame) describe(out *ebbv1.KeyDescription, ns *namespace, key uint32, at sketch.Tick) {
	sum, p := f.counted(ns, key), ns.params()
	out.Found, out.Key, out.Clock = true, f.info(ns, key, at), ns.definition.GetClock()
	out.Decay = decayNames[p.Decay]
	if p.Decay != sketch.None {
		out.HalfLifeUs = int64(p.HalfLife)
	}
	if proto.BySlice(ns.definition) {
		return // sizes and accuracy depend on all shards
	}
	out.MemoryBytes = uint64(f.memoryOf(ns, key))
	if sum.body == nil {
		out.Bytes = uint64(len(sum.dist.AppendBinary(nil)))
		out.Properties, out.Accuracy = distributionProperties(p), f.countsAccuracy(ns, &sum, at)
		return
	}
	if v := sum.bitmap(); v != nil {
		out.Bytes = uint64(v.size()) // an encoded bitmap may be too long
	} else {
		out.Bytes = uint64(len(sum.body.appendBinary(nil)))
	}
	out.HalfLifeUs = int64(halfLifeOf(sum.body))
	if out.HalfLifeUs == 0 {
		out.Decay = ebbv1.Decay_DECAY_NONE
	}
	out.Properties, out.Accuracy = properties(sum.body, at)
}
