package cluster

import (
	"slices"
	"strconv"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// contains asks whether bins are in summaries, or ids in bitmaps: only the shards know the kind of a key. Bitmaps are
// asked first in namespaces with a dictionary and in those that hold only bitmaps, and for numbers if a key is a
// roll-up. In other cases bitmaps are asked if the bins are numbers and the keys hold no summaries.
func (x *queryExecution) contains(s *ebbv1.PlanSummary, a about) (*queryStage, *proto.Error) {
	ns := x.table.Namespace(a.namespace)
	list, numbers := idsOf(s.GetBins())
	switch {
	case proto.HasDictionary(ns):
		list = &ebbv1.BitmapIds{Names: s.GetBins()}
	case proto.BySlice(ns) && !numbers:
		return nil, proto.ErrBadQuery.Errorf("ids of bitmaps are whole numbers from 0 to 18446744073709551615 in namespace %s", a.namespace).
			WithHint("strings go into a namespace made with --dictionary")
	case proto.BySlice(ns):
	default:
		if numbers && slices.ContainsFunc(a.keys, func(key []byte) bool { return rollup(ns, key) != nil }) {
			break // the bitmap may consist of shorter periods only, which the key itself does not know
		}
		return x.summaryOr(s, a, func() (*queryStage, *proto.Error) {
			switch {
			case !numbers:
				return nil, nil
			case len(a.patterns) > 0:
				return x.bitmapsAlone(s, a, list), nil
			}
			return x.bitmapOr(s, a, list, nil)
		})
	}
	return x.bitmapOr(s, a, list, func() (*queryStage, *proto.Error) {
		if proto.BySlice(ns) {
			return nil, nil
		}
		return x.summaryOr(s, a, nil)
	})
}

// idsOf parses bins as ids; false if one is not a number.
func idsOf(bins [][]byte) (*ebbv1.BitmapIds, bool) {
	list := &ebbv1.BitmapIds{}
	for _, bin := range bins {
		id, err := strconv.ParseUint(string(bin), 10, 64)
		if err != nil {
			return nil, false
		}
		list.Ids = append(list.Ids, id)
	}
	return list, true
}

// summaryOr asks a summary. If the keys are of a kind that cannot answer contains, the stage of other follows, unless
// other is nil.
func (x *queryExecution) summaryOr(s *ebbv1.PlanSummary, a about, other func() (*queryStage, *proto.Error)) (*queryStage, *proto.Error) {
	e := &queryStage{step: "one summary", questions: []*ebbv1.Question{x.summaryQuestion(a, &ebbv1.SummaryQuestion{Bins: s.GetBins()})}}
	if other != nil {
		e.then, e.thenMost = "the same of bitmaps, if there are no summaries", 2
	}
	e.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		if other != nil && answers[0].GetError().GetCode() == ebbv1.Code_CODE_WRONG_KIND {
			if next, err := other(); next != nil || err != nil {
				return next, nil, err
			}
		}
		if err := failed(answers); err != nil {
			return nil, nil, err
		}
		return nil, answers[0], knows(s, a, answers[0].GetSummary())
	}
	return e, nil
}

// bitmapsAlone asks which ids are in any of the bitmaps that patterns match. It refuses patterns that also match keys
// of other kinds, since the answer would lack their contents.
func (x *queryExecution) bitmapsAlone(s *ebbv1.PlanSummary, a about, list *ebbv1.BitmapIds) *queryStage {
	e := &queryStage{step: "keys that match, and bitmaps among them", then: "ids of bitmaps", thenMost: len(a.patterns), whole: true}
	for _, pattern := range a.patterns {
		for _, kind := range []ebbv1.Kind{ebbv1.Kind_KIND_UNSPECIFIED, ebbv1.Kind_KIND_BITMAP} {
			q := &ebbv1.KeysQuestion{Pattern: pattern, Kind: kind, Limit: 1}
			e.questions = append(e.questions, x.keysQuestion(a.namespace, q))
		}
	}
	e.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
		if err := failed(answers); err != nil {
			return nil, nil, err
		}
		for at, pattern := range a.patterns {
			if answers[2*at].GetKeys().GetMatched() > answers[2*at+1].GetKeys().GetMatched() {
				return nil, nil, proto.ErrWrongKind.Errorf("the pattern %q matches bitmaps, and keys of other kinds", pattern).
					WithHint("ask about bitmaps, and about the others, by patterns of their own")
			}
		}
		next, err := x.bitmapOr(s, a, list, nil)
		return next, nil, err
	}
	return e
}

// bitmapOr asks which ids are in any of some bitmaps. If the keys are of another kind, the stage of other follows,
// unless other is nil. The answer has the form of a summary's, and is exact.
func (x *queryExecution) bitmapOr(s *ebbv1.PlanSummary, a about, list *ebbv1.BitmapIds, other func() (*queryStage, *proto.Error)) (*queryStage, *proto.Error) {
	const step = "ids of bitmaps"
	return x.resolved(step, s.GetOf(), func(namespace string, f found, _ *ebbv1.Coverage) (*queryStage, *ebbv1.Answer, *proto.Error) {
		var keys [][]byte
		for _, t := range s.GetOf() {
			keys = append(keys, f.keys(t)...)
		}
		if keys = distinct(keys); len(keys) == 0 { // patterns that match no bitmap
			next, err := x.summaryOr(s, a, nil)
			return next, nil, err
		}
		in, count := bitmapQuestion(namespace, union(keyExprs(keys))), bitmapQuestion(namespace, union(keyExprs(keys)))
		in.GetBitmap().Select = &ebbv1.BitmapQuestion_Contains{Contains: list}
		e := &queryStage{step: step, questions: []*ebbv1.Question{in, count}}
		if other != nil {
			e.then, e.thenMost = "the same of a summary, if there are no bitmaps", 1
		}
		e.fold = func(answers []*ebbv1.Answer) (*queryStage, *ebbv1.Answer, *proto.Error) {
			if other != nil && answers[0].GetError().GetCode() == ebbv1.Code_CODE_WRONG_KIND {
				if next, err := other(); next != nil || err != nil {
					return next, nil, err
				}
			}
			if err := failed(answers); err != nil {
				return nil, nil, err
			}
			return nil, memberships(keys, answers[0], answers[1]), nil
		}
		return e, nil, nil
	})
}

// memberships answers which ids are contained, in the form of a summary's answer.
func memberships(keys [][]byte, in, count *ebbv1.Answer) *ebbv1.Answer {
	n := float64(count.GetBitmap().GetCount())
	out := &ebbv1.Summary{
		Keys: keys, Found: n > 0, AsOfUs: in.GetBitmap().GetAsOfUs(), Confidence: 1, Total: &ebbv1.Estimate{Value: n, Low: n, High: n, Confidence: 1},
	}
	if out.Found {
		out.Kind = ebbv1.Kind_KIND_BITMAP
	}
	for _, contained := range in.GetBitmap().GetContains() {
		out.Memberships = append(out.Memberships, &ebbv1.Membership{Contained: contained})
	}
	return &ebbv1.Answer{Coverage: in.GetCoverage(), Value: &ebbv1.Answer_Summary{Summary: out}}
}
