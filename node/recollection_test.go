package node_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// short returns the shards whose replica on a node lacks what it acknowledged, as the node says.
func (b *bubble) short(i int) (shards []uint32) {
	for _, r := range b.nodes[i].Status().GetReplicas() {
		if r.GetRole() == "short" {
			shards = append(shards, r.GetShard())
		}
	}
	slices.Sort(shards)
	return shards
}

// copied ends a node, and returns a copy of its disk.
func (b *bubble) copied(i int) *fs.Mem {
	b.Helper()
	b.crash(i)
	image := b.disks[i].Crash(7)
	b.disks[i] = b.disks[i].Crash(8)
	b.config[i].FS = b.disks[i]
	return image
}

// putBack copies the disk of a node, which starts again, and returns what ends it and puts the copy in place,
// and returns the disk that it had.
func (b *bubble) putBack(i int) (now func() *fs.Mem) {
	b.Helper()
	old := b.copied(i)
	b.open(i)
	b.ready(i)
	return func() *fs.Mem {
		b.Helper()
		b.crash(i)
		had := b.disks[i]
		b.disks[i], b.config[i].FS = old, old
		return had
	}
}

// soon waits for what comes within five seconds, and may not last. Some of it comes with a try that is made again after
// two seconds.
func (b *bubble) soon(what string, so func() bool) {
	b.Helper()
	for start := time.Now(); !so(); time.Sleep(time.Millisecond) {
		if time.Since(start) > 5*time.Second {
			b.Errorf("%s: never seen", what)
			return
		}
	}
}

// keyed returns the shards of the keys that are written, with one of each.
func (b *bubble) keyed() map[uint32]string {
	keys := make(map[uint32]string)
	for k := range 8 {
		key := fmt.Sprintf("k%d", k)
		keys[b.table(0).ShardOf("plain", []byte(key))] = key
	}
	return keys
}

// asks returns what a shard says of a key, or why it says nothing.
func (b *bubble) asks(c *ebb.Client, key string) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	d, err := c.Distribution(ctx, "plain", key)
	if err != nil {
		return 0, err
	}
	for _, x := range d.Bins {
		if x.Name == "x" {
			return x.Count, nil
		}
	}
	return 0, nil
}

// answers reports whether a shard says of a key what it should.
func (b *bubble) answers(c *ebb.Client, key string, want int) bool {
	count, err := b.asks(c, key)
	return err == nil && count == float64(want)
}

// One node is put back from an older copy of its whole data directory. It has its replicas again from the others, and
// then takes part as before.
func TestDirectoryFromAnOlderCopy(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		stop := b.writing(c, 8)
		time.Sleep(2 * time.Second)
		putBack := b.putBack(0)
		time.Sleep(5 * time.Second)
		putBack()
		b.open(0)
		b.soon("a short replica", func() bool { return len(b.short(0)) > 0 })
		b.ready(0)
		b.until("all replicas vote", func() bool { return len(b.short(0)) == 0 && b.nodes[0].Readiness() == nil })
		want := stop()
		b.verify(c, 8, want)
		b.equal(0, 1, 2)
		b.crash(1) // so that it is needed for a majority
		b.verify(c, 8, want)
		b.write(c, "after", "x", 1)
	})
}

// Writes were acknowledged by two nodes while the third one was down. One of the two comes back from an older copy. It
// does not elect the third one, or is elected by it, though the other one that knows ends at once.
func TestOlderCopyElectsNobody(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		keyed := b.keyed()
		putBack := b.putBack(0)
		b.crash(2)
		stop := b.writing(c, 8)
		time.Sleep(10 * time.Second)
		want := stop()
		time.Sleep(10 * time.Second)
		putBack()
		b.open(0)
		b.soon("short replicas", func() bool { return len(b.short(0)) > 0 })
		b.crash(1)
		b.open(2)
		time.Sleep(20 * time.Second)
		for _, key := range keyed {
			if count, err := b.asks(c, key); err == nil {
				b.Errorf("%s: nodes that do not have it say %v, and %d were acknowledged", key, count, want)
			}
		}
		short := b.short(0)
		for shard := range keyed {
			if !slices.Contains(short, shard) {
				b.Errorf("shard %d is not named: %v are", shard, short)
			}
		}
		if err := b.nodes[0].Readiness(); err == nil {
			b.Error("the node is ready")
		}
		b.crash(0) // what it knows it knows for good
		b.open(0)
		time.Sleep(5 * time.Second)
		if again := b.short(0); !slices.Equal(again, short) {
			b.Errorf("restarted with the shards %v short, before it were %v", again, short)
		}
		b.open(1)
		b.until("all have all", func() bool { return len(b.short(0)) == 0 && b.whole(3, 0, 1, 2) })
		b.verify(c, 8, want)
		b.equal(0, 1, 2)
	})
}

// twoOlderCopies writes to a cluster of three, and puts two of them back from older copies while the third one led. It
// returns what was counted in each key, the keys of the shards that answer nothing, and the disks that the two had.
func (b *bubble) twoOlderCopies() (c *ebb.Client, want int, silent map[uint32]string, had []*fs.Mem) {
	b.Helper()
	b.openAll()
	b.until("the newest version", func() bool { return b.table(0).Version() >= proto.VersionRecoverShard })
	c = b.client()
	b.plain(c)
	keyed := b.keyed()
	first, second := b.putBack(0), b.putBack(1)
	stop := b.writing(c, 8)
	time.Sleep(5 * time.Second)
	want = stop()
	time.Sleep(time.Second)
	for shard := uint32(1); shard <= 4; shard++ {
		b.until("the third leads", func() bool { b.nodes[2].Campaign(shard); return b.leaderOf(shard) == 2 })
	}
	time.Sleep(100 * time.Millisecond) // both have acknowledged that
	had = []*fs.Mem{first(), second()}
	time.Sleep(10 * time.Second) // until the third one leads no more
	b.open(0)
	b.open(1)
	time.Sleep(30 * time.Second)
	silent = make(map[uint32]string)
	for shard, key := range keyed {
		count, err := b.asks(c, key)
		switch named := b.short(0); {
		case err == nil && count != float64(want):
			b.Errorf("shard %d has counted %v, and %d were acknowledged", shard, count, want)
		case err != nil && !slices.Contains(named, shard):
			b.Errorf("shard %d does not answer (%v), and node 0 names %v", shard, err, named)
		case err != nil:
			silent[shard] = key
		}
	}
	if len(silent) == 0 {
		b.Errorf("all shards answer: short are %v and %v", b.short(0), b.short(1))
	}
	return c, want, silent, had
}

// Two of three nodes are put back from older copies, while the third one led. Nothing of what was acknowledged is
// silently gone: shards answer all of it, or nothing and are named. With the directories that they had these answer.
func TestTwoOlderCopies(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		c, want, silent, had := b.twoOlderCopies()
		for _, r := range b.nodes[0].Status().GetReplicas() {
			if r.GetRole() == "short" && r.GetAcknowledgedIndex() <= r.GetLastIndex() && r.GetShard() != 0 {
				b.Errorf("a short replica has what it acknowledged: %v", r)
			}
		}
		if b.nodes[0].Readiness() == nil {
			b.Error("node 0 is ready")
		}
		for i, disk := range had {
			b.crash(i)
			b.disks[i], b.config[i].FS = disk, disk
			b.open(i)
		}
		for _, key := range silent {
			b.until("the answer of "+key, func() bool { return b.answers(c, key, want) })
		}
	})
}

// recover continues with the replica of a node, of a shard that lost its majority.
func (b *bubble) recover(shard uint32, from int, dry bool) (*ebbv1.ChangeClusterResponse, error) {
	return b.ask(2, &ebbv1.ChangeClusterRequest{DryRun: dry, Change: &ebbv1.ChangeClusterRequest_Recover{
		Recover: &ebbv1.RecoverShard{Shard: shard, Node: b.config[from].Name},
	}})
}

// Of three replicas two are put back from older copies for good. An operator continues with the third one, which has
// all that was acknowledged, and the other nodes get new replicas from it. A shard that has a leader is refused.
func TestRecoverShard(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		c, want, silent, _ := b.twoOlderCopies()
		for range 2 { // asked for twice it is done once
			if resp, err := b.recover(0, 2, false); err != nil && b.leaderOf(0) >= 0 {
				b.Logf("the control group is led: %v", err)
			} else if err != nil {
				b.Fatalf("recover the control group: %v %v", resp, err)
			}
			b.until("a leader of the control group", func() bool { return b.leaderOf(0) >= 0 })
		}
		for shard, key := range silent {
			resp, err := b.recover(shard, 0, true)
			if err != nil || len(resp.GetWarnings()) == 0 {
				b.Errorf("shard %d: from the replica of node 0: %v, %v", shard, resp, err)
			}
			if _, err := b.recover(shard, 2, false); err != nil {
				b.Fatalf("recover shard %d: %v", shard, err)
			}
			b.until("the answer of "+key, func() bool { return b.answers(c, key, want) })
			if _, err := b.recover(shard, 2, false); err == nil {
				b.Errorf("shard %d is recovered though it has a leader", shard)
			}
		}
		for shard := uint32(1); shard <= 4; shard++ { // those without keys
			if slices.Contains(b.short(0), shard) && slices.Contains(b.short(1), shard) {
				_, err := b.recover(shard, 2, false)
				b.Logf("shard %d without keys: %v", shard, err)
			}
		}
		b.until("all have all", func() bool { return len(b.short(0))+len(b.short(1)) == 0 && b.whole(3, 0, 1, 2) })
		b.verify(c, 8, want)
		b.equal(0, 1, 2)
		b.crash(2) // so that the new replicas are needed for a majority
		b.verify(c, 8, want)
		b.write(c, "after", "x", 1)
	})
}

// A node is put back from a copy that is older than one of its replicas. It does not make that anew as an empty one
// that votes: the replica has acknowledged entries.
func TestOlderCopyLacksAReplica(t *testing.T) {
	inBubble(t, 4, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		b.until("three replicas each", func() bool { return b.whole(3, 0, 1, 2, 3) })
		gone := -1
		for i := range 4 {
			if _, here := b.table(0).ReplicaOn(b.config[i].Name, 1); !here {
				gone = i
			}
		}
		putBack := b.putBack(gone)
		for i := range 4 {
			if i != gone {
				drain := &ebbv1.ChangeClusterRequest_Drain{Drain: b.config[i].Name}
				b.change(gone, &ebbv1.ChangeClusterRequest{Change: drain})
				break
			}
		}
		b.until("a replica on the fourth node", func() bool {
			_, here := b.table(gone).ReplicaOn(b.config[gone].Name, 1)
			return here && len(cluster.Moves(b.table(gone))) == 0
		})
		stop := b.writing(c, 8)
		time.Sleep(5 * time.Second)
		putBack()
		b.open(gone)
		b.soon("the replica that the copy does not have", func() bool { return slices.Contains(b.short(gone), 1) })
		b.ready(gone)
		b.until("all replicas vote", func() bool { return len(b.short(gone)) == 0 && b.nodes[gone].Readiness() == nil })
		b.verify(c, 8, stop())
	})
}

// A node comes back from an older copy before any other one answers. It learns that it is short when one does.
func TestOlderCopyIsToldLate(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		putBack := b.putBack(0)
		b.crash(2)
		stop := b.writing(c, 8)
		time.Sleep(10 * time.Second)
		want := stop()
		time.Sleep(10 * time.Second)
		putBack()
		b.crash(1)
		b.open(0)
		time.Sleep(5 * time.Second)
		if short := b.short(0); len(short) > 0 {
			b.Errorf("short without an answer: %v", short)
		}
		b.open(1)
		b.soon("short replicas", func() bool { return len(b.short(0)) > 0 })
		b.open(2)
		b.until("all have all", func() bool { return len(b.short(0)) == 0 && b.whole(3, 0, 1, 2) })
		b.verify(c, 8, want)
		b.equal(0, 1, 2)
	})
}

// Nodes that start together do not wait for one another's replicas, and one whose peers are down waits a second.
func TestStartsAskAndGoOn(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		time.Sleep(10 * time.Second)
		for i := range 3 {
			b.crash(i)
		}
		runs := func(i int) bool { return len(b.nodes[i].Status().GetReplicas()) > 0 }
		start := time.Now()
		for i := range 3 {
			b.open(i)
		}
		b.until("all replicas", func() bool { return runs(0) && runs(1) && runs(2) })
		if took := time.Since(start); took > 700*time.Millisecond {
			b.Errorf("started together, replicas run after %v", took)
		}
		for i := range 3 {
			b.ready(i)
		}
		for i := range 3 {
			b.crash(i)
		}
		start = time.Now()
		b.open(0)
		b.until("its replicas", func() bool { return runs(0) })
		if took := time.Since(start); took > 1500*time.Millisecond {
			b.Errorf("started alone, its replicas run after %v", took)
		}
		b.open(1)
		b.open(2)
		b.ready(0)
	})
}
