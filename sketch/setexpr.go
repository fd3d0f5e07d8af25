package sketch

import (
	"fmt"
	"math"
	"slices"
)

// SetSampleMax bounds how many things the sample of a union has.
const SetSampleMax = 1 << 16

// SetOp is how a SetExpr makes a set of others.
type SetOp uint8

// Operators of a SetExpr.
const (
	SetLeaf  SetOp = iota // the set at index Leaf
	SetOr                 // things of any
	SetAnd                // things of all
	SetMinus              // things of the first that are in no other
	SetXor                // things of an odd number of them
	SetLeast              // things of at least Leaf of them
)

// SetExpr is a set made of others. Of decayed sets it is taken level by level: at each weight it is made of the plain sets of those
// things that weigh more. So a thing weighs in a union what it weighs most, in an intersection what it weighs least, and in a difference
// what it weighs more in the first.
type SetExpr struct {
	Op   SetOp
	Leaf int // of SetLeaf an index, of SetLeast a number
	Of   []SetExpr
}

// LeafExpr is the i-th set.
func LeafExpr(i int) SetExpr { return SetExpr{Leaf: i} }

// holds says whether a thing is in the set, given the leaves that have it. No thing is in a set of nothing.
func (e *SetExpr) holds(in []bool) bool {
	switch e.Op {
	case SetLeaf:
		return in[e.Leaf]
	case SetMinus:
		return e.Of[0].holds(in) && !anyHolds(e.Of[1:], in)
	case SetOr:
		return anyHolds(e.Of, in)
	}
	n := 0
	for i := range e.Of {
		if e.Of[i].holds(in) {
			n++
		}
	}
	switch e.Op {
	case SetAnd:
		return n > 0 && n == len(e.Of)
	case SetXor:
		return n%2 == 1
	}
	return n >= max(1, e.Leaf)
}

func anyHolds(of []SetExpr, in []bool) bool {
	return slices.ContainsFunc(of, func(e SetExpr) bool { return e.holds(in) })
}

// leaves marks those that an expression is made of.
func (e *SetExpr) leaves(used []bool) {
	if e.Op == SetLeaf {
		used[e.Leaf] = true
	}
	for i := range e.Of {
		e.Of[i].leaves(used)
	}
}

// check says whether all leaves are below n, and every operator has operands. A union of nothing is empty.
func (e *SetExpr) check(n int) error {
	if e.Op == SetLeaf && (e.Leaf < 0 || e.Leaf >= n) {
		return fmt.Errorf("%w: set expression: leaf %d of %d", ErrParams, e.Leaf, n)
	}
	if e.Op > SetLeast || e.Op != SetLeaf && e.Op != SetOr && len(e.Of) == 0 {
		return fmt.Errorf("%w: set expression: operator %d of %d operands", ErrParams, e.Op, len(e.Of))
	}
	for i := range e.Of {
		if err := e.Of[i].check(n); err != nil {
			return err
		}
	}
	return nil
}

// SizesOf estimates how many things each expression of sets has. The sample of each is that of the union of its own leaves, so that an
// expression has one estimate, whatever else is asked. It does not write.
func SizesOf(sets []*Set, exprs []SetExpr) ([]SetEstimate, error) {
	out := make([]SetEstimate, len(exprs))
	for i := range exprs {
		own, moved := ownLeaves(sets, &exprs[i])
		w, err := plainWalk(own, []SetExpr{moved})
		if err != nil {
			return nil, err
		}
		share := shareOf(w.theta)
		out[i] = estimateOf(w.counts[0], share)
	}
	return out, nil
}

// OverlapOf is Overlap of sets that expressions make of others.
func OverlapOf(sets []*Set, exprs []SetExpr) (SetsOverlap, error) {
	w, err := plainWalk(sets, overlapExprs(exprs))
	if err != nil {
		return SetsOverlap{}, err
	}
	share, all, both, only := shareOf(w.theta), w.counts[0], w.counts[1], w.counts[2]
	return SetsOverlap{
		Union: estimateOf(all, share), Intersection: estimateOf(both, share), Difference: estimateOf(only, share), Jaccard: jaccardOf(both, all, share),
	}, nil
}

// JaccardOf is the Jaccard similarity of two sets that expressions make of others, from the sample of their own leaves.
func JaccardOf(sets []*Set, a, b SetExpr) (SetEstimate, error) {
	own, moved := ownLeaves(sets, &SetExpr{Op: SetOr, Of: []SetExpr{a, b}})
	o, err := OverlapOf(own, moved.Of)
	return o.Jaccard, err
}

// JaccardOfDecayed is JaccardOf for decayed sets, at a time.
func JaccardOfDecayed(sets []*SetDecayed, a, b SetExpr, at Tick) (SetEstimate, error) {
	own, moved := ownLeaves(sets, &SetExpr{Op: SetOr, Of: []SetExpr{a, b}})
	o, err := OverlapOfDecayed(own, moved.Of, at)
	return o.Jaccard, err
}

// overlapExprs are union, intersection, and the first without the others.
func overlapExprs(exprs []SetExpr) []SetExpr {
	only := SetExpr{Op: SetMinus, Of: exprs}
	if len(exprs) == 0 {
		return nil
	}
	return []SetExpr{{Op: SetOr, Of: exprs}, {Op: SetAnd, Of: exprs}, only}
}

// ownLeaves are the sets that an expression is made of, and the expression of these.
func ownLeaves[S any](sets []S, e *SetExpr) ([]S, SetExpr) {
	used := make([]bool, len(sets))
	e.leaves(used)
	at, own := make([]int, len(sets)), []S(nil)
	for i, u := range used {
		if u {
			at[i] = len(own)
			own = append(own, sets[i])
		}
	}
	return own, e.moved(at)
}

func (e *SetExpr) moved(at []int) SetExpr {
	out := SetExpr{Op: e.Op, Leaf: e.Leaf}
	if e.Op == SetLeaf {
		out.Leaf = at[e.Leaf]
	}
	for i := range e.Of {
		out.Of = append(out.Of, e.Of[i].moved(at))
	}
	return out
}

// counted is how many hashes of a sample each expression has.
type counted struct {
	theta  uint64
	counts []int
}

// plainWalk takes the hashes below the least theta of all sets, up to SetSampleMax: a uniform sample of their union.
func plainWalk(sets []*Set, exprs []SetExpr) (counted, error) {
	out := counted{counts: make([]int, max(3, len(exprs)))}
	for i := range exprs {
		if err := exprs[i].check(len(sets)); err != nil {
			return out, err
		}
	}
	for i, s := range sets {
		if err := sets[0].compatible(s); err != nil {
			return out, fmt.Errorf("set %d: %w", i, err)
		}
		out.theta = leastTheta(out.theta, s.theta)
	}
	lists := make([][]uint64, len(sets))
	for i, s := range sets {
		lists[i] = below(s.hashes, out.theta)
	}
	in := make([]bool, len(sets))
	for w, all := newWalk(lists), 0; w.next(); all++ {
		if all == SetSampleMax {
			out.theta = w.hash
			break
		}
		for i, at := range w.in {
			in[i] = at >= 0
		}
		for i := range exprs {
			if exprs[i].holds(in) {
				out.counts[i]++
			}
		}
	}
	return out, nil
}

// SizesOfDecayed is SizesOf for decayed sets, at a time.
func SizesOfDecayed(sets []*SetDecayed, exprs []SetExpr, at Tick) ([]SetEstimate, error) {
	out := make([]SetEstimate, len(exprs))
	for i := range exprs {
		own, moved := ownLeaves(sets, &exprs[i])
		w, scale, err := decayedWalk(own, []SetExpr{moved}, at)
		if err != nil {
			return nil, err
		}
		out[i] = w.estimate(0).times(scale)
	}
	return out, nil
}

// OverlapOfDecayed is OverlapDecayed of sets that expressions make of others.
func OverlapOfDecayed(sets []*SetDecayed, exprs []SetExpr, at Tick) (SetsOverlap, error) {
	w, scale, err := decayedWalk(sets, overlapExprs(exprs), at)
	if err != nil {
		return SetsOverlap{}, err
	}
	return SetsOverlap{
		Union: w.estimate(0).times(scale), Intersection: w.estimate(1).times(scale), Difference: w.estimate(2).times(scale), Jaccard: w.jaccard(),
	}, nil
}

func (e SetEstimate) times(scale float64) SetEstimate {
	return SetEstimate{Value: float64(e.Value * scale), StdErr: float64(e.StdErr * scale)}
}

// weighed is what each expression weighs in a sample, with its variance, and the covariance of the first two.
type weighed struct {
	tau        float64
	sums       []float64
	variances  []float64
	covariance float64
	things     int
}

// decayedWalk reads a sample of sets as seen from a time.
func decayedWalk(sets []*SetDecayed, exprs []SetExpr, at Tick) (weighed, float64, error) {
	for i := range exprs {
		if err := exprs[i].check(len(sets)); err != nil {
			return weighed{}, 0, err
		}
	}
	samples, scale, err := samplesOf(sets, at)
	if err != nil {
		return weighed{}, 0, err
	}
	return weighSamples(samples, exprs), scale, nil
}

// weighSamples takes the things above the largest tau of all sets, at most the SetSampleMax of the highest ranks.
func weighSamples(samples []sample, exprs []SetExpr) weighed {
	n := max(3, len(exprs))
	out := weighed{sums: make([]float64, n), variances: make([]float64, n)}
	tau := sampleTau(samples)
	out.tau = weightOf(tau)
	lists := make([][]uint64, len(samples))
	for i := range samples {
		lists[i] = samples[i].hashes
	}
	l := newLevels(len(samples))
	for w := newWalk(lists); w.next(); {
		l.begin(w.in, samples, tau)
		if len(l.order) == 0 {
			continue
		}
		out.things++
		l.add(exprs, &out)
	}
	return out
}

// sampleTau is the rank above which things are in the sample of all.
func sampleTau(samples []sample) int64 {
	tau, things := int64(noRank), 0
	for i := range samples {
		tau = max(tau, samples[i].tau)
		things += len(samples[i].hashes)
	}
	if things <= SetSampleMax {
		return tau
	}
	var best []int64
	lists := make([][]uint64, len(samples))
	for i := range samples {
		lists[i] = samples[i].hashes
	}
	for w := newWalk(lists); w.next(); {
		rank := int64(noRank)
		for i, at := range w.in {
			if at >= 0 {
				rank = max(rank, samples[i].ranks[at])
			}
		}
		if rank > tau {
			best = append(best, rank)
		}
	}
	if len(best) > SetSampleMax {
		slices.Sort(best)
		tau = best[len(best)-SetSampleMax-1]
	}
	return tau
}

// levels is one thing with its weights, the largest first. A thing of weight w above tau stands for max(w, tau), and is above with
// probability w / that. What an expression weighs is a sum of these weights, each times the change of the expression when the set that has
// it joins those of larger weights: so it is without bias. Of two weights of one thing, the larger is above tau when the smaller is,
// which gives their covariance.
type levels struct {
	order   []int // of sets above tau
	weights []float64
	in      []bool
	change  [2][]float64 // of the first two expressions, as order
	one     []float64
}

func newLevels(sets int) *levels {
	return &levels{weights: make([]float64, sets), in: make([]bool, sets)}
}

func (l *levels) begin(in []int, samples []sample, tau int64) {
	l.order = l.order[:0]
	clear(l.in)
	for i, at := range in {
		if at >= 0 && samples[i].ranks[at] > tau {
			l.order = append(l.order, i)
			l.weights[i] = samples[i].weights[at]
		}
	}
	slices.SortStableFunc(l.order, func(a, b int) int {
		switch {
		case l.weights[a] > l.weights[b]:
			return -1
		case l.weights[a] < l.weights[b]:
			return 1
		}
		return 0
	})
}

// changes appends how much an expression changes with each set, from the largest weight on: -1, 0 or 1.
func (l *levels) changes(e *SetExpr, c []float64) []float64 {
	clear(l.in)
	before := false
	for _, i := range l.order {
		l.in[i] = true
		now := e.holds(l.in)
		switch {
		case now && !before:
			c = append(c, 1)
		case before && !now:
			c = append(c, -1)
		default:
			c = append(c, 0)
		}
		before = now
	}
	return c
}

func (l *levels) add(exprs []SetExpr, out *weighed) {
	for e := range exprs {
		c := l.changes(&exprs[e], l.one[:0])
		l.one = c
		for at, i := range l.order {
			out.sums[e] += float64(c[at] * max(l.weights[i], out.tau))
		}
		out.variances[e] += l.covariance(c, c, out.tau)
		if e < 2 {
			l.change[e] = append(l.change[e][:0], c...)
		}
	}
	if len(exprs) > 1 {
		out.covariance += l.covariance(l.change[0], l.change[1], out.tau)
	}
}

// covariance is that of two sums over the weights of a thing.
func (l *levels) covariance(a, b []float64, tau float64) (sum float64) {
	for x, i := range l.order {
		for y, j := range l.order {
			if a[x] == 0 || b[y] == 0 {
				continue
			}
			large, small := l.weights[i], l.weights[j]
			if small > large {
				large, small = small, large
			}
			// of stands(large) and stands(small), as far as the smaller is above
			c := float64(max(small, tau) * max(0, tau-large))
			sum += float64(float64(a[x]*b[y]) * c)
		}
	}
	return sum
}

func (w *weighed) estimate(e int) SetEstimate {
	if w.things == 0 && w.tau == 0 {
		return SetEstimate{}
	}
	least := 0.0 // what was not found is as uncertain as what was found once
	if w.tau > 0 {
		least = float64(w.tau * w.tau)
	}
	return SetEstimate{Value: max(w.sums[e], 0), StdErr: math.Sqrt(max(w.variances[e], least))}
}

// jaccard is the second expression as a part of the first.
func (w *weighed) jaccard() SetEstimate {
	all := w.sums[0]
	if all <= 0 {
		return SetEstimate{}
	}
	j := w.sums[1] / all // the variance is that of both - j all
	variance := w.variances[1] - float64(float64(2*j)*w.covariance) + float64(float64(j*j)*w.variances[0])
	return SetEstimate{Value: min(max(j, 0), 1), StdErr: math.Sqrt(max(variance, float64(w.tau*w.tau))) / all}
}
