package swarm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// cutPower cuts the power of a machine, and checks that its disk still has what its node had applied.
func (w *world) cutPower(i int) {
	applied := w.appliedAt(i)
	w.c.PowerLoss(i)
	w.judgeDisk(i, applied)
}

// appliedAt returns the applied index of each replica of a node, also of the control group.
func (w *world) appliedAt(i int) map[uint32]uint64 {
	applied := map[uint32]uint64{}
	n := w.c.Node(i)
	if n == nil {
		return applied
	}
	for _, r := range n.Status().GetReplicas() {
		applied[r.GetShard()] = r.GetAppliedIndex()
	}
	return applied
}

// judgeDisk reads the log of a machine that lost power, from a copy of its disk. A node applies only entries that its
// own log has. So the log or a snapshot must have them, unless the replica is deleted.
func (w *world) judgeDisk(i int, applied map[uint32]uint64) {
	if len(applied) == 0 || w.excused(i, proto.ErrCorrupt) {
		return
	}
	log, err := w.readLog(i)
	if err != nil {
		w.hold("log-durable", !errors.Is(err, proto.ErrCorrupt), "%s lost power: %v", w.c.Name(i), err)
		return
	}
	defer log.Close() //nolint:errcheck // it was read
	for shard, index := range applied {
		group := log.Group(shard)
		last, _ := group.LastIndex() // it has no error
		boundary, _ := group.Boundary()
		if has := max(last, boundary); has > 0 {
			w.hold("log-durable", has >= index,
				"%s lost power, and its disk has entries of shard %d up to %d; it had applied %d",
				w.c.Name(i), shard, has, index)
		}
	}
}

// readLog opens a copy of the log of a machine.
func (w *world) readLog(i int) (*wal.Log, error) {
	return wal.Open(wal.Config{
		FS: w.c.Disk(i).Copy(), Dir: "/data/wal", Existing: true, SegmentBytes: w.plan.Segment, Fatal: func(error) {},
	})
}

// missesEntries says which applied entries the log of a dead node lacks; empty if none.
func (w *world) missesEntries(i int, applied map[uint32]uint64) string {
	log, err := w.readLog(i)
	if err != nil {
		return err.Error()
	}
	defer log.Close() //nolint:errcheck // it was read
	for shard, index := range applied {
		group := log.Group(shard)
		last, _ := group.LastIndex() // it has no error
		boundary, _ := group.Boundary()
		if has := max(last, boundary); has > 0 && has < index { // 0: the replica may be deleted
			return fmt.Sprintf("of shard %d it has %d entries of %d", shard, has, index)
		}
	}
	return ""
}

// lyingDisk is a disk that loses what it has reported as synced. No node can survive that, nor can a majority that
// needs such a node: it has lost votes or entries that it had acknowledged. So the other nodes are well while the disk
// lies, and until they have all that this node had. Then everything must hold. The node must come back with what is
// left, or notice that it cannot.
var lyingDisk = Family{
	Name: "lying-disk", Loses: true, Moves: true,
	What: "a disk reports syncs that it has not done, or done in part, and loses power; " +
		"the node comes back when the others have all that it had",
	Dose: "for 0.3 to 4 s; all syncs, half of each, or some syncs",
	draw: func(rng *rand.Rand, d *Dose) {
		d.Time = millis(rng, 300, 4000)
		oneOf("all", "half", "some")(rng, d)
	},
	inject: func(w *world, d Dose) string {
		w.mendAll()
		ready := time.Now().Add(readyMax)
		for w.lagging(nil, -1) != "" && time.Now().Before(ready) {
			time.Sleep(observeEvery)
		}
		i := w.victim(d)
		w.c.Disk(i).Lie(lies(d))
		time.Sleep(d.Time)
		had := w.furthest()
		w.excuse(i, proto.ErrCorrupt)
		w.c.PowerLoss(i)
		lag := ""
		for deadline := time.Now().Add(caughtUpMax); time.Now().Before(deadline); time.Sleep(observeEvery) {
			if lag = w.lagging(had, i); lag == "" {
				break
			}
		}
		w.hold("majority-serves", lag == "", "%v after %s lost power, %s", caughtUpMax, w.c.Name(i), lag)
		w.start(i)
		return w.named(i)
	},
	mend: restarted,
}

// caughtUpMax is how long the other nodes may take to elect leaders and to apply what any node had applied.
const caughtUpMax = 20 * time.Second

// lies returns how much of each sync the disk does, from 0 to 1.
func lies(d Dose) func(op fs.Op, name string) float64 {
	rng := rand.New(rand.NewPCG(d.Pick, 3))
	return func(fs.Op, string) float64 { // one call at a time: the disk holds its lock
		switch d.Way {
		case "half":
			return 0.5
		case "some":
			return float64(rng.IntN(2))
		}
		return 0
	}
}

// shards returns the numbers of all shards.
func (w *world) shards() (all []uint32) {
	for shard := range w.plan.Shards {
		all = append(all, shard+1)
	}
	return all
}

// furthest returns, for each shard, the highest index that any node has applied.
func (w *world) furthest() map[uint32]uint64 {
	all := map[uint32]uint64{}
	for i := range w.c.Nodes() {
		for shard, index := range w.appliedAt(i) {
			all[shard] = max(all[shard], index)
		}
	}
	return all
}

// lagging describes the replicas that have not applied what had requires, and the shards without a leader. It ignores
// the node aside, and is empty if there is nothing to describe.
func (w *world) lagging(had map[uint32]uint64, aside int) string {
	var all []string
	for _, shard := range append([]uint32{cluster.ControlShard}, w.shards()...) {
		if leader := w.c.Leader(shard); leader < 0 || leader == aside {
			all = append(all, fmt.Sprintf("shard %d has no leader", shard))
		}
	}
	for i := range w.c.Nodes() {
		for shard, index := range w.appliedAt(i) {
			if i != aside && index < had[shard] {
				all = append(all, fmt.Sprintf("%s has applied %d of %d of shard %d", w.c.Name(i), index, had[shard], shard))
			}
		}
	}
	return strings.Join(all, ", ")
}
