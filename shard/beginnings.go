package shard

import (
	"cmp"
	"slices"

	"github.com/ebbdb/ebb/sketch"
)

// A rate is a count divided by the time that was counted. For a stream on event time only the events show when that
// time began: with the earliest one. But with one wrong date, in 1970 say, all rates would be almost zero. So events
// are grouped in active periods, whatever order they come in:
//
//	events        x                   x xx x            xxxx xx xxxxxxx xxxx
//	periods       3                   2                 1                  now
//
//	a gap divides two periods if it is longer than the time from its end until now, and than a minute
//	a period counts if it has at least a 64th of the events that came after it
//
// Counting began with the earliest period that counts. Each period is more than twice as far from now as the one after
// it, so there are few. Now only moves forward, so a gap that divides nothing at a time divides nothing later. So
// periods that are joined as events come are the periods of all events together.

// activePeriod is a stretch of event time without a long gap.
type activePeriod struct {
	first, last sketch.Tick
	events      uint64
}

const (
	// gapMin is a gap that never divides periods.
	gapMin = sketch.Tick(60e6)
	// activeShare: a period counts if it has at least one event for activeShare later ones.
	activeShare = 64
	// activeMax is more than the number of periods that are possible once they are joined: the time since 1970 and a
	// minute differ by 2^28.
	activeMax = 48
	// eventsMax is more events than come in two years at a thousand million a second.
	eventsMax = 1 << 56
	// activeEvents is the number of events of a period whose events were not counted.
	activeEvents = 1 << 16
)

// activePeriods are the active periods of a namespace, the latest first.
type activePeriods []activePeriod

// add counts an event, at a time that is no later than now.
func (s activePeriods) add(t, now sketch.Tick) activePeriods {
	if len(s) > 0 && t >= s[0].first && t <= s[0].last+gapMin {
		s[0].last = max(s[0].last, t)
		s[0].events++
		return s
	}
	i := slices.IndexFunc(s, func(p activePeriod) bool { return t >= p.first })
	switch {
	case i >= 0 && t <= s[i].last:
		s[i].events++
		return s
	case i < 0:
		i = len(s)
	}
	s = slices.Insert(s, i, activePeriod{first: t, last: t, events: 1})
	if len(s) > activeMax || i > 0 && joined(&s[i-1], &s[i], now) || i+1 < len(s) && joined(&s[i], &s[i+1], now) {
		s = s.join(now)
	}
	return s
}

// joined reports whether no gap divides a period from an earlier one.
func joined(later, earlier *activePeriod, now sketch.Tick) bool {
	return later.first-earlier.last <= max(now-later.first, gapMin)
}

// join joins in place the periods that no gap divides.
func (s activePeriods) join(now sketch.Tick) activePeriods {
	out := s[:0]
	for _, p := range s {
		if n := len(out); n > 0 && joined(&out[n-1], &p, now) {
			out[n-1].first = min(out[n-1].first, p.first)
			out[n-1].last = max(out[n-1].last, p.last)
			out[n-1].events += p.events
			continue
		}
		out = append(out, p)
	}
	return out
}

// began is when counting began, by the events so far. It is 0 without events.
func (s activePeriods) began(now sketch.Tick) (began sketch.Tick) {
	after := uint64(0)
	for _, p := range slices.Clone(s).join(now) {
		if p.events >= after/activeShare {
			began = p.first
		}
		after += p.events
	}
	return began
}

// until are the periods up to a time.
func (s activePeriods) until(t sketch.Tick) activePeriods {
	var out activePeriods
	for _, p := range s {
		if p.first <= t {
			p.last = min(p.last, t)
			out = append(out, p)
		}
	}
	return out
}

// united joins periods of several shards, which come in any order and may overlap.
func (s activePeriods) united(now sketch.Tick) activePeriods {
	slices.SortFunc(s, func(a, b activePeriod) int { return cmp.Compare(b.last, a.last) })
	return s.join(now)
}

// bring adds a period for keys that came from another namespace, which had counted their events since a time, until
// another. A period that has that time already stays as it is, so that it does not matter how many keys come.
func (s activePeriods) bring(since, until, now sketch.Tick) activePeriods {
	if slices.ContainsFunc(s, func(p activePeriod) bool { return p.first <= since && since <= p.last }) {
		return s
	}
	return append(s, activePeriod{first: since, last: max(since, until), events: activeEvents}).united(now)
}

// valid reports whether periods are ones that a shard may have written, none of them later than now.
func (s activePeriods) valid(now sketch.Tick) bool {
	later := now + 1
	for _, p := range s {
		if p.first < 0 || p.first > p.last || p.last >= later || p.events == 0 || p.events > eventsMax {
			return false
		}
		later = p.first
	}
	return len(s) <= activeMax
}

// counted records an event at a time that the clock has reached.
func (s *State) counted(ns *namespace, t sketch.Tick) {
	switch {
	case s.behaviour < BehaviourBeginnings || !ns.onEventTime():
		ns.countedOnce(t)
		return
	case ns.began == 0:
		ns.began, ns.exposure.From = t, t
	case !ns.beginsWithEvents():
		return
	case len(ns.active) == 0:
		ns.beginActive()
	}
	ns.active = ns.active.add(t, ns.eventTime)
}

// beginActive makes a period from a beginning that is known without periods: from a build that kept none, or from
// before the clock was set back.
func (ns *namespace) beginActive() {
	ns.active = activePeriods{{first: ns.began, last: max(ns.began, ns.eventTime), events: activeEvents}}
}

// bringActive records that keys have come that another namespace has counted since a time, until another.
func (ns *namespace) bringActive(since, until, now sketch.Tick) {
	if len(ns.active) == 0 && ns.began != since {
		ns.beginActive()
	}
	ns.active = ns.active.bring(since, min(until, now), now)
}

// beginsWithEvents reports whether the events of a namespace decide when counting began. A namespace that began by its
// definition, or has changed its half-life, keeps its beginning.
func (ns *namespace) beginsWithEvents() bool {
	return ns.onEventTime() && ns.exposure.From == ns.began && ns.exposure.Had == 0 && ns.present().from != ns.began
}

// watched returns the time since when a namespace has counted, and its exposure.
func (ns *namespace) watched() (began sketch.Tick, exposure sketch.Exposure) {
	if len(ns.active) == 0 {
		return ns.began, ns.exposure
	}
	began = ns.active.began(ns.eventTime)
	return began, sketch.Exposure{From: began}
}

// rewindActive cuts the periods at the time to which the clock is set back.
func (ns *namespace) rewindActive(to sketch.Tick) {
	ns.active = ns.active.until(to)
	ns.began, ns.exposure = 0, sketch.Exposure{}
	if n := len(ns.active); n > 0 {
		ns.began, ns.exposure.From = ns.active[n-1].first, ns.active[n-1].first
	}
}

// fixBeginning makes the present beginning a fixed one: later events do not change it.
func (ns *namespace) fixBeginning() {
	ns.began, ns.exposure = ns.watched()
	ns.active = nil
}
