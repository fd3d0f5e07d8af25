package shard

import (
	"bytes"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// A namespace with a second half-life has a slow namespace: a second one with the same keys, which no request can name.
// Its distributions count the same events under the second half-life. An event is applied to both or to none. Slow
// namespaces age, die and are in snapshots as namespaces are. They are not counted, listed or asked by name. A key that
// only the slow namespace has is a slow key, see slowkeys.go.
//
// If the second half-life is turned off, the slow namespace is closed. If it is turned on again, it begins empty: the
// keys of the closed slow namespace are dropped, a few with each entry.

// slowSuffix cannot be part of a name that a request gives.
const slowSuffix = "/slow"

// deriveSlow returns the settings of the slow namespace.
func deriveSlow(def *ebbv1.Namespace) *ebbv1.Namespace {
	return &ebbv1.Namespace{
		Name: def.GetName() + slowSuffix, Version: def.GetVersion(), Decay: def.GetDecay(), HalfLifeUs: def.GetSlowHalfLifeUs(),
		Floor: ebbv1.Floor_FLOOR_PRUNE, Threshold: def.GetThreshold(), Prior: def.GetPrior(), Clock: def.GetClock(), Precision: def.GetPrecision(),
		AllowNegative: new(false), BinsMax: def.GetBinsMax(), HashSeed: def.GetHashSeed(),
		Kind: ebbv1.Kind_KIND_DISTRIBUTION, Sizes: def.GetSizes(), WindowUs: new(int64(0)), SlowHalfLifeUs: new(int64(0)),
		MaxJumpUs: def.MaxJumpUs, ClockSetting: def.GetClockSetting(),
	}
}

// slowOf returns the slow namespace of a namespace, nil if it has none now.
func (f *frame) slowOf(ns *namespace) *namespace {
	if ns.slow == 0 || f.namespaces[ns.slow].closed {
		return nil
	}
	return f.namespaces[ns.slow]
}

// editSlow is slowOf, for writing.
func (s *State) editSlow(ns *namespace) *namespace {
	if s.slowOf(ns) == nil {
		return nil
	}
	return s.editNamespace(ns.slow)
}

// followSlow brings a namespace's slow namespace in line with its definition.
func (s *State) followSlow(ns *namespace) {
	on := ns.definition.GetSlowHalfLifeUs() > 0
	switch {
	case ns.slow == 0 && !on:
	case ns.slow == 0:
		slow := &namespace{isSlow: true, seed: ns.seed, eventTime: ns.eventTime}
		s.openSlow(ns, slow)
		s.addNamespace(slow)
		ns.slow = slow.space
	case !on:
		slow := s.editNamespace(ns.slow)
		slow.closed = true
		s.drop(slow)
	case s.namespaces[ns.slow].closed:
		s.openSlow(ns, s.editNamespace(ns.slow))
	default:
		s.redefine(s.editNamespace(ns.slow), deriveSlow(ns.definition))
	}
}

// openSlow begins an era in which no earlier key lives on.
func (s *State) openSlow(ns, slow *namespace) {
	slow.definition = deriveSlow(ns.definition)
	slow.closed = false
	slow.eventTime = max(slow.eventTime, ns.eventTime)
	clock := slow.clock(s.now)
	if len(slow.eras) > 0 {
		slow.present().params.Gone = sketch.Gone{} // what it held no longer counts
	}
	slow.eras = append(slow.eras, era{params: s.paramsOf(slow.definition), from: clock, fresh: true})
	slow.began, slow.exposure, slow.active = clock, sketch.Exposure{From: clock}, nil
	if s.behaviour >= BehaviourBeginnings && ns.onEventTime() && ns.began == 0 { // it has a time, and no event yet
		slow.began, slow.exposure = 0, sketch.Exposure{}
	}
	slow.count(noEra, noEra)
}

// eraFits reports whether there is room for one more change of settings that keys must remember, in a namespace and in
// its slow namespace.
func (s *State) eraFits(ns *namespace, def *ebbv1.Namespace) bool {
	back := s.setsClock(ns, def) && s.settingOf(def) < ns.eventTime
	if (back || !proto.SameArithmetic(ns.definition, def)) && s.full(ns) {
		return false
	}
	if ns.slow == 0 || def.GetSlowHalfLifeUs() == 0 {
		return true
	}
	slow := s.namespaces[ns.slow]
	return !slow.closed && !back && proto.SameArithmetic(slow.definition, deriveSlow(def)) || !s.full(slow)
}

func (s *State) full(ns *namespace) bool {
	return ns.keys > 0 && len(ns.eras) > s.limits.HalfLifeChanges
}

// addBoth adds an event to a distribution, whose key has been touched, and to the distribution of the slow namespace,
// or to neither.
func (s *State) addBoth(own, other side, clock, t sketch.Tick, in *proto.IncrementWire) ebbv1.Code {
	other.key, other.created = s.touch(other.ns, clock, in.Key)
	tag := tagOf(in.Bin, 0)
	bin, known := s.bins.find(tag, in.Bin)
	if !known {
		bin = s.bins.add(tag, in.Bin, s.epoch)
	}
	s.bins.retain(bin, s.epoch) // until it is known which side keeps it
	defer s.bins.release(bin, s.epoch)
	sides := [2]side{own, other}
	for _, w := range sides {
		s.thinSide(w, clock, bin)
		if err := s.takes(w, clock, t, bin, in.Amount); err != nil {
			s.dropCreated(sides)
			return codeOf(err)
		}
	}
	for _, w := range sides {
		s.addKnown(w, clock, t, bin, in.Amount)
	}
	if at := s.expiries.at(own.key); other.created && at != 0 {
		s.expireSlow(own.ns, in.Key, at, clock)
	}
	if at := s.expiries.at(other.key); own.created && !other.created && at != 0 && s.behaviour >= BehaviourSlowKeys {
		if key, ok := s.findKey(own.ns, in.Key); ok { // else it was born dead
			s.expireAt(own.ns, key, at, clock)
		}
	}
	return 0
}

// side is a key in a namespace, or in its slow namespace.
type side struct {
	ns      *namespace
	key     uint32
	created bool
}

// dropCreated drops the keys that were made for an event that is refused.
func (s *State) dropCreated(sides [2]side) {
	for _, w := range sides {
		if w.created {
			sum := s.loadForWrite(w.key)
			s.dropKey(w.ns, w.key, &sum)
		}
	}
}

// thinSide drops faded bins of a distribution before one is added, if pruning is due.
func (s *State) thinSide(w side, clock sketch.Tick, bin uint32) {
	now := w.ns.params().Now(clock)
	if d := s.summary(w.key).dist; !d.PruneDue(w.ns.params(), &now, bin) {
		return
	}
	sum := s.loadForWrite(w.key)
	s.pruneForBin(w.ns, &sum, &now, bin)
	s.put(w.key, &sum)
}

// takes returns the error with which a distribution would refuse an event, after making room where that may help.
func (s *State) takes(w side, clock, t sketch.Tick, bin uint32, amount float64) error {
	sum := s.summary(w.key)
	err := sum.dist.Takes(w.ns.params(), clock, t, bin, amount)
	if err == sketch.ErrTooManyBins && s.worthPruning(w.ns, &sum, clock) {
		sum = s.loadForWrite(w.key)
		s.prune(w.ns, &sum, clock)
		err = sum.dist.Takes(w.ns.params(), clock, t, bin, amount)
		s.put(w.key, &sum)
	}
	return err
}

// addKnown adds an event that takes did not refuse.
func (s *State) addKnown(w side, clock, t sketch.Tick, bin uint32, amount float64) {
	sum := s.loadForWrite(w.key)
	before := sum.dist.Len()
	if err := sum.dist.Add(w.ns.params(), clock, t, bin, amount); err != nil {
		panic("shard: a distribution refuses what it said it takes: " + err.Error())
	}
	if sum.dist.Len() > before {
		s.bins.retain(bin, s.epoch)
		if uint32(sum.dist.Len()) > sum.pruneAt && !w.ns.boundsLoss() {
			s.prune(w.ns, &sum, clock)
		}
	}
	if w.created || w.ns.signed {
		s.settle(w.ns, w.key, &sum, clock)
		return
	}
	s.put(w.key, &sum)
}

// findSlow finds the key of a name in the slow namespace; slow is nil if there is no such key.
func (s *State) findSlow(ns *namespace, name []byte) (slow *namespace, key uint32) {
	if slow = s.editSlow(ns); slow == nil {
		return nil, 0
	}
	key, ok := s.findKey(slow, name)
	if !ok {
		return nil, 0
	}
	return slow, key
}

// expireSlow is expireAt for the key of a name in the slow namespace, if it is alive.
func (s *State) expireSlow(ns *namespace, name []byte, at, clock sketch.Tick) {
	slow := s.editSlow(ns)
	if slow == nil {
		return
	}
	if key, ok := s.hold(slow, clock, name); ok {
		s.expireAt(slow, key, at, clock)
	}
}

func (s *State) forgetSlow(ns *namespace, name []byte) {
	if slow, key := s.findSlow(ns, name); slow != nil {
		s.forget(slow, key)
	}
}

// moveSlow renames a key in the slow namespace, and replaces a key of the new name.
func (s *State) moveSlow(ns *namespace, from, to []byte) {
	s.forgetSlow(ns, to)
	if slow, key := s.findSlow(ns, from); slow != nil {
		s.keys.rename(key, tagOf(from, slow.seed), tagOf(to, slow.seed), to, s.epoch)
	}
}

// adoptSlow makes the slow count of a distribution that came from another shard with only one half-life. It takes the
// rates under the first half-life: if events then come as often as before, there is no change between the two.
func (s *State) adoptSlow(ns *namespace, name []byte, key uint32, expiry, clock sketch.Tick) {
	slow := s.editSlow(ns)
	if slow == nil || s.kind(key) != ebbv1.Kind_KIND_DISTRIBUTION {
		return
	}
	_, counted := ns.watched()
	_, slowly := slow.watched()
	had, has := counted.At(ns.params(), clock), slowly.At(slow.params(), clock)
	if !(had > 0 && has > 0) {
		return
	}
	from := s.summary(key)
	params := *ns.params()
	params.Floor = sketch.Prune
	bins := from.dist.At(&params, clock).All(nil)
	slices.SortFunc(bins, func(a, b sketch.Bin) int { return bytes.Compare(s.binName(a.ID), s.binName(b.ID)) })
	other, _ := s.touch(slow, clock, name)
	sum := s.loadForWrite(other)
	for _, b := range bins {
		before := sum.dist.Len()
		if sum.dist.Add(slow.params(), clock, clock, b.ID, float64(b.Count*(has/had))) == nil && sum.dist.Len() > before {
			s.bins.retain(b.ID, s.epoch)
		}
	}
	sum.raisePruneAt()
	s.settle(slow, other, &sum, clock)
	s.expireSlow(ns, name, expiry, clock)
}

// adoptOther stores the counts of both half-lives that an image has under a name; the slow namespace has no such key
// yet. A rate is a count divided by the time that was counted, so the shard takes over that time too if it is longer.
func (s *State) adoptOther(ns *namespace, name []byte, img *image, clock sketch.Tick) {
	slow := s.editSlow(ns)
	if slow == nil {
		return
	}
	counts := &img.other.counts
	s.watch(ns, &img.other.own, &img.params, img.at, clock)
	s.watch(slow, &img.other.slow, &counts.params, img.at, clock)
	if counts.over(slow.params(), clock) {
		return
	}
	key, _ := s.touch(slow, clock, name)
	sum := s.loadForWrite(key)
	s.addCounts(slow, &sum, counts)
	s.settle(slow, key, &sum, clock)
	s.expireSlow(ns, name, img.expiry, clock)
}

// watch takes over the time since when another shard has counted, if that is longer and its exposure is of this
// half-life. Where events say when rates begin, that time becomes one more active period.
func (s *State) watch(ns *namespace, w *watched, p *sketch.Params, at, clock sketch.Tick) {
	own := ns.params()
	if p.Decay != own.Decay || p.HalfLife != own.HalfLife || w.began == 0 {
		return
	}
	fixed := w.exposure.Had != 0 || w.exposure.From != w.began
	if s.behaviour >= BehaviourUnited && !fixed && ns.onEventTime() && (ns.began == 0 || ns.beginsWithEvents()) {
		if ns.began == 0 {
			ns.began, ns.exposure.From = w.began, w.began
		}
		ns.bringActive(w.began, at, clock)
		return
	}
	began, exposure := ns.watched()
	if began != 0 && w.began >= began && w.exposure.At(own, clock) <= exposure.At(own, clock) {
		return
	}
	ns.fixBeginning()
	if ns.began == 0 || w.exposure.At(own, clock) > ns.exposure.At(own, clock) {
		ns.exposure = w.exposure
	}
	if ns.began == 0 || w.began < ns.began {
		ns.began = w.began
	}
}

// drop marks a slow namespace whose keys are to be dropped.
func (s *State) drop(slow *namespace) {
	if !slices.Contains(s.dropping, slow.space) {
		s.dropping = append(s.dropping, slow.space)
	}
}

// stale says whether a slow namespace's keys that were last touched in an era are to be dropped.
func (ns *namespace) stale(touched uint32) bool {
	return ns.closed || slices.ContainsFunc(ns.eras[touched-ns.eraBase+1:], func(e era) bool { return e.fresh })
}

// remains says whether a slow namespace has keys that are to be dropped.
func (ns *namespace) remains() bool {
	for i := range ns.eras {
		if ns.eras[i].keys > 0 && ns.stale(ns.eraBase+uint32(i)) {
			return true
		}
	}
	return false
}

// dropSlots is how many slots of keys an entry looks through for keys of closed slow namespaces.
const dropSlots = 16

// dropStale drops some of the stale keys of slow namespaces. Where it looks follows from the index of the entry, so
// that it needs no state of its own.
func (s *State) dropStale() {
	s.dropping = slices.DeleteFunc(s.dropping, func(space uint16) bool { return !s.namespaces[space].remains() })
	slots := uint64(s.summaries.keys.slots)
	if len(s.dropping) == 0 || slots == 0 {
		return
	}
	budget := cleanupsMin
	for i := uint64(0); i < dropSlots && budget > 0; i++ {
		key := uint32((s.applying%slots*dropSlots + i) % slots)
		if !s.summaries.keys.alive(key) {
			continue
		}
		sum := s.summary(key)
		if !slices.Contains(s.dropping, sum.space) || !s.namespaces[sum.space].stale(sum.era) {
			continue
		}
		ns := s.editNamespace(sum.space)
		sum = s.loadForWrite(key)
		budget -= 1 + sum.dist.Len()/64
		s.dropKey(ns, key, &sum)
	}
}
