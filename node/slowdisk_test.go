package node_test

import (
	"maps"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node/fs"
)

// slow makes every sync of a node's disk take so long; 0 makes it fast again.
func (b *bubble) slow(i int, sync time.Duration) {
	b.disks[i].Inject(func(op fs.Op, _ string) error {
		if op == fs.OpSync {
			time.Sleep(sync)
		}
		return nil
	})
}

// within waits until something is so, and says how long that took.
func (b *bubble) within(atMost time.Duration, what string, so func() bool) time.Duration {
	b.Helper()
	start := time.Now()
	for !so() {
		if time.Since(start) > atMost {
			b.Errorf("after %v it is not so: %s", atMost, what)
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(start)
}

// reigns are the terms in which a node leads its groups.
func (b *bubble) reigns(i int) map[uint32]uint64 {
	terms := make(map[uint32]uint64)
	for _, r := range b.nodes[i].Status().Replicas {
		if r.Role == "leader" {
			terms[r.Shard] = r.Term
		}
	}
	return terms
}

// underLoad is three nodes that are written to, with leaders where they should be. At the end nothing that was
// acknowledged is lost, and nothing counts twice.
func underLoad(t *testing.T, then func(b *bubble)) {
	inBubble(t, 3, 6, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		stop := b.writing(c, 3)
		time.Sleep(12 * time.Second)
		then(b)
		b.verify(c, 3, stop())
	})
}

// A node whose disk becomes slow hands over what it leads within seconds, the control group too, and gets nothing back
// as long as that lasts. When its disk is in order again, its shards come home. Nothing that was acknowledged is lost
// on the way, and nothing counts twice.
func TestSlowDiskLeadsNothing(t *testing.T) {
	for name, sync := range map[string]time.Duration{"300ms": 300 * time.Millisecond, "900ms": 900 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "300ms" {
				t.Skip("long")
			}
			underLoad(t, func(b *bubble) {
				victim := b.busiest()
				home := b.reigns(victim)
				delete(home, 0) // no node is home to the control group
				b.slow(victim, sync)
				took := b.within(30*time.Second, "the slow node knows it, and leads nothing", func() bool {
					return b.nodes[victim].Status().GetDiskSlow() && b.led(victim) == 0
				})
				t.Logf("handed over after %v, %v groups", took, b.metric(victim, "ebb_node_disk_slow_handovers_total"))
				if us, slow := b.nodes[victim].Status().GetSyncUs(), b.metric(victim, "ebb_node_disk_slow"); us < uint64(sync.Microseconds()) || slow != 1 {
					t.Errorf("it says that syncs take %d us, and its metric is %v", us, slow)
				}
				for range 60 {
					time.Sleep(250 * time.Millisecond)
					if n := b.led(victim); n != 0 {
						t.Errorf("%d groups are led by the slow node again", n)
						break
					}
				}
				if n := b.led((victim+1)%3) + b.led((victim+2)%3); n != 7 {
					t.Errorf("the others lead %d of 7 groups", n)
				}
				b.slow(victim, 0)
				took = b.within(time.Minute, "the node leads its shards again", func() bool {
					now := b.reigns(victim)
					for shard := range home {
						if now[shard] == 0 {
							return false
						}
					}
					return true
				})
				t.Logf("home after %v", took)
				if b.nodes[victim].Status().GetDiskSlow() || b.metric(victim, "ebb_node_disk_slow") != 0 {
					t.Error("its disk is still slow")
				}
			})
		})
	}
}

// Where all disks are slow alike, as those of one machine, no node hands anything over: another would do no better.
func TestSlowDisksMoveNoLeaders(t *testing.T) {
	underLoad(t, func(b *bubble) {
		before := []map[uint32]uint64{b.reigns(0), b.reigns(1), b.reigns(2)}
		for i, ms := range []time.Duration{110, 130, 150} { // longer ones keep followers so busy that they elect others
			b.slow(i, ms*time.Millisecond)
		}
		b.within(time.Minute, "all disks are slow", func() bool {
			for _, n := range b.nodes {
				if !n.Status().GetDiskSlow() {
					return false
				}
			}
			return true
		})
		time.Sleep(15 * time.Second)
		for i := range b.nodes {
			if after, n := b.reigns(i), b.metric(i, "ebb_node_disk_slow_handovers_total"); n != 0 || !maps.Equal(before[i], after) {
				t.Errorf("node %d handed %v groups over; it led %v and leads %v", i, n, before[i], after)
			}
			b.slow(i, 0)
		}
	})
}

// A disk that halts once, for as long as it may before it counts as hung, moves no leader.
func TestOneLongSyncMovesNoLeader(t *testing.T) {
	underLoad(t, func(b *bubble) {
		victim := b.busiest()
		before := b.reigns(victim)
		release := make(chan struct{})
		b.disks[victim].HangSync(release)
		time.Sleep(1800 * time.Millisecond)
		b.disks[victim].HangSync(nil)
		close(release)
		for range 50 {
			time.Sleep(200 * time.Millisecond)
			if now := b.reigns(victim); !maps.Equal(before, now) || b.nodes[victim].Status().GetDiskSlow() {
				t.Errorf("it led %v and leads %v", before, now)
				break
			}
		}
	})
}
