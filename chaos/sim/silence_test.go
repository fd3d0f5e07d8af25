package sim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/cluster"
)

// A node falls silent, again and again, which leads some shards of several: each of them has another leader half an
// election timeout after a whole one at the latest. When the node is heard again it follows, and until it is cut off
// the next time no leader changes.
func TestSilentLeadersAreReplacedSoon(t *testing.T) {
	const shards, cuts = 6, 12
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		c, err := Start(ctx, Options{Shards: shards, Seed: 1, Logger: testLogger()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			c.Stop()
			time.Sleep(Linger)
		}()
		limit := cluster.ElectionTimeout(shards) * 3 / 2
		var longest time.Duration
		for cut := range cuts {
			time.Sleep(settledAfter)
			before := leadersOf(c, shards)
			silent := before[cut%shards]
			c.Isolate(silent)
			began := time.Now()
			for shard, leader := range before {
				for leader == silent && time.Since(began) < time.Minute {
					if now := c.Leader(uint32(shard) + 1); now >= 0 && now != silent {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
			longest = max(longest, time.Since(began))
			for shard, leader := range leadersOf(c, shards) {
				if was := before[shard]; was != silent && was != leader {
					t.Errorf("cut %d: shard %d was led by %d, which was heard, and is led by %d", cut, shard+1, was, leader)
				}
			}
			c.Heal()
		}
		t.Logf("the longest of %d took %v", cuts, longest)
		if longest > limit {
			t.Errorf("it is to take %v at most", limit)
		}
	})
}

// leadersOf returns the leaders of shards 1 and on.
func leadersOf(c *Cluster, shards uint32) []int {
	leaders := make([]int, shards)
	for i := range leaders {
		leaders[i] = c.Leader(uint32(i) + 1)
	}
	return leaders
}
