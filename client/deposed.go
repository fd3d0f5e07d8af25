package client

import (
	"context"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// doubtAfter is how long a node may take to answer a write before others are asked whether it still leads, and doubtEvery
// how often they are.
const (
	doubtAfter = 500 * time.Millisecond
	doubtEvery = 250 * time.Millisecond
)

// errDeposed is why a write is not waited for any more. It may be applied: what follows is the same command again.
var errDeposed = proto.ErrUnknownOutcome.Errorf("another node leads meanwhile")

// whileItLeads returns a context that ends when the client learns that other nodes lead all shards of a request: the one that is asked may never
// answer, if it was cut off. One of which that was known before passes the request on, and is waited for.
func (c *Client) whileItLeads(ctx context.Context, parcels []*parcel) (context.Context, func()) {
	shards := make([]uint32, len(parcels))
	for i, p := range parcels {
		shards[i] = p.shard
	}
	node := parcels[0].node
	if c.chart.deposed(node, shards) {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	doubt := time.AfterFunc(doubtAfter, func() { c.spawn(func() { c.depose(ctx, cancel, node, shards) }) })
	return ctx, func() {
		doubt.Stop()
		cancel(nil)
	}
}

// depose asks other nodes for the table until it says that another than node leads each of the shards.
func (c *Client) depose(ctx context.Context, cancel context.CancelCauseFunc, node string, shards []uint32) {
	for {
		if c.chart.age(c.now()) > doubtEvery {
			_ = c.renew(ctx) // if nobody answers, the next look may tell more
		}
		if c.chart.deposed(node, shards) {
			cancel(errDeposed)
			return
		}
		if c.sleep(ctx, doubtEvery) != nil {
			return
		}
	}
}
