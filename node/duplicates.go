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

// Gossip in the clear is the word of anybody. It may give a reason to ask, and decides nothing that cannot be taken
// back: no node ends, and nothing is written down, before a process has said so that proves to be a node.
//
//	nodes have            who is believed
//	TLS                   whoever has the certificate of a node, on that connection
//	a secret              whoever answers a challenge with it: a root token, or a cluster secret
//	keys of gossip alone  gossip, which only holders of a key can send
//	nothing               whoever answers at the address that the control group has on record, in which gossip has no say

// duplicateCheckRate and duplicateCheckBurst bound the requests that gossip makes a node send: a second, and at once.
const (
	duplicateCheckRate  = rate.Limit(0.5)
	duplicateCheckBurst = 4
)

// source is what is known of who answered.
type source struct {
	proven   bool // it is a node, by its certificate or by a secret
	recorded bool // it is where the control group's record has the node that was asked
}

// believes reports whether an answer may end this node.
func (n *Node) believes(from source) bool {
	return from.proven || !n.cfg.proves() && from.recorded
}

// trusts reports whether a report counts for what is written down, or for who is let in: the node proves to be one, or
// was asked where the control group's record has it, or where raft hears it.
func (n *Node) trusts(r *report) bool { return r.proven || r.recorded || n.mux.Linked(r.node) }

// trusted are those reports that are trusted.
func (n *Node) trusted(reports []report) []report {
	return slices.DeleteFunc(reports, func(r report) bool { return !n.trusts(&r) })
}

// recorded reports whether a node is asked where the control group's record has it.
func (n *Node) recorded(name string) bool {
	at, err := n.directory.grpc(name)
	return err == nil && at == n.Table().Node(name).GetGrpcAddress()
}

func errUnvouched(name string) error {
	return proto.ErrUnauthenticated.Errorf("what answers for node %s does not prove that it is a node", name).
		WithHint("start all nodes with the same secret, and with this build or a newer one")
}

// duplicateChecker checks whether another process runs under this node's name, when gossip says so.
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

// duplicate takes a suspicion of gossip's, if it is about this process.
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

// run looks into suspicions, one after the other and not too often, until ctx ends.
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

// look returns why this process has to end; nil if it does not. It asks the duplicate, and the address that the control
// group has on record for this node.
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
		said.recorded = address == recorded // not where the directory has it, which is this process
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

// ask asks whoever is at an address how the node of this one's name is.
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

// peersAt finds every node at one address.
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

// misjoined ends a node that was told to join another cluster than its data is of, if a node of that one proves to be
// there. Later that may be an address that has found a new owner.
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

// clusterAt asks a node at an address for its cluster.
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
