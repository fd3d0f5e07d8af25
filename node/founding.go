package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/rpc"
)

const (
	// surveyEvery is how often a node that waits for the others asks them.
	surveyEvery = 100 * time.Millisecond
	// surveyMax is how long one node may take to answer.
	surveyMax = time.Second
	// foreignClusterWindow is how long a restarted node checks whether its peers belong to another cluster.
	foreignClusterWindow = 10 * time.Second
)

// report is what another node reports about itself.
type report struct {
	node      string
	clusterID string
	phase     string
	record    *ebbv1.NodeRecord
	hears     []string          // nodes whose replicas had contact with its own lately
	contacted []string          // nodes whose replicas ever had contact with its own
	leads     map[uint32]uint64 // groups that it leads, with their terms
	storage   proto.Versions
	startedUS int64 // when its process started, by its clock
	source

	guarded         bool      // callers need a token there
	shown, accepted []string  // fingerprints of keys for proofs, see rpc.Access.ProofKeys
	clock           time.Time // of the node
}

// runs reports whether the node's replicas run.
func (r *report) runs() bool { return r.phase == phaseReplaying || r.phase == phaseServing }

// survey asks the given nodes, except this one, at the same time, and returns the reports of those that answered.
func (n *Node) survey(ctx context.Context, nodes []string) []report {
	reports, _ := n.surveyed(ctx, nodes)
	return reports
}

// surveyed is survey. It also returns the error of a node that refused to answer because it does not believe that this
// one is a node; nil if none did.
func (n *Node) surveyed(ctx context.Context, nodes []string) (reports []report, refused error) {
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards reports and refused
	for _, name := range nodes {
		if name == n.cfg.Name {
			continue
		}
		wg.Go(func() {
			r, err := n.askStatus(ctx, n.peers, name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				reports = append(reports, r)
			case errors.Is(err, proto.ErrUnauthenticated):
				refused = err
			}
		})
	}
	wg.Wait()
	return reports, refused
}

// askStatus asks one node for its status.
func (n *Node) askStatus(ctx context.Context, peers *rpc.Peers, name string) (report, error) {
	peer, err := peers.Peer(name)
	if err != nil {
		return report{}, err
	}
	from := source{recorded: n.recorded(name)}
	status, vouched, err := peer.VouchedStatus(ctx, n.access)
	if err != nil {
		return report{}, err
	}
	from.proven = n.trust != nil || vouched
	if len(status.GetNodes()) == 0 || status.Nodes[0].GetNode().GetName() != name {
		return report{}, proto.ErrUnreachable.Errorf("another node answers at the address of node %s", name)
	}
	own := status.Nodes[0]
	return report{
		node: name, clusterID: status.GetClusterId(), phase: own.GetPhase(), record: own.GetNode(), hears: own.GetHears(),
		contacted: own.GetMet(),
		leads:     ledBy(own), storage: proto.ReportedVersions(own.GetStorageOldest(), own.GetStorageNewest()),
		guarded: own.GetGuarded(), shown: own.GetProofsShown(), accepted: own.GetProofsAccepted(),
		clock: time.UnixMicro(own.GetClockUs()), startedUS: own.GetStartedUs(), source: from,
	}, nil
}

// ledBy returns the groups that a node reports to lead, with their terms.
func ledBy(s *ebbv1.NodeStatus) map[uint32]uint64 {
	leads := make(map[uint32]uint64)
	for _, r := range s.GetReplicas() {
		if r.GetRole() == roleLeader {
			leads[r.GetShard()] = r.GetTerm()
		}
	}
	return leads
}

// found waits until this node may make its first replicas: a majority of the founders, this one included, has answered,
// and none of them knows of an earlier run of this node. If one knows of an earlier run, found returns mustJoin. An
// empty replica in place of one on a lost disk could vote a second time, and would lack what it acknowledged.
//
// A young cluster may not have recorded yet which founders have run. So nodes also report with whose replicas they were
// in contact. Once there is a cluster, more founders must report that they had no contact with this node: so many that
// no majority without them could have had its vote.
func (n *Node) found(ctx context.Context) (mustJoin bool, err error) {
	founders := n.cfg.founders()
	for {
		reports, refused := n.surveyed(ctx, founders)
		reports, doubt, err := n.provenReports(reports, refused)
		if err != nil {
			return false, err
		}
		answered, born, mustJoin, err := n.lostDisk(reports, func(node string) (*ebbv1.Table, error) { return n.tableOf(ctx, node) })
		if err != nil || mustJoin {
			return mustJoin, err
		}
		need, who := len(founders)/2+1, "a majority"
		if born {
			need = min(len(founders)-need+2, len(founders))
			who = fmt.Sprint(need)
		}
		if answered+1 >= need {
			return false, nil
		}
		n.phase.enter(phaseJoining, fmt.Sprintf("waits for %s of %s: %d of %d found%s", who, strings.Join(founders,
			", "), answered+1, len(founders), n.unjoined()+because(doubt)))
		select {
		case <-time.After(surveyEvery):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// lostDisk finds out from the reports whether this node ran before. It returns how many nodes know that it did not, and
// whether there is a cluster. A node whose table cannot be read does not count.
func (n *Node) lostDisk(reports []report, tableOf func(node string) (*ebbv1.Table, error)) (answered int, born, mustJoin bool, err error) {
	for _, r := range reports {
		if slices.Contains(r.contacted, n.cfg.Name) {
			return 0, true, true, nil
		}
		if r.clusterID == "" {
			answered++
			continue
		}
		born = true
		table, err := tableOf(r.node)
		if err != nil {
			continue
		}
		if mustJoin, err := n.newcomer(table, r.node); err != nil || mustJoin {
			return 0, born, mustJoin, err
		}
		answered++
	}
	return answered, born, false, nil
}

// newcomer reports that this node must join, if the cluster's table has it as enrolled or as removed. It returns an
// error if the cluster does not know this node.
func (n *Node) newcomer(table *ebbv1.Table, from string) (mustJoin bool, err error) {
	record := slices.IndexFunc(table.GetNodes(), func(m *ebbv1.NodeRecord) bool { return m.GetName() == n.cfg.Name })
	switch {
	case record < 0 && slices.Contains(table.GetRemoved(), n.cfg.Name):
		return true, nil
	case record < 0:
		return false, proto.ErrWrongCluster.Errorf("cluster %s, which node %s belongs to, has no node %s", table.GetClusterId(), from, n.cfg.Name).
			WithHint("start it with --join and without --bootstrap-expect to add it, or let it join another cluster")
	case table.Nodes[record].GetEnrolled():
		return true, nil
	}
	return false, n.sameSettings(table.GetShards(), table.GetReplication())
}

// sameSettings returns an error if this node's settings differ from those that the cluster was born with.
func (n *Node) sameSettings(shards, replication uint32) error {
	if shards != n.cfg.Shards || replication != n.cfg.Replication {
		return proto.ErrWrongCluster.Errorf("the cluster has %d shards and replication %d: node %s was started with %d and %d",
			shards, replication, n.cfg.Name, n.cfg.Shards, n.cfg.Replication).
			WithHint("start all nodes with the same settings")
	}
	return nil
}

func (n *Node) tableOf(ctx context.Context, name string) (*ebbv1.Table, error) {
	table, _, err := n.tableFrom(ctx, name)
	return table, err
}

// tableFrom is tableOf. It also returns what is known of the process that answered.
func (n *Node) tableFrom(ctx context.Context, name string) (*ebbv1.Table, source, error) {
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	peer, err := n.peers.Peer(name)
	if err != nil {
		return nil, source{}, err
	}
	from := source{recorded: n.recorded(name)}
	resp, vouched, err := peer.VouchedTable(ctx, n.access)
	from.proven = n.trust != nil || vouched
	return resp.GetTable(), from, err
}

// checkForeignCluster returns an error if the other nodes belong to another cluster.
func (n *Node) checkForeignCluster(reports []report) error {
	id := n.dir.identity().ClusterID
	var foreign *report
	for i, r := range reports {
		if r.clusterID == id {
			return nil
		}
		if r.clusterID != "" && n.believes(r.source) {
			foreign = &reports[i]
		}
	}
	if id == "" || foreign == nil {
		return nil
	}
	return proto.ErrWrongCluster.Errorf("data directory %s belongs to cluster %s, but node %s belongs to cluster %s",
		n.cfg.DataDir, id, foreign.node, foreign.clusterID).
		WithHint("use this cluster's own data directory, or --join nodes of the right cluster")
}

// detectForeignCluster checks, in the first seconds after a restart, whether the other nodes belong to another cluster.
// It ends when one of them answers.
func (n *Node) detectForeignCluster(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, foreignClusterWindow)
	defer cancel()
	_ = await(ctx, time.Second, func() bool {
		reports, refused := n.surveyed(ctx, n.kin())
		if err := n.checkForeignCluster(reports); err != nil {
			n.fatal(err)
			return true
		}
		if err := cmp.Or(n.checkPeerProofs(reports, refused), refused); err != nil {
			n.logger.Error("other nodes and this one do not believe each other to be nodes", "err", err, "try",
				proto.AsError(err).Hint)
		}
		return len(reports) > 0
	})
}

// kin returns the other nodes of the cluster as last known; the founders before there is a table.
func (n *Node) kin() []string {
	if others := n.others(); len(others) > 0 {
		return others
	}
	return n.dir.identity().Founders
}

// bringUp starts this node's replicas, and returns when they serve.
func (n *Node) bringUp(ctx context.Context) error {
	if err := n.enroll(ctx); err != nil {
		return err
	}
	birth, err := n.birth()
	if err != nil {
		return err
	}
	id := n.dir.identity()
	has := id.Replicas
	if !id.Founded {
		has = replicasAtBirth(birth, n.cfg.Name)
	}
	if err := n.clear(has); err != nil {
		return err
	}
	g, err := n.newGroups(has, birth)
	if err != nil {
		return err
	}
	n.adopt(g)
	n.phase.enter(phaseRestoring, fmt.Sprintf("0 of %d groups", len(g.members)))
	first := birth
	if id.Founded {
		first = nil
		n.recollection.ask(ctx)
		if err := n.recollection.compare(g.members); err != nil {
			return err
		}
	}
	damaged, err := g.start(first, func(started int) {
		n.phase.enter(phaseRestoring, fmt.Sprintf("%d of %d groups", started, len(g.members)))
	})
	if err != nil {
		return err
	}
	for _, d := range damaged {
		g.byShard[d.shard].stop()
		g = g.without(d.shard)
	}
	n.groups.Store(g)
	if !id.Founded {
		if err := n.dir.update(func(id *identity) { id.Founded, id.Replicas = true, has }); err != nil {
			return err
		}
	}
	n.phase.enter(phaseReplaying, "reads its log")
	n.backend.replicas.Store(&g.byShard)
	n.look(ctx, g)
	n.replaceDamaged(ctx, damaged)
	n.wg.Go(func() { n.campaignEarly(ctx, g, birth, !id.Founded) })
	return n.replay(ctx, g)
}

// birth returns the table that this node's cluster was born with; nil if this node is not a founder.
func (n *Node) birth() (*cluster.Table, error) {
	id := n.dir.identity()
	if len(id.Founders) == 0 {
		return nil, nil
	}
	table, err := cluster.InitialTable(id.Founders, id.Shards, id.Replication)
	if err != nil {
		return nil, err
	}
	return table.WithVersion(n.cfg.Storage.Oldest), nil
}

// replicasAtBirth returns the replicas that the birth table gives a node.
func replicasAtBirth(birth *cluster.Table, node string) map[uint32]replicaRecord {
	has := make(map[uint32]replicaRecord)
	for group := range birth.Shards() + 1 {
		if id, here := birth.ReplicaOn(node, group); here {
			has[group] = replicaRecord{ID: id}
		}
	}
	return has
}

// enroll records that this node is a founder, before it makes any replica, or makes it join an existing cluster.
func (n *Node) enroll(ctx context.Context) error {
	if id := n.dir.identity(); !id.fresh() {
		if err := n.checkPeerProofsBefore8(ctx); err != nil {
			return err
		}
		n.wg.Go(func() { n.detectForeignCluster(ctx) })
		return nil
	}
	n.phase.enter(phaseJoining, "looks for its cluster")
	mustJoin, err := n.cfg.joins, error(nil)
	if !mustJoin {
		mustJoin, err = n.found(ctx)
	}
	switch {
	case err != nil:
		return err
	case mustJoin:
		return n.join(ctx)
	}
	return n.dir.update(func(id *identity) {
		id.Founders, id.Shards, id.Replication = n.cfg.founders(), n.cfg.Shards, n.cfg.Replication
	})
}

// campaignEarly starts elections in new groups, and in groups of one, which would wait for a heartbeat that cannot
// come.
func (n *Node) campaignEarly(ctx context.Context, g *groups, birth *cluster.Table, newCluster bool) {
	if !newCluster {
		g.campaign(birth, false)
		return
	}
	founders := n.dir.identity().Founders
	ctx, cancel := context.WithTimeout(ctx, cluster.ElectionTimeout(birth.Shards()))
	defer cancel()
	err := await(ctx, surveyEvery/2, func() bool {
		running := 1
		for _, r := range n.survey(ctx, founders) {
			if r.runs() {
				running++
			}
		}
		return 2*running > len(founders)
	})
	if err == nil {
		g.campaign(birth, true)
	}
}

// replay waits until the log is applied, every group has a leader, and the cluster has an identity.
func (n *Node) replay(ctx context.Context, g *groups) error {
	err := await(ctx, 20*time.Millisecond, func() bool {
		applied, last, current := g.replayed()
		n.phase.enter(phaseReplaying, fmt.Sprintf("%d of %d entries, %d of %d groups current", applied, last, current, len(g.members)))
		return current == len(g.members) && n.Table().ClusterID() != ""
	})
	if err == nil {
		n.phase.enter(phaseServing, "")
	}
	return err
}
