package node_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	pb "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// A backup of a newer storage version waits until that is in force: here until the last node is upgraded. Then it is
// restored, and shards have the behaviour of the version.
func TestBackupOfANewerVersionWaits(t *testing.T) {
	newer := shard.New(1, shard.Heap{})
	behave, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{
		Behaviour: &ebbv1.Behaviour{Version: shard.BehaviourNamespaces},
	}})
	if err != nil {
		t.Fatal(err)
	}
	entry, err := pb.Marshal(&ebbv1.Entry{StampUs: 1, Commands: [][]byte{behave}})
	if err != nil {
		t.Fatal(err)
	}
	newer.Apply(1, entry, nil)
	steps := restoreSteps(t, newer)
	inBubble(t, 1, 1, func(b *bubble) {
		b.config[0].Storage = proto.Versions{Oldest: 1, Newest: proto.VersionNamespaces - 1}
		b.openAll()
		b.until("the older version", func() bool { return b.table(0).Version() == proto.VersionNamespaces-1 })
		c := b.client()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := c.RestoreStep(ctx, 1, steps[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := c.RestoreStep(ctx, 1, steps[1]); !errors.Is(err, proto.ErrStarting) {
			t.Errorf("the first bytes, while the older version is in force: %v, want STARTING", err)
		}
		if err := b.nodes[0].Close(); err != nil {
			t.Fatal(err)
		}
		b.config[0].Storage = proto.Versions{}
		b.open(0)
		b.ready(0)
		var last *ebbv1.RestoreProgress
		for _, step := range steps { // each is tried until the newer version is in force
			if last, err = b.client().RestoreStep(context.Background(), 1, step); err != nil {
				t.Fatal(err)
			}
		}
		if !last.GetDone() || b.table(0).Version() != proto.StorageVersion {
			t.Errorf("the restore says %v, under storage version %d", last, b.table(0).Version())
		}
	})
}

// restoreSteps are the steps of a restore of a state, named r.
func restoreSteps(t *testing.T, state *shard.State) []*ebbv1.RestoreShard {
	t.Helper()
	var raw bytes.Buffer
	if _, err := state.WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	begin := &ebbv1.RestoreBegin{Bytes: uint64(raw.Len()), Checksum: xxh3.Hash(raw.Bytes())}
	return []*ebbv1.RestoreShard{
		{Name: "r", Step: &ebbv1.RestoreShard_Begin{Begin: begin}},
		{Name: "r", Step: &ebbv1.RestoreShard_Piece{Piece: &ebbv1.RestorePiece{Data: raw.Bytes()}}},
		{Name: "r", Step: &ebbv1.RestoreShard_Commit{Commit: &ebbv1.RestoreCommit{}}},
	}
}

// A shard of a restore that ended there, and was given up in others, takes writes. Its state knows the namespaces of
// its backup only, and those of before are defined anew.
func TestWritesAfterARestoreThatWasGivenUp(t *testing.T) {
	inBubble(t, 1, 1, func(b *bubble) {
		b.openAll()
		b.ready(0)
		c, ctx := b.client(), context.Background()
		nothing := ebb.Increment{Key: "key", Bin: "b", Amount: 0} // defines the namespace, and makes no key
		if err := c.Increment(ctx, "default", nothing); err != nil {
			t.Fatal(err)
		}
		for _, step := range restoreSteps(t, shard.New(1, shard.Heap{})) {
			if _, err := c.RestoreStep(ctx, 1, step); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.add(c, "default", "key"); err != nil {
			t.Error(err)
		}
	})
}
