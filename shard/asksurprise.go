package shard

import (
	"encoding/binary"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// partSurprise is a part of the answer to a SurpriseQuestion:
//
//	surprise  'x'  uvarint(len) distribution part     of the keys in this shard
//	               uvarint(len) distribution part     of those of the baseline
const partSurprise = 'x'

// differencesDefault is how many bins of a difference an answer names when the question gives no number.
const differencesDefault = 10

func (f *frame) askSurprise(q *ebbv1.ShardQuestion, ask *ebbv1.SurpriseQuestion, at sketch.Tick, room int) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, sketch.Tick(ask.AsOfUs), at)
	t, base := total{at: at, binNames: f}, total{at: at, binNames: f}
	if ns != nil {
		t.version, t.params = ns.definition.GetVersion(), *ns.params()
		base.version, base.params = t.version, t.params
		if err := f.tooCostly(q); err != nil {
			return f.unanswered(err)
		}
		fits := func(bins int) bool { return 2*comparisonBytes(bins) <= room }
		if err := f.foldAll(&t, ns, ask.Keys, ask.Patterns, q.Partial, compareCost, fits); err != nil {
			return f.unanswered(err)
		}
		if err := f.foldAll(&base, ns, ask.Against, ask.AgainstPatterns, q.Partial, compareCost, fits); err != nil {
			return f.unanswered(err)
		}
	}
	if q.Partial {
		part := append(appendMatched(nil, proto.QuestionPatterns(q.Question), t.matched, base.matched), partSurprise)
		for _, some := range []*total{&t, &base} {
			raw := some.appendPart(nil, f)
			part = append(binary.AppendUvarint(part, uint64(len(raw))), raw...)
		}
		return f.answerPart(part, at)
	}
	out, err := surprise(ask, &t, &base)
	if err != nil {
		return f.unanswered(err)
	}
	out.Matched, out.AgainstMatched = t.matched, base.matched
	return &ebbv1.ShardAnswer{
		Value:  &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Surprise{Surprise: out}}},
		AsOfUs: int64(at),
	}
}

// surprise compares two totals whose bins have the same ids. It compares all that is left of them, also below the
// threshold.
func surprise(q *ebbv1.SurpriseQuestion, t, base *total) (*ebbv1.Surprise, *proto.Error) {
	out := &ebbv1.Surprise{Keys: q.Keys, Against: q.Against, AsOfUs: int64(t.at), PValue: 1}
	if base.dist == nil || vanished(&base.params, base.dist, base.at) {
		return out, nil
	}
	normal := base.dist.At(&base.params, base.at).Left()
	out.BaselineEffectiveN = normal.EffectiveN
	for _, name := range q.GetBins() {
		bits := normal.Surprise(noBin)
		if bin, ok := t.binNames.binNamed(name); ok {
			bits = normal.Surprise(bin)
		}
		out.SurpriseBits = append(out.SurpriseBits, bits)
	}
	if t.dist == nil || vanished(&t.params, t.dist, t.at) {
		return out, nil
	}
	r := t.dist.At(&t.params, t.at).Left()
	c := sketch.Compare(r, normal)
	out.Found = true
	out.EffectiveN, out.JensenShannonBits, out.G, out.Freedom, out.PValue = r.EffectiveN, c.JensenShannon, c.G, uint32(c.Freedom), c.P
	out.POfSingleBin, out.OtherP, out.BaselineOtherP = c.Single, c.Other, c.BaselineOther
	if !number(out.EffectiveN) || !number(out.BaselineEffectiveN) || !number(out.JensenShannonBits) || !number(out.G) ||
		!number(out.OtherP) || !number(out.BaselineOtherP) {
		return nil, proto.ErrCorrupt.Errorf("the parts of an answer add up to no finite number")
	}
	top := int(q.GetTop())
	if top == 0 {
		top = differencesDefault
	}
	size := 0
	for _, b := range c.Bins[:min(top, len(c.Bins))] {
		const overhead = 2 + 4*9 + 4 // of a bin in a message
		if size += overhead + len(t.binNames.binName(b.ID)); size > answerBytesMax {
			return nil, proto.ErrResponseTooLarge.Errorf("%d bins of a difference take more than %d bytes, the limit of an answer", top, answerBytesMax).
				WithHint("ask for fewer")
		}
		out.Bins = append(out.Bins, &ebbv1.SurprisingBin{
			Bin: append([]byte(nil), t.binNames.binName(b.ID)...), P: b.P, BaselineP: b.Baseline, LiftBits: b.Lift, ShareBits: b.Share,
		})
	}
	return out, nil
}

// noBin is an id that no bin has.
const noBin = ^uint32(0)

func mergeSurprises(q *ebbv1.SurpriseQuestion, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	var sides [2][]*distributionPart
	for i, a := range answers {
		r := reader{rest: a.GetPart()}
		kind := r.byte()
		for side := range sides {
			p, ok := decodeDistributionPart(r.bytes())
			if !ok || kind != partSurprise {
				return nil, errPart(i)
			}
			p.latest(a)
			sides[side] = append(sides[side], p)
		}
		if r.bad || len(r.rest) > 0 {
			return nil, errPart(i)
		}
	}
	names := &mergedBinNames{ids: map[string]uint32{}}
	t, err := foldParts(sides[0], names)
	if err != nil {
		return nil, err
	}
	base, err := foldParts(sides[1], names)
	if err != nil {
		return nil, err
	}
	out, err := surprise(q, t, base)
	if err != nil {
		return nil, err
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Surprise{Surprise: out}}, nil
}
