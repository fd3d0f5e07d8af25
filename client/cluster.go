package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// ChangeCluster drains, activates or removes a node, changes the number of replicas or levels what nodes
// hold, and returns what moves then; without a change, what moves now. With DryRun it only says what would follow. It retries: asked for twice,
// a change is made once.
func (c *Client) ChangeCluster(ctx context.Context, req *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	var resp *ebbv1.ChangeClusterResponse
	err := c.anywhere(ctx, attempt{op: "change the cluster"}, true,
		func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
			resp, err = ebbv1grpc.NewEbbClient(cc).ChangeCluster(ctx, req)
			return err
		})
	return resp, err
}

// ShardCheck is what a comparison of a shard's replicas has found.
type ShardCheck struct {
	Shard    uint32
	Index    uint64            // entry of the log after which they were compared
	Replicas map[string]uint64 // node -> checksum
	// Equal says that all replicas that the table has were compared, and are the same.
	Equal bool
	// Missing names nodes whose replicas could not be compared: they do not answer, or lag.
	Missing []string
}

// checkRounds is how often Verify tries to catch all replicas of a shard at one entry; checkMargin is how many entries ahead of the newest
// the second try goes, and each further one four times as many.
const (
	checkRounds = 5
	checkMargin = 16
)

// Verify compares the replicas of each shard: their checksums after one and the same entry of the shard's log. Shards that are written to
// meanwhile are compared at an entry to come. each is told after every round how many shards are left; it may be nil.
func (c *Client) Verify(ctx context.Context, each func(left int)) ([]ShardCheck, error) {
	table, err := c.Table(ctx)
	if err != nil {
		return nil, err
	}
	checks := make([]ShardCheck, table.GetShards())
	ask := &ebbv1.StatusRequest{}
	for i := range checks {
		checks[i].Shard = uint32(i + 1)
		ask.Checksums = append(ask.Checksums, &ebbv1.ChecksumRequest{Shard: uint32(i + 1)})
	}
	margin := uint64(checkMargin)
	for round := 0; round < checkRounds && len(ask.Checksums) > 0; round++ {
		status, err := c.status(ctx, ask)
		if err != nil {
			return nil, err
		}
		if table, err = c.Table(ctx); err != nil { // replicas may have moved
			return nil, err
		}
		last, again := newestEntries(status), &ebbv1.StatusRequest{}
		for _, a := range ask.Checksums {
			check := compareReplicas(table.GetPlacement()[a.GetShard()], status)
			checks[a.GetShard()-1] = check
			if !check.Equal && !check.diverged() {
				again.Checksums = append(again.Checksums, &ebbv1.ChecksumRequest{Shard: a.GetShard(), At: last[a.GetShard()] + margin})
			}
		}
		ask, margin = again, margin*4
		if each != nil {
			each(len(ask.Checksums))
		}
	}
	return checks, nil
}

// diverged reports whether two replicas differ after the same entry.
func (s *ShardCheck) diverged() bool {
	var first *uint64
	for _, sum := range s.Replicas {
		if first == nil {
			first = &sum
		} else if *first != sum {
			return true
		}
	}
	return false
}

// newestEntries returns the newest entry of each shard's log that any node has.
func newestEntries(status *ebbv1.StatusResponse) map[uint32]uint64 {
	newest := make(map[uint32]uint64)
	for _, n := range status.GetNodes() {
		for _, r := range n.GetReplicas() {
			newest[r.GetShard()] = max(newest[r.GetShard()], r.GetLastIndex())
		}
	}
	return newest
}

// compareReplicas compares those replicas of a shard that were caught at the newest entry of any.
func compareReplicas(record *ebbv1.ShardRecord, status *ebbv1.StatusResponse) ShardCheck {
	check := ShardCheck{Shard: record.GetShard(), Replicas: make(map[string]uint64)}
	found := make(map[string]*ebbv1.ReplicaStatus)
	for _, n := range status.GetNodes() {
		for _, r := range n.GetReplicas() {
			if r.GetShard() == record.GetShard() && r.GetChecksumIndex() > 0 {
				found[n.GetNode().GetName()] = r
				check.Index = max(check.Index, r.GetChecksumIndex())
			}
		}
	}
	for _, r := range record.GetReplicas() {
		switch at := found[r.GetNode()]; {
		case r.GetJoining() || r.GetLeaving():
		case at != nil && at.GetReplica() == r.GetId() && at.GetChecksumIndex() == check.Index:
			check.Replicas[r.GetNode()] = at.GetChecksum()
		default:
			check.Missing = append(check.Missing, r.GetNode())
		}
	}
	check.Equal = len(check.Missing) == 0 && len(check.Replicas) > 0 && !check.diverged()
	return check
}

// Err says what is wrong with a shard's replicas; nil if they are equal.
func (s *ShardCheck) Err() error {
	switch {
	case s.Equal:
		return nil
	case s.diverged():
		return proto.ErrCorrupt.Errorf("shard %d: its replicas differ after entry %d: %x", s.Shard, s.Index, s.Replicas).WithShard(s.Shard).
			WithHint("keep the data directories of all its nodes, and report it")
	}
	return proto.ErrIncomplete.Errorf("shard %d: not compared on %v", s.Shard, s.Missing).WithShard(s.Shard).
		WithHint("see ebb status; try again when they answer")
}

// status asks a node for its report on itself and all the others, with checksums.
func (c *Client) status(ctx context.Context, req *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	var resp *ebbv1.StatusResponse
	err := c.anywhere(ctx, attempt{op: "status"}, true,
		func(ctx context.Context, cc grpc.ClientConnInterface) (err error) {
			resp, err = ebbv1grpc.NewEbbClient(cc).Status(ctx, req)
			return err
		})
	return resp, err
}
