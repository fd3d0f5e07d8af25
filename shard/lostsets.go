package shard

import (
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// widenOverlap adds to the intervals of an overlap what the sets may have lost, because earlier sets of their keys had died.
func widenOverlap(out *ebbv1.Overlap, exprs []sketch.SetExpr, sets []namedSet, at sketch.Tick) {
	lost, first := 0.0, 0.0
	for i, x := range exprs {
		one, grows := lostOf(x, sets, at)
		widenBy(out.Sets[i].Size, one, grows)
		lost += one
		if i == 0 {
			first = one
			continue
		}
		if j := i - 1; j < len(out.Similar) {
			// the union of the two has at least as many as the larger one
			widenShare(out.Similar[j], first+one, max(out.Sets[0].Size.GetValue(), out.Sets[i].Size.GetValue()))
		}
	}
	if lost == 0 || out.Union == nil {
		return
	}
	grow := true
	for _, x := range exprs {
		if _, grows := lostOf(x, sets, at); !grows {
			grow = false
		}
	}
	union := out.Union.GetValue()
	widenBy(out.Union, lost, grow)
	widenBy(out.Intersection, lost, grow)
	widenBy(out.Difference, lost, false)
	widenShare(out.Jaccard, lost, union)
}

// lostOf is how much may be missing from the sets of an expression. grows says that its size can only be larger with that:
// else things that a set lacks may have been taken away.
func lostOf(x sketch.SetExpr, sets []namedSet, at sketch.Tick) (lost float64, grows bool) {
	grows = x.Op != sketch.SetMinus && x.Op != sketch.SetXor
	if x.Op == sketch.SetLeaf {
		if b := sets[x.Leaf].body; b != nil {
			lost = lostBy(b, at)
		}
		return lost, true
	}
	for _, of := range x.Of {
		one, more := lostOf(of, sets, at)
		lost += one
		grows = grows && more
	}
	return lost, grows
}

// widenBy adds to an interval what is missing: at its upper end, and at the lower one too unless it only grows with that.
func widenBy(e *ebbv1.Estimate, lost float64, grows bool) {
	wider(e, lost)
	if !grows {
		e.Low = max(0, e.Low-lost)
	}
}

// widenShare does so for the share that two sets have in common, of a union of this size at least.
func widenShare(e *ebbv1.Estimate, lost, union float64) {
	if lost == 0 || union <= 0 {
		return
	}
	e.Low *= union / (union + lost)
	e.High = min(1, e.High+lost/union)
}
