package client

import (
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What a comparison says of a shard, by what its nodes report.
func TestCompareReplicas(t *testing.T) {
	const shard = 1
	status := func(reports ...*ebbv1.ReplicaStatus) *ebbv1.StatusResponse {
		resp := &ebbv1.StatusResponse{}
		for _, r := range reports {
			r.Shard = shard
			resp.Nodes = append(resp.Nodes, &ebbv1.NodeStatus{Node: &ebbv1.NodeRecord{Name: r.Node}, Replicas: []*ebbv1.ReplicaStatus{r}})
		}
		return resp
	}
	report := func(node string, replica uint64, role string, index, sum uint64) *ebbv1.ReplicaStatus {
		return &ebbv1.ReplicaStatus{Node: node, Replica: replica, Role: role, Term: 2, ChecksumIndex: index, Checksum: sum}
	}
	a, b, c := &ebbv1.ReplicaRecord{Node: "a", Id: 1}, &ebbv1.ReplicaRecord{Node: "b", Id: 2}, &ebbv1.ReplicaRecord{Node: "c", Id: 3}
	joining, leaving := &ebbv1.ReplicaRecord{Node: "b", Id: 2, Joining: true}, &ebbv1.ReplicaRecord{Node: "c", Id: 3, Leaving: true}
	leads := report("a", 1, "leader", 9, 7)
	for _, test := range []struct {
		name     string
		wanted   uint32
		replicas []*ebbv1.ReplicaRecord
		status   *ebbv1.StatusResponse
		why      string // "" when all were compared
		diverged bool
	}{
		{"all are the same", 3, []*ebbv1.ReplicaRecord{a, b, c}, status(leads, report("b", 2, "follower", 9, 7), report("c", 3, "follower", 9, 7)), "", false},
		{"one differs", 3, []*ebbv1.ReplicaRecord{a, b, c}, status(leads, report("b", 2, "follower", 9, 7), report("c", 3, "follower", 9, 8)), "", true},
		{"one differs, and nobody leads", 2, []*ebbv1.ReplicaRecord{a, b}, status(report("a", 1, "follower", 9, 7), report("b", 2, "follower", 9, 8)), "", true},
		{
			"one is elsewhere", 2,
			[]*ebbv1.ReplicaRecord{a, b},
			status(leads, report("b", 2, "follower", 8, 6)),
			"written to during the check: not all of its nodes were caught at one entry", false,
		},
		{"nobody leads", 2, []*ebbv1.ReplicaRecord{a, b}, status(report("a", 1, "follower", 9, 7), report("b", 2, "candidate", 9, 7)), "no leader", false},
		{"one is silent", 3, []*ebbv1.ReplicaRecord{a, b, c}, status(leads, report("b", 2, "follower", 9, 7)), "no answer from c", false},
		{
			"one is silent, and one elsewhere", 3,
			[]*ebbv1.ReplicaRecord{a, b, c},
			status(leads, report("b", 2, "follower", 8, 6)),
			"no answer from c", false,
		},
		{"one is another replica", 2, []*ebbv1.ReplicaRecord{a, b}, status(leads, report("b", 5, "follower", 9, 7)), "no answer from b; one whole copy alone, on a, where 2 are wanted", false},
		{
			"the others are on their way, and one of them is away", 3,
			[]*ebbv1.ReplicaRecord{a, joining, leaving},
			status(report("a", 1, "follower", 9, 7)),
			"no leader; one whole copy alone, on a, where 3 are wanted", false,
		},
		{"the others are on their way", 3, []*ebbv1.ReplicaRecord{a, joining, leaving}, status(leads), "one whole copy alone, on a, where 3 are wanted", false},
		{"one copy, and no more are wanted", 1, []*ebbv1.ReplicaRecord{a}, status(leads), "", false},
		{"one copy, which moves", 1, []*ebbv1.ReplicaRecord{a, joining}, status(leads), "", false},
		{"nobody answers", 1, []*ebbv1.ReplicaRecord{a}, status(), "no leader; no answer from a", false},
	} {
		table := &ebbv1.Table{Replication: test.wanted, Placement: []*ebbv1.ShardRecord{{}, {Shard: shard, Replicas: test.replicas}}}
		check := compareReplicas(table, shard, test.status)
		if check.Uncompared() != test.why || check.diverged() != test.diverged || check.Equal != (test.why == "" && !test.diverged) || check.Equal != (check.Err() == nil) {
			t.Errorf("%s: %q, equal %v, diverged %v, %v: want %q", test.name, check.Uncompared(), check.Equal, check.diverged(), check.Err(), test.why)
		}
	}
}
