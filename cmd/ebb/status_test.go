package main

import (
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A status that looks well says so when shards cannot have all their replicas.
func TestStatusWarnsOfTooFewNodes(t *testing.T) {
	drained := ebbv1.NodeState_NODE_STATE_DRAINING
	for _, c := range []struct {
		replication uint32
		drained     string
		unreachable []string
		says        string
	}{
		{3, "", nil, ""},
		{3, "", []string{"ebb-2"}, "3 replicas, and 2 nodes answer"},
		{3, "ebb-1", nil, "3 replicas, and 2 nodes answer"},
		{2, "", []string{"ebb-2"}, ""},
		{1, "ebb-1", []string{"ebb-0", "ebb-2"}, "1 replicas, and 0 nodes answer"},
	} {
		table := &ebbv1.Table{Replication: c.replication}
		for _, name := range []string{"ebb-0", "ebb-1", "ebb-2"} {
			n := &ebbv1.NodeRecord{Name: name}
			if name == c.drained {
				n.State = drained
			}
			table.Nodes = append(table.Nodes, n)
		}
		if said := tooFew(table, c.unreachable); (said == "") != (c.says == "") || !strings.Contains(said, c.says) {
			t.Errorf("%d replicas, %q drained, %v unreachable: %q, want %q", c.replication, c.drained, c.unreachable, said, c.says)
		}
	}
}

// The leader of a shard is the node that says so, by the newest term. It is not the node that the table prefers, nor
// one that was heard to lead before it died.
func TestLeadersSayThatTheyLead(t *testing.T) {
	replicas := []*ebbv1.ReplicaRecord{{Id: 1, Node: "ebb-0"}, {Id: 2, Node: "ebb-1"}, {Id: 3, Node: "ebb-2", Leaving: true, Lost: true}}
	says := func(node, role string, term uint64) *ebbv1.NodeStatus {
		return &ebbv1.NodeStatus{Node: &ebbv1.NodeRecord{Name: node}, Replicas: []*ebbv1.ReplicaStatus{{Shard: 1, Node: node, Role: role, Term: term}}}
	}
	for _, c := range []struct {
		what  string
		nodes []*ebbv1.NodeStatus
		want  string
	}{
		{"nobody leads", []*ebbv1.NodeStatus{says("ebb-0", "candidate", 9), says("ebb-1", "follower", 9), {Node: &ebbv1.NodeRecord{Name: "ebb-2"}}}, ""},
		{"one leads", []*ebbv1.NodeStatus{says("ebb-0", "follower", 9), says("ebb-1", "leader", 9)}, "ebb-1"},
		{"one that was cut off has not heard of the next", []*ebbv1.NodeStatus{says("ebb-0", "leader", 9), says("ebb-1", "leader", 8)}, "ebb-0"},
	} {
		table := &ebbv1.Table{Placement: []*ebbv1.ShardRecord{
			{Shard: 0}, {Shard: 1, Replicas: replicas, Preferred: "ebb-2", Leader: "ebb-2", Term: 7},
		}}
		shards := placesOf(table, &ebbv1.StatusResponse{Nodes: c.nodes})
		if got := shards[1].Leader; got != c.want {
			t.Errorf("%s: %q leads, want %q", c.what, got, c.want)
		}
		if got := shards[1].Leaving; len(got) != 1 || got[0] != "ebb-2" {
			t.Errorf("%s: %v leave", c.what, got)
		}
	}
}

// A node whose disk is slow is said to have one, and for how long its syncs last.
func TestStatusSaysWhoseDiskIsSlow(t *testing.T) {
	d := digest(&ebbv1.StatusResponse{Nodes: []*ebbv1.NodeStatus{
		{Node: &ebbv1.NodeRecord{Name: "ebb-0"}, Phase: "serving", SyncUs: 2_000},
		{Node: &ebbv1.NodeRecord{Name: "ebb-1"}, Phase: "serving", SyncUs: 310_000, DiskSlow: true},
	}})
	rows := nodeRows(d, bytesText)
	if rows[0][1] != "serving" || rows[1][1] != "serving, disk slow" {
		t.Errorf("phases %q and %q", rows[0][1], rows[1][1])
	}
	if n := d.Nodes[1]; d.Nodes[0].DiskSlow || !n.DiskSlow || n.SyncUs != 310_000 {
		t.Errorf("%+v", d.Nodes)
	}
}
