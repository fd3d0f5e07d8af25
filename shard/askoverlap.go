package shard

import (
	"math"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

func (f *frame) askOverlap(q *ebbv1.ShardQuestion, ask *ebbv1.OverlapQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	return f.askSets(q, partOverlap, ask.AsOfUs, at, unlimited, func(b body, _ int) body { return nameless(b, math.MaxInt) })
}

// mergeOverlaps compares the sets of all parts. One that no shard has told of leaves nothing to say: without it the others say something else.
func mergeOverlaps(q *ebbv1.OverlapQuestion, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	g, err := gather(partOverlap, answers)
	if err != nil {
		return nil, err
	}
	var sets []namedSet
	for _, key := range q.Keys {
		s, told := g.sets[string(key)]
		if !told {
			return nil, proto.ErrIncomplete.Errorf("no shard has told of key %s, and without it there is no overlap", quote(key)).WithHint("try again")
		}
		sets = append(sets, s)
	}
	out := &ebbv1.Overlap{AsOfUs: int64(g.at), Confidence: sureness(&ebbv1.SummaryQuestion{Confidence: q.Confidence})}
	for i := range sets {
		out.Sets = append(out.Sets, sets[i].sized(q.Confidence))
	}
	list, err := sameForm(sets)
	if err != nil {
		return nil, err
	}
	var o sketch.SetsOverlap
	var failed error
	if len(list.ebbing) > 0 {
		o, failed = sketch.OverlapDecayed(list.ebbing, g.at)
	} else {
		o, failed = sketch.Overlap(list.plain)
	}
	if failed != nil {
		return nil, unmerged("a key", failed)
	}
	out.Union, out.Intersection = estimated(q.Confidence, o.Union), estimated(q.Confidence, o.Intersection)
	out.Difference, out.Jaccard = estimated(q.Confidence, o.Difference), share(q.Confidence, o.Jaccard)
	widenOverlap(out, sets, g.at)
	return &ebbv1.Answer{Value: &ebbv1.Answer_Overlap{Overlap: out}}, nil
}

// share is an estimate of a part of a whole, which is at most 1.
func share(confidence float64, e sketch.SetEstimate) *ebbv1.Estimate {
	out := estimated(confidence, e)
	out.High = min(out.High, 1)
	return out
}
