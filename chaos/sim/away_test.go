package sim

import (
	"context"
	"testing"
	"time"

	"github.com/ebbdb/ebb/cluster"
)

// A node dies, and a shard of it moves to a newcomer. When it comes back, it hears of no leader of that shard any more;
// it deletes the replica, and serves.
func TestNodeWhoseShardMovedAwayBecomesReady(t *testing.T) {
	inBubble(t, Options{Shards: 5}, func(t *testing.T, c *Cluster) {
		const dead = 2
		holds := func() int {
			n := 0
			table := c.Node(0).Table()
			for shard := uint32(1); shard <= 5; shard++ {
				if _, ok := table.ReplicaOn(c.Name(dead), shard); ok {
					n++
				}
			}
			return n
		}
		c.Kill(dead)
		newcomer := c.Add()
		if err := c.Restart(t.Context(), newcomer); err != nil {
			t.Fatal(err)
		}
		until(t, "a shard to move away from the dead node", func() bool { return holds() < 5 && len(cluster.Moves(c.Node(0).Table())) == 0 })
		if err := c.Restart(t.Context(), dead); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Ready(ctx); err != nil {
			t.Errorf("with %d shards left: %v", holds(), err)
		}
		until(t, "the end of the replica that moved away", func() bool { return len(c.Node(dead).Status().GetReplicas()) == holds()+1 }) // and the control group's
	})
}

// until waits for what must come, five minutes at most.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for start := time.Now(); !so(); time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > 5*time.Minute {
			t.Fatalf("%s does not come", what)
		}
	}
}
