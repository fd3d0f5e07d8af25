package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// Backups is for callers that back up and restore.
type Backups interface {
	// Snapshot sends the state of a shard that this node leads.
	Snapshot(ctx context.Context, req *ebbv1.SnapshotRequest, send func(*ebbv1.SnapshotPart) error) error
	// RestoreNamespaces writes the namespaces of a backup to the cluster, wherever the control group is led.
	RestoreNamespaces(context.Context, *ebbv1.RestoreNamespacesRequest) (*ebbv1.RestoreNamespacesResponse, error)
}

// Snapshot implements service Shards. It ends when its caller is no longer allowed to call it: a shard can take long.
func (s *shardsServer) Snapshot(req *ebbv1.SnapshotRequest, stream grpc.ServerStreamingServer[ebbv1.SnapshotPart]) error {
	if err := proto.CheckSnapshot(req); err != nil {
		return ebbv1grpc.Status(err)
	}
	ctx := stream.Context()
	looked := time.Now()
	return ebbv1grpc.Status(s.Backups.Snapshot(ctx, req, func(part *ebbv1.SnapshotPart) error {
		if time.Since(looked) >= recheckEvery {
			if err := s.still(ctx, ebbv1grpc.Shards_Snapshot_FullMethodName, req); err != nil {
				return err
			}
			looked = time.Now()
		}
		return stream.Send(part)
	}))
}

func (s *shardsServer) RestoreNamespaces(ctx context.Context, req *ebbv1.RestoreNamespacesRequest) (*ebbv1.RestoreNamespacesResponse, error) {
	if n := len(req.GetNamespaces()); n == 0 || n > proto.NamespacesMax {
		return nil, proto.ErrBadNamespace.Errorf("%d namespaces: a request has 1 to %d", n, proto.NamespacesMax)
	}
	for i, ns := range req.GetNamespaces() {
		if err := checkNamespaceSize(ns); err != nil {
			return nil, at("namespace", i, proto.AsError(err))
		}
	}
	if err := s.maySeed(ctx, req.GetNamespaces()); err != nil {
		return nil, err
	}
	if c := callerOf(ctx); c.token != nil && req.GetDroppedVersion() != 0 {
		if err := c.needs(operator, ""); err != nil {
			return nil, err
		}
	}
	return s.Backups.RestoreNamespaces(ctx, withoutBudgets(ctx, req))
}

// withoutBudgets returns the request without budgets if the caller may not set them. Existing budgets stay.
func withoutBudgets(ctx context.Context, req *ebbv1.RestoreNamespacesRequest) *ebbv1.RestoreNamespacesRequest {
	if c := callerOf(ctx); c.token == nil || c.token.May(operator, "") {
		return req
	}
	out := protobuf.CloneOf(req)
	for _, ns := range out.GetNamespaces() {
		ns.Budget = nil
	}
	return out
}

// RestoreNamespaces asks the peer to write the namespaces of a backup to the cluster.
func (p *Peer) RestoreNamespaces(ctx context.Context, req *ebbv1.RestoreNamespacesRequest) (*ebbv1.RestoreNamespacesResponse, error) {
	resp, err := p.shards.RestoreNamespaces(ctx, req)
	return resp, p.named(err) // which may be done again
}

// maySeed does not allow an admin of a namespace to give it another hash seed. A caller that also restores
// its keys is an operator.
func (s *Services) maySeed(ctx context.Context, namespaces []*ebbv1.Namespace) error {
	c := callerOf(ctx)
	if c.token == nil {
		return nil // the caller needs no token
	}
	for _, ns := range namespaces {
		if ns.GetVersion() > cluster.RestoredVersionTrusted || ns.GetDeletion() != nil {
			return c.needs(operator, "") // versions have an end, and a deletion is not to come by the way
		}
	}
	seeds := make(map[string]uint64)
	for _, have := range s.Cluster.Table().GetNamespaces() {
		seeds[have.GetName()] = have.GetHashSeed()
	}
	for _, ns := range namespaces {
		if seed, known := seeds[ns.GetName()]; known && seed != ns.GetHashSeed() {
			return c.needs(operator, "")
		}
	}
	return nil
}
