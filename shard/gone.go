package shard

import "github.com/ebbdb/ebb/sketch"

// A key that is gone may have held something, up to 8/7 of the threshold. When the settings of a namespace change, what
// keys may have held that had gone before is noted with the settings that follow (sketch.Params.Gone): these may have a
// lower threshold, or let nothing fade, and an answer would else promise too much.

// followGone notes with settings that follow what keys may have held that are gone by then.
func (s *State) followGone(ns *namespace, next *sketch.Params, clock sketch.Tick) {
	if s.behaviour >= BehaviourGone && !ns.complete(clock) {
		next.Follow(ns.params(), clock)
	}
	ns.present().params.Gone = sketch.Gone{} // the present settings have it
}

// complete says that no key can have faded away yet: a key lives for three half-lives, unless it came as an image.
func (ns *namespace) complete(clock sketch.Tick) bool {
	if ns.params().Gone != (sketch.Gone{}) || ns.eraBase > 0 || len(ns.eras) > 1 || ns.eventTime > 0 {
		return false
	}
	return ns.onEventTime() || clock-ns.present().from < 3*ns.params().HalfLife
}

// mayLack says that keys may fade away earlier from now on: an image has come, which may be short of much less than a
// key that is new.
func (s *State) mayLack(ns *namespace, clock sketch.Tick) {
	if g := &ns.present().params.Gone; s.behaviour >= BehaviourGone && *g == (sketch.Gone{}) {
		g.Since = max(clock, 1)
	}
}

// takeParams is the present settings from an earlier time on; what keys that are gone may have held goes along.
func (ns *namespace) takeParams(to sketch.Tick) sketch.Params {
	p := *ns.params()
	p.Gone.Since = min(p.Gone.Since, to)
	ns.present().params.Gone = sketch.Gone{}
	return p
}

// takeGone notes what keys of an old shard may have held that are gone.
func (h *rehash) takeGone(old *State, from, to *namespace) {
	if h.behaviour < BehaviourGone {
		return
	}
	to.addGone(from.params(), from.clock(old.now), to.clock(h.now))
	if was, slow := old.companion(from), h.editCompanion(to); was != nil && slow != nil {
		slow.addGone(was.params(), was.clock(old.now), slow.clock(h.now))
	}
}

func (ns *namespace) addGone(old *sketch.Params, then, now sketch.Tick) {
	has, next := ns.params().Gone, *ns.params()
	next.Follow(old, then)
	g := sketch.Gone{Count: max(has.Count, next.Gone.Count), Since: now, HalfLife: max(has.HalfLife, next.Gone.HalfLife)}
	if has.Count > 0 && has.HalfLife == 0 || next.Gone.Count > 0 && next.Gone.HalfLife == 0 {
		g.HalfLife = 0
	}
	ns.present().params.Gone = g
}
