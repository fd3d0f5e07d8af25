package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// surveyEvery is how often a node that waits for the others asks them.
	surveyEvery = 100 * time.Millisecond
	// surveyMax is how long one of them may take to answer.
	surveyMax = time.Second
	// bewareFor is how long a restarted node looks whether it is among strangers.
	bewareFor = 10 * time.Second
)

// report is what another node says of itself.
type report struct {
	node      string
	clusterID string
	phase     string
	record    *ebbv1.NodeRecord
}

// runs reports whether the node's replicas run.
func (r *report) runs() bool { return r.phase == phaseReplaying || r.phase == phaseServing }

// survey asks all other founders at once and returns who answered.
func (n *Node) survey(ctx context.Context) []report {
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards reports
	var reports []report
	for _, name := range n.cfg.founders() {
		if name == n.cfg.Name {
			continue
		}
		wg.Go(func() {
			if r, err := n.askStatus(ctx, name); err == nil {
				mu.Lock()
				defer mu.Unlock()
				reports = append(reports, r)
			}
		})
	}
	wg.Wait()
	return reports
}

// askStatus asks one node how it is.
func (n *Node) askStatus(ctx context.Context, name string) (report, error) {
	peer, err := n.peers.Peer(name)
	if err != nil {
		return report{}, err
	}
	status, err := peer.NodeStatus(ctx)
	if err != nil {
		return report{}, err
	}
	if len(status.GetNodes()) == 0 || status.Nodes[0].GetNode().GetName() != name {
		return report{}, proto.ErrUnreachable.Errorf("another node answers at the address of node %s", name)
	}
	own := status.Nodes[0]
	return report{node: name, clusterID: status.GetClusterId(), phase: own.GetPhase(), record: own.GetNode()}, nil
}

// found waits until this node may make its first replicas: a majority of the
// founders, this one included, has answered, and all of these say that they know
// of no earlier life of this node. An empty replica in place of one whose disk was
// lost could vote a second time, and forget what it acknowledged.
func (n *Node) found(ctx context.Context) error {
	founders := n.cfg.founders()
	for {
		reports := n.survey(ctx)
		told, err := n.lostDisk(reports, func(node string) (*ebbv1.Table, error) { return n.tableOf(ctx, node) })
		if err != nil {
			return err
		}
		if 2*(told+1) > len(founders) {
			return nil
		}
		n.phase.enter(phaseJoining, fmt.Sprintf("waits for a majority of %s: %d of %d found", strings.Join(founders, ", "), told+1, len(founders)))
		select {
		case <-time.After(surveyEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lostDisk asks those who belong to a cluster whether this node did, and returns
// how many nodes know that it did not. One that cannot be asked knows nothing.
func (n *Node) lostDisk(reports []report, tableOf func(node string) (*ebbv1.Table, error)) (told int, err error) {
	for _, r := range reports {
		if r.clusterID == "" {
			told++
			continue
		}
		table, err := tableOf(r.node)
		if err != nil {
			continue
		}
		if err := n.newcomer(table, r.node); err != nil {
			return 0, err
		}
		told++
	}
	return told, nil
}

// newcomer refuses a node that is unknown to a cluster, or known too well.
func (n *Node) newcomer(table *ebbv1.Table, from string) error {
	record := slices.IndexFunc(table.GetNodes(), func(m *ebbv1.NodeRecord) bool { return m.GetName() == n.cfg.Name })
	switch {
	case record < 0:
		return proto.ErrWrongCluster.Errorf("cluster %s, which node %s belongs to, has no node %s", table.GetClusterId(), from, n.cfg.Name).
			WithHint("use the name of one of its nodes, or join another cluster")
	case table.Nodes[record].GetEnrolled():
		return proto.ErrWrongCluster.Errorf("node %s is known to cluster %s, at %s, but data directory %s is empty: its data is lost or elsewhere, or this is another node",
			n.cfg.Name, table.GetClusterId(), table.Nodes[record].GetGrpcAddress(), n.cfg.DataDir).
			WithHint("start it with the --data-dir it had, and a further node under a name of its own; a lost disk cannot be replaced in this version")
	}
	return n.sameCluster(table.GetShards(), table.GetReplication())
}

// sameCluster refuses settings other than those the cluster was born with.
func (n *Node) sameCluster(shards, replication uint32) error {
	if shards != n.cfg.Shards || replication != n.cfg.Replication {
		return proto.ErrWrongCluster.Errorf("the cluster has %d shards and replication %d: node %s was started with %d and %d",
			shards, replication, n.cfg.Name, n.cfg.Shards, n.cfg.Replication).
			WithHint("start all nodes with the same settings")
	}
	return nil
}

func (n *Node) tableOf(ctx context.Context, name string) (*ebbv1.Table, error) {
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	peer, err := n.peers.Peer(name)
	if err != nil {
		return nil, err
	}
	resp, err := peer.Table(ctx)
	return resp.GetTable(), err
}

// strangers refuses to start among nodes of another cluster.
func (n *Node) strangers(reports []report) error {
	id := n.dir.identity().ClusterID
	var stranger *report
	for i, r := range reports {
		if r.clusterID == id {
			return nil
		}
		if r.clusterID != "" {
			stranger = &reports[i]
		}
	}
	if id == "" || stranger == nil {
		return nil
	}
	return proto.ErrWrongCluster.Errorf("data directory %s belongs to cluster %s, but node %s belongs to cluster %s",
		n.cfg.DataDir, id, stranger.node, stranger.clusterID).
		WithHint("use this cluster's own data directory, or --join nodes of the right cluster")
}

// beware looks for strangers in the first seconds, until one of the others
// turns out to be of the same cluster.
func (n *Node) beware(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, bewareFor)
	defer cancel()
	_ = await(ctx, time.Second, func() bool {
		reports := n.survey(ctx)
		if err := n.strangers(reports); err != nil {
			n.fatal(err)
			return true
		}
		return len(reports) > 0
	})
}

// bringUp makes this node's replicas run, and returns when they serve.
func (n *Node) bringUp(ctx context.Context) error {
	newborn := !n.dir.identity().Founded
	if err := n.enroll(ctx); err != nil {
		return err
	}
	id := n.dir.identity()
	birth, err := cluster.InitialTable(id.Founders, id.Shards, id.Replication)
	if err != nil {
		return err
	}
	g, err := n.newGroups(birth)
	if err != nil {
		return err
	}
	n.adopt(g)
	n.phase.enter(phaseRestoring, fmt.Sprintf("0 of %d groups", len(g.members)))
	err = g.start(birth, id.Founded, func(started int) {
		n.phase.enter(phaseRestoring, fmt.Sprintf("%d of %d groups", started, len(g.members)))
	})
	if err != nil {
		return err
	}
	if newborn {
		if err := n.dir.update(func(id *identity) { id.Founded = true }); err != nil {
			return err
		}
	}
	n.phase.enter(phaseReplaying, "")
	n.backend.replicas.Store(&g.byShard)
	n.look(ctx, g)
	n.wg.Go(func() { n.hurry(ctx, g, birth, newborn) })
	return n.replay(ctx, g)
}

// enroll writes down that this node is a founder, before it makes any replica.
func (n *Node) enroll(ctx context.Context) error {
	if id := n.dir.identity(); !id.fresh() {
		n.wg.Go(func() { n.beware(ctx) })
		return nil
	}
	n.phase.enter(phaseJoining, "")
	if err := n.found(ctx); err != nil {
		return err
	}
	return n.dir.update(func(id *identity) {
		id.Founders, id.Shards, id.Replication = n.cfg.founders(), n.cfg.Shards, n.cfg.Replication
	})
}

// hurry spares newborn groups, and groups of one, the wait for a heartbeat that
// cannot come.
func (n *Node) hurry(ctx context.Context, g *groups, birth *cluster.Table, newborn bool) {
	alone := len(n.cfg.founders()) == 1
	if !newborn && !alone {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, electionTimeout(birth.Shards()))
	defer cancel()
	err := await(ctx, surveyEvery/2, func() bool {
		running := 1
		for _, r := range n.survey(ctx) {
			if r.runs() {
				running++
			}
		}
		return 2*running > len(n.cfg.founders())
	})
	if err == nil {
		g.campaign(birth)
	}
}

// replay waits until the log is applied and every group has a leader.
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
