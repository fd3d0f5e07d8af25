package client

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// ClockChange is what became of a namespace's event clock that was set.
type ClockChange struct {
	Namespace Namespace // as it is now, with the epoch of its clock
	// Shards is how many shards have the new epoch. Waits are those that did not answer in time: they begin it as soon
	// as they have a leader, and answer nothing of the namespace before.
	Shards uint32
	Waits  []uint32
}

// SetNamespaceClock sets the event clock of a namespace to a time after 1970 that is not ahead of the nodes' clocks. It
// begins a new epoch: what clients and nodes have seen of the clock before says nothing any more. Keys that forget and
// had an event after that time are dropped. Errors: ErrBadNamespace for a namespace without an event clock, ErrBadTime
// for another time, ErrPermissionDenied for who is no operator.
func (c *Client) SetNamespaceClock(ctx context.Context, name string, to time.Time) (ClockChange, error) {
	a := attempt{op: "set namespace clock", key: name}
	if err := proto.CheckNamespaceName(name); err != nil {
		return ClockChange{}, c.fail(a, err)
	}
	req := &ebbv1.SetNamespaceClockRequest{Name: name, NowUs: to.UnixMicro()}
	var resp *ebbv1.SetNamespaceClockResponse
	err := c.anywhere(ctx, a, changeAgain, func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
		resp, err = ebbv1grpc.NewEbbClient(cc).SetNamespaceClock(ctx, req)
		return err
	})
	if err != nil {
		return ClockChange{}, err
	}
	c.renewal()
	ns := resp.GetNamespace()
	c.clocks.heard(c.chart.clusterID(), name, ns.GetClockSet())
	return ClockChange{Namespace: namespaceOf(ns), Shards: resp.GetShards(), Waits: resp.GetWaits()}, nil
}
