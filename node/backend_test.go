package node

import (
	"context"
	"errors"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A call stops when its caller no longer waits: it may have many questions, and each may take long.
func TestAskEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := &backend{node: "ebb-0"}
	req := &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_ANY, NowUs: 1, Questions: []*ebbv1.ShardQuestion{{Shard: 1}, {Shard: 2}}}
	if resp, err := b.Ask(ctx, req); err != nil || len(resp.GetAnswers()) != 2 {
		t.Fatalf("%v, %v", resp, err)
	}
	cancel()
	if resp, err := b.Ask(ctx, req); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", resp, err)
	}
}
