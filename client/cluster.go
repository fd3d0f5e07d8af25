package client

import (
	"context"
	"time"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// ChangeCluster drains, activates or removes a node, changes the number of replicas or levels what nodes hold, and
// returns what moves then; without a change, what moves now. With DryRun it only says what would follow. It retries:
// asked for twice, a change is made once.
func (c *Client) ChangeCluster(ctx context.Context, req *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	if req.GetIdempotencyKey() == nil {
		req = protobuf.CloneOf(req)
		req.IdempotencyKey = c.idempotencyKey()
	}
	var resp *ebbv1.ChangeClusterResponse
	err := c.anywhere(ctx, attempt{op: "change the cluster"}, changeAgain,
		func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
			resp, err = ebbv1grpc.NewEbbClient(cc).ChangeCluster(ctx, req)
			return err
		})
	return resp, err
}

// status asks a node for its report on itself and all the others. One with checksums takes as long as the nodes need to
// read what they hold: a node is given half of the time that is left, so that another can be asked if it hangs.
func (c *Client) status(ctx context.Context, req *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	a := attempt{op: "status"}
	if end, ends := ctx.Deadline(); ends && len(req.GetChecksums()) > 0 {
		a.limit = max(c.cfg.attemptTimeout, time.Until(end)/2)
	}
	var resp *ebbv1.StatusResponse
	err := c.anywhere(ctx, a, question,
		func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
			resp, err = ebbv1grpc.NewEbbClient(cc).Status(ctx, req)
			return err
		})
	return resp, err
}
