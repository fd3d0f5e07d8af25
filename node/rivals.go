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

// rivalsRate and rivalsBurst bound the questions that gossip can make a node ask, a second and at once.
const (
	rivalsRate  = rate.Limit(0.5)
	rivalsBurst = 4
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

// rivals looks into other processes of this node's name of which gossip tells.
type rivals struct {
	n         *Node
	suspected chan cluster.Duplicate // holds one: there will be more if it matters
	limit     *rate.Limiter
	asked     atomic.Uint64 // questions
	unproven  atomic.Uint64 // suspicions that nothing confirmed
}

func newRivals(n *Node) *rivals {
	return &rivals{n: n, suspected: make(chan cluster.Duplicate, 1), limit: rate.NewLimiter(rivalsRate, rivalsBurst)}
}

// duplicate takes a suspicion of gossip's, if it is about this process.
func (n *Node) duplicate(d cluster.Duplicate) {
	if boot := n.boot(); d.Goes.Node != n.cfg.Name || d.Goes.Boot != boot && d.Stays.Boot != boot {
		return
	}
	select {
	case n.rivals.suspected <- d:
	default:
	}
}

func (n *Node) boot() uint64 { return uint64(n.started.UnixMicro()) }

// run looks into suspicions, one after the other and not too often, until ctx ends.
func (r *rivals) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-r.suspected:
			if err := r.look(ctx, d); err != nil {
				r.n.fatal(err)
				return
			}
		}
	}
}

// look returns why this process has to end, nil if it has not. It asks the rival itself, and whoever is where the
// control group has this node.
func (r *rivals) look(ctx context.Context, d cluster.Duplicate) error {
	n := r.n
	rival := d.Stays
	if rival.Boot == n.boot() {
		rival = d.Goes
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
	if n.cfg.proves() && rival.GRPC != "" && rival.GRPC != recorded {
		ask = append(ask, rival.GRPC)
	}
	for _, address := range ask {
		said, err := r.ask(ctx, address)
		said.recorded = address == recorded // not where the directory has it, which is this process
		if err == nil && n.believes(said.source) && r.gives(&said, recorded) {
			stays := said.record.GetGrpcAddress()
			return proto.ErrDuplicateNode.Errorf("node %s runs twice: at %s, which stays, and at %s, which has to end", n.cfg.Name, stays, own).
				WithHint("give every node a name of its own, or stop one of the two")
		}
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the node stops
	}
	r.unproven.Add(1)
	const message = "gossip has another process of this node's name: it does not prove itself, and this process stays"
	if skipped, ok := n.repeats.due(message, time.Now()); ok {
		n.logger.Error(message, "err", proto.ErrDuplicateNode, "gossip_at", rival.Gossip, "grpc_at", rival.GRPC, "times_unsaid", skipped)
	}
	return nil
}

// ask asks whoever is at an address how the node of this one's name is.
func (r *rivals) ask(ctx context.Context, address string) (report, error) {
	if err := r.limit.Wait(ctx); err != nil {
		return report{}, err
	}
	r.asked.Add(1)
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	peers := r.n.peersAt(address)
	defer peers.Close() //nolint:errcheck // it was only read from
	return r.n.askStatus(ctx, peers, r.n.cfg.Name)
}

// peersAt finds every node at one address.
func (n *Node) peersAt(address string) *rpc.Peers {
	at := func(string) (string, error) { return address, nil }
	return rpc.NewPeers(rpc.PeersConfig{Address: at, Dial: n.dial, Options: n.peerOptions()})
}

// gives reports whether this process gives way to one that answered. A process of the cluster goes before one that
// belongs to none yet, then the one where the control group has the node, then the one that started first. One of
// another cluster, or on a disk that was given up, ends by itself.
func (r *rivals) gives(said *report, recorded string) bool {
	n := r.n
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
func (n *Node) misjoined(s cluster.Strangers) {
	if n.cfg.Clock.Now().Sub(n.started) >= bewareFor || !n.cfg.proves() && n.gossipKeys == nil {
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
	if node == "" || address == "" || !n.rivals.limit.Allow() {
		return "", fmt.Errorf("ask %q for its cluster: not now", address)
	}
	n.rivals.asked.Add(1)
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
