package shard

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// The event clock of a namespace is the largest time of its events, in any shard. A shard knows the largest time of its
// own events. It learns the time of other shards with each question, and by a command. That command precedes the
// commands of a namespace whose clock is further ahead elsewhere. So a key has the same age in any shard.
//
// An event that is dated further ahead than max_jump is refused. An operator can set the clock. That begins a new
// epoch: its number is the version of the definition that sets the clock. A time of an earlier epoch changes nothing.
// If the clock goes back, a key with a write of a later time begins anew when it is next touched or read. Other keys
// are as they were at that time.

func (ns *namespace) clockEpoch() uint64 { return ns.definition.GetClockSetting().GetEpoch() }

// jumps says whether an event is dated too far ahead of its namespace's clock. The first event of a namespace never is.
func (s *State) jumps(ns *namespace, t sketch.Tick) bool {
	if s.behaviour < BehaviourEventClocks || !ns.onEventTime() || ns.eventTime == 0 {
		return false
	}
	most := sketch.Tick(proto.MaxJumpUS(ns.definition))
	return most > 0 && t-ns.eventTime > most
}

func refusedJump(ns *namespace, us int64) *proto.Error {
	if ns == nil {
		return proto.ErrTimeJump.Errorf("time %s is too far ahead of the event clock", clockText(sketch.Tick(us)))
	}
	name := ns.definition.GetName()
	return proto.ErrTimeJump.Errorf("time %s is more than max_jump, %v, ahead of the event clock of namespace %s",
		clockText(sketch.Tick(us)), text(sketch.Tick(proto.MaxJumpUS(ns.definition))), name).
		WithHint("if the date is right: ebb namespace clock " + name + " --set " + time.UnixMicro(us).UTC().Format(time.RFC3339) +
			", then send it again (ebb import --recheck): with an idempotency key the refused increments alone, " +
			"under a new key, since the old key gets the old refusal")
}

// tooManyJumps returns the error that ends a command of a source, when the source remembers as many rows dated too far
// ahead as it can. The row at which the command ends, and the rows after it, stay undecided.
func tooManyJumps(ns *namespace, src *source) *proto.Error {
	name := ns.definition.GetName()
	return proto.ErrTimeJump.Errorf("%d rows of source %q are dated more than max_jump, %v, ahead of the event clock of namespace %s",
		len(src.refused), src.name, text(sketch.Tick(proto.MaxJumpUS(ns.definition))), name).
		WithHint("if the dates are right: ebb namespace clock " + name + " --set TIME, then import again")
}

// setsClock says whether a definition sets the clock of a namespace.
func (s *State) setsClock(ns *namespace, def *ebbv1.Namespace) bool {
	return s.behaviour >= BehaviourEventClocks && ns.onEventTime() &&
		def.GetClockSetting().GetEpoch() > ns.clockEpoch() &&
		def.GetClockSetting().GetTimeUs() > 0
}

// settingOf returns the time to which a definition sets the clock, but no later than the shard's own clock.
func (s *State) settingOf(def *ebbv1.Namespace) sketch.Tick {
	return min(sketch.Tick(def.GetClockSetting().GetTimeUs()), s.now)
}

// setClock sets the clock, forward or back. From BehaviourUnited on active periods are kept.
func (ns *namespace) setClock(to sketch.Tick, behaviour uint32) {
	if to < ns.eventTime {
		for i := range ns.eras {
			ns.eras[i].from = min(ns.eras[i].from, to)
		}
		ns.eras = append(ns.eras, era{params: ns.takeParams(to, behaviour), from: to, rewound: true})
		ns.count(noEra, noEra)
		if behaviour >= BehaviourUnited && len(ns.active) > 0 {
			ns.rewindActive(to)
			ns.eventTime = to
			return
		}
		ns.fixBeginning()
		if ns.exposure.From > to {
			ns.exposure = sketch.Exposure{From: to}
		}
		ns.began = min(ns.began, to)
	}
	ns.eventTime = to
}

// timed is a body whose content depends on times.
type timed interface {
	// Reached is the latest time that was written to it.
	Reached() sketch.Tick
}

// rewound says whether the clock was set back since a body was last touched, to a time before the latest one that was
// written to the body.
func (ns *namespace) rewound(b body, touched uint32) bool {
	t, ok := b.(timed)
	if !ok {
		return false
	}
	for _, e := range ns.eras[touched-ns.eraBase+1:] {
		if e.rewound && t.Reached() > e.from {
			return true
		}
	}
	return false
}

// advance moves the event clock of a namespace to a time that it has reached in another shard.
func (s *State) advance(c *command) *ebbv1.CommandResult {
	if s.behaviour < BehaviourEventClocks {
		return failed(
			proto.ErrBadRequest.Errorf(
				"event clocks follow each other from behaviour version %d on, and shard %d has %d",
				BehaviourEventClocks,
				s.id,
				s.behaviour,
			),
		)
	}
	ns := s.lookup(c.namespace)
	if ns == nil {
		return failed(namespaceNotFound(c.namespace))
	}
	var epoch, now uint64
	fields(c.body, func(num protowire.Number, v uint64, _ []byte) {
		switch num {
		case fieldEventClockEpoch:
			epoch = v
		case fieldEventClockNow:
			now = v
		}
	})
	if now > uint64(s.now+s.limits.Future) {
		return failed(proto.ErrBadTime.Errorf("an event clock cannot have come to %s, which is ahead of the clock of shard %d",
			clockText(sketch.Tick(min(now, uint64(clockMax)))), s.id))
	}
	to := sketch.Tick(min(now, uint64(s.now)))
	if !ns.onEventTime() || epoch != ns.clockEpoch() || to <= ns.eventTime {
		return &ebbv1.CommandResult{}
	}
	ns = s.editNamespace(ns.space)
	clock := ns.eventTime
	ns.eventTime = to
	if slow := s.editSlow(ns); slow != nil {
		slow.eventTime = to
	}
	s.cleanUpBy(ns, clock, 0)
	return &ebbv1.CommandResult{}
}

// Floor returns the earliest time at which a question about a namespace is evaluated: at, the coordinator's clock, or
// the namespace's event clock as far as the coordinator knows it.
func (f *frame) Floor(q *ebbv1.ShardQuestion, at sketch.Tick) sketch.Tick {
	return f.floor(f.lookup([]byte(q.GetQuestion().GetNamespace())), q, at)
}

func (f *frame) floor(ns *namespace, q *ebbv1.ShardQuestion, at sketch.Tick) sketch.Tick {
	c := q.GetClock()
	switch {
	case ns == nil && c != nil: // this shard does not know the namespace, which is on event time
		return min(max(sketch.Tick(c.GetNowUs()), 1), clockMax)
	case ns == nil || !ns.onEventTime():
		return at
	case c != nil && c.GetEpoch() == ns.clockEpoch():
		return min(sketch.Tick(c.GetNowUs()), clockMax)
	}
	return 0
}

// askEventClock returns the event clock of a namespace in this shard.
func (f *frame) askEventClock(q *ebbv1.ShardQuestion) *ebbv1.ShardAnswer {
	clock := &ebbv1.EventClock{}
	if ns := f.lookup([]byte(q.Question.Namespace)); ns != nil && ns.onEventTime() {
		clock = &ebbv1.EventClock{Epoch: ns.clockEpoch(), NowUs: int64(ns.eventTime)}
	}
	if q.Partial {
		return f.answerPart(appendEventClock(nil, clock), sketch.Tick(clock.NowUs))
	}
	return &ebbv1.ShardAnswer{
		Value: &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_EventClock{
			EventClock: &ebbv1.EventClockAnswer{Clock: clock, OldestUs: clock.NowUs},
		}}},
		AsOfUs: clock.NowUs,
	}
}

// mergeEventClocks returns the newest epoch, and the newest time in it. A shard of an earlier epoch has no time.
func mergeEventClocks(answers []*ebbv1.ShardAnswer) (*ebbv1.Answer, error) {
	all := &ebbv1.EventClockAnswer{Clock: &ebbv1.EventClock{}}
	for i, a := range answers {
		r := reader{rest: a.GetPart()}
		kind := r.byte()
		epoch, now := r.uvarint(), int64(r.uvarint())
		if r.bad || kind != partEventClock || len(r.rest) > 0 || now < 0 {
			return nil, errPart(i)
		}
		c := all.Clock
		switch {
		case i == 0:
			c.Epoch, c.NowUs, all.OldestUs = epoch, now, now
		case epoch == c.Epoch:
			c.NowUs, all.OldestUs = max(c.NowUs, now), min(all.OldestUs, now)
		case epoch > c.Epoch:
			c.Epoch, c.NowUs, all.OldestUs = epoch, now, 0
		default:
			all.OldestUs = 0
		}
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_EventClock{EventClock: all}}, nil
}

// EventClock returns the epoch and the time of the event clock of a namespace, in microseconds; 0 for none.
func (s *State) EventClock(name string) (epoch uint64, us int64) {
	space, ok := s.spaces[name]
	if !ok || !s.namespaces[space].onEventTime() {
		return 0, 0
	}
	return s.namespaces[space].clockEpoch(), int64(s.namespaces[space].eventTime)
}
