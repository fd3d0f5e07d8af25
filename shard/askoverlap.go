package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

func (f *frame) askOverlap(q *ebbv1.ShardQuestion, ask *ebbv1.OverlapQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	small := func(b body, of int) body { return nameless(b, overlapThings(b, of)) }
	return f.askSets(q, partOverlap, ask.AsOfUs, at, unlimited, small)
}

// overlapThings is how many members of a set fit into a part, where a shard has so many sets. The node that compares
// the sets gets that many, or all if there are fewer.
func overlapThings(b body, of int) int {
	bytes := overlapBytes / max(of, 1)
	if _, plain := b.(*set); plain {
		return max(sketch.SetKMin, (bytes-setSignature-setHead)/8)
	}
	return max(sketch.SetKMin, (bytes-setHead)/thingBytes)
}

const (
	// overlapBytes is how many bytes the sets of one part take together.
	overlapBytes = answerBytesMax - answerBytesMax/16
	// setHead is what a set takes in a part in addition to its members: its name and its parameters.
	setHead = proto.KeyLenMax + 128
)

// mergeOverlaps compares the sets of all parts. If no part has one of the sets, there is no answer: without it the
// other sets would give another result.
func mergeOverlaps(q *ebbv1.OverlapQuestion, answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	g, err := gather(partOverlap, answers)
	if err != nil {
		return nil, err
	}
	keys := proto.OverlapKeys(q)
	var sets []namedSet
	for _, key := range keys {
		s, told := g.sets[string(key)]
		if !told {
			return nil, proto.ErrIncomplete.Errorf("no shard has told of key %s, and without it there is no overlap", quote(key)).WithHint("try again")
		}
		sets = append(sets, s)
	}
	list, err := sameForm(sets)
	if err != nil {
		return nil, err
	}
	exprs := overlapExprs(q, keys)
	if steps := list.steps(exprs, q.GetFirst()); steps > overlapStepsMax {
		return nil, proto.ErrQueryTooCostly.Errorf(
			"to compare the sets takes %d million steps, about: the limit is %d million",
			steps>>20, overlapStepsMax>>20).
			WithHint("compare fewer sets, or ones that are made of fewer")
	}
	var failed error
	out := &ebbv1.Overlap{AsOfUs: int64(g.at), Confidence: sureness(&ebbv1.SummaryQuestion{Confidence: q.Confidence})}
	for i := range q.GetKeys() {
		out.Sets = append(out.Sets, sets[i].sized(q.Confidence))
	}
	if len(q.GetOf()) > 0 {
		if out.Sets, failed = list.sized(sets, exprs, g.at, q.Confidence); failed != nil {
			return nil, unmerged("a key", failed)
		}
	}
	if q.GetFirst() {
		out.Similar, failed = list.similar(exprs, g.at, q.Confidence)
	} else {
		failed = list.compare(out, exprs, g.at, q.Confidence)
	}
	if failed != nil {
		return nil, unmerged("a key", failed)
	}
	widenOverlap(out, exprs, sets, g.at)
	return &ebbv1.Answer{Value: &ebbv1.Answer_Overlap{Overlap: out}}, nil
}

// overlapStepsMax bounds the steps that it takes to compare sets. A step takes some 10 ns, so they take seconds.
const overlapStepsMax = 1 << 28

// steps is about how many steps it takes to compare sets: each member of each set, as often as expressions name the
// set, times its depth there.
func (a *alike) steps(exprs []sketch.SetExpr, first bool) int {
	own, all := make([]int, len(exprs)), 0
	for i := range exprs {
		own[i] = a.stepsOf(&exprs[i], 1)
		if exprs[i].Op != sketch.SetLeaf {
			all += own[i] // for its size
		}
	}
	for i, n := range own {
		if first && i > 0 {
			n += own[0]
		}
		all += n
	}
	return all
}

func (a *alike) stepsOf(e *sketch.SetExpr, depth int) (n int) {
	if e.Op == sketch.SetLeaf {
		return depth * a.len(e.Leaf)
	}
	for i := range e.Of {
		n += a.stepsOf(&e.Of[i], depth+1)
	}
	return n
}

func (a *alike) len(i int) int {
	switch {
	case len(a.ebbing) > 0:
		return a.ebbing[i].Len()
	case len(a.plain) > 0:
		return a.plain[i].Len()
	}
	return 0
}

// compare fills in what all sets have in common.
func (a *alike) compare(out *ebbv1.Overlap, exprs []sketch.SetExpr, at sketch.Tick, confidence float64) error {
	o, err := a.overlap(exprs, at)
	if err != nil {
		return err
	}
	out.Union, out.Intersection = estimated(confidence, o.Union), estimated(confidence, o.Intersection)
	out.Difference, out.Jaccard = estimated(confidence, o.Difference), share(confidence, o.Jaccard)
	return nil
}

// similar returns how similar the first set is to each of the others.
func (a *alike) similar(exprs []sketch.SetExpr, at sketch.Tick, confidence float64) (out []*ebbv1.Estimate, err error) {
	for i := 1; i < len(exprs); i++ {
		var j sketch.SetEstimate
		if len(a.ebbing) > 0 {
			j, err = sketch.JaccardOfDecayed(a.ebbing, exprs[0], exprs[i], at)
		} else if len(a.plain) > 0 {
			j, err = sketch.JaccardOf(a.plain, exprs[0], exprs[i])
		}
		if err != nil {
			return nil, err
		}
		out = append(out, share(confidence, j))
	}
	return out, nil
}

// overlapExprs are the sets of a question, as expressions over its keys.
func overlapExprs(q *ebbv1.OverlapQuestion, keys [][]byte) []sketch.SetExpr {
	at := make(map[string]int, len(keys))
	for i, key := range keys {
		at[string(key)] = i
	}
	var out []sketch.SetExpr
	for i := range q.GetKeys() {
		out = append(out, sketch.LeafExpr(i))
	}
	for _, x := range q.GetOf() {
		out = append(out, setExpr(x, at))
	}
	return out
}

// setExpr converts an expression that proto.CheckQuestion has checked. One without operands is empty.
func setExpr(x *ebbv1.BitmapExpr, at map[string]int) sketch.SetExpr {
	out := sketch.SetExpr{Op: sketch.SetOr}
	switch e := x.GetExpr().(type) {
	case *ebbv1.BitmapExpr_Key:
		return sketch.LeafExpr(at[string(e.Key)])
	case *ebbv1.BitmapExpr_And:
		out.Op = sketch.SetAnd
	case *ebbv1.BitmapExpr_AndNot:
		out.Op = sketch.SetMinus
	case *ebbv1.BitmapExpr_Xor:
		out.Op = sketch.SetXor
	case *ebbv1.BitmapExpr_AtLeast:
		out.Op, out.Leaf = sketch.SetLeast, int(e.AtLeast.GetTimes())
	}
	for _, term := range proto.ExprTerms(x) {
		out.Of = append(out.Of, setExpr(term, at))
	}
	return out
}

func (a *alike) overlap(exprs []sketch.SetExpr, at sketch.Tick) (sketch.SetsOverlap, error) {
	if len(a.ebbing) > 0 {
		return sketch.OverlapOfDecayed(a.ebbing, exprs, at)
	}
	if len(a.plain) == 0 { // there are no sets
		return sketch.SetsOverlap{}, nil
	}
	return sketch.OverlapOf(a.plain, exprs)
}

// sized returns the sets of exprs with their sizes, as an answer has them: a key with its name, an expression without.
func (a *alike) sized(
	sets []namedSet, exprs []sketch.SetExpr, at sketch.Tick, confidence float64,
) (out []*ebbv1.SizedSet, err error) {
	sizes := make([]sketch.SetEstimate, len(exprs))
	switch {
	case len(a.ebbing) > 0:
		sizes, err = sketch.SizesOfDecayed(a.ebbing, exprs, at)
	case len(a.plain) > 0:
		sizes, err = sketch.SizesOf(a.plain, exprs)
	}
	if err != nil {
		return nil, err
	}
	for i := range exprs {
		if exprs[i].Op == sketch.SetLeaf {
			out = append(out, sets[exprs[i].Leaf].sized(confidence))
			continue
		}
		out = append(out, &ebbv1.SizedSet{Found: exprFound(&exprs[i], sets), Size: estimated(confidence, sizes[i])})
	}
	return out, nil
}

// exprFound says whether any of the sets in an expression exists.
func exprFound(e *sketch.SetExpr, sets []namedSet) bool {
	if e.Op == sketch.SetLeaf {
		return sets[e.Leaf].body != nil
	}
	for i := range e.Of {
		if exprFound(&e.Of[i], sets) {
			return true
		}
	}
	return false
}

// share returns the estimate of a part of a whole, which is at most 1.
func share(confidence float64, e sketch.SetEstimate) *ebbv1.Estimate {
	out := estimated(confidence, e)
	if e.StdErr > 0 {
		out.Low, out.High = e.ShareInterval(out.Confidence)
	}
	return out
}
