package shard

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// partSummary is a part of the answer to a SummaryQuestion:
//
//	summary   's'  uvarint(at) form             form 0: nothing found, and no more
//	               body
//	          'S'  missed ...                   as above, after a double: see union
const (
	partSummary       = 's'
	partSummaryMissed = 'S'
)

func (f *frame) askSummary(q *ebbv1.ShardQuestion, ask *ebbv1.SummaryQuestion, at sketch.Tick, room int) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, sketch.Tick(ask.AsOfUs), at)
	if err := f.tooCostly(q); err != nil {
		return f.unanswered(err)
	}
	sum := summaryMerger{
		at: at, alone: len(ask.Keys) == 1 && len(ask.Patterns) == 0 && !q.Partial, names: namesOf(ask),
		merges: q.Partial && f.behaviour < BehaviourSets,
	}
	if ns != nil {
		for _, name := range proto.DistinctKeys(ask.Keys) {
			if err := f.addKey(&sum, ns, name); err != nil {
				return f.unanswered(err)
			}
		}
		if err := f.addMatching(&sum, ns, ask.Keys, ask.Patterns, func(held int) bool { return summaryBytes(ask, held) <= room }); err != nil {
			return f.unanswered(err)
		}
	}
	if q.Partial {
		return f.answerPart(sum.appendPart(appendMatched(nil, ask.Patterns, sum.matched)), at)
	}
	out, err := sum.answer(ask)
	if err != nil {
		return f.unanswered(err)
	}
	out.Matched = sum.matched
	return &ebbv1.ShardAnswer{
		Value:  &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Summary{Summary: out}}},
		AsOfUs: int64(at),
	}
}

func (f *frame) addKey(u *summaryMerger, ns *namespace, name []byte) *proto.Error {
	key, ok := f.findKey(ns, name)
	if !ok || !f.alive(ns, key, u.at) {
		u.missed += lostBodies(ns.params(), u.at)
		return nil
	}
	return f.addSlot(u, key)
}

// addSlot adds a key that is alive.
func (f *frame) addSlot(u *summaryMerger, key uint32) *proto.Error {
	name, sum := f.keys.bytesOf(key), f.summary(key)
	switch {
	case sum.body == nil:
		return otherKind(name, ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_UNSPECIFIED)
	case sum.kind() == ebbv1.Kind_KIND_BITMAP && (u.body != nil || !u.alone):
		return otherKind(name, sum.kind(), ebbv1.Kind_KIND_UNSPECIFIED)
	case u.body != nil && u.body.form().kind() != sum.kind():
		return otherKind(name, sum.kind(), u.body.form().kind())
	}
	if err := u.add(sum.body); err != nil {
		return unmerged("key "+quote(name), err)
	}
	return nil
}

// summaryMerger merges bodies, over keys of a shard and then over shards.
type summaryMerger struct {
	at    sketch.Tick
	body  body // nil: nothing found
	owned bool // body is our own, and not a key's
	alone bool // no other key is asked about
	names int  // how many members of a set are asked for

	merges bool // sets that forget are merged: an old build that asks could not read a larger union

	// the union of the set in body and of others; nil while there are none
	sets    *sketch.SetUnion
	decayed *sketch.SetDecayedUnion

	matched uint64  // how many keys the patterns found
	missed  float64 // what missing keys that were named may have held; see sketch.Params.LostAtBirth
}

// add merges a body, and does not change that body.
func (u *summaryMerger) add(b body) error {
	if u.body == nil {
		u.body = b
		return nil
	}
	if of, err := u.addSet(b); of {
		return err
	}
	if !u.owned {
		u.body, u.owned = u.body.clone(), true
	}
	if both, ok, err := mergeWindows(u.body, b); ok {
		if err == nil {
			u.body = both
		}
		return err
	}
	return u.body.merge(b)
}

// answer evaluates the union. It refuses a question for something that the kind does not know.
func (u *summaryMerger) answer(q *ebbv1.SummaryQuestion) (*ebbv1.Summary, *proto.Error) {
	out := &ebbv1.Summary{Keys: q.Keys, AsOfUs: int64(u.at), Confidence: sureness(q)}
	if u.body == nil {
		out.Total = upTo(0, u.missed)
		for range q.GetBins() {
			out.Bins = append(out.Bins, upTo(0, u.missed))
			out.Memberships = append(out.Memberships, &ebbv1.Membership{})
		}
		return out, nil
	}
	out.Found, out.Kind = true, u.body.form().kind()
	body := u.merged()
	if what := unknownTo(out.Kind, q); what != "" {
		err := proto.ErrWrongKind.Errorf("key %s is a %s, which knows no %s", quote(slices.Concat(q.Keys, q.Patterns)[0]), proto.KindName(out.Kind), what)
		if out.Kind == ebbv1.Kind_KIND_BITMAP {
			return nil, err.WithHint(`of a bitmap, count(a) and ids(a) are asked, and with a whole number contains(a, "42"); ebb bits --help has more`)
		}
		return nil, err
	}
	if err := checkWindow(body, q); err != nil {
		return nil, err
	}
	if values, spread := body.(*quantile); spread && halving(body) {
		values.answerWithout(q, u.at, u.missed, out) // how far missing values move a quantile depends on the others
		return out, nil
	}
	body.answer(q, u.at, out)
	if halving(body) {
		u.widen(out)
	}
	return out, nil
}

// unknownTo names what a question asks for and a kind does not know; "" if there is nothing.
func unknownTo(kind ebbv1.Kind, q *ebbv1.SummaryQuestion) string {
	switch {
	case len(q.GetBins()) > 0 && kind != ebbv1.Kind_KIND_COUNTMIN && kind != ebbv1.Kind_KIND_TOPK && kind != ebbv1.Kind_KIND_BLOOM:
		return "counts of bins"
	case len(q.GetQuantiles()) > 0 && kind != ebbv1.Kind_KIND_QUANTILE:
		return "quantiles"
	case q.GetTop() > 0 && kind != ebbv1.Kind_KIND_TOPK:
		return "bins by name"
	case q.GetMembers() && kind != ebbv1.Kind_KIND_LINEAR && kind != ebbv1.Kind_KIND_SET && kind != ebbv1.Kind_KIND_PHRASES:
		return "members"
	}
	return ""
}

// widen adds to an answer what missing keys may have held.
func (u *summaryMerger) widen(out *ebbv1.Summary) {
	wider(out.Total, u.missed)
	for _, e := range out.Bins {
		wider(e, u.missed)
	}
	for _, item := range out.Items {
		wider(item.Count, u.missed)
	}
}

func (u *summaryMerger) appendPart(b []byte) []byte {
	if u.missed > 0 {
		b = binary.LittleEndian.AppendUint64(append(b, partSummaryMissed), math.Float64bits(u.missed))
	} else {
		b = append(b, partSummary)
	}
	b = binary.AppendUvarint(b, uint64(u.at))
	if u.body == nil {
		return append(b, byte(formDistribution))
	}
	merged := u.merged()
	if s, is := merged.(*set); is {
		merged = &set{s.Named(namesAtLeast(u.names, s))}
	}
	return merged.appendBinary(append(b, byte(u.body.form())))
}

// decodeBody reads what appendBinary wrote; nothing may follow.
func decodeBody(f form, raw []byte) (body, bool) { return decodeBodyWithin(f, raw, math.MaxInt) }

// decodeBodyWithin is decodeBody, and also refuses a body whose sparsely encoded parts take more memory than room, in
// bytes: see sparse.
func decodeBodyWithin(f form, raw []byte, room int) (body, bool) {
	make, known := forms[f]
	if !known {
		return nil, false
	}
	b := make()
	decode := b.decode
	if s, ok := b.(sparse); ok {
		decode = func(raw []byte) ([]byte, error) { return s.decodeWithin(raw, room) }
	}
	rest, err := decode(raw)
	return b, err == nil && len(rest) == 0
}

func decodeSummaryPart(raw []byte) (*summaryMerger, bool) {
	r := reader{rest: raw}
	kind, u := r.byte(), new(summaryMerger)
	if kind == partSummaryMissed {
		u.missed = r.float()
		r.bad = r.bad || !(u.missed > 0 && u.missed <= math.MaxFloat64)
	}
	u.at = sketch.Tick(r.uvarint())
	f := form(r.byte())
	if r.bad || kind != partSummary && kind != partSummaryMissed || u.at < 0 || u.at > clockMax {
		return nil, false
	}
	if f == formDistribution {
		return u, len(r.rest) == 0
	}
	ok := false
	u.body, ok = decodeBody(f, r.rest)
	u.owned = true
	return u, ok
}

// mergeSummaries folds parts in the order of shards. The answer is as of the latest of their times.
func mergeSummaries(q *ebbv1.SummaryQuestion, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	sum := summaryMerger{names: namesOf(q)}
	for i, a := range answers {
		p, ok := decodeSummaryPart(a.GetPart())
		if !ok {
			return nil, errPart(i)
		}
		sum.at = max(sum.at, p.at)
		sum.missed += p.missed
		if p.body == nil {
			continue
		}
		if sum.body != nil && sum.body.form().kind() != p.body.form().kind() {
			return nil, proto.ErrWrongKind.Errorf("the keys are of different kinds: %s and %s",
				proto.KindName(sum.body.form().kind()), proto.KindName(p.body.form().kind())).WithHint("name keys of one kind")
		}
		if err := sum.add(p.body); err != nil {
			return nil, unmerged("a key", err)
		}
	}
	out, err := sum.answer(q)
	if err != nil {
		return nil, err
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Summary{Summary: out}}, nil
}
