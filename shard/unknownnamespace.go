package shard

import (
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// AskUnknownNamespace answers a question about a namespace that a shard does not know yet, at a time, as if the shard
// knew it. Missing keys may have held something, as in all other shards: a copy of a namespace has only what was left
// of the first one. It returns nil for a question to which that makes no difference.
func AskUnknownNamespace(
	id ID, behaviour uint32, ns *ebbv1.Namespace, q *ebbv1.ShardQuestion, at sketch.Tick,
) *ebbv1.ShardAnswer {
	switch q.GetQuestion().GetAsk().(type) {
	case *ebbv1.Question_Distribution, *ebbv1.Question_Summary, *ebbv1.Question_Overlap, *ebbv1.Question_Graph:
	default:
		return nil
	}
	s := New(id, Heap{})
	s.behaviour, s.now = behaviour, at
	s.newNamespace(pb.CloneOf(ns))
	if own := s.lookup([]byte(ns.GetName())); own != nil && own.onEventTime() {
		own.eventTime = at
	}
	return s.Ask(q, at)
}
