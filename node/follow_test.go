package node_test

import (
	"context"
	"testing"
	"time"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Each node answers linearizable questions about a shard, also those that do not lead it, once they are as far as the
// leader was when they were asked: all that was acknowledged before is counted, though the shard is idle and heartbeats
// say nothing of commits.
func TestFollowersAnswerLinearizably(t *testing.T) {
	w := newWorld(t, 3, 3)
	var shards []ebbv1grpc.ShardsClient
	for _, n := range w.nodes {
		conn, err := grpc.NewClient("passthrough:///"+n.Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(node.OSNetwork{}.Dial))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		shards = append(shards, ebbv1grpc.NewShardsClient(conn))
	}
	ask := func(i int, follow bool) *ebbv1.ShardAnswer {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		req := &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE, Follow: follow}
		for number := uint32(1); number <= 3; number++ {
			req.Questions = append(req.Questions, &ebbv1.ShardQuestion{Shard: number, Question: question("k").Questions[0]})
		}
		resp, err := shards[i].Ask(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		at := w.nodes[0].Table().ShardOf("", []byte("k")) - 1
		return resp.Answers[at]
	}
	refused := 0
	for i := range w.nodes {
		if ask(i, false).GetError().GetCode() == ebbv1.Code_CODE_NOT_LEADER {
			refused++
		}
	}
	if refused != 2 { // of the shard of the key
		t.Errorf("%d of 3 nodes say that they do not lead", refused)
	}
	const writes = 10
	for n := 1; n <= writes; n++ {
		if _, err := w.ebb(0).Increment(t.Context(), increments("k", "b")); err != nil {
			t.Fatal(err)
		}
		for i := range w.nodes {
			a := ask(i, true)
			d := a.GetAnswer().GetDistribution()
			if a.GetError() != nil || a.GetStale() || d.GetZ() < float64(n)*0.99 || d.GetZ() > float64(n) {
				t.Errorf("after write %d node %d says %v", n, i, a)
			}
		}
	}
}
