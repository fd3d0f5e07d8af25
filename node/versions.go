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
	// raiseEvery is how often the control leader checks whether every member knows a newer storage version.
	raiseEvery = time.Second
	// raiseAfter is how long all members must have known it, at each check. An operator who upgrades the last node and
	// sees it fail can still return to the old build. A cluster that was just born has no old build, and does not wait.
	raiseAfter = 5 * time.Second
)

// versionUpgrader puts newer storage versions in force. It acts on the control leader only.
type versionUpgrader struct {
	n     *Node
	next  uint32    // the newest version that all members know
	since time.Time // when that was first seen
	held  []string  // members that know no newer version, as last logged
}

// look is called every raiseEvery by one goroutine. It sends no requests while this node's newest version is in force.
func (u *versionUpgrader) look(ctx context.Context) {
	c := u.n.groups.Load().control
	table := c.state.control.Table()
	if _, leads := c.leading(); !leads || table.ClusterID() == "" || table.Version() >= u.n.cfg.Storage.Newest {
		u.next, u.held = 0, nil
		return
	}
	next, held := cluster.NextVersion(table, u.n.memberVersions(ctx))
	if next != u.next {
		u.next, u.since = next, time.Now()
	}
	if !slices.Equal(held, u.held) {
		u.held = held
		u.n.logger.Info("nodes hold a newer storage version back", "in_force", table.Version(), "known", u.n.cfg.Storage.Newest, "by", strings.Join(held, ", "))
	}
	if next <= table.Version() || time.Since(u.since) < raiseAfter && !c.bore.Load() {
		return
	}
	_, err := c.propose(ctx, &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_RaiseVersion{RaiseVersion: &ebbv1.RaiseVersion{To: next, Epoch: table.Epoch()}}})
	if err != nil {
		u.n.logger.Debug("the storage version is not raised", "to", next, "err", err)
		return
	}
	u.n.logger.Info("the storage version is raised: no node goes back to an older ebb from here", "from", table.Version(), "to", next)
}

// memberVersions returns the storage versions of this node and of the members that answer. Because of gossip, a request
// may reach a node of another cluster. Its answer must not raise the version if a member does not know it.
func (n *Node) memberVersions(ctx context.Context) map[string]proto.Versions {
	return n.versionsOf(ctx, n.others(), n.trusts)
}

// founderVersions is memberVersions before the cluster is born. All answers count: a false one can make the first
// version an older one, which rises later.
func (n *Node) founderVersions(ctx context.Context) map[string]proto.Versions {
	return n.versionsOf(ctx, n.cfg.founders(), func(*report) bool { return true })
}

func (n *Node) versionsOf(
	ctx context.Context, nodes []string, counts func(*report) bool,
) map[string]proto.Versions {
	versions := map[string]proto.Versions{n.cfg.Name: n.cfg.Storage}
	for _, r := range n.survey(ctx, nodes) {
		if counts(&r) {
			versions[r.node] = r.storage
		}
	}
	return versions
}

// adoptVersion returns an error if this program does not know the storage version in force, and writes the version to
// the data directory. From then on an older program does not start there.
func (n *Node) adoptVersion(version uint32) error {
	if version > n.cfg.Storage.Newest {
		return proto.ErrNewerVersion.Errorf("storage version %d is in force in the cluster: this program knows %d to %d", version, n.cfg.Storage.Oldest, n.cfg.Storage.Newest).
			WithHint("start node " + n.cfg.Name + " with the ebb of the other nodes")
	}
	if version <= n.dir.identity().Layout {
		return nil
	}
	return n.dir.update(func(id *identity) { id.Layout = max(id.Layout, version) })
}

// speaks returns an error for a joining node that has another wire version, or does not know the storage version in
// force.
func (n *Node) speaks(join *ebbv1.JoinNode) error {
	name := join.GetRecord().GetName()
	if join.GetProtocol() < proto.WireOldest || join.GetProtocol() > proto.WireVersion {
		return proto.ErrNewerVersion.Errorf("node %s speaks wire version %d, and this cluster %d to %d", name, join.GetProtocol(), proto.WireOldest, proto.WireVersion).
			WithHint("start the node with the cluster's version of ebb, or upgrade the cluster first")
	}
	knows, version := proto.ReportedVersions(join.GetStorageOldest(), join.GetStorageNewest()), n.Table().Version()
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
