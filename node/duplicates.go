package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/rpc"
)

// Anyone can send gossip in the clear. So gossip may be a reason to ask, and decides nothing that cannot be reversed:
// no node ends, and nothing is stored, before a process that proves to be a node confirms it.
//
//	nodes have            who is believed
//	TLS                   the process with a node's certificate, on that connection
//	a secret              the process that answers a challenge with it: a root token, or a cluster secret
//	keys of gossip alone  gossip, which only holders of a key can send
//	nothing               the process at the address that the control group has on record; gossip cannot change that

// duplicateCheckRate and duplicateCheckBurst limit the requests that gossip makes a node send: per second, and at once.
const (
	duplicateCheckRate  = rate.Limit(0.5)
	duplicateCheckBurst = 4
)

// source is what is known of the process that answered.
type source struct {
	proven   bool // it is a node, by its certificate or by a secret
	recorded bool // it answers at the address that the control group has on record for the node
}

// believes reports whether an answer may end this node.
func (n *Node) believes(from source) bool {
	return from.proven || !n.cfg.proves() && from.recorded
}

// trusts reports whether a report may decide what is stored, or which node is admitted. The node must prove to be one,
// be asked at the address that the control group has on record, or have a Raft session.
func (n *Node) trusts(r *report) bool { return r.proven || r.recorded || n.mux.Linked(r.node) }

// trusted returns the reports that are trusted.
func (n *Node) trusted(reports []report) []report {
	return slices.DeleteFunc(reports, func(r report) bool { return !n.trusts(&r) })
}

// recorded reports whether this node asks another at the address that the control group has on record.
func (n *Node) recorded(name string) bool {
	at, err := n.directory.grpc(name)
	return err == nil && at == n.Table().Node(name).GetGrpcAddress()
}

func errUnvouched(name string) error {
	return proto.ErrUnauthenticated.Errorf("what answers for node %s does not prove that it is a node", name).
		WithHint("start all nodes with the same secret, and with this build or a newer one")
}

// duplicateChecker checks whether another process runs under this node's name, when gossip reports one.
type duplicateChecker struct {
	n         *Node
	suspected chan cluster.Duplicate // holds one: there will be more if it matters
	limit     *rate.Limiter
	asked     atomic.Uint64 // requests sent
	unproven  atomic.Uint64 // suspicions without proof
}

func newDuplicateChecker(n *Node) *duplicateChecker {
	return &duplicateChecker{n: n, suspected: make(chan cluster.Duplicate, 1), limit: rate.NewLimiter(duplicateCheckRate, duplicateCheckBurst)}
}

// duplicate queues a duplicate that gossip suspects, if it concerns this process.
func (n *Node) duplicate(d cluster.Duplicate) {
	if boot := n.boot(); d.Goes.Node != n.cfg.Name || d.Goes.Boot != boot && d.Stays.Boot != boot {
		return
	}
	select {
	case n.duplicates.suspected <- d:
	default:
	}
}

func (n *Node) boot() uint64 { return uint64(n.started.UnixMicro()) }

// run checks suspected duplicates, one after the other and at a limited rate, until ctx ends.
func (c *duplicateChecker) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-c.suspected:
			if err := c.look(ctx, d); err != nil {
				c.n.fatal(err)
				return
			}
		}
	}
}

// look returns the error with which this process has to end; nil if it need not. It asks the duplicate, and the address
// that the control group has on record for this node.
func (c *duplicateChecker) look(ctx context.Context, d cluster.Duplicate) error {
	n := c.n
	duplicate := d.Stays
	if duplicate.Boot == n.boot() {
		duplicate = d.Goes
	}
	if !n.cfg.proves() && n.gossipKeys != nil {
		if d.Goes.Boot == n.boot() {
			return d.Err()
		}
		return nil
	}
	own, recorded := n.record().GetGrpcAddress(), n.Table().Node(n.cfg.Name).GetGrpcAddress()
	var ask []string
	if recorded != "" && recorded != own {
		ask = append(ask, recorded)
	}
	if n.cfg.proves() && duplicate.GRPC != "" && duplicate.GRPC != recorded {
		ask = append(ask, duplicate.GRPC)
	}
	for _, address := range ask {
		said, err := c.ask(ctx, address)
		said.recorded = address == recorded // not by the directory, where this name is this process
		if err == nil && n.believes(said.source) && c.givesWay(&said, recorded) {
			stays := said.record.GetGrpcAddress()
			return proto.ErrDuplicateNode.Errorf("node %s runs twice: at %s, which stays, and at %s, which has to end", n.cfg.Name, stays, own).
				WithHint("give every node a name of its own, or stop one of the two")
		}
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the node stops
	}
	c.unproven.Add(1)
	const message = "gossip has another process of this node's name: it does not prove itself, and this process stays"
	if skipped, ok := n.repeats.due(message, time.Now()); ok {
		n.logger.Error(message, "err", proto.ErrDuplicateNode, "gossip_at", duplicate.Gossip, "grpc_at", duplicate.GRPC, "times_unsaid", skipped)
	}
	return nil
}

// ask asks the process at an address for the status of the node with this node's name.
func (c *duplicateChecker) ask(ctx context.Context, address string) (report, error) {
	if err := c.limit.Wait(ctx); err != nil {
		return report{}, err
	}
	c.asked.Add(1)
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	peers := c.n.peersAt(address)
	defer peers.Close() //nolint:errcheck // it was only read from
	return c.n.askStatus(ctx, peers, c.n.cfg.Name)
}

// peersAt returns peers that all have the same address.
func (n *Node) peersAt(address string) *rpc.Peers {
	at := func(string) (string, error) { return address, nil }
	return rpc.NewPeers(rpc.PeersConfig{Address: at, Dial: n.dial, Options: n.peerOptions()})
}

// givesWay reports whether this process gives way to one that answered. The process that belongs to the cluster stays,
// then the one at the address on record, then the one that started first. A process of another cluster, or on a disk
// that was given up, ends by itself.
func (c *duplicateChecker) givesWay(said *report, recorded string) bool {
	n := c.n
	if uint64(said.startedUS) == n.boot() {
		return false // this one
	}
	ours, disk := n.clusterID(), n.Table().Node(n.cfg.Name).GetDisk()
	switch {
	case said.clusterID != "" && ours != "" && said.clusterID != ours:
		return false
	case said.clusterID != "" && disk != "" && said.record.GetDisk() != "" && said.record.GetDisk() != disk:
		return false
	case (said.clusterID != "") != (ours != ""):
		return said.clusterID != ""
	}
	theirs, own := said.record.GetGrpcAddress() == recorded, n.record().GetGrpcAddress() == recorded
	if recorded != "" && theirs != own {
		return theirs
	}
	return uint64(said.startedUS) < n.boot()
}

// misjoined ends a node whose join addresses lead to another cluster than its data, if a node of that cluster proves
// itself. It does so only in the first seconds: later, such an address may have a new owner.
func (n *Node) misjoined(s cluster.ForeignCluster) {
	if n.cfg.Clock.Now().Sub(n.started) >= foreignClusterWindow || !n.cfg.proves() && n.gossipKeys == nil {
		return // gossip has logged it
	}
	if n.cfg.proves() {
		other, err := n.clusterAt(n.ctx, s.Node, s.GRPC)
		if err != nil || other == "" || !strings.HasPrefix(other, s.Theirs) || other == n.clusterID() {
			return
		}
	}
	n.fatal(proto.ErrWrongCluster.Errorf("data directory %s: %s", n.cfg.DataDir, s.Err().Message).WithHint(s.Err().Hint))
}

// clusterAt asks a node at an address for the id of its cluster.
func (n *Node) clusterAt(ctx context.Context, node, address string) (string, error) {
	if node == "" || address == "" || !n.duplicates.limit.Allow() {
		return "", fmt.Errorf("ask %q for its cluster: not now", address)
	}
	n.duplicates.asked.Add(1)
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	peers := n.peersAt(address)
	defer peers.Close() //nolint:errcheck // it was only read from
	peer, err := peers.Peer(node)
	if err != nil {
		return "", err
	}
	status, vouched, err := peer.VouchedStatus(ctx, n.access)
	if err == nil && n.trust == nil && !vouched {
		err = errUnvouched(node)
	}
	return status.GetClusterId(), err
}
