package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// statusOf is what the nodes of a world say of the shards that are asked about: equal followers, but for what change
// does to those of the node of an index.
func statusOf(w *world, req *ebbv1.StatusRequest, change func(node int, s *ebbv1.ReplicaStatus)) *ebbv1.StatusResponse {
	resp := new(ebbv1.StatusResponse)
	for i, n := range w.nodes {
		node := &ebbv1.NodeStatus{Node: w.table.Load().Node(n.name)}
		for _, ask := range req.GetChecksums() {
			for _, r := range w.table.Load().Replicas(ask.GetShard()) {
				if r.GetNode() == n.name {
					s := &ebbv1.ReplicaStatus{Shard: ask.GetShard(), Replica: r.GetId(), Node: n.name, Role: "follower", Term: 2, ChecksumIndex: 9, Checksum: 7, LastIndex: 9}
					change(i, s)
					node.Replicas = append(node.Replicas, s)
				}
			}
		}
		resp.Nodes = append(resp.Nodes, node)
	}
	return resp
}

// A shard that was without a leader for a moment is asked about again, however long the answer took which says so; one
// that stays without is given up.
func TestVerifyAsksAgainForLeaders(t *testing.T) {
	for _, test := range []struct {
		name  string
		until int // the answer that knows a leader again
		took  time.Duration
		equal bool
	}{
		{"a quick answer", 2, time.Millisecond, true},
		{"one that took long", 2, 20 * time.Second, true},
		{"leaders stay away", 1000, time.Millisecond, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				answers := 0
				w.report = func(_ context.Context, req *ebbv1.StatusRequest) *ebbv1.StatusResponse {
					if answers++; answers == 1 {
						time.Sleep(test.took)
					}
					return statusOf(w, req, func(i int, s *ebbv1.ReplicaStatus) {
						if answers >= test.until && i == 0 {
							s.Role = "leader"
						}
					})
				}
				c := w.connect(ebb.WithTimeout(time.Minute))
				checks, err := c.Verify(t.Context(), nil)
				if err != nil || len(checks) == 0 {
					t.Fatalf("%d shards, %v", len(checks), err)
				}
				for _, check := range checks {
					if check.Equal != test.equal {
						t.Errorf("shard %d: equal %v, %s", check.Shard, check.Equal, check.Uncompared())
					}
				}
			})
		})
	}
}

// A shard without a leader is not given up for what one moment showed: here an answer waits long for an entry of
// another shard, and who leads was looked at as it began.
func TestVerifyLooksAgainAfterALongAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		began, answers := time.Now(), 0
		w.report = func(_ context.Context, req *ebbv1.StatusRequest) *ebbv1.StatusResponse {
			answers++
			led := time.Since(began) >= 2*time.Second // shard 1; the others are all along
			resp := statusOf(w, req, func(i int, s *ebbv1.ReplicaStatus) {
				if i == 0 && (s.Shard != 1 || led) {
					s.Role = "leader"
				}
				if i == 0 && s.Shard == 2 && answers == 1 {
					s.ChecksumIndex, s.LastIndex = 10, 10 // written to as the first answer was made
				}
			})
			if answers == 2 {
				time.Sleep(12 * time.Second)
			}
			return resp
		}
		c := w.connect(ebb.WithTimeout(time.Minute))
		checks, err := c.Verify(t.Context(), nil)
		if err != nil || len(checks) < 2 || answers < 3 {
			t.Fatalf("%d shards after %d answers, %v", len(checks), answers, err)
		}
		for _, check := range checks {
			if !check.Equal {
				t.Errorf("shard %d: %s", check.Shard, check.Uncompared())
			}
		}
	})
}
