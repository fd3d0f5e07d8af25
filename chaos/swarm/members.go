package swarm

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// memberFamilies change which nodes are in the cluster. A change that the cluster does not accept at once is requested
// again at the end.
var memberFamilies = []Family{
	{
		Name: "join", What: "a node joins", Moves: true,
		inject: func(w *world, _ Dose) string {
			if !w.room() {
				return w.nothing(noRoom)
			}
			return w.named(w.join())
		},
		mend: func(*world) {},
	},
	{
		Name: "remove", What: "a node is removed; of three, another joins first", Moves: true,
		inject: func(w *world, d Dose) string {
			leaves := w.some(d)
			detail := ""
			if len(w.members()) <= 3 {
				if !w.room() {
					return w.nothing(noRoom)
				}
				detail = " for " + w.named(w.join())
			}
			w.want(&ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Remove{Remove: w.c.Name(leaves)}})
			w.leaving[leaves] = true
			w.excuse(leaves, proto.ErrWrongCluster)
			return w.named(leaves) + detail
		},
		mend: func(*world) {},
	},
	{
		Name: "drain", What: "the replicas of a node move away, and at the end back; of three, another joins first", Moves: true,
		inject: func(w *world, d Dose) string {
			name, detail := w.c.Name(w.some(d)), ""
			if len(w.members()) <= 3 {
				if !w.room() {
					return w.nothing(noRoom)
				}
				detail = " to " + w.named(w.join())
			}
			w.want(&ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Drain{Drain: name}})
			w.wishes = append(w.wishes, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Activate{Activate: name}})
			return name + detail
		},
		mend: func(*world) {},
	},
}

// membership are the families in which nodes join or leave.
var membership = append(slices.Clone(memberFamilies), killInMove)

// noRoom is the reason why no node joins: a cluster has no more nodes than shards.
const noRoom = "there is a node for every shard already"

// room reports whether another node may join.
func (w *world) room() bool {
	nodes := 0
	for i := range w.c.Nodes() {
		if !w.ended(i) {
			nodes++
		}
	}
	return nodes < int(w.plan.Shards)
}

// join starts a new node, and returns its number.
func (w *world) join() int {
	i := w.c.Add()
	w.start(i)
	return i
}

// want requests a change of the cluster. If the cluster does not accept it within 2 s, it is requested again at the
// end.
func (w *world) want(req *ebbv1.ChangeClusterRequest) {
	if len(w.wishes) > 0 || w.ask(req, 2*time.Second) != nil {
		w.wishes = append(w.wishes, req)
	}
}

func (w *world) ask(req *ebbv1.ChangeClusterRequest, atMost time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), atMost)
	defer cancel()
	_, err := w.admin.ChangeCluster(ctx, req)
	said := "it will"
	if err != nil {
		said = err.Error()
	}
	if said != w.said {
		w.tell("the cluster is asked to %v: %s", req, said)
	}
	w.said = said
	return err
}

// members returns the nodes that are to be in the cluster, dead or alive.
func (w *world) members() (out []int) {
	for i := range w.c.Nodes() {
		if !w.leaving[i] {
			out = append(out, i)
		}
	}
	return out
}

// living returns the members that live, or all members if none lives.
func (w *world) living() (out []int) {
	for _, i := range w.members() {
		if w.c.Node(i) != nil {
			out = append(out, i)
		}
	}
	if len(out) == 0 {
		return w.members()
	}
	return out
}

// moveMax is how long a join, a removal and the moves may take after all was mended.
const moveMax = 5 * time.Minute

// gather waits, after all was mended, until the cluster has the requested members and replicas.
func (w *world) gather() {
	if !w.changes() {
		return
	}
	w.waiting.Store(true)
	defer w.waiting.Store(false)
	for _, req := range w.wishes {
		deadline := time.Now().Add(moveMax)
		err := w.ask(req, 10*time.Second)
		for err != nil && time.Now().Before(deadline) && !w.moot(req) {
			time.Sleep(time.Second)
			if len(w.wiped) > 0 {
				w.restart() // a node that lost its disk and one that died at a failpoint may be a majority
			}
			err = w.ask(req, 10*time.Second)
		}
		w.hold("changes-accepted", err == nil || w.moot(req), "%v: %v", req, err)
	}
	w.wishes = nil
	deadline := time.Now().Add(moveMax)
	lacks := w.lacks()
	for ; lacks != "" && time.Now().Before(deadline); lacks = w.lacks() {
		time.Sleep(250 * time.Millisecond)
		w.restart() // some nodes were armed to die at a failpoint of a move
	}
	w.hold("members-as-asked", lacks == "", "%v after all was mended: %s", moveMax, lacks)
	w.disarm(movePoints)
	w.restart() // nodes that have died since
	w.expel()
}

// changes reports whether something in this run moves shards.
func (w *world) changes() bool {
	return len(w.leaving) > 0 || len(w.wiped) > 0 || len(w.wishes) > 0 || w.c.Nodes() > w.plan.Nodes || slices.ContainsFunc(w.plan.Faults, func(a Fault) bool {
		f, _ := FamilyOf(a.Family)
		return f.Moves
	})
}

// moot reports whether the node that a request removes is no longer a member: an earlier try was applied.
func (w *world) moot(req *ebbv1.ChangeClusterRequest) bool {
	name := req.GetRemove()
	return name != "" && w.table() != nil && w.table().Node(name) == nil
}

// table returns the newest table that a living member has; nil if none has a table.
func (w *world) table() (newest *cluster.Table) {
	for _, i := range w.living() {
		n := w.c.Node(i)
		if n == nil {
			continue
		}
		if t := n.Table(); t != nil && (newest == nil || t.Epoch() > newest.Epoch()) {
			newest = t
		}
	}
	return newest
}

// lacks describes the first difference between the cluster and what was requested; empty if there is none.
func (w *world) lacks() string {
	table := w.table()
	if table == nil {
		return "nobody knows a table"
	}
	var want, have []string
	for _, i := range w.members() {
		want = append(want, w.c.Name(i))
	}
	for _, n := range table.Nodes() {
		have = append(have, n.GetName())
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(want, have) {
		return "the table has " + join(have) + " and not " + join(want)
	}
	if moves := cluster.Moves(table); len(moves) > 0 {
		return "moves are under way, the first: " + moves[0].String()
	}
	running := 0
	for _, i := range w.members() {
		n := w.c.Node(i)
		if n == nil {
			return w.c.Name(i) + " is dead"
		}
		for _, r := range n.Status().GetReplicas() {
			if r.GetShard() != cluster.ControlShard {
				running++
			}
		}
	}
	if wanted := int(table.Shards()) * min(int(table.Replication()), len(want)); running != wanted {
		return sprint("%d replicas run, and not %d", running, wanted)
	}
	return ""
}

// expel checks that a removed node ends, and ends again when it is started again.
func (w *world) expel() {
	for i := range w.leaving {
		for range 2 {
			if !w.ends(i) {
				break
			}
		}
	}
}

// ends starts a removed node, unless it runs, and waits for its end.
func (w *world) ends(i int) bool {
	deadline := time.Now().Add(time.Minute)
	if w.c.Node(i) == nil {
		if err := w.c.Restart(context.Background(), i); err != nil {
			return w.hold("removed-ends", errors.Is(err, proto.ErrWrongCluster), "%s was removed, and cannot start: %v", w.c.Name(i), err)
		}
	}
	for w.c.Node(i) != nil && time.Now().Before(deadline) {
		time.Sleep(100 * time.Millisecond)
	}
	ok := w.hold("removed-ends", w.c.Node(i) == nil, "%s was removed, and still runs a minute later", w.c.Name(i))
	w.c.Kill(i)
	return ok
}
