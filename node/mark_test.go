package node

import (
	"bytes"
	"io"
	"testing"

	"github.com/hashicorp/raft"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// A caller that waits for an entry gets a view when a snapshot brings the replica beyond it: in a shard at rest no
// command may come after.
func TestASnapshotReachesAMark(t *testing.T) {
	fresh := func() *shardMachine {
		return newShardMachine(1, func() shard.Memory { return shard.Heap{} }, make(chan struct{}, 1), new(applyMetrics), nil, nil)
	}
	tick, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
	if err != nil {
		t.Fatal(err)
	}
	entry, err := pb.Marshal(&ebbv1.Entry{StampUs: 1_767_225_600_000_000, Commands: [][]byte{tick}})
	if err != nil {
		t.Fatal(err)
	}
	leader, follower := fresh(), fresh()
	for i := range uint64(30) {
		leader.Apply(&raft.Log{Index: i + 1, Term: 1, Type: raft.LogCommand, Data: entry})
	}
	soon, later := mark{at: 20, view: make(chan *shard.View, 1)}, mark{at: 31, view: make(chan *shard.View, 1)}
	follower.wait(soon)
	follower.wait(later)
	var snapshot bytes.Buffer
	from := leader.freeze()
	defer from.Release()
	if _, err := from.WriteTo(&snapshot); err != nil {
		t.Fatal(err)
	}
	if err := follower.Restore(io.NopCloser(&snapshot)); err != nil {
		t.Fatal(err)
	}
	select {
	case view := <-soon.view:
		if view.Applied() != 30 {
			t.Errorf("a view at %d", view.Applied())
		}
		view.Release()
	default:
		t.Errorf("at %d by a snapshot, and who waits for 20 has no view", follower.index())
	}
	select {
	case <-later.view:
		t.Error("a view of entry 31, which is not there")
	default:
	}
	follower.giveUp(later)
}
