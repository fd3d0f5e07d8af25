package shard

import (
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// widenOverlap adds to the intervals of an overlap what the sets may have lost, because earlier sets of their keys had
// died.
func widenOverlap(out *ebbv1.Overlap, exprs []sketch.SetExpr, sets []namedSet, at sketch.Tick) {
	all, first := losses{grows: true}, losses{}
	for i := range exprs {
		one := lostOf(&exprs[i], sets, at)
		one.widen(out.Sets[i].Size)
		all = all.and(one)
		if i == 0 {
			first = one
			continue
		}
		if j := i - 1; j < len(out.Similar) {
			// the union of the two has at least as many as the larger one
			first.and(one).widenShare(out.Similar[j], max(out.Sets[0].Size.GetValue(), out.Sets[i].Size.GetValue()))
		}
	}
	if out.Union == nil {
		return
	}
	all.widenShare(out.Jaccard, out.Union.GetValue())
	all.widen(out.Union)
	all.widen(out.Intersection)
	all.grows = false // members that other sets lack would not be in the difference
	all.widen(out.Difference)
}

// widenGraph adds to the nodes and the links of a graph what the sets may have lost.
func widenGraph(out *ebbv1.Graph, sets []namedSet, at sketch.Tick) {
	lost := make([]losses, len(sets))
	for i := range sets {
		lost[i] = losses{sets[i].lost(at), true}
	}
	for i, node := range out.Nodes {
		for _, link := range node.Links {
			other := out.Nodes[link.To].Set.Size.GetValue()
			lost[i].and(lost[link.To]).widenShare(link.Jaccard, max(node.Set.Size.GetValue(), other))
		}
		lost[i].widen(node.Set.Size)
	}
}

// lost is how much a set may be short of: what it has lost or, if it does not exist, what it may have held.
func (s *namedSet) lost(at sketch.Tick) float64 {
	if s.body == nil {
		return s.missed
	}
	return lostBy(s.body, at)
}

// losses is how much a set that is made of others may be wrong by.
type losses struct {
	sum   float64 // over the sets that it is made of
	grows bool    // the lost members can only be added to the set; otherwise they may also remove members from it
}

func (l losses) and(o losses) losses { return losses{l.sum + o.sum, l.grows && o.grows} }

func lostOf(x *sketch.SetExpr, sets []namedSet, at sketch.Tick) losses {
	if x.Op == sketch.SetLeaf {
		return losses{sets[x.Leaf].lost(at), true}
	}
	out := losses{grows: x.Op != sketch.SetMinus && x.Op != sketch.SetXor}
	for i := range x.Of {
		out = out.and(lostOf(&x.Of[i], sets, at))
	}
	return out
}

// widen adds the losses to an interval: at its upper end and, unless the set only grows with them, at its lower end.
func (l losses) widen(e *ebbv1.Estimate) {
	wider(e, l.sum)
	if !l.grows {
		e.Low = max(0, e.Low-l.sum)
	}
}

// widenShare does the same for the share that two sets have in common; their union has at least union members. If the
// union is empty, any share is possible.
func (l losses) widenShare(e *ebbv1.Estimate, union float64) {
	switch {
	case l.sum == 0:
		return
	case union <= 0:
		e.Low, e.High = 0, 1
		return
	case l.grows:
		e.Low *= union / (union + l.sum)
	default:
		e.Low = max(0, e.Low-l.sum/union)
	}
	e.High = min(1, e.High+l.sum/union)
}
