package swarm

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// stillPoints are the failpoints that a process reaches even if no shard moves: those of the log, of snapshots, and of
// links between nodes.
var stillPoints = []string{
	"wal.write", "wal.sync", "wal.synced", "wal.applied", "wal.mark", "wal.seal", "wal.seal.sync", "wal.roll", "wal.rolled",
	"wal.create", "wal.create.sync", "wal.create.rename", "wal.create.syncdir", "wal.remove", "wal.remove.syncdir",
	"snap.create", "snap.write", "snap.sync", "snap.rename", "snap.syncdir", "snap.boundary", "snap.remove", pointArrive,
	"transport.open", "transport.ask", "transport.answer",
}

// movePoints are reached only while shards move.
var movePoints = []string{
	"plan.laid", "plan.begin",
	"move.before.add", "move.after.add", "move.before.promote", "move.after.promote", "move.before.demote", "move.after.demote",
	"move.before.hand over", "move.after.hand over", "move.before.remove", "move.after.remove", "move.before.settle", "move.after.settle",
	"host.prepared", "host.listed", "host.unlisted",
}

// pointArrive is the failpoint where a node stores a snapshot that another node has sent.
const pointArrive = "snap.arrive"

// unreached are failpoints of the product that no plan reaches, with the reason.
var unreached = map[string]string{
	"repair.fetched": "replicas never differ here, and only one that does is repaired",
}

// Failpoints returns the names of all failpoints at which plans kill.
func Failpoints() []string { return slices.Concat(stillPoints, movePoints) }

// PointCount counts how often a process was to die at a failpoint, and how often it did.
type PointCount struct {
	Armed  int `json:"armed"`
	Killed int `json:"killed"`
}

// dieAt cuts the power of the first of these nodes that reaches a failpoint for the n-th time. The fault counts only
// when that happens.
func (w *world) dieAt(family, point string, n int, nodes ...int) {
	w.idle = true
	w.mu.Lock()
	count := w.verdict.point(point)
	count.Armed++
	w.mu.Unlock()
	for _, i := range nodes {
		w.c.KillAt(i, point, n, func() {
			for _, j := range nodes {
				w.c.Fail(j).Disarm(point)
			}
			w.line(LineFault, "%s is at %s, and loses power", w.c.Name(i), point)
			w.mu.Lock()
			defer w.mu.Unlock()
			count.Killed++
			w.verdict.Faults[family]++
		})
	}
}

// disarm removes these failpoints' actions from all nodes.
func (w *world) disarm(points []string) {
	for i := range w.c.Nodes() {
		for _, point := range points {
			w.c.Fail(i).Disarm(point)
		}
	}
}

// ofFiles reports whether a failpoint is reached only where a log file begins or ends.
func ofFiles(point string) bool {
	return strings.HasPrefix(point, "wal.seal") || strings.HasPrefix(point, "wal.roll") || strings.HasPrefix(point, "wal.create") || strings.HasPrefix(point, "wal.remove")
}

// killAt ends a process while it works on its log, its snapshots or its links.
var killAt = Family{
	Name: "kill-at", What: "a machine loses power when its process comes to a failpoint", Dose: "one of those of the log, of snapshots or of links",
	draw: oneOf(stillPoints...),
	inject: func(w *world, d Dose) string {
		i, n := w.victim(d), 1+int(d.Pick%3)
		if ofFiles(d.Way) {
			n = 1
		}
		if d.Way == pointArrive {
			i = w.some(d)
			w.c.Kill(i)
			time.Sleep(2500 * time.Millisecond) // the others elect leaders, and write what it then lacks
			w.compact(w.living()...)
			w.dieAt("kill-at", d.Way, 1, i)
			w.start(i)
			time.Sleep(2 * time.Second)
			return w.named(i)
		}
		w.dieAt("kill-at", d.Way, n, i)
		if d.Pick%4 == 0 || strings.HasPrefix(d.Way, "snap.") || ofFiles(d.Way) {
			for range n + 1 {
				w.compact(i)
				time.Sleep(100 * time.Millisecond)
			}
		}
		return w.named(i)
	},
	mend: func(w *world) { w.disarm(stillPoints) },
}

// killInMove ends a process in a move. A failpoint that is not reached before all is mended may be reached in the moves
// at the end.
var killInMove = Family{
	Name: "kill-in-move", What: "a node joins, and perhaps another is drained; the first machine whose process comes to a failpoint loses power", Dose: "one of those of plans, of moves or of replicas that come and go", Moves: true,
	draw: func(rng *rand.Rand, d *Dose) { d.Way = movePoints[rng.IntN(len(movePoints))] },
	inject: func(w *world, d Dose) string {
		if !w.room() {
			return w.nothing(noRoom)
		}
		drained := w.c.Name(w.some(d))
		i := w.c.Add()
		w.dieAt("kill-in-move", d.Way, 1, w.everybody()...)
		w.start(i)
		w.mu.Lock()
		w.verdict.Faults["join"]++
		w.mu.Unlock()
		if d.Pick%2 == 0 {
			return w.named(i) + " joins"
		}
		w.want(&ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Drain{Drain: drained}})
		w.wishes = append(w.wishes, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Activate{Activate: drained}})
		return w.named(i) + " joins, " + drained + " is drained"
	},
	mend: func(*world) {},
}

// everybody returns the numbers of all nodes.
func (w *world) everybody() (all []int) {
	for i := range w.c.Nodes() {
		all = append(all, i)
	}
	return all
}
