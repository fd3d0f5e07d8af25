package cluster

import (
	"context"
	"errors"
	"iter"
	"time"
)

const (
	// doubtAfter is how long a node may take to answer before it is watched whether it still leads.
	doubtAfter = 50 * time.Millisecond
	// lastWords is how long it is still waited for when it leads no more: whoever hands its lead over, or is told of another, answers what waits there.
	lastWords = 50 * time.Millisecond
)

// errDeposed is why a request to another node is not waited for any more.
var errDeposed = errors.New("another node leads meanwhile, or nobody")

// whileItLeads returns a context that ends lastWords after this node learns that the one that is asked leads none of the shards any more, unless that
// leads again by then: cut off, it may never answer, and who asks knows better whom to ask. Where it was not known to lead when it was asked, there is nothing to learn.
func whileItLeads(ctx context.Context, leaders *Leaders, node string, shards iter.Seq[uint32]) (context.Context, func()) {
	if leaders.reign(node, shards) == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	doubt := time.AfterFunc(doubtAfter, func() {
		for leads := true; leads; leads = leaders.reign(node, shards) != nil {
			if !untilDeposed(ctx, leaders, node, shards) || !sleep(ctx, lastWords) {
				return
			}
		}
		cancel(errDeposed)
	})
	return ctx, func() {
		doubt.Stop()
		cancel(nil)
	}
}

// untilDeposed waits until a node leads none of the shards, as far as is known; false when the context ends first.
func untilDeposed(ctx context.Context, leaders *Leaders, node string, shards iter.Seq[uint32]) bool {
	for over := leaders.reign(node, shards); over != nil; over = leaders.reign(node, shards) {
		select {
		case <-ctx.Done():
			return false
		case <-over:
		}
	}
	return true
}

// sleep reports whether the context still lasts after a while.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
