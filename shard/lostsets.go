package shard

import (
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// widenOverlap adds to the intervals of an overlap what the sets may have lost, because earlier sets of their keys had
// died.
func widenOverlap(out *ebbv1.Overlap, sets []namedSet, at sketch.Tick) {
	lost := 0.0
	for i, s := range sets {
		if s.body == nil {
			continue
		}
		one := lostBy(s.body, at)
		lost += one
		wider(out.Sets[i].Size, one)
	}
	if lost == 0 {
		return
	}
	union := out.Union.GetValue()
	wider(out.Union, lost)
	wider(out.Intersection, lost)
	wider(out.Difference, lost)
	out.Difference.Low = max(0, out.Difference.Low-lost)
	if union > 0 {
		out.Jaccard.Low *= union / (union + lost)
		out.Jaccard.High = min(1, out.Jaccard.High+lost/union)
	}
}
