package cluster

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// settingsWait is how long a change of settings waits for shards that do not answer.
const settingsWait = 2 * time.Second

// RefreshEventClock asks the leaders of all shards for their event clock of a namespace, so that this node knows of all
// events that were acknowledged before. It reports whether all of them answered.
func (c *Coordinator) RefreshEventClock(ctx context.Context, namespace string) bool {
	return c.askSettings(ctx, namespace, 0)
}

// TellSettings makes all shards take over the changed settings of a namespace on event time, as of the present time of
// its clock. A shard that gets the settings only with its next command applies the old ones up to the time of the next
// events. So does a shard that does not answer here.
func (c *Coordinator) TellSettings(ctx context.Context, ns *ebbv1.Namespace) {
	c.askSettings(ctx, ns.GetName(), ns.GetVersion())
}

// askSettings asks the leaders of all shards for the event clock of a namespace, after they have taken over this
// version of the settings; version 0 changes no settings. It reports whether all answered.
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
