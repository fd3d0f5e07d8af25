package proc

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

var memberFaults = []Family{
	{
		Name: "replace", What: "a node joins, and another is removed", Can: can,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			if _, err := w.join(ctx); err != nil {
				return nil, err
			}
			return nil, w.remove(ctx, w.killableVictim(ctx))
		},
	},
	{
		Name: "drain", What: "a node joins; another is drained, and takes its share again; the one that joined is removed", Can: can,
		strike: func(ctx context.Context, w *world) (func() error, error) {
			joined, err := w.join(ctx)
			if err != nil {
				return nil, err
			}
			others := w.others(joined)
			i := others[w.rng.IntN(len(others))]
			w.tell("%s is drained", w.f.Name(i))
			w.change(ctx, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Drain{Drain: w.f.Name(i)}})
			w.bare(ctx, i)
			w.whole(ctx, w.names(w.members)...)
			w.tell("%s takes its share again", w.f.Name(i))
			w.change(ctx, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Activate{Activate: w.f.Name(i)}})
			return nil, w.remove(ctx, joined)
		},
	},
}

// join adds a node, and waits until replicas have moved to it.
func (w *world) join(ctx context.Context) (int, error) {
	i, err := w.f.Join()
	if err != nil {
		return 0, err
	}
	w.tell("%s joins", w.f.Name(i))
	w.members = append(w.members, i)
	if err := w.doors.open(w.f.Name(i), w.f.GRPC(i)); err != nil {
		return 0, err
	}
	w.whole(ctx, w.names(w.members)...)
	return i, nil
}

// remove takes a node out of the cluster. Its process ends by itself.
func (w *world) remove(ctx context.Context, i int) error {
	w.tell("%s is removed", w.f.Name(i))
	w.down[i] = true
	w.change(ctx, &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Remove{Remove: w.f.Name(i)}})
	w.whole(ctx, w.names(w.others(i))...)
	ended := w.until(ctx, movedMax, func(context.Context) bool { return !w.f.Runs(i) })
	w.hold("members-as-asked", ended, "%s has been removed, and its process goes on", w.f.Name(i))
	w.f.Kill(i)
	w.members = w.others(i)
	return errors.Join(w.doors.shut(w.f.Name(i)), w.f.Leave(i))
}

// change asks for a change of the cluster until it is accepted.
func (w *world) change(ctx context.Context, req *ebbv1.ChangeClusterRequest) {
	var err error
	w.until(ctx, movedMax, func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err = w.admin.ChangeCluster(ctx, req)
		return err == nil
	})
	w.hold("members-as-asked", err == nil, "%v", err)
}

// bare waits until a node holds no replica of a shard. It is not enough that the cluster is at rest: it may not have
// begun to move replicas.
func (w *world) bare(ctx context.Context, i int) {
	left := 0
	empty := w.until(ctx, movedMax, func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		table, err := w.admin.Table(ctx)
		if err != nil {
			return false
		}
		left = 0
		for _, record := range table.GetPlacement() {
			for _, r := range record.GetReplicas() {
				if record.GetShard() > 0 && r.GetNode() == w.f.Name(i) {
					left++
				}
			}
		}
		return left == 0
	})
	w.hold("members-as-asked", empty, "%s was drained, and has %d replicas", w.f.Name(i), left)
}

// whole waits until the cluster has exactly the nodes want, and every shard has all its replicas.
func (w *world) whole(ctx context.Context, want ...string) {
	var have []string
	var why string
	ok := w.until(ctx, movedMax, func(ctx context.Context) (whole bool) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		have, whole, why = AtRest(ctx, w.admin, min(3, w.t.Nodes))
		slices.Sort(have)
		return whole && slices.Equal(have, want)
	})
	w.hold("members-as-asked", ok, "the cluster has %v and should have %v: %s", have, want, why)
}
