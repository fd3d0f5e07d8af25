package cluster

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// settingsWait is how long a change of settings waits for shards that do not answer.
const settingsWait = 2 * time.Second

// RefreshEventClock asks the leaders of all shards how far the event clock of a namespace has come, so that this node
// knows of all events that were acknowledged before. It reports whether all said so.
func (c *Coordinator) RefreshEventClock(ctx context.Context, namespace string) bool {
	return c.askSettings(ctx, namespace, 0)
}

// TellSettings has all shards take over the settings of a namespace on event time that has changed, as of the time that
// its clock has come to. A shard that hears of them with its next command only would count by those of before until the
// time of the events that come after the change. One that does not answer here does so.
func (c *Coordinator) TellSettings(ctx context.Context, ns *ebbv1.Namespace) {
	c.askSettings(ctx, ns.GetName(), ns.GetVersion())
}

// askSettings asks the leaders of all shards for the event clock of a namespace, with the settings of a version.
func (c *Coordinator) askSettings(ctx context.Context, namespace string, version uint64) (all bool) {
	table := c.cfg.Table()
	if !followsOneClock(table, table.Namespace(namespace)) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, settingsWait)
	defer cancel()
	clock, all := c.askClock(ctx, table, namespace, new(ebbv1.AskRequest), version)
	c.clocks.note(namespace, clock)
	return all
}
