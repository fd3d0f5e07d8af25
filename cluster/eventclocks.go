package cluster

import (
	"sync"
	"sync/atomic"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// EventClocks is what a node has heard of the event clocks of namespaces: from the shards that it holds, from answers
// of other nodes and from what they tell each other (node/clocks.go). Of each namespace it keeps the latest, which is
// the time of an event that some shard has committed, and never one that a client claims. The zero value has heard of
// none, and nil never does.
//
// It is not kept on disk: what a node does not know after a restart, its shards and the other nodes say.
type EventClocks struct {
	byName  sync.Map // string -> *atomic.Pointer[ebbv1.EventClock]; the clocks are never written to
	changes atomic.Uint64
}

// Heard takes in the clock of a namespace, unless it knows a later one. The caller does not change it afterwards.
func (e *EventClocks) Heard(namespace string, clock *ebbv1.EventClock) {
	if e == nil || clock == nil || clock.GetNowUs() <= 0 || clock.GetNowUs() > proto.ClockMaxUS {
		return
	}
	at := e.place(namespace)
	for {
		known := at.Load()
		if proto.LaterClock(known, clock) == known {
			return
		}
		if at.CompareAndSwap(known, clock) {
			e.changes.Add(1)
			return
		}
	}
}

// Moved is Heard for who has the numbers: it makes nothing of a clock that is not later.
func (e *EventClocks) Moved(namespace string, epoch uint64, nowUS int64) {
	if e == nil {
		return
	}
	if known := e.Of(namespace); known != nil && (known.GetEpoch() > epoch || known.GetEpoch() == epoch && known.GetNowUs() >= nowUS) {
		return
	}
	e.Heard(namespace, &ebbv1.EventClock{Epoch: epoch, NowUs: nowUS})
}

func (e *EventClocks) place(namespace string) *atomic.Pointer[ebbv1.EventClock] {
	if at, ok := e.byName.Load(namespace); ok {
		return at.(*atomic.Pointer[ebbv1.EventClock])
	}
	at, _ := e.byName.LoadOrStore(namespace, new(atomic.Pointer[ebbv1.EventClock]))
	return at.(*atomic.Pointer[ebbv1.EventClock])
}

// Of returns the clock of a namespace, nil of one that it has not heard of. The caller does not change it.
func (e *EventClocks) Of(namespace string) *ebbv1.EventClock {
	if e == nil {
		return nil
	}
	if at, ok := e.byName.Load(namespace); ok {
		return at.(*atomic.Pointer[ebbv1.EventClock]).Load()
	}
	return nil
}

// Changes counts the clocks that were taken in.
func (e *EventClocks) Changes() uint64 { return e.changes.Load() }

// All returns all clocks, in any order.
func (e *EventClocks) All() (list []*ebbv1.NamespaceClock) {
	e.byName.Range(func(name, at any) bool {
		if clock := at.(*atomic.Pointer[ebbv1.EventClock]).Load(); clock != nil {
			list = append(list, &ebbv1.NamespaceClock{Namespace: name.(string), Clock: clock})
		}
		return true
	})
	return list
}

// Keep forgets namespaces that a table does not have, or that have no event clock there.
func (e *EventClocks) Keep(t *Table) {
	e.byName.Range(func(name, _ any) bool {
		if !proto.OnEventTime(t.Defined(name.(string))) {
			e.byName.Delete(name)
		}
		return true
	})
}

// Asked returns the now to ask shards of, of a namespace as a table has it: the latest that this node has heard of, or
// that the caller of a question has seen, in the present epoch. It is nil where there is no such clock.
func (e *EventClocks) Asked(t *Table, ns *ebbv1.Namespace, seen []*ebbv1.NamespaceClock) *ebbv1.EventClock {
	if !proto.OnEventTime(ns) || t.Version() < proto.VersionClocks {
		return nil
	}
	now := &ebbv1.EventClock{Epoch: ns.GetClockSet().GetEpoch()}
	now = proto.LaterClock(now, e.Of(ns.GetName()))
	for _, s := range seen {
		if name := s.GetNamespace(); name != ns.GetName() && (name != "" || ns.GetName() != proto.DefaultNamespace) {
			continue
		}
		if c := s.GetClock(); c.GetEpoch() == now.GetEpoch() && c.GetNowUs() > now.GetNowUs() && c.GetNowUs() <= proto.ClockMaxUS {
			now = c
		}
	}
	return now
}

// timed gives the parts of a plan the now of their namespaces.
func (c *Coordinator) timed(table *Table, p *askPlan) {
	var last *ebbv1.Question
	var clock *ebbv1.EventClock
	for i := range p.parts {
		q := p.parts[i].question
		if last == nil || q.GetQuestion().GetNamespace() != last.GetNamespace() {
			last = q.GetQuestion()
			clock = c.cfg.Clocks.Asked(table, table.Namespace(last.GetNamespace()), p.req.GetClocks())
		}
		q.Clock = clock
	}
}

// hear takes in what shards say of a namespace's clock, and gives the part of the answer what is known then.
func (c *Coordinator) hear(part *askPart) {
	if clock := part.answer.GetClock(); clock != nil {
		c.cfg.Clocks.Heard(part.question.GetQuestion().GetNamespace(), clock)
	}
}

// clockOf is the latest clock that the parts of an answer are of: that which they were asked of, or their own.
func clockOf(parts []askPart) (clock *ebbv1.EventClock) {
	for i := range parts {
		asked := parts[i].question.GetClock()
		if asked == nil {
			continue
		}
		clock = proto.LaterClock(clock, proto.LaterClock(asked, parts[i].answer.GetClock()))
	}
	if clock.GetNowUs() == 0 {
		return nil
	}
	return clock
}
