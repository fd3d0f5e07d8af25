package sim

import (
	"context"
	"maps"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

const (
	// coldStartMax is how long a cluster may take until every group has a leader.
	coldStartMax = 15 * time.Second
	// settledAfter is how long no leader may have changed until they count as being where they belong.
	settledAfter = 15 * time.Second
)

// quietCluster is how many shards there are that no client talks to, and for how long: 512 groups with the control
// group for EBB_QUIET, or fewer for a short while.
func quietCluster(t *testing.T) (shards uint32, quiet time.Duration) {
	text := os.Getenv("EBB_QUIET")
	if text == "" {
		return 95, 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("EBB_QUIET: %v", err)
	}
	return 511, d
}

// A cluster of many groups soon has all its leaders again, after the power of every node failed and came back. Once
// they are where they belong, none changes as long as no client talks to it.
func TestManyGroupsKeepTheirLeaders(t *testing.T) {
	if testing.Short() {
		t.Skip("hundreds of replicas")
	}
	shards, quiet := quietCluster(t)
	began := time.Now()
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
		for i := range c.Nodes() {
			c.PowerLoss(i)
		}
		start := time.Now()
		for i := range c.Nodes() {
			if err := c.Restart(ctx, i); err != nil {
				t.Fatal(err)
			}
		}
		for len(leaders(c)) <= int(shards) {
			if time.Since(start) > coldStartMax {
				t.Fatalf("%d of %d groups have a leader %v after a cold start", len(leaders(c)), shards+1, coldStartMax)
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Logf("leaders of all %d groups %v after a cold start", shards+1, time.Since(start))
		settled := settle(c)
		time.Sleep(quiet)
		for group, now := range leaders(c) {
			if now != settled[group] {
				t.Errorf("group %d: led by node %d in term %d, and %v later by node %d in term %d", group, settled[group].node, settled[group].term, quiet, now.node, now.term)
			}
		}
	})
	t.Logf("%v of quiet, in %v", quiet, time.Since(began).Round(time.Millisecond))
}

// led is the leader of a group, and its term.
type led struct {
	node int
	term uint64
}

// leaders returns the leader of each group that has one, the control group included.
func leaders(c *Cluster) map[uint32]led {
	out := map[uint32]led{}
	for i := range c.Nodes() {
		for _, r := range c.Node(i).Status().GetReplicas() {
			if r.GetRole() == "leader" && r.GetTerm() > out[r.GetShard()].term {
				out[r.GetShard()] = led{i, r.GetTerm()}
			}
		}
	}
	return out
}

// settle waits until leaders have stayed where they are for a while.
func settle(c *Cluster) map[uint32]led {
	was, since := leaders(c), time.Now()
	for time.Since(since) < settledAfter {
		time.Sleep(time.Second)
		if now := leaders(c); !maps.Equal(now, was) {
			was, since = now, time.Now()
		}
	}
	return was
}
