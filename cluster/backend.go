package cluster

import (
	"context"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Backend applies commands to the shards of one node and asks these shards questions. The implementations are a local
// node, a connection to a remote peer and a map in a test.
//
// Both methods answer in the order of the request. An error of one shard stands in the answer at that position, above
// all NOT_LEADER. A returned error concerns the whole call. If that error is UNREACHABLE, nothing was sent; an Apply
// that failed later returns UNKNOWN_OUTCOME. Requests and answers belong to the receiver after the call: the caller
// must not write to them.
type Backend interface {
	Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error)
	Ask(ctx context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error)
}

// Peers finds the Backend of another node by the node's name. After an error, nothing was sent.
type Peers interface {
	Backend(node string) (Backend, error)
}
