package client

import (
	"context"
	"time"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// ChangeCluster drains, activates or removes a node, changes the number of replicas, or balances what nodes hold. It
// returns the moves that follow; for a request without a change, the current moves. With DryRun it only returns the
// moves that would follow. It retries: a change that is sent twice is made once.
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

// status asks a node for its report on all nodes. A report with checksums takes as long as the nodes need to read what
// they hold. So a node gets half of the time that is left: if it hangs, another can be asked.
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
