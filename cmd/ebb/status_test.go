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
