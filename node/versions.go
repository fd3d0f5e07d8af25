package node

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// raiseEvery is how often the control leader looks whether every member knows a newer storage version.
	raiseEvery = time.Second
	// raiseAfter is how long they all must have done so, one look after the other: whoever upgrades the last node and sees
	// it fail can still take the old build. Where the cluster was just born there is no old build.
	raiseAfter = 5 * time.Second
)

// raiser puts newer storage versions in force, on the control leader.
type raiser struct {
	n     *Node
	next  uint32    // that all members know
	since time.Time // when that was first seen
	held  []string  // members that know no newer one, as last said
}

// look is called every raiseEvery by one goroutine. It asks nobody while the newest version that this node knows is in force.
func (r *raiser) look(ctx context.Context) {
	c := r.n.groups.Load().control
	table := c.state.control.Table()
	if _, leads := c.leading(); !leads || table.ClusterID() == "" || table.Version() >= r.n.cfg.Storage.Newest {
		r.next, r.held = 0, nil
		return
	}
	next, held := cluster.NextVersion(table, r.n.told(ctx))
	if next != r.next {
		r.next, r.since = next, time.Now()
	}
	if !slices.Equal(held, r.held) {
		r.held = held
		r.n.logger.Info("nodes hold a newer storage version back", "in_force", table.Version(), "known", r.n.cfg.Storage.Newest, "by", strings.Join(held, ", "))
	}
	if next <= table.Version() || time.Since(r.since) < raiseAfter && !c.bore.Load() {
		return
	}
	_, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_RaiseVersion{RaiseVersion: &ebbv1.RaiseVersion{To: next, Epoch: table.Epoch()}}})
	if err != nil {
		r.n.logger.Debug("the storage version is not raised", "to", next, "err", err)
		return
	}
	r.n.logger.Info("the storage version is raised: no node goes back to an older ebb from here", "from", table.Version(), "to", next)
}

// told are the storage versions of the members that answer now, this one included. Gossip can lead a question to a
// stranger, whose answer must not raise the version over a member that does not know it.
func (n *Node) told(ctx context.Context) map[string]proto.Versions { return n.toldBy(ctx, n.others()) }

// foundersTold is told of a cluster that is not born yet.
func (n *Node) foundersTold(ctx context.Context) map[string]proto.Versions {
	return n.toldBy(ctx, n.cfg.founders())
}

func (n *Node) toldBy(ctx context.Context, nodes []string) map[string]proto.Versions {
	told := map[string]proto.Versions{n.cfg.Name: n.cfg.Storage}
	for _, r := range n.survey(ctx, nodes) {
		if n.trusts(&r) {
			told[r.node] = r.storage
		}
	}
	return told
}

// heed is told the storage version in force. From when it is in the data directory, an older program does not start there.
func (n *Node) heed(version uint32) error {
	if version > n.cfg.Storage.Newest {
		return proto.ErrNewerVersion.Errorf("storage version %d is in force in the cluster: this program knows %d to %d", version, n.cfg.Storage.Oldest, n.cfg.Storage.Newest).
			WithHint("start node " + n.cfg.Name + " with the ebb of the other nodes")
	}
	if version <= n.dir.identity().Layout {
		return nil
	}
	return n.dir.update(func(id *identity) { id.Layout = max(id.Layout, version) })
}

// speaks refuses a node that wants to join and has another wire version, or does not know the storage version in force.
func (n *Node) speaks(join *ebbv1.JoinNode) error {
	name := join.GetRecord().GetName()
	if join.GetProtocol() < proto.WireOldest || join.GetProtocol() > proto.WireVersion {
		return proto.ErrNewerVersion.Errorf("node %s speaks wire version %d, and this cluster %d to %d", name, join.GetProtocol(), proto.WireOldest, proto.WireVersion).
			WithHint("start the node with the cluster's version of ebb, or upgrade the cluster first")
	}
	knows, version := proto.ToldVersions(join.GetStorageOldest(), join.GetStorageNewest()), n.Table().Version()
	switch {
	case knows.Newest < version:
		return proto.ErrNewerVersion.Errorf("storage version %d is in force in the cluster: node %s knows %d to %d", version, name, knows.Oldest, knows.Newest).
			WithHint("start the node with the ebb of the other nodes")
	case knows.Oldest > version:
		return proto.ErrNewerVersion.Errorf("storage version %d is in force in the cluster: node %s knows %d to %d", version, name, knows.Oldest, knows.Newest).
			WithHint("upgrade the other nodes first, or start the node with their ebb")
	}
	return nil
}
