package shard

import "github.com/ebbdb/ebb/sketch"

// A key that is gone may have held something, up to 8/7 of the threshold. When the settings of a namespace change, the
// new settings record what keys may have held that were gone before (sketch.Params.Gone). The new settings may have a
// lower threshold, or let nothing fade, and without the record an answer would promise too much.

// followGone records in the next settings what keys may have held that are gone by then.
func (s *State) followGone(ns *namespace, next *sketch.Params, clock sketch.Tick) {
	if s.behaviour >= BehaviourGone && !ns.complete(clock) {
		next.Follow(ns.params(), clock)
	}
	if s.behaviour >= BehaviourGoneBack {
		next.Gone.Shortest, next.Gone.Grown = ns.shortest(), ns.params().Gone.Grown
	}
	ns.present().params.Gone = sketch.Gone{} // the present settings have it
}

// complete says whether no key can have faded away yet: a key lives for three half-lives, unless it came as an image.
func (ns *namespace) complete(clock sketch.Tick) bool {
	if ns.params().Gone != (sketch.Gone{}) || ns.eraBase > 0 || len(ns.eras) > 1 || ns.eventTime > 0 {
		return false
	}
	return ns.onEventTime() || clock-ns.present().from < 3*ns.params().HalfLife
}

// mayLack records that keys may fade away earlier from now on: an image has come, and may fade sooner than a new key
// does. A body keeps the half-life that it had elsewhere.
func (s *State) mayLack(ns *namespace, img *image, clock sketch.Tick) {
	g := &ns.present().params.Gone
	if s.behaviour >= BehaviourGone && *g == (sketch.Gone{}) {
		g.Since = max(clock, 1)
	}
	if s.behaviour >= BehaviourGoneBack && img.body != nil {
		g.Shortest = shorter(ns.shortest(), halfLifeOf(img.body))
	}
}

// takeParams returns the present settings for an era that begins at an earlier time, and moves to them what keys that
// are gone may have held. From BehaviourGoneBack on, that is what they may have held by the earlier clock.
func (ns *namespace) takeParams(to sketch.Tick, behaviour uint32) sketch.Params {
	p := *ns.params()
	if behaviour >= BehaviourGoneBack {
		p.Rewind(ns.eventTime, to, ns.shortest())
	} else {
		p.Gone.Since = min(p.Gone.Since, to)
	}
	ns.present().params.Gone = sketch.Gone{}
	return p
}

// shortest is the shortest half-life that a key of the namespace may have had, as far as is known; 0 if none fades.
func (ns *namespace) shortest() sketch.Tick {
	h := ns.params().Gone.Shortest
	for i := range ns.eras {
		if p := &ns.eras[i].params; p.Decay != sketch.None {
			h = shorter(h, p.HalfLife)
		}
	}
	return h
}

// shorter is the shorter of two half-lives, 0 being none.
func shorter(a, b sketch.Tick) sketch.Tick {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// takeGone takes over what keys of an old shard that are gone may have held.
func (h *rehash) takeGone(old *State, from, to *namespace) {
	if h.behaviour < BehaviourGone {
		return
	}
	h.addGone(to, from, from.clock(old.now))
	if was, slow := old.slowOf(from), h.editSlow(to); was != nil && slow != nil {
		h.addGone(slow, was, was.clock(old.now))
	}
}

func (h *rehash) addGone(ns, old *namespace, then sketch.Tick) {
	now, has, next := ns.clock(h.now), ns.params().Gone, *ns.params()
	next.Follow(old.params(), then)
	g := sketch.Gone{Count: max(has.Count, next.Gone.Count), Since: now, HalfLife: max(has.HalfLife, next.Gone.HalfLife)}
	if has.Count > 0 && has.HalfLife == 0 || next.Gone.Count > 0 && next.Gone.HalfLife == 0 {
		g.HalfLife = 0
	}
	if h.behaviour >= BehaviourGoneBack {
		g.Shortest, g.Grown = shorter(ns.shortest(), old.shortest()), has.Grown || old.params().Gone.Grown
	}
	ns.present().params.Gone = g
}
