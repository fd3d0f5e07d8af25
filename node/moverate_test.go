package node_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// swell writes so many bytes to shard 1, and waits until every node has taken a snapshot.
func (b *bubble) swell(c *ebb.Client, bytes int) {
	b.Helper()
	for n := 0; bytes > 0; n++ {
		key := fmt.Sprintf("%s/%d", strings.Repeat("long", 100), n)
		if b.table(0).ShardOf("plain", []byte(key)) == 1 {
			b.write(c, key, "x", 1)
			bytes -= len(key)
		}
	}
	for i := range b.nodes {
		b.until("a snapshot", func() bool { return b.metric(i, "ebb_node_snapshots_total") > 0 })
	}
}

// TestReplicasAreSentAtARate: a node whose disk was lost gets the shard back at the rate that is set and no faster;
// everybody can see how far that is, and writes do not wait for it.
func TestReplicasAreSentAtARate(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		const rate = 100 << 10
		for i := range b.config {
			b.config[i].MoveRate, b.config[i].SnapshotBytes = rate, 512<<10
		}
		b.openAll()
		c := b.client()
		b.plain(c)
		b.swell(c, 600<<10)
		b.until("it is known whose disks these are", func() bool { return b.table(0).Node("ebb-2").GetDisk() != "" })
		b.crash(2)
		b.disks[2] = fs.NewMem()
		b.config[2].FS = b.disks[2]
		b.open(2)

		var sent, left uint64
		var first, last time.Time
		b.until("a whole cluster", func() bool {
			for _, m := range b.change(0, &ebbv1.ChangeClusterRequest{DryRun: true}).GetMoves() {
				if m.GetShard() != 1 || m.GetLeftBytes() == 0 {
					continue
				}
				if m.GetSentBytes() < sent || left > 0 && m.GetLeftBytes() > left {
					t.Errorf("%d bytes were sent and %d left, and now %d and %d", sent, left, m.GetSentBytes(), m.GetLeftBytes())
				}
				if sent, left, last = m.GetSentBytes(), m.GetLeftBytes(), time.Now(); first.IsZero() {
					first = last
				}
				start := time.Now()
				b.write(c, "link", "de", 1)
				if took := time.Since(start); took > time.Second {
					t.Errorf("a write takes %v meanwhile", took)
				}
			}
			return !first.IsZero() && b.whole(3, 0, 1, 2)
		})
		b.ready(2)
		status := b.nodes[2].Status()
		came := status.GetReceivedBytes()
		if came < 512<<10 || came != uint64(b.metric(2, "ebb_node_snapshot_install_received_bytes_total")) || status.GetHeldBytes() != 0 {
			t.Errorf("%d bytes came, %d were there", came, status.GetHeldBytes())
		}
		if took := last.Sub(first); took < time.Duration(float64(came-(300<<10))/rate*0.9*float64(time.Second)) {
			t.Errorf("%d bytes came in %v", came, took)
		}
	})
}
