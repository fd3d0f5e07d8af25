package shard

import (
	"slices"

	"github.com/ebbdb/ebb/sketch"
)

// summary is what a key holds, as a value: frame.summary reads it, State.loadForWrite reads it for writing, and
// State.put stores it. Its bins lie in pages, and do not move until something is put.
type summary struct {
	dist sketch.Distribution
	body body // nil: it is a distribution
	// due is the time of the next cleanup, by the clock of the key's namespace; MaxTick if none will come.
	//
	// INVARIANT due-is-never-late: due is at or before the distribution's death under the settings of its era, so a
	// distribution that is not due is not dead. There are two exceptions. A distribution that a floor kept until the
	// floor changed may be late (see keptCleanup). A body may be a little late, since some bodies estimate their own
	// death: one that has just died still takes what is added. A Morris counter may also be rounded down to nothing
	// before its time: until its cleanup it is not found, and takes what is added. Nor is due after the time at which
	// the key expires, if it has one.
	due sketch.Tick
	era uint32 // of its namespace, at the last touch
	// A summary is searched for faded bins when it has more than pruneAt bins, a power of two, and when there is no
	// room for another bin. It is not searched twice in one moment; see moment.
	pruneAt uint32
	pruned  uint16
	space   uint16
	// onEvent: the key is in the cleanup queue of its namespace, by event time.
	onEvent bool
	// rewound: nothing is left of the body, which frame.summary has removed from this value, see namespace.lapsed.
	rewound bool
}

// pruneMin is the number of bins up to which a summary is never searched for faded ones.
const pruneMin = 32

// pruneMost is the largest pruneAt: no distribution has more bins.
const pruneMost = 1 << 25

// summary returns what a key holds, for reading. If nothing is left of a body, it is nil and rewound is set.
func (f *frame) summary(key uint32) (sum summary) {
	f.load(key, &sum)
	if sum.body == nil {
		return sum
	}
	if ns := f.namespaces[sum.space]; sum.era != ns.presentEra() && ns.lapsed(sum.body, sum.era) {
		sum.body, sum.rewound = nil, true
	}
	return sum
}

// stored returns what a key holds, as it is stored.
func (f *frame) stored(key uint32) (sum summary) {
	f.load(key, &sum)
	return sum
}

// load fills in a summary that is empty.
func (f *frame) load(key uint32, sum *summary) {
	f.summaries.load(key, sum)
	base := f.namespaces[sum.space].eraBase
	sum.era = base + (sum.era-base)&eraMask
}

// loadForWrite returns what a key holds, for writing: the caller changes it and puts it back.
func (s *State) loadForWrite(key uint32) (sum summary) {
	s.summaries.makePrivate(key, s.epoch)
	s.load(key, &sum)
	return sum
}

// put stores what a key holds.
func (s *State) put(key uint32, sum *summary) {
	if v := sum.bitmap(); v != nil && v.edited == 0 {
		v.edited = s.applying
	}
	s.summaries.put(key, sum, s.epoch)
}

// touch returns a key for writing: found or created, converted to the present settings, and emptied if it was dead.
func (s *State) touch(ns *namespace, clock sketch.Tick, name []byte) (key uint32, empty bool) {
	tag := tagOf(name, ns.seed)
	key, found := s.keys.find(tag, ns.space, name)
	if !found {
		return s.createKey(ns, tag, name), true
	}
	return key, s.revive(ns, clock, key)
}

// revive prepares a key for writing: it converts what it holds to the present
// settings, and empties it if it was dead.
func (s *State) revive(ns *namespace, clock sketch.Tick, key uint32) (empty bool) {
	if r := s.summaries.record(key); r.due() > clock && r.era() == ns.presentEra()&eraMask {
		return false
	}
	sum := s.loadForWrite(key)
	empty = !s.convert(ns, key, &sum) || sum.over(ns.params(), clock) || s.expired(key, clock)
	if empty {
		s.addOrphanOf(key, &sum)
		s.empty(&sum)
		s.expiries.set(key, 0, s.epoch)
	}
	s.put(key, &sum)
	return empty
}

func (s *State) createKey(ns *namespace, tag uint32, name []byte) uint32 {
	key := s.keys.add(tag, ns.space, name, s.epoch)
	s.put(key, &summary{era: ns.presentEra(), pruneAt: pruneMin})
	ns.count(noEra, ns.presentEra())
	s.pair(ns, tag, name, 1)
	return key
}

// convert converts a key through the changes of settings since its last touch, and reports whether it is still alive.
func (s *State) convert(ns *namespace, key uint32, sum *summary) (alive bool) {
	if sum.era == ns.presentEra() {
		return true
	}
	if sum.body != nil { // a body keeps the half-life with which it was made
		alive = !ns.lapsed(sum.body, sum.era)
	} else {
		alive = ns.convert(&sum.dist, sum.era)
	}
	ns.count(sum.era, ns.presentEra())
	sum.era = ns.presentEra()
	if alive {
		s.schedule(ns, key, sum, 0)
	}
	return alive
}

// schedule sets the next cleanup a little before the key's death, but later than after, a clock at which the key is
// known to live. Then it puts the key.
func (s *State) schedule(ns *namespace, key uint32, sum *summary, after sketch.Tick) {
	if onEvent := ns.onEventTime(); onEvent != sum.onEvent {
		s.cleanupsOf(sum).remove(key)
		sum.onEvent = onEvent
	}
	sum.due = ns.due(sum, after)
	if t := s.expiries.at(key); t != 0 {
		sum.due = min(sum.due, t)
	}
	s.put(key, sum)
	if sum.due == sketch.MaxTick {
		s.cleanupsOf(sum).remove(key)
		return
	}
	s.cleanupsOf(sum).set(key)
}

// cleanupsOf returns the queue of a key's cleanup.
func (s *State) cleanupsOf(sum *summary) *cleanupQueue {
	if sum.onEvent {
		return s.eventCleanups[sum.space]
	}
	return s.cleanups
}

// cleanUpBy cleans up keys of a namespace and its slow namespace that are due, within a budget that grows with the
// increments that the command applied. From BehaviourAdds on, keys are due by the clock before the command. So a wrong
// date removes nothing by itself: if the clock is set back at once, no key is missing.
func (s *State) cleanUpBy(ns *namespace, before sketch.Tick, applied int) {
	if s.behaviour < BehaviourAdds {
		before = clockMax
	}
	s.cleanUp(s.eventCleanups[ns.space], min(before, ns.clock(s.now)), cleanupsMin+2*applied)
	if slow := s.slowOf(ns); slow != nil {
		s.cleanUp(s.eventCleanups[slow.space], min(before, slow.clock(s.now)), cleanupsMin+2*applied)
	}
}

// cleanUp cleans up keys that are due by a clock: it drops dead keys, and prunes and reschedules the others. A cleanup
// costs 1 of the budget, and 1 more for every 64 bins.
func (s *State) cleanUp(v *cleanupQueue, clock sketch.Tick, budget int) {
	for budget > 0 {
		key, at, ok := v.top()
		if !ok || at > clock {
			return
		}
		budget -= s.cleanUpKey(key, clock)
	}
}

func (s *State) cleanUpKey(key uint32, by sketch.Tick) (cost int) {
	sum := s.loadForWrite(key)
	ns := s.editNamespace(sum.space)
	cost = 1 + sum.dist.Len()/64
	clock := min(ns.clock(s.now), by)
	if !s.convert(ns, key, &sum) || sum.over(ns.params(), clock) || s.expired(key, clock) {
		s.dropKey(ns, key, &sum)
		return cost
	}
	if sum.body == nil {
		s.pruneWithinLoss(ns, &sum, clock)
	}
	s.schedule(ns, key, &sum, clock)
	return cost
}

// prune drops the faded bins of a summary.
func (s *State) prune(ns *namespace, sum *summary, clock sketch.Tick) {
	s.removedBins = s.removedBins[:0]
	sum.dist.Prune(ns.params(), clock, s.binRemoved)
	s.releaseRemovedBins()
	sum.pruneAt = pruneMin
	sum.raisePruneAt()
	sum.pruned = ns.moment(clock)
}

// boundsLoss says whether faded bins are pruned by the rule of sketch.Distribution.PruneForBin, which counts what is
// removed as lost. Otherwise they are pruned when there are more than pruneAt bins.
func (ns *namespace) boundsLoss() bool {
	p := ns.params()
	return p.OrderFree && p.Decay == sketch.HalfLife
}

// pruneWithinLoss drops the faded bins of a summary in its cleanup, if the bound on what is lost allows it.
func (s *State) pruneWithinLoss(ns *namespace, sum *summary, clock sketch.Tick) {
	if !ns.boundsLoss() {
		s.prune(ns, sum, clock)
		return
	}
	s.removedBins = s.removedBins[:0]
	sum.dist.PruneWithinLoss(ns.params(), clock, s.binRemoved)
	s.releaseRemovedBins()
}

// pruneForBin drops faded bins before a new one is added, if pruning is due.
func (s *State) pruneForBin(ns *namespace, sum *summary, now *sketch.Now, bin uint32) {
	if !sum.dist.PruneDue(ns.params(), now, bin) {
		return
	}
	s.removedBins = s.removedBins[:0]
	sum.dist.PruneForBin(ns.params(), now, bin, s.binRemoved)
	s.releaseRemovedBins()
}

// raisePruneAt raises pruneAt, so that some more bins may come before the next pruning.
func (sum *summary) raisePruneAt() {
	for uint64(sum.pruneAt) < uint64(sum.dist.Len())*3/2 {
		sum.pruneAt *= 2
	}
}

// worthPruning says whether to search for faded bins to make room. The search takes time in proportion to the bins, and
// a batch of refused increments must not repeat it each time. So a long search is made once a moment.
//
// In a namespace with boundsLoss, an entry begins no further search once it has searched looksMax bins.
func (s *State) worthPruning(ns *namespace, sum *summary, clock sketch.Tick) bool {
	if sum.dist.Len() <= 2*pruneMin {
		return true
	}
	if ns.boundsLoss() {
		if s.looked >= looksMax {
			return false
		}
		s.looked += sum.dist.Len()
		return true
	}
	return (ns.params().Decay != sketch.None || ns.signed) && sum.pruned != ns.moment(clock)
}

// looksMax is how many bins of full distributions an entry searches to make room.
const looksMax = 1 << 16

// moment is the number of the present sixteenth of a half-life, in 16 bits. Without decay each time is its own moment.
func (ns *namespace) moment(clock sketch.Tick) uint16 {
	if p := ns.params(); p.Decay != sketch.None {
		clock /= p.HalfLife / 16
	}
	return uint16(clock)
}

// empty removes all that a summary holds.
func (s *State) empty(sum *summary) {
	s.removedBins = s.removedBins[:0]
	sum.dist.Each(s.binRemoved)
	s.releaseRemovedBins()
	if sum.body != nil {
		s.holdBody(sum.space, -s.held(sum.body))
	}
	sum.dist, sum.body = sketch.Distribution{}, nil
	sum.pruneAt, sum.pruned = pruneMin, 0
}

func (s *State) binRemoved(bin uint32) { s.removedBins = append(s.removedBins, bin) }

// releaseRemovedBins releases bins in the order of their ids. The order in which a distribution stores its bins is not
// part of the replicated state, but the order of free slots is.
func (s *State) releaseRemovedBins() {
	slices.Sort(s.removedBins)
	for _, bin := range s.removedBins {
		s.bins.release(bin, s.epoch)
	}
}

// dropKey removes a key and what it holds.
func (s *State) dropKey(ns *namespace, key uint32, sum *summary) {
	s.addOrphanOf(key, sum)
	s.empty(sum)
	s.cleanupsOf(sum).remove(key)
	ns.count(sum.era, noEra)
	s.expiries.set(key, 0, s.epoch)
	name := s.keys.bytesOf(key)
	tag := tagOf(name, ns.seed)
	s.pair(ns, tag, name, -1)
	s.keys.drop(key, tag, s.epoch)
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
	return d.Dead(p, at) || d.Len() == 0 && p.Decay != sketch.None && d.Death(p) == 0
}

// keptCleanup is the number of half-lives between cleanups of a distribution that its floor keeps for good. If the
// floor changes, the distribution is kept for no longer than that.
const keptCleanup = 256

// mayDie says whether a distribution that its floor keeps would die under another floor.
func (ns *namespace) mayDie(sum *summary) bool {
	p := ns.params()
	return sum.body == nil && p.OrderFree && p.Decay != sketch.None && p.Floor != sketch.Prune
}

// due returns a time that is not after the death of what a key holds, but later than after, a clock at which it lives.
// Death may be late by a few ticks or 2^-44 half-lives: the cleanup is early by more.
func (ns *namespace) due(sum *summary, after sketch.Tick) sketch.Tick {
	death := sketch.Tick(0)
	if sum.body != nil {
		death = deathOf(sum.body, ns.params())
	} else {
		death = sum.dist.Death(ns.params())
	}
	if death == sketch.MaxTick && !ns.mayDie(sum) {
		return death
	}
	if death == sketch.MaxTick {
		death = after + keptCleanup*ns.params().HalfLife
	}
	if due := max(death-ns.params().HalfLife>>40-16, after+1); due <= clockMax {
		return due
	}
	return sketch.MaxTick // no clock comes that far
}
