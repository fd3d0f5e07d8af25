package cluster

import (
	"context"
	"errors"
	"iter"
	"time"
)

// doubtAfter is how long a node may take to answer before it is watched whether it still leads.
const doubtAfter = 50 * time.Millisecond

// errDeposed is why a request to another node is not waited for any more.
var errDeposed = errors.New("another node leads meanwhile, or nobody")

// whileItLeads returns a context that ends when this node learns that the one that is asked leads none of the shards any more: cut off, that node may
// never answer, and who asks knows better whom to ask. Where it was not known to lead when it was asked, there is nothing to learn.
func whileItLeads(ctx context.Context, leaders *Leaders, node string, shards iter.Seq[uint32]) (context.Context, func()) {
	if leaders.reign(node, shards) == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	doubt := time.AfterFunc(doubtAfter, func() {
		for over := leaders.reign(node, shards); over != nil; over = leaders.reign(node, shards) {
			select {
			case <-ctx.Done():
				return
			case <-over:
			}
		}
		cancel(errDeposed)
	})
	return ctx, func() {
		doubt.Stop()
		cancel(nil)
	}
}
