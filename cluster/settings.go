package cluster

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// settingsWait is how long a change of settings waits for shards that do not answer.
const settingsWait = 2 * time.Second

// RefreshEventClock asks the leaders of all shards how far the event clock of a namespace has come, so that this node
// knows of all events that were acknowledged before.
func (c *Coordinator) RefreshEventClock(ctx context.Context, namespace string) {
	c.askSettings(ctx, namespace, 0)
}

// TellSettings has all shards take over the settings of a namespace on event time that has changed, as of the time that
// its clock has come to. A shard that hears of them later, with its next command, would count by those of before until the
// time of the events that come after the change. One that does not answer does so.
func (c *Coordinator) TellSettings(ctx context.Context, ns *ebbv1.Namespace) {
	c.askSettings(ctx, ns.GetName(), ns.GetVersion())
}

// askSettings asks the leaders of all shards for the event clock of a namespace, of settings of a version or newer.
func (c *Coordinator) askSettings(ctx context.Context, namespace string, version uint64) {
	table := c.cfg.Table()
	ns := table.Namespace(namespace)
	if ns == nil || !proto.OnEventTime(ns) || table.Version() < proto.VersionEventClocks || proto.BySlice(ns) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settingsWait)
	defer cancel()
	p, err := plan(table, &ebbv1.AskRequest{
		Questions: []*ebbv1.Question{{
			Namespace: namespace, Ask: &ebbv1.Question_EventClock{EventClock: &ebbv1.EventClockQuestion{}},
		}},
		AllowPartial: true,
	})
	if err != nil {
		return
	}
	known := c.clocks.known(namespace)
	for i := range p.parts {
		p.parts[i].question.SettingsVersion, p.parts[i].question.Clock = version, known
	}
	c.scatter(ctx, table, p)
	if answer := p.fold(ctx)[0]; answer.GetError() == nil {
		c.clocks.note(namespace, answer.GetEventClock().GetClock())
	}
}
