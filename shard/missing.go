package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// AskWithin is Ask for a question whose answer may take room bytes of memory. It returns nil when the keys that match
// its patterns take more: ask again with more room. The answer lists the keys of the question that do not exist.
func (f *frame) AskWithin(q *ebbv1.ShardQuestion, at sketch.Tick, room int) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.GetQuestion().GetNamespace()))
	a := f.answerWithin(q, f.floor(ns, q, at), room)
	if a != nil && ns != nil && ns.onEventTime() {
		a.ClockEpoch = ns.clockEpoch()
	}
	if a.GetValue() != nil && !foundAll(q.GetQuestion(), a.GetAnswer()) {
		a.Missing = f.missing(q.GetQuestion(), sketch.Tick(a.AsOfUs))
	}
	return a
}

// foundAll says whether a question is about one key only, and the key was found.
func foundAll(q *ebbv1.Question, a *ebbv1.Answer) bool {
	switch v := a.GetValue().(type) {
	case *ebbv1.Answer_Distribution:
		return v.Distribution.GetFound() && len(v.Distribution.GetKeys()) == 1 &&
			len(q.GetDistribution().GetPatterns()) == 0
	case *ebbv1.Answer_Summary:
		return v.Summary.GetFound() && len(v.Summary.GetKeys()) == 1 && len(q.GetSummary().GetPatterns()) == 0
	case *ebbv1.Answer_Export:
		return true // its question is one of nodes
	}
	return false
}

// missing returns the positions in proto.QuestionKeys of keys that do not exist at a time, or have faded completely.
func (f *frame) missing(q *ebbv1.Question, at sketch.Tick) (positions []uint32) {
	ns := f.lookup([]byte(q.GetNamespace()))
	if ns != nil && proto.BySlice(ns.definition) && len(proto.BitmapExprs(q)) > 0 {
		return nil // few shards have a part of a small bitmap; only its generation shows whether the bitmap exists
	}
	for i, name := range proto.QuestionKeys(q) {
		if ns != nil {
			if _, ok := f.there(ns, name, at); ok {
				continue
			}
		}
		positions = append(positions, uint32(i))
	}
	return positions
}
