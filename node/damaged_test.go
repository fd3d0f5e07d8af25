package node_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// breakSnapshots inverts a bit in each file of the snapshots of a shard.
func breakSnapshots(t *testing.T, image *fs.Mem, shard uint32, rng *rand.Rand) {
	t.Helper()
	for name, used := range filesOf(t, image, fmt.Sprintf("/data/snap/%d", shard)) {
		must(t, image.FlipByte(name, rng.Int64N(used), uint(rng.IntN(8))))
	}
}

// snapshotted returns the shards that have a snapshot on a disk.
func snapshotted(t *testing.T, image *fs.Mem) (shards []uint32) {
	t.Helper()
	for shard := uint32(1); shard <= 4; shard++ {
		if len(filesOf(t, image, fmt.Sprintf("/data/snap/%d", shard))) > 0 {
			shards = append(shards, shard)
		}
	}
	if len(shards) == 0 {
		t.Fatal("no shard has a snapshot")
	}
	return shards
}

// swollen fills a cluster so that the logs are cut behind snapshots, and returns what was counted.
func (b *bubble) swollen() (c *ebb.Client, want int) {
	for i := range b.config {
		b.config[i].SnapshotBytes = 64 << 10
	}
	b.openAll()
	b.until("the newest version", func() bool { return b.table(0).Version() >= proto.VersionLoseReplica })
	c = b.client()
	b.plain(c)
	stop := b.writing(c, 8)
	time.Sleep(10 * time.Second)
	want = stop()
	b.swell(c, 2<<20)
	time.Sleep(time.Minute)
	return c, want
}

// The snapshots of one shard on one node are damaged. The node serves the others, and gets another replica of that
// shard from its peers by itself. Nothing is lost, and it is a voter again.
func TestDamagedReplicaIsReplaced(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		c, want := b.swollen()
		rng := rand.New(rand.NewPCG(1, 2))
		for range 2 {
			b.crash(0)
			broken := snapshotted(t, b.disks[0])[0]
			before, _ := b.table(1).ReplicaOn(b.config[0].Name, broken)
			breakSnapshots(t, b.disks[0], broken, rng)
			b.open(0)
			b.ready(0)
			b.verify(c, 8, want) // also while it is replaced
			b.until("another replica", func() bool {
				id, _ := b.table(0).ReplicaOn(b.config[0].Name, broken)
				return id > before && b.whole(3, 0, 1, 2)
			})
			for _, r := range b.nodes[0].Status().GetReplicas() {
				if r.GetQuarantined() || r.GetShard() == broken && r.GetReplica() <= before {
					b.Errorf("afterwards its replica is %v", r)
				}
			}
			b.equal(0, 1, 2)
		}
		b.crash(1) // so that the new replicas are needed for a majority
		b.verify(c, 8, want)
		b.write(c, "after", "x", 1)
	})
}

// Two of three replicas of a shard are damaged: what is left cannot know what was acknowledged. So the shard answers
// nothing and the nodes say so, the other shards serve, and with one of the damaged ones whole again all is there.
func TestTwoDamagedReplicas(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		c, want := b.swollen()
		rng := rand.New(rand.NewPCG(3, 4))
		b.crash(0)
		b.crash(1)
		broken := snapshotted(t, b.disks[0])[0]
		whole := b.disks[0].Crash(2)
		for i := range 2 {
			b.disks[i] = b.disks[i].Crash(3)
			b.config[i].FS = b.disks[i]
			breakSnapshots(t, b.disks[i], broken, rng)
		}
		for i := range 2 {
			b.open(i)
		}
		for i := range 2 {
			b.ready(i)
		}
		time.Sleep(time.Minute)
		for shard := uint32(1); shard <= 4; shard++ {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := c.Distribution(ctx, "plain", b.keyOn(shard))
			cancel()
			if shard == broken != (err != nil) {
				b.Errorf("shard %d: %v", shard, err)
			}
		}
		named := false
		for _, r := range b.nodes[0].Status().GetReplicas() {
			named = named || r.GetShard() == broken && r.GetQuarantined()
		}
		if !named {
			b.Errorf("the status of the node does not name shard %d", broken)
		}
		for _, r := range b.table(2).Replicas(broken) {
			if r.GetLost() {
				b.Errorf("the replica of node %s is given up, and another one is damaged, too", r.GetNode())
			}
		}
		b.crash(0)
		b.disks[0], b.config[0].FS = whole, whole
		b.open(0)
		b.ready(0)
		b.until("three replicas each", func() bool { return b.whole(3, 0, 1, 2) })
		b.verify(c, 8, want)
		b.equal(0, 1, 2)
	})
}
