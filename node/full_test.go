package node_test

import (
	"errors"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// A node without memory for more answers questions and forgets keys; what would need more it refuses, and nothing of it
// is counted.
func TestFullNode(t *testing.T) {
	dir := founded(t)
	w := &world{t: t}
	run := func(limit int64, use func(ebb ebbv1grpc.EbbClient)) {
		c := alone(t, dir)
		c.MemoryLimit = limit
		n := open(t, c)
		<-n.Ready()
		w.nodes = append(w.nodes[:0], n)
		use(w.ebb(0))
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	count := func(ebb ebbv1grpc.EbbClient, key string) float64 {
		t.Helper()
		resp, err := ebb.Ask(t.Context(), question(key))
		if err != nil || resp.Answers[0].GetError() != nil {
			t.Fatalf("ask: %v, %v", err, resp)
		}
		return resp.Answers[0].GetDistribution().GetZ()
	}
	write := func(ebb ebbv1grpc.EbbClient, key string) error {
		_, err := ebb.Increment(t.Context(), increments(key, "b"))
		return ebbv1grpc.FromStatus(err)
	}
	run(0, func(ebb ebbv1grpc.EbbClient) {
		if err := write(ebb, "kept"); err != nil {
			t.Fatal(err)
		}
		if err := write(ebb, "gone"); err != nil {
			t.Fatal(err)
		}
	})
	run(1, func(ebb ebbv1grpc.EbbClient) {
		for { // it looks four times a second
			if err := write(ebb, "kept"); errors.Is(err, proto.ErrOutOfMemory) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		before := count(ebb, "kept")
		if err := write(ebb, "kept"); !errors.Is(err, proto.ErrOutOfMemory) {
			t.Errorf("a second write: %v", err)
		}
		if after := count(ebb, "kept"); before < 0.9 || after > before {
			t.Errorf("counted %v, and %v after a write that was refused", before, after)
		}
		if _, err := ebb.Delete(t.Context(), &ebbv1.DeleteRequest{Keys: [][]byte{[]byte("gone")}}); err != nil {
			t.Errorf("a delete: %v", err)
		}
		if n := count(ebb, "gone"); n != 0 {
			t.Errorf("deleted, and counts %v", n)
		}
	})
	run(0, func(ebb ebbv1grpc.EbbClient) {
		if err := write(ebb, "gone"); err != nil {
			t.Errorf("with memory again: %v", err)
		}
	})
}
