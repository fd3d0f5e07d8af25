package cluster

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// doubtEvery is how often it is looked whether somebody who has not answered a forwarded request still leads.
const doubtEvery = 50 * time.Millisecond

// errDeposed is why a forwarded request is not waited for any more.
var errDeposed = proto.ErrUnknownOutcome.Errorf("another node leads meanwhile, or nobody")

// whileItLeads returns a context that ends when this node learns that the one that a parcel is sent to leads none of its shards any more: cut off, that node may
// never answer, and the sender knows better whom to ask. Where nobody was known to lead when it was sent, there is nothing to learn.
func (r *Router) whileItLeads(ctx context.Context, p *parcel) (context.Context, func()) {
	if !r.leadsAny(p) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	doubt := time.AfterFunc(doubtEvery, func() {
		tick := time.NewTicker(doubtEvery)
		defer tick.Stop()
		for r.leadsAny(p) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel(errDeposed)
	})
	return ctx, func() {
		doubt.Stop()
		cancel(nil)
	}
}

// leadsAny reports whether a parcel's node is known to lead one of its shards.
func (r *Router) leadsAny(p *parcel) bool {
	for _, cmd := range p.req.GetCommands() {
		if node, _ := r.cfg.Leaders.Leader(cmd.GetShard()); node == p.node {
			return true
		}
	}
	return false
}
