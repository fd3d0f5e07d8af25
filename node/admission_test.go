package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A node that does not answer and has the only copy of some shards is not removed, and it is said how many they are.
func TestOnlyCopyIsNotRemoved(t *testing.T) {
	inBubble(t, 4, 8, func(b *bubble) {
		for i := range b.config {
			b.config[i].Replication = 1
		}
		b.openAll()
		b.crash(3)
		b.until("word of its end", func() bool {
			req := remove("ebb-3")
			req.DryRun = true
			_, err := b.ask(0, req)
			return errors.Is(err, proto.ErrBadRequest)
		})
		_, err := b.ask(0, remove("ebb-3"))
		if !contains(err, "node ebb-3 does not answer and holds the only copy of") {
			t.Errorf("removing the only copy says %v", err)
		}
		if b.table(0).Node("ebb-3").GetState() != ebbv1.NodeState_NODE_STATE_UNSPECIFIED {
			t.Error("it is to be removed all the same")
		}
	})
}

// A node whose version the cluster does not speak gets an error with both versions, and does not become a member.
func TestOtherVersionsDoNotJoin(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		peer, done := b.peer(0)
		defer done()
		for _, speaks := range []uint64{proto.WireOldest - 1, proto.WireVersion + 1} {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			_, err := peer.Manage(ctx, &ebbv1.ManageRequest{Body: &ebbv1.ManageRequest_Join{Join: &ebbv1.JoinNode{
				Record: &ebbv1.NodeRecord{Name: "guest", Disk: "d"}, Protocol: speaks,
			}}})
			cancel()
			if !errors.Is(err, proto.ErrNewerVersion) || !contains(err, "node guest speaks wire version") {
				t.Errorf("protocol %d: %v, want NEWER_VERSION", speaks, err)
			}
		}
		if b.table(0).Node("guest") != nil {
			t.Error("a node of another version is a member")
		}
	})
}
