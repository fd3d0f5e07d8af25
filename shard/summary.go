package shard

import (
	"slices"

	"github.com/ebbdb/ebb/sketch"
)

// summary is what a key holds.
type summary struct {
	dist sketch.Distribution
	body body // nil: it is a distribution
	// due is the time of the next visit, by the clock of the key's namespace.
	//
	// INVARIANT due-is-never-late: due is at or before the distribution's death
	// under the settings of its era, so one that is not due is not dead. A body may
	// be a little late: some estimate their own death, and one that has
	// just died takes what is added as one that has not. A Morris counter may
	// also be rounded down to nothing before its time: until its visit it is not
	// found, and takes what is added.
	due sketch.Tick
	era uint32 // of its namespace, at the last touch
	// Faded bins are looked for when there are pruneAt bins, and when there is
	// no room for another but not too soon after pruned.
	pruneAt uint32
	pruned  sketch.Tick
	epoch   uint32 // of copy-on-write: dist is private
	space   uint16
	// onEvent: the visit stands in its namespace's own heap.
	onEvent bool
}

// pruneMin is how few bins are never worth looking through.
const pruneMin = 32

// touch returns a key for writing: found or created, converted to the present
// settings, and empty again if it was dead.
func (s *State) touch(ns *namespace, clock sketch.Tick, name []byte) (key uint32, empty bool) {
	tag := tagOf(name, ns.seed)
	key, found := s.keys.find(tag, ns.space, name)
	if !found {
		return s.createKey(ns, tag, name), true
	}
	sum := s.summaries.at(key)
	if sum.due > clock && sum.era == ns.presentEra() {
		return key, false
	}
	sum = s.editSummary(key)
	if s.convert(ns, key, sum) && !sum.over(ns.params(), clock) {
		return key, false
	}
	s.empty(sum)
	return key, true
}

func (s *State) createKey(ns *namespace, tag uint32, name []byte) uint32 {
	key := s.keys.add(tag, ns.space, name, s.epoch)
	s.keys.retain(key, s.epoch)
	s.summaries.reach(key, s.epoch)
	*s.summaries.edit(key, s.epoch) = summary{
		era: ns.presentEra(), pruneAt: pruneMin, epoch: s.epoch, space: ns.space,
	}
	ns.count(noEra, ns.presentEra())
	return key
}

// editSummary returns a key's summary for writing.
func (s *State) editSummary(key uint32) *summary {
	sum := s.summaries.edit(key, s.epoch)
	if sum.epoch != s.epoch {
		sum.epoch = s.epoch
		sum.dist = sum.dist.Clone()
		if sum.body != nil {
			sum.body = sum.body.clone()
		}
	}
	return sum
}

// convert takes a key through the changes of settings since its last touch,
// and reports whether it lived through them.
func (s *State) convert(ns *namespace, key uint32, sum *summary) (alive bool) {
	if sum.era == ns.presentEra() {
		return true
	}
	alive = sum.body != nil || ns.convert(&sum.dist, sum.era) // a body keeps the half-life that it was made with
	ns.count(sum.era, ns.presentEra())
	sum.era = ns.presentEra()
	if alive {
		s.schedule(ns, key, sum, 0)
	}
	return alive
}

// schedule sets the next visit a little before the key's death, but after a
// clock at which it is known to live.
func (s *State) schedule(ns *namespace, key uint32, sum *summary, after sketch.Tick) {
	s.unschedule(key, sum)
	sum.due, sum.onEvent = ns.due(sum, after), ns.onEventTime()
	if sum.due != sketch.MaxTick {
		s.visits(sum).set(key, sum.due)
	}
}

func (s *State) unschedule(key uint32, sum *summary) {
	if h := s.visits(sum); h.holds(key) {
		h.remove(key)
	}
}

// visits returns the heap that a key's visit stands in.
func (s *State) visits(sum *summary) *heap {
	if sum.onEvent {
		return s.eventDeaths[sum.space]
	}
	return &s.deaths
}

// reap visits keys that are due by a clock: the dead leave, the others are
// pruned and scheduled anew. A visit costs one, and one more for every 64 bins.
func (s *State) reap(h *heap, clock sketch.Tick, budget int) {
	for budget > 0 {
		next, ok := h.top()
		if !ok || next.at > clock {
			return
		}
		budget -= s.visit(next.slot)
	}
}

func (s *State) visit(key uint32) (cost int) {
	sum := s.editSummary(key)
	ns := s.editNamespace(sum.space)
	cost = 1 + sum.dist.Len()/64
	clock := ns.clock(s.now)
	if !s.convert(ns, key, sum) || sum.over(ns.params(), clock) {
		s.empty(sum)
		s.dropKey(ns, key)
		return cost
	}
	if sum.body == nil {
		s.prune(ns, sum, clock)
	}
	s.schedule(ns, key, sum, clock)
	return cost
}

// prune drops the faded bins of a summary.
func (s *State) prune(ns *namespace, sum *summary, clock sketch.Tick) {
	s.gone = s.gone[:0]
	sum.dist.Prune(ns.params(), clock, s.isGone)
	s.releaseGone()
	sum.pruneAt = max(pruneMin, 2*uint32(sum.dist.Len()))
	sum.pruned = clock
}

// worthPruning says whether to look for faded bins to make room. The look takes
// time in proportion to the bins, and a batch of refused increments must not
// take it each time: where it is long, it waits for a sixteenth of a half-life.
func (ns *namespace) worthPruning(sum *summary, clock sketch.Tick) bool {
	p := ns.params()
	switch {
	case sum.dist.Len() <= 2*pruneMin:
		return true
	case p.Decay == sketch.None:
		return ns.signed && clock > sum.pruned
	}
	return clock-sum.pruned > p.HalfLife/16
}

// empty lets go of all bins of a summary.
func (s *State) empty(sum *summary) {
	s.gone = s.gone[:0]
	sum.dist.Each(s.isGone)
	s.releaseGone()
	if sum.body != nil {
		s.bodyBytes -= sum.body.Held()
	}
	sum.dist, sum.body = sketch.Distribution{}, nil
	sum.pruneAt, sum.pruned = pruneMin, 0
}

func (s *State) isGone(bin uint32) { s.gone = append(s.gone, bin) }

// releaseGone lets go of bins in the order of their ids: the order in which a
// distribution stores them is not part of the replicated state, but that of
// free slots is.
func (s *State) releaseGone() {
	slices.Sort(s.gone)
	for _, bin := range s.gone {
		s.bins.release(bin, s.epoch)
	}
}

// dropKey forgets a key whose summary is empty.
func (s *State) dropKey(ns *namespace, key uint32) {
	sum := s.summaries.edit(key, s.epoch)
	s.unschedule(key, sum)
	ns.count(sum.era, noEra)
	*sum = summary{}
	s.keys.drop(key, s.epoch)
}

// dead says whether nothing is left of a distribution at a time.
func (ns *namespace) dead(d *sketch.Distribution, at sketch.Tick) bool {
	return vanished(ns.params(), d, at)
}

// over says whether nothing is left of what a key holds at a time.
func (sum *summary) over(p *sketch.Params, at sketch.Tick) bool {
	if sum.body != nil {
		return ended(sum.body, p, at)
	}
	return vanished(p, &sum.dist, at)
}

func vanished(p *sketch.Params, d *sketch.Distribution, at sketch.Tick) bool {
	return d.Dead(p, at) || p.Decay != sketch.None && d.Death(p) == 0
}

// due returns a time that is not after the death of what a key holds, but after
// a clock at which it lives. Death may be late by a few ticks or 2^-44
// half-lives: the visit is early by more.
func (ns *namespace) due(sum *summary, after sketch.Tick) sketch.Tick {
	death := sketch.Tick(0)
	if sum.body != nil {
		death = sum.body.death(lifeline(ns.params()))
	} else {
		death = sum.dist.Death(ns.params())
	}
	if death == sketch.MaxTick {
		return death
	}
	return max(death-ns.params().HalfLife>>40-16, after+1)
}
