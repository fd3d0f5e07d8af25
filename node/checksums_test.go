package node_test

import (
	"context"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A leader stops writing entries for a checksum when the call ends. This also holds for a call about an entry that will
// never come.
func TestChecksumsEndWithTheirCall(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		last := func() (n uint64) {
			for i := range b.nodes {
				for _, r := range b.nodes[i].Status().GetReplicas() {
					n += r.GetLastIndex()
				}
			}
			return n
		}
		for i := range b.nodes {
			peer, done := b.peer(i)
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			req := &ebbv1.StatusRequest{}
			for shard := uint32(1); shard <= 3; shard++ {
				req.Checksums = append(req.Checksums, &ebbv1.ChecksumRequest{Shard: shard, At: 1 << 40})
			}
			_, _ = peer.NodeStatus(ctx, req) // it ends late
			cancel()
			done()
		}
		time.Sleep(50 * time.Millisecond) // what is under way
		const aside = 300                 // entries that are written anyway
		before := last()
		time.Sleep(time.Second)
		if more := last() - before; more > aside {
			t.Errorf("%d entries are written for calls that are over", more)
		}
	})
}
