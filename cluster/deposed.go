package cluster

import (
	"context"
	"errors"
	"iter"
	"time"
)

const (
	// leaderCheckAfter is how long a call to another node may take before this node checks whether the other still
	// leads.
	leaderCheckAfter = 50 * time.Millisecond
	// deposedGrace is how long to wait for a deposed leader: it may still answer requests that it has queued.
	deposedGrace = 50 * time.Millisecond
)

// errDeposed is the cause when a request to another node ends early.
var errDeposed = errors.New("another node leads now, or none")

// untilDeposed returns a context that ends deposedGrace after this node learns that the other node leads none of the
// shards any more, unless that node leads again by then. A node that is partitioned away may never answer, and the
// caller can retry elsewhere. If the node was not known to lead, the context does not end early.
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

// awaitDeposed waits until a node is not known to lead any of the shards; it returns false if the context ends first.
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

// sleep waits for d, and reports whether the context still lasts.
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
