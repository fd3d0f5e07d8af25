package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// atTerminal runs a command against a fleet in this process, and returns all that it prints.
func atTerminal(ctx context.Context, f *proc.Fleet, args ...string) (status int, out, said string) {
	var stdout, stderr bytes.Buffer
	args = append([]string{"--addr", strings.Join(f.Addrs(), ",")}, args...)
	status = run(ctx, args, terminal{in: strings.NewReader(""), out: &stdout, err: &stderr})
	return status, stdout.String(), stderr.String()
}

// What three nodes say of themselves when two of them are killed. No shard with only one copy that can be asked is said
// to be equal. No command waits longer than is asked for. What would leave one copy of everything is not done by
// mistake.
func TestOperatorWithoutAMajority(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	f := startFleet(t, "--shards", "4")
	mustVerify(ctx, t, f)
	if status, _, said := atTerminal(ctx, f, "--timeout", "60s", "cluster", "replication", "2"); status != exitUsage || !strings.Contains(said, "replication 2, and it is 3 now: with 2 replicas") ||
		!strings.Contains(said, "try:  `ebb cluster replication 2 --yes` does it") {
		t.Errorf("fewer replicas are made without being asked twice: exit %d\n%s", status, said)
	}
	if status, _, said := atTerminal(ctx, f, "--timeout", "60s", "cluster", "replication", "2", "--dry-run"); status != exitOK {
		t.Errorf("fewer replicas are not even planned: exit %d\n%s", status, said)
	}
	if status, _, said := atTerminal(ctx, f, "--timeout", "60s", "cluster", "replication", "3"); status != exitOK {
		t.Errorf("as many replicas as there are: exit %d\n%s", status, said)
	}

	f.Kill(1)
	f.Kill(2)
	for { // whoever led is gone, and the one that is left finds out
		_, out, _ := atTerminal(ctx, f, "--timeout", "20s", "status", "--json")
		var st statusJSON
		if json.Unmarshal([]byte(out), &st) == nil && len(st.Unreachable) == 2 && len(st.Nodes) == 1 && st.Nodes[0].Leads == 0 {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it still leads: %s", out)
		case <-time.After(100 * time.Millisecond):
		}
	}
	begun := time.Now()
	status, out, said := atTerminal(ctx, f, "--timeout", "15s", "cluster", "verify")
	if took := time.Since(begun); took > 50*time.Second {
		t.Errorf("ebb cluster verify --timeout 15s took %v", took)
	}
	why := "4 shards (1 2 3 4): no leader; no answer from " + f.Name(1) + ", " + f.Name(2) + "; one whole copy alone, on " + f.Name(0) + ", where 3 are wanted"
	if status != exitUnreachable || !strings.Contains(out, "4 shards, 4 replicas: 0 shards are equal on all their nodes") || !strings.Contains(said, "error: not compared: "+why) ||
		!strings.Contains(said, "try:  start "+f.Name(1)+", "+f.Name(2)+" again") {
		t.Errorf("ebb cluster verify without a majority: exit %d\n%s%s", status, out, said)
	}
	if n := strings.Count(said, "asks again about "); n != 1 {
		t.Errorf("it says %d times that it asks again:\n%s", n, said)
	}
	if _, out, _ := atTerminal(ctx, f, "--timeout", "20s", "cluster", "nodes", "-o", "tsv"); !strings.Contains(out, f.Name(1)+"\tactive\t") || !strings.Contains(out, "\t-\t4\t-\t") {
		t.Errorf("ebb cluster nodes does not say of whom it knows nothing:\n%s", out)
	}
}

// Fewer replicas than now are refused where a shard then cannot do without one.
func TestFewerReplicas(t *testing.T) {
	for _, c := range []struct {
		next, now uint32
		risk      string // "" if there is none
	}{
		{3, 5, ""},
		{2, 3, "takes no writes while one of its nodes is away"},
		{1, 3, "is away with its node"},
		{1, 2, "is away with its node"},
		{2, 1, ""},
		{1, 1, ""},
	} {
		if err := checkReplication(c.next, c.now); (err == nil) != (c.risk == "") ||
			err != nil && !strings.Contains(err.Error(), c.risk) {
			t.Errorf("%d after %d: %v, want %q", c.next, c.now, err, c.risk)
		}
	}
}

// What a node holds is not known if it does not answer, and the control group counts as no replica.
func TestNodesSayWhatTheyHold(t *testing.T) {
	table := &ebbv1.Table{
		Nodes: []*ebbv1.NodeRecord{{Name: "a"}, {Name: "b"}},
		Placement: []*ebbv1.ShardRecord{
			{Shard: 0, Replicas: []*ebbv1.ReplicaRecord{{Node: "a"}, {Node: "b"}}},
			{Shard: 1, Replicas: []*ebbv1.ReplicaRecord{{Node: "a"}, {Node: "b", Joining: true}}},
			{Shard: 2, Replicas: []*ebbv1.ReplicaRecord{{Node: "a"}, {Node: "b"}}},
		},
	}
	status := &ebbv1.StatusResponse{Nodes: []*ebbv1.NodeStatus{{
		Node:     &ebbv1.NodeRecord{Name: "a"},
		Replicas: []*ebbv1.ReplicaStatus{{Shard: 0, Role: "leader"}, {Shard: 1, Role: "leader"}},
	}}}
	nodes := nodesOf(table, status)
	if a := nodes[0]; !a.Answers || a.Replicas != 1 || a.Wanted != 2 || a.Leads != 1 || !a.Votes {
		t.Errorf("%+v", a)
	}
	if b := nodes[1]; b.Answers || b.Wanted != 2 {
		t.Errorf("%+v", b)
	}
	if d := digest(status); d.Nodes[0].Replicas != 1 || d.Nodes[0].Leads != 1 {
		t.Errorf("ebb status counts otherwise: %+v", d.Nodes[0])
	}
}
