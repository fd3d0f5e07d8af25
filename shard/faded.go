package shard

import (
	"math"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// bloomLives is for how many half-lives after its last event a bloom finds a bin, at most.
const bloomLives = 1.2

// faded reports whether an increment that was just applied no longer counts for its namespace. At the clock of the
// namespace it weighs less than the threshold, or is older than the window, or has leaked away completely. The answer
// to the writer has the number of such increments; nothing of the state depends on it. An increment at the clock or
// later never is faded, nor one of amount 0, which only brings the time. Strings and phrases do not fade.
func (s *State) faded(ns *namespace, in *proto.IncrementWire) bool {
	t, clock, p := sketch.Tick(in.TimeUS), ns.clock(s.now), ns.params()
	if t == 0 || t >= clock || in.Amount == 0 {
		return false
	}
	kind, age := in.Kind, float64(clock-t)
	if kind == 0 {
		kind = ns.definition.GetKind()
	}
	key, there := s.findKey(ns, in.Key)
	if there {
		kind = s.kind(key)
	}
	window := float64(ns.definition.GetWindowUs())
	switch {
	case kind == ebbv1.Kind_KIND_STRING || kind == ebbv1.Kind_KIND_PHRASES:
		return false
	case kind == ebbv1.Kind_KIND_LINEAR:
		return !there // as long as it lives, it counts all that comes
	case kind == ebbv1.Kind_KIND_DISTINCT && window > 0:
		return age > window
	case p.Decay == sketch.None:
		return false
	case p.Decay == sketch.Linear:
		return math.Abs(in.Amount) <= age*math.Ln2/float64(p.HalfLife)
	}
	halfLife := p.HalfLife
	if slow := s.slowOf(ns); slow != nil {
		halfLife = max(halfLife, slow.params().HalfLife)
	}
	if kind == ebbv1.Kind_KIND_BLOOM {
		return age > bloomLives*float64(halfLife)
	}
	return math.Abs(in.Amount)*sketch.Weight(t-clock, 0, halfLife) < p.Threshold
}
