package node

import (
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// unread returns a reading of the event clock of a namespace, if this node has heard of a later one than the shard has
// and the log says. p.order is held.
func (p *proposer) unread(ns *ebbv1.Namespace) (d definition) {
	if !proto.OnEventTime(ns) {
		return d
	}
	if has, _ := p.to.behaviour(); max(has, p.behaves) < shard.BehaviourClocks {
		return d
	}
	clock := p.to.reading(ns)
	if last := p.read[ns.GetName()]; clock == nil || last != nil && proto.LaterClock(last, clock) == last {
		return d
	}
	return definition{command: readingCommand(ns.GetName(), clock), clock: clock}
}

func readingCommand(namespace string, clock *ebbv1.EventClock) []byte {
	body := &ebbv1.Command_EventClock{EventClock: &ebbv1.EventClock{Epoch: clock.GetEpoch(), NowUs: clock.GetNowUs()}}
	raw, _ := protobuf.Marshal(&ebbv1.Command{Namespace: namespace, Body: body}) // cannot fail
	return raw
}

// bytes is what it takes in an entry; 0 of none.
func (d *definition) bytes() int {
	if d.command == nil {
		return 0
	}
	return fieldBytes(len(d.command))
}
