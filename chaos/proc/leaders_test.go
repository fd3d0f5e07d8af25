package proc

import (
	"cmp"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/ebbdb/ebb/chaos/swarm"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func TestReigns(t *testing.T) {
	says := func(node, role string, shard uint32, term uint64) *ebbv1.NodeStatus {
		return &ebbv1.NodeStatus{Node: &ebbv1.NodeRecord{Name: node}, Replicas: []*ebbv1.ReplicaStatus{{Shard: shard, Role: role, Term: term}}}
	}
	var r reigns
	for i, nodes := range [][]*ebbv1.NodeStatus{
		{says("a", "leader", 1, 2), says("b", "follower", 1, 2), says("b", "leader", 2, 2)},
		{says("a", "leader", 1, 2)},
		{}, // no node answers
		{says("a", "leader", 1, 2), says("b", "leader", 1, 3), says("b", "leader", 2, 2)}, // a was cut off and does not know
		{says("a", "leader", 1, 2)}, // b does not answer
		{says("b", "leader", 1, 3)},
		{says("a", "leader", 1, 4)},
	} {
		r.see(time.Duration(i), nodes)
	}
	want := []swarm.Reign{
		{Shard: 1, Node: "a", Term: 2, From: 0, To: 1},
		{Shard: 1, Node: "b", Term: 3, From: 3, To: 5},
		{Shard: 1, Node: "a", Term: 4, From: 6, To: 6},
		{Shard: 2, Node: "b", Term: 2, From: 0, To: 3},
	}
	slices.SortFunc(r.all, func(a, b swarm.Reign) int { return cmp.Or(cmp.Compare(a.Shard, b.Shard), cmp.Compare(a.From, b.From)) })
	if diff := gocmp.Diff(want, r.all); diff != "" {
		t.Errorf("reigns (-want +got):\n%s", diff)
	}
}
