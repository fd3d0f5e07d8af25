package cluster

import (
	"fmt"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Sets of one family of periods lie in one shard, and are compared as exactly as those that lie in all shards.
func TestGraphOfOneShard(t *testing.T) {
	e := newFakeCluster(t, 64)
	for i := range 80 { // of 120 things: 77 KB together, where a 64th of what a graph takes is 48 KiB
		req := new(ebbv1.IncrementRequest)
		for k := range 120 {
			for _, key := range []string{fmt.Sprintf("g/%d", 1000+i), fmt.Sprintf("h/x%d", 1000+i)} {
				req.Increments = append(req.Increments, &ebbv1.Increment{
					Key: []byte(key), Bin: fmt.Append(nil, i*3+k), Kind: ebbv1.Kind_KIND_SET,
				})
			}
		}
		if resp, err := e.router("ebb-0").Increment(t.Context(), req); err != nil || len(resp.GetRefused()) > 0 {
			t.Fatalf("%v %v", resp, err)
		}
	}
	e.takeCalls()
	for _, text := range []string{
		"similar(g/1040, g/*) top 4", "similar(h/x1040, h/*) top 4", "similar(g/1040) top 4", "graph(g/1040, g/*)",
	} {
		resp, err := e.query(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		node := resp.GetAnswer().GetGraph().GetNodes()[0]
		if len(node.GetLinks()) < 2 || len(resp.GetAnswer().GetCoverage().GetShardsFailed()) > 0 {
			t.Errorf("%s: %v", text, resp.GetAnswer())
		}
		for i, l := range node.GetLinks() {
			far := 3 * float64(i/2+1) // the neighbours on both sides share 117 things, the next ones 114
			want := (120 - far) / (120 + far)
			if j := l.GetJaccard(); j.GetStdError() != 0 || j.GetValue() != want {
				t.Errorf("%s: link %d: %v: want %v, exactly", text, i, j, want)
			}
		}
	}
}
