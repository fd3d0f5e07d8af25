package client

import (
	"sync"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// eventClocks is the largest now of each namespace with an event clock that the client has seen, in its present epoch.
// Questions carry it, so that no answer is of an earlier time than one before, whichever node gives it. What another
// cluster has said is dropped.
type eventClocks struct {
	mu      sync.Mutex // guards what follows
	cluster string
	latest  map[string]*ebbv1.EventClock
}

// clocksCarriedMax bounds the clocks that a request carries: a question that may be about any namespace carries some.
const clocksCarriedMax = 1000

// heard takes in a clock of a namespace; nil is none.
func (e *eventClocks) heard(cluster, namespace string, clock *ebbv1.EventClock) {
	if clock.GetNowUs() == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cluster != cluster || e.latest == nil {
		e.cluster, e.latest = cluster, map[string]*ebbv1.EventClock{}
	}
	name := namespaceOr(namespace)
	e.latest[name] = proto.LaterClock(e.latest[name], clock)
}

// of returns the clocks to carry to a cluster: of some namespaces, or of all for none.
func (e *eventClocks) of(cluster string, namespaces ...string) (list []*ebbv1.NamespaceClock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.latest) == 0 || e.cluster != cluster {
		return nil
	}
	if len(namespaces) == 0 {
		for name, clock := range e.latest {
			if len(list) < clocksCarriedMax {
				list = append(list, &ebbv1.NamespaceClock{Namespace: name, Clock: clock})
			}
		}
		return list
	}
	last := ""
	for _, ns := range namespaces {
		name := namespaceOr(ns)
		if name == last {
			continue
		}
		last = name
		if clock := e.latest[name]; clock != nil {
			list = append(list, &ebbv1.NamespaceClock{Namespace: name, Clock: clock})
		}
	}
	return list
}

// asked returns the clocks of the namespaces of questions.
func (e *eventClocks) asked(cluster string, questions []*ebbv1.Question) []*ebbv1.NamespaceClock {
	names := make([]string, len(questions))
	for i, q := range questions {
		names[i] = q.GetNamespace()
	}
	return e.of(cluster, names...)
}

// EventClock is the now of a namespace that lives by the times of its events.
type EventClock struct {
	// Epoch begins when the clock is set: a time of another epoch says nothing of this one.
	Epoch uint64
	// NowUS is the newest event time that was acknowledged in any shard, in microseconds since 1970.
	NowUS int64
}

// EventClock returns the largest now of a namespace that this client has seen in an answer; false if it has seen none.
func (c *Client) EventClock(ns string) (EventClock, bool) {
	list := c.clocks.of(c.chart.clusterID(), ns)
	if len(list) == 0 {
		return EventClock{}, false
	}
	clock := list[0].GetClock()
	return EventClock{Epoch: clock.GetEpoch(), NowUS: clock.GetNowUs()}, true
}
