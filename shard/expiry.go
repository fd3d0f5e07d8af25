package shard

import (
	"slices"

	"github.com/ebbdb/ebb/sketch"
)

// expiries has the time at which each key expires, whatever is added to it, by the clock of its namespace; 0 for a key
// that leaves when it has faded. It is replicated. Few keys have such a time, so a leaf without any is nil. Leaves are
// copied on write.
type expiries struct {
	leaves []*[leafLen]sketch.Tick
	epochs []uint32 // the epoch in which a leaf became private; absent in a view
}

func (e *expiries) at(key uint32) sketch.Tick {
	if leaf := key / leafLen; leaf < uint32(len(e.leaves)) && e.leaves[leaf] != nil {
		return e.leaves[leaf][key%leafLen]
	}
	return 0
}

func (e *expiries) set(key uint32, t sketch.Tick, epoch uint32) {
	if e.at(key) == t {
		return
	}
	leaf := key / leafLen
	for uint32(len(e.leaves)) <= leaf {
		e.leaves, e.epochs = append(e.leaves, nil), append(e.epochs, epoch)
	}
	switch {
	case e.leaves[leaf] == nil:
		e.leaves[leaf] = new([leafLen]sketch.Tick)
	case e.epochs[leaf] != epoch:
		private := *e.leaves[leaf]
		e.leaves[leaf] = &private
	}
	e.epochs[leaf] = epoch
	e.leaves[leaf][key%leafLen] = t
}

func (e *expiries) frozen() expiries { return expiries{leaves: slices.Clone(e.leaves)} }

// expired says whether a key has expired, whatever it holds.
func (f *frame) expired(key uint32, at sketch.Tick) bool {
	t := f.expiries.at(key)
	return t != 0 && t <= at
}

// expireAt sets when a key that is alive at the namespace's clock expires, 0 for never. Its cleanup is due no later. A
// time that is not after the clock is set to the clock: the key is not found any more, and its cleanup, which frees
// what it holds, is next in line. Under an event clock it is set to 1, so that the key is not found either when the
// clock is set back.
func (s *State) expireAt(ns *namespace, key uint32, at, clock sketch.Tick) {
	switch {
	case at == 0:
	case at <= clock && ns.onEventTime() && s.behaviour >= BehaviourAdds:
		at = 1
	default:
		at = min(max(at, clock), clockMax)
	}
	s.expiries.set(key, at, s.epoch)
	sum := s.loadForWrite(key)
	if at == 0 || at > clock {
		s.schedule(ns, key, &sum, clock)
		return
	}
	s.cleanupsOf(&sum).remove(key)
	sum.due, sum.onEvent = min(sum.due, at), ns.onEventTime() // it may be overdue, under settings that it was not touched since
	s.put(key, &sum)
	s.cleanupsOf(&sum).set(key)
}
