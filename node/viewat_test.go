package node_test

import (
	"context"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A checksum at an entry to come, in a shard without writes, is answered though leadership moves during the wait: the
// leader at that time writes the entries.
func TestChecksumAtAnEntryWhileLeadershipMoves(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		const shard = 1
		var led, last uint64
		heir := -1
		for i := range b.nodes {
			for _, r := range b.nodes[i].Status().Replicas {
				switch {
				case r.Shard != shard:
				case r.Role == "leader":
					led, last = r.Term, r.LastIndex
				default:
					heir = i
				}
			}
		}
		if led == 0 || heir < 0 {
			t.Fatalf("nobody leads shard %d", shard)
		}
		peer, done := b.peer(heir)
		defer done()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		start := time.Now()
		time.AfterFunc(time.Second, func() { b.nodes[heir].Campaign(shard) })
		status, err := peer.NodeStatus(ctx, &ebbv1.StatusRequest{Checksums: []*ebbv1.ChecksumRequest{{Shard: shard, At: last + 50}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range status.GetNodes()[0].GetReplicas() {
			if r.Shard == shard && r.ChecksumIndex < last+50 {
				t.Errorf("a checksum at entry %d after %v, and at %d was asked for", r.ChecksumIndex, time.Since(start), last+50)
			}
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A checksum of what there is writes nothing: replicas that are compared would never be at one entry.
func TestChecksumWritesNothing(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		time.Sleep(5 * time.Second)
		for i := range b.nodes {
			peer, done := b.peer(i)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			before := b.nodes[i].Status().Replicas
			status, err := peer.NodeStatus(ctx, &ebbv1.StatusRequest{Checksums: []*ebbv1.ChecksumRequest{{Shard: 1}, {Shard: 2}, {Shard: 3}}})
			cancel()
			done()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range status.GetNodes()[0].GetReplicas() {
				if r.Shard > 0 && r.ChecksumIndex == 0 {
					t.Errorf("node %d has not said a checksum of shard %d", i, r.Shard)
				}
			}
			for j, r := range b.nodes[i].Status().Replicas {
				if r.Shard > 0 && r.LastIndex != before[j].LastIndex {
					t.Errorf("node %d: the log of shard %d is at %d, and was at %d", i, r.Shard, r.LastIndex, before[j].LastIndex)
				}
			}
		}
	})
}
