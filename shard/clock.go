package shard

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// The event clock of a namespace is one for all of its shards. A shard has what it knows of it, namespace.eventTime:
//
//	eventTime = max(times of events applied here, readings)          within an epoch
//
// A reading is the newest event time that the leader's node has heard of in any shard (EventClock in the log). The
// leader puts it before commands of the namespace, so that Apply judges them by it and by nothing else. Questions carry
// it too, and then write nothing.
//
// INVARIANT clock-epoch: an epoch begins with an entry of the control group, which gives the namespace a definition of a
// higher version. A time of another epoch changes nothing: no reading, no question and no confirmation.

// Fields of ebbv1.EventClock; a test holds them to the descriptor.
const (
	fieldEventClockEpoch = 1
	fieldEventClockNow   = 2
)

// clockEpoch is the epoch of the namespace's event clock; 0 of one from before BehaviourClocks.
func (ns *namespace) clockEpoch() uint64 { return ns.definition.GetClockSet().GetEpoch() }

// eventClock is what is told of a namespace's event clock; nil where there is none, or no event yet.
func (f *frame) eventClock(ns *namespace) *ebbv1.EventClock {
	if f.behaviour < BehaviourClocks || !ns.onEventTime() || ns.eventTime == 0 {
		return nil
	}
	return &ebbv1.EventClock{Epoch: ns.clockEpoch(), NowUs: int64(ns.eventTime)}
}

// EventClocks calls visit with the event clock of each namespace that has one. Clocks of companions are theirs.
func (s *State) EventClocks(visit func(namespace string, epoch uint64, now sketch.Tick)) {
	if s.behaviour < BehaviourClocks {
		return
	}
	for _, ns := range s.namespaces {
		if ns.onEventTime() && !ns.companion && !ns.deleted() && ns.eventTime > 0 {
			visit(ns.definition.GetName(), ns.clockEpoch(), ns.eventTime)
		}
	}
}

// Moved calls visit as EventClocks does, for namespaces whose clock the last entry may have moved.
func (s *State) Moved(visit func(namespace string, epoch uint64, now sketch.Tick)) {
	for _, space := range s.movedClocks {
		ns := s.namespaces[space]
		visit(ns.definition.GetName(), ns.clockEpoch(), ns.eventTime)
	}
}

// moved notes a namespace whose clock the entry may have moved.
func (s *State) moved(ns *namespace) {
	if s.behaviour < BehaviourClocks || !ns.onEventTime() || ns.eventTime == 0 {
		return
	}
	for _, space := range s.movedClocks {
		if space == ns.space {
			return
		}
	}
	s.movedClocks = append(s.movedClocks, ns.space)
}

// EventClock returns the event clock of a namespace, in its present epoch; 0 while there is none.
func (s *State) EventClock(name []byte) (epoch uint64, now sketch.Tick) {
	ns := s.lookup(name)
	if ns == nil || s.behaviour < BehaviourClocks || !ns.onEventTime() {
		return 0, 0
	}
	return ns.clockEpoch(), ns.eventTime
}

// ClockEpochBehind says whether a namespace that the shard knows is in an earlier epoch of its event clock.
func (s *State) ClockEpochBehind(name string, epoch uint64) bool {
	ns := s.find([]byte(name))
	return ns != nil && ns.clockEpoch() < epoch
}

// readClock applies a reading. One of another epoch, or none of a namespace on event time, changes nothing.
func (s *State) readClock(c *command) *ebbv1.CommandResult {
	var epoch, now uint64
	fields(c.body, func(num protowire.Number, v uint64, _ []byte) {
		switch num {
		case fieldEventClockEpoch:
			epoch = v
		case fieldEventClockNow:
			now = v
		}
	})
	ns := s.lookup(c.namespace)
	if ns != nil && ns.onEventTime() && ns.clockEpoch() == epoch && now <= uint64(s.now) {
		ns = s.editNamespace(ns.space)
		s.advance(ns, sketch.Tick(now))
		s.moved(ns)
	}
	return &ebbv1.CommandResult{}
}

// advance moves the clock of a namespace and of its companion up to a time that is not past the shard's.
func (s *State) advance(ns *namespace, t sketch.Tick) {
	ns.eventTime = max(ns.eventTime, t)
	if slow := s.editCompanion(ns); slow != nil {
		slow.eventTime = ns.eventTime
	}
}

// beginClock begins the epoch that the definition of a namespace has. Where it sets the clock back, what the shard
// remembers of later times is cut off, and keys that forget and had an event after it are dropped: of what they held
// before that event, nothing may be left.
func (s *State) beginClock(ns *namespace) {
	t := min(sketch.Tick(ns.definition.GetClockSet().GetNowUs()), s.now)
	if t <= 0 || !ns.onEventTime() {
		return
	}
	back := t < ns.eventTime
	ns.eventTime = t
	ns.endLater(back)
	if ns.slow != 0 {
		slow := s.editNamespace(ns.slow)
		slow.eventTime = t
		slow.endLater(back)
	}
	if back {
		s.dropLater(ns)
	}
	s.moved(ns)
}

// endLater has nothing of a namespace begin after its clock.
func (ns *namespace) endLater(back bool) {
	if !back {
		return
	}
	t := ns.eventTime
	ns.began, ns.exposure.From = min(ns.began, t), min(ns.exposure.From, t)
	for i := range ns.eras {
		ns.eras[i].from = min(ns.eras[i].from, t)
	}
}

// dropLater drops keys that the clock of their namespace was set back before.
func (s *State) dropLater(ns *namespace) {
	for key := range s.summaries.keys.slots {
		if !s.summaries.keys.alive(key) {
			continue
		}
		space := s.keys.space(key)
		if space != ns.space && (ns.slow == 0 || space != ns.slow) {
			continue
		}
		of := s.editNamespace(space)
		if sum := s.summary(key); sum.later(of) {
			s.forget(of, key)
		}
	}
}

// later says whether a summary that forgets counts events of after its namespace's clock, or counts from there.
func (sum *summary) later(ns *namespace) bool {
	t := ns.eventTime
	if sum.body == nil {
		p := &ns.eras[sum.era-ns.eraBase].params
		return p.Decay != sketch.None && (sum.dist.Last() > t || sum.dist.Landmark(p) > t)
	}
	if halfLifeOf(sum.body) == 0 && sum.body.death(lifeline(ns.params())) == sketch.MaxTick {
		return false
	}
	if from, ok := sum.body.(interface{ Landmark() sketch.Tick }); ok && from.Landmark() > t {
		return true
	}
	return sum.body.last() > t
}

// askedNow is the time at which a question about a namespace is answered that says none: that of the question for one
// on event time, if it is of the same epoch.
func (f *frame) askedNow(q *ebbv1.ShardQuestion, at sketch.Tick) (sketch.Tick, *proto.Error) {
	ns := f.lookup([]byte(q.GetQuestion().GetNamespace()))
	if ns == nil || !ns.onEventTime() {
		return at, nil
	}
	asked := q.GetClock()
	switch epoch := ns.clockEpoch(); {
	case asked == nil || f.behaviour < BehaviourClocks || asked.GetEpoch() < epoch:
		return 0, nil
	case asked.GetEpoch() > epoch:
		return 0, f.clockBehind(ns, asked.GetEpoch())
	}
	return sketch.Tick(max(asked.GetNowUs(), 0)), nil
}

// QuestionTime returns the time at which a question is answered that says none: for Windows and Unite, at the time of
// day at.
func (f *frame) QuestionTime(q *ebbv1.ShardQuestion, at sketch.Tick) sketch.Tick {
	at, _ = f.askedNow(q, at) // a shard that is behind refuses the question
	return at
}

func (f *frame) clockBehind(ns *namespace, epoch uint64) *proto.Error {
	return proto.ErrClockBehind(ns.definition.GetName(), uint32(f.id), ns.clockEpoch(), epoch)
}
