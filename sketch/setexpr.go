package sketch

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// SetSampleMax is the most things in the sample of a union.
const SetSampleMax = 1 << 16

// SetOp is the operator of a SetExpr.
type SetOp uint8

// Operators of a SetExpr.
const (
	SetLeaf  SetOp = iota // the set at index Leaf
	SetOr                 // things in any operand
	SetAnd                // things in all operands
	SetMinus              // things in the first operand and in no other
	SetXor                // things in an odd number of operands
	SetLeast              // things in at least Leaf operands
)

// SetExpr is a set computed from others. For decayed sets it applies at each weight: to the plain sets of the things
// that weigh more. So the weight of a thing in a union is its largest weight in any set, and in an intersection its
// least. In a difference it is the excess of its weight in the first set over all others.
type SetExpr struct {
	Op   SetOp
	Leaf int // of SetLeaf an index, of SetLeast a number of operands
	Of   []SetExpr
}

// LeafExpr is the i-th set.
func LeafExpr(i int) SetExpr { return SetExpr{Leaf: i} }

// leaves marks the sets that an expression uses.
func (e *SetExpr) leaves(used []bool) {
	if e.Op == SetLeaf {
		used[e.Leaf] = true
	}
	for i := range e.Of {
		e.Of[i].leaves(used)
	}
}

// check returns ErrParams unless all leaves are below n and every operator except SetOr has operands.
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

// SizesOf estimates how many things each expression has. The sample of an expression is the sample of the union of its
// own leaves. So an expression has one estimate, whatever other expressions are in the query. It does not write.
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

// OverlapOf is Overlap for sets given by expressions.
func OverlapOf(sets []*Set, exprs []SetExpr) (SetsOverlap, error) {
	w, err := plainWalk(sets, overlapExprs(exprs))
	if err != nil {
		return SetsOverlap{}, err
	}
	share, all, both, only := shareOf(w.theta), w.counts[0], w.counts[1], w.counts[2]
	return SetsOverlap{
		Union: estimateOf(all, share), Intersection: estimateOf(both, share),
		Difference: estimateOf(only, share), Jaccard: jaccardOf(both, all, share),
	}, nil
}

// JaccardOf is the Jaccard similarity of two sets given by expressions, from the sample of their own leaves.
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

// overlapExprs are the union, the intersection, and the first expression without the others.
func overlapExprs(exprs []SetExpr) []SetExpr {
	only := SetExpr{Op: SetMinus, Of: exprs}
	if len(exprs) == 0 {
		return nil
	}
	return []SetExpr{{Op: SetOr, Of: exprs}, {Op: SetAnd, Of: exprs}, only}
}

// ownLeaves are the sets that an expression uses, and the expression with indexes into these.
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

// counted is, for each expression, the number of its hashes in a sample.
type counted struct {
	theta  uint64
	counts []int
}

// plainWalk reads the hashes below the least theta of all sets, up to SetSampleMax: a uniform sample of their union.
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
		lists[i] = below(s.settled().hashes, out.theta)
	}
	program := compile(exprs, len(sets))
	for w, all := newWalk(lists), 0; w.next(); all++ {
		if all == SetSampleMax {
			out.theta = w.hash
			break
		}
		for _, i := range w.have {
			program.toggle(i)
		}
		for e := range exprs {
			if program.holds(e) {
				out.counts[e]++
			}
		}
		for _, i := range w.have {
			program.toggle(i)
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

// OverlapOfDecayed is OverlapDecayed for sets given by expressions.
func OverlapOfDecayed(sets []*SetDecayed, exprs []SetExpr, at Tick) (SetsOverlap, error) {
	w, scale, err := decayedWalk(sets, overlapExprs(exprs), at)
	if err != nil {
		return SetsOverlap{}, err
	}
	return SetsOverlap{
		Union: w.estimate(0).times(scale), Intersection: w.estimate(1).times(scale),
		Difference: w.estimate(2).times(scale), Jaccard: w.jaccard(),
	}, nil
}

func (e SetEstimate) times(scale float64) SetEstimate {
	return SetEstimate{Value: float64(e.Value * scale), StdErr: float64(e.StdErr * scale)}
}

// weighed is the weight of each expression in a sample, with its variance, and the covariance of the first two.
type weighed struct {
	tau        float64
	sums       []float64
	variances  []float64
	covariance float64
	things     int
}

// decayedWalk reads a sample of sets at a time. Its second result is the count of a stored unit at that time.
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

// weighSamples reads the things above the largest tau of all sets, at most the SetSampleMax things of the highest
// ranks.
func weighSamples(samples []sample, exprs []SetExpr) weighed {
	n := max(3, len(exprs))
	out := weighed{sums: make([]float64, n), variances: make([]float64, n)}
	tau := sampleTau(samples)
	out.tau = weightOf(tau)
	lists := make([][]uint64, len(samples))
	for i := range samples {
		lists[i] = samples[i].hashes
	}
	l := newLevels(exprs, len(samples))
	for w := newWalk(lists); w.next(); {
		l.begin(w, samples, tau)
		if len(l.order) == 0 {
			continue
		}
		out.things++
		l.add(&out)
	}
	return out
}

// sampleTau is the rank above which things are in the common sample.
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
		for _, i := range w.have {
			rank = max(rank, samples[i].ranks[w.in[i]])
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

// levels is one thing with its weights, the largest first. A thing of weight w above tau stands for max(w, tau), and is
// above with probability w / that. The weight of an expression is a sum of these weights. Each weight is multiplied by
// the change of the expression when its set joins the sets of larger weights. So the sum is without bias. Of two
// weights of one thing, the larger is above tau whenever the smaller is; this gives their covariance.
type levels struct {
	program program
	order   []int // of sets above tau
	weights []float64
	changes [][]float64 // of each expression, in the order of order: -1, 0 or 1
	before  []bool
}

func newLevels(exprs []SetExpr, sets int) *levels {
	return &levels{
		program: compile(exprs, sets), weights: make([]float64, sets), changes: make([][]float64, len(exprs)),
		before: make([]bool, len(exprs)),
	}
}

func (l *levels) begin(w *walk, samples []sample, tau int64) {
	l.order = l.order[:0]
	for _, i := range w.have {
		if at := w.in[i]; samples[i].ranks[at] > tau {
			l.order = append(l.order, i)
			l.weights[i] = samples[i].weights[at]
		}
	}
	slices.SortStableFunc(l.order, func(a, b int) int { return cmp.Compare(l.weights[b], l.weights[a]) })
}

// see computes by how much each expression changes with each set, from the largest weight on.
func (l *levels) see() {
	for e := range l.changes {
		l.changes[e], l.before[e] = l.changes[e][:0], false
	}
	for _, i := range l.order {
		l.program.toggle(i)
		for e := range l.changes {
			now, change := l.program.holds(e), 0.0
			switch {
			case now && !l.before[e]:
				change = 1
			case l.before[e] && !now:
				change = -1
			}
			l.changes[e], l.before[e] = append(l.changes[e], change), now
		}
	}
	for _, i := range l.order {
		l.program.toggle(i)
	}
}

func (l *levels) add(out *weighed) {
	l.see()
	for e, c := range l.changes {
		for at, i := range l.order {
			out.sums[e] += float64(c[at] * max(l.weights[i], out.tau))
		}
		out.variances[e] += l.covariance(c, c, out.tau)
	}
	if len(l.changes) > 1 {
		out.covariance += l.covariance(l.changes[0], l.changes[1], out.tau)
	}
}

// covariance is the covariance of two sums over the weights of a thing. For a larger and a smaller weight, it is what
// the smaller one stands for, times the amount by which the larger one is below tau.
func (l *levels) covariance(a, b []float64, tau float64) (sum float64) {
	larger, other := 0.0, 0.0 // of the larger weights in a and in b
	for x, i := range l.order {
		if a[x] == 0 && b[x] == 0 {
			continue
		}
		unsure := max(0, tau-l.weights[i])
		with := float64(a[x]*other) + float64(b[x]*larger) + float64(float64(a[x]*b[x])*unsure)
		sum += float64(max(l.weights[i], tau) * with)
		larger += float64(a[x] * unsure)
		other += float64(b[x] * unsure)
	}
	return sum
}

func (w *weighed) estimate(e int) SetEstimate {
	if w.things == 0 && w.tau == 0 {
		return SetEstimate{}
	}
	least := 0.0 // a thing that was not found is as uncertain as a thing found once
	if w.tau > 0 {
		least = float64(w.tau * w.tau)
	}
	return SetEstimate{Value: max(w.sums[e], 0), StdErr: math.Sqrt(max(w.variances[e], least))}
}

// jaccard is the weight of the second expression as a part of the first.
func (w *weighed) jaccard() SetEstimate {
	all := w.sums[0]
	switch {
	case all <= 0 && w.tau > 0:
		return unknownShare
	case all <= 0:
		return SetEstimate{}
	}
	j := w.sums[1] / all // the variance is that of both - j all
	variance := w.variances[1] - float64(float64(2*j)*w.covariance) + float64(float64(j*j)*w.variances[0])
	return SetEstimate{Value: min(max(j, 0), 1), StdErr: math.Sqrt(max(variance, float64(w.tau*w.tau))) / all}
}
