package cluster

import (
	"context"
	"errors"
	"iter"
	"time"
)

const (
	// leaderCheckAfter is how long a node may take to answer before this node watches whether it still leads.
	leaderCheckAfter = 50 * time.Millisecond
	// deposedGrace is how long to wait for a deposed leader: it may still answer requests that it has queued.
	deposedGrace = 50 * time.Millisecond
)

// errDeposed is why a request to another node is not waited for any more.
var errDeposed = errors.New("another node leads now, or none")

// untilDeposed returns a context that ends deposedGrace after this node learns that the other node leads none of the
// shards any more. It does not end if that node leads again by then. A node that is cut off may never answer, and the
// caller knows better where to retry. If the node was not known to lead, the context does not end early.
func untilDeposed(ctx context.Context, leaders *Leaders, node string, shards iter.Seq[uint32]) (context.Context, func()) {
	if leaders.leadershipEnd(node, shards) == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	check := time.AfterFunc(leaderCheckAfter, func() {
		for leads := true; leads; leads = leaders.leadershipEnd(node, shards) != nil {
			if !awaitDeposed(ctx, leaders, node, shards) || !sleep(ctx, deposedGrace) {
				return
			}
		}
		cancel(errDeposed)
	})
	return ctx, func() {
		check.Stop()
		cancel(nil)
	}
}

// awaitDeposed waits until a node leads none of the shards, as far as is known; false when the context ends first.
func awaitDeposed(ctx context.Context, leaders *Leaders, node string, shards iter.Seq[uint32]) bool {
	for over := leaders.leadershipEnd(node, shards); over != nil; over = leaders.leadershipEnd(node, shards) {
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
