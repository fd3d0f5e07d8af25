package cluster

import (
	"context"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Backend applies commands to the shards of one node and asks them. A local
// node, a remote peer and a map in a test satisfy it without knowing each other.
//
// Both methods answer position by position. What concerns one shard stands in
// that position's error (NOT_LEADER above all); a returned error concerns the
// whole call. UNREACHABLE as such an error promises that nothing was sent; an
// Apply that broke later is UNKNOWN_OUTCOME. Requests and answers belong to the
// receiver after the call: the caller must not write to them.
type Backend interface {
	Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error)
	Ask(ctx context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error)
}

// Peers finds the Backend of another node by its name. An error means that
// nothing was sent.
type Peers interface {
	Backend(node string) (Backend, error)
}
