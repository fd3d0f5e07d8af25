package swarm

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/shard"
)

// judgeSnapshots rebuilds the state of each replica from the newest snapshot on its disk and the log after it, as its
// next start would. The result must equal the state of the replica. A difference that all replicas share is found, too.
func (w *world) judgeSnapshots() {
	for i := range w.c.Nodes() {
		n := w.c.Node(i)
		if n == nil || w.leaving[i] {
			continue
		}
		sums := map[uint32][2]uint64{}
		for _, shard := range w.shards() {
			if index, sum, ok := n.Checksum(shard); ok {
				sums[shard] = [2]uint64{index, sum}
			}
		}
		disk := w.c.Disk(i).Copy()
		log, err := wal.Open(wal.Config{
			FS: disk, Dir: "/data/wal", Existing: true, SegmentBytes: w.plan.Segment, Fatal: func(error) {},
		})
		if !w.hold("snapshot-continues", err == nil, "the log of %s cannot be read: %v", w.c.Name(i), err) {
			continue
		}
		for of, at := range sums {
			sum, made, err := w.remake(disk, log.Group(of), of, at[0])
			if made || err != nil {
				w.hold("snapshot-continues", err == nil && sum == at[1],
					"after entry %d of shard %d, %s has %x, and its snapshot and log make %x (%v)",
					at[0], of, w.c.Name(i), at[1], sum, err)
			}
		}
		_ = log.Close() // it was read
	}
}

// remake returns the checksum of the state that a snapshot and the log give, up to an entry. made is false if there is
// no snapshot, or only one of a later entry.
func (w *world) remake(disk fs.FS, log *wal.Group, of uint32, end uint64) (sum uint64, made bool, err error) {
	store, err := snap.Open(snap.Config{FS: disk, Dir: fmt.Sprintf("/data/snap/%d", of)})
	if err != nil {
		return 0, false, err
	}
	metas, err := store.List()
	if err != nil || len(metas) == 0 || metas[0].Index > end {
		return 0, false, err
	}
	_, content, err := store.Open(metas[0].ID)
	if err != nil {
		return 0, false, err
	}
	defer content.Close()
	state, err := shard.RestoreUnder(w.plan.shardLimits(), shard.ID(of), shard.Heap{}, io.Reader(content))
	if err != nil {
		return 0, false, err
	}
	for index := metas[0].Index + 1; index <= end; index++ {
		var l raft.Log
		if err := log.GetLog(index, &l); err != nil {
			return 0, false, fmt.Errorf("entry %d: %w", index, err)
		}
		if l.Type == raft.LogCommand {
			state.Apply(index, l.Data, nil)
			if next := state.Successor(); next != nil {
				state = next
			}
		}
	}
	return state.Checksum(), true, nil
}
