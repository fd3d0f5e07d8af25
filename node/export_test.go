package node

import (
	"bytes"
	"context"
	"slices"
	"strconv"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// WithChecksum returns a node.json that was edited with a checksum that is right again.
func WithChecksum(raw []byte) []byte {
	body := raw[:bytes.LastIndex(raw, []byte(",\n  \"checksum\""))]
	return append(bytes.Clone(body), checksumMemberOf(body)...)
}

// WithMemoryUsed returns a configuration of a node to which used says how much memory it takes.
func WithMemoryUsed(c Config, used func() int64) Config {
	c.used = used
	return c
}

// Keep makes one shard here what a table wants it to be.
func (n *Node) Keep(table *cluster.Table, shard uint32) error {
	return (&replicaReconciler{n: n}).reconcile(table, shard, n.dir.identity().Replicas[shard])
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

// Step makes the next step of a group that this node leads, as its mover does. settling is run before what the log
// has is committed. Both it and what a failpoint runs may change the group behind the step's back with Enlarge.
func (n *Node) Step(ctx context.Context, group uint32, settling func()) {
	v := newMover(n)
	r := n.replicaOf(group)
	v.step(ctx, r.member, slowly{r, settling})
}

func (n *Node) replicaOf(group uint32) *replica {
	all := n.groups.Load().replicas
	return all[slices.IndexFunc(all, func(r *replica) bool { return r.group == group })]
}

// slowly is a group in which something happens before its log has settled.
type slowly struct {
	*replica
	settling func()
}

func (s slowly) settle() error {
	s.settling()
	return s.replica.settle()
}

// Enlarge adds a replica that no node runs to a group that this node leads.
func (n *Node) Enlarge(group uint32, replica uint64) error {
	i := n.replicaOf(group).now.Load()
	address := transport.Address("ghost-"+strconv.FormatUint(replica, 10), replica)
	return i.reconfigure(i.raft.AddNonvoter(serverID(replica), address, 0, stepMax))
}

// HoldLeader has a shard's leadership stay here, as if it was being moved already, until release.
func (n *Node) HoldLeader(shard uint32) (release func()) {
	r := n.replicaOf(shard)
	r.transferring.Store(true)
	return func() { r.transferring.Store(false) }
}

// Replicas are those of a group's configuration, as this node has it.
func (n *Node) Replicas(group uint32) (all []uint64) {
	for _, s := range membersOf(n.replicaOf(group).configuration()) {
		all = append(all, s.Replica)
	}
	return all
}

// Router is what takes the writes of this node's callers.
func (n *Node) Router() *cluster.Router { return n.router }

// Coordinator is what answers the questions of this node's callers.
func (n *Node) Coordinator() *cluster.Coordinator { return n.coordinator }
