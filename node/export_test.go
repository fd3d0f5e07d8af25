package node

import (
	"bytes"
	"context"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Reseal returns a node.json that was edited with a checksum that is right again.
func Reseal(raw []byte) []byte {
	body := raw[:bytes.LastIndex(raw, []byte(",\n  \"checksum\""))]
	return append(bytes.Clone(body), sealOf(body)...)
}

// WithMemoryUsed returns a configuration of a node that is told what it takes.
func WithMemoryUsed(c Config, used func() int64) Config {
	c.used = used
	return c
}

// Keep makes one shard here what a table wants it to be.
func (n *Node) Keep(table *cluster.Table, shard uint32) error {
	return (&host{n: n}).keep(table, shard, n.dir.identity().Replicas[shard])
}

// Alive reports whether this node hears of another.
func (n *Node) Alive(node string) bool { return n.directory.alive(node) }

// StartedOn returns when the process started that answers this node for another one, in µs by its clock; 0 if none
// answers.
func (n *Node) StartedOn(node string) int64 { return n.statusOn(n.ctx, node).GetStartedUs() }

// AskShards asks replicas of this node, as other nodes and clients do.
func (n *Node) AskShards(ctx context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	return n.backend.Ask(ctx, req)
}
