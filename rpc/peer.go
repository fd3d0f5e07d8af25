package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// peerRecvBytesMax bounds one answer of a peer. It may contain the parts of many shards, which the coordinator merges
// into a message of the public limit.
const peerRecvBytesMax = 16 * proto.MessageBytesMax

var (
	_ cluster.Backend = (*Peer)(nil)
	_ cluster.Peers   = (*Peers)(nil)
)

// Peer is another node, called over gRPC. It is a backend of the router and the coordinator. Its errors are coded.
type Peer struct {
	node   string
	shards ebbv1grpc.ShardsClient
	ebb    ebbv1grpc.EbbClient
}

// NewPeer returns the node behind a connection. The caller remains responsible for the connection.
func NewPeer(node string, conn grpc.ClientConnInterface) *Peer {
	return &Peer{node: node, shards: ebbv1grpc.NewShardsClient(conn), ebb: ebbv1grpc.NewEbbClient(conn)}
}

// Node is the peer's name.
func (p *Peer) Node() string { return p.node }

// Apply sends commands to the peer. UNKNOWN_OUTCOME means that they may or may not have been applied; UNREACHABLE means
// that the request was never sent.
func (p *Peer) Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	var sent peer.Peer
	resp, err := p.shards.Apply(ctx, req, grpc.Peer(&sent), grpc.MaxCallRecvMsgSize(peerRecvBytesMax))
	if err != nil {
		return nil, p.writeError(err, sent.Addr != nil)
	}
	return resp, nil
}

// Ask asks shards on the peer.
func (p *Peer) Ask(ctx context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	resp, err := p.shards.Ask(ctx, gathered(req), grpc.MaxCallRecvMsgSize(peerRecvBytesMax))
	return resp, p.named(err)
}

// ReadIndex asks the peer for the read indexes of shards that it leads.
func (p *Peer) ReadIndex(ctx context.Context, req *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error) {
	resp, err := p.shards.ReadIndex(ctx, req)
	if err == nil && len(resp.GetResults()) != len(req.GetShards()) {
		err = proto.ErrInternal.Errorf("node %s: %d answers about %d shards", p.node, len(resp.GetResults()), len(req.GetShards()))
	}
	return resp, p.named(err)
}

// Audited asks the peer for the result of an audit of its replica of a shard.
func (p *Peer) Audited(ctx context.Context, req *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error) {
	resp, err := p.shards.Audited(ctx, req)
	return resp, p.named(err)
}

// Repair notifies the peer that its replica of a shard differs from the majority's.
func (p *Peer) Repair(ctx context.Context, req *ebbv1.RepairRequest) error {
	_, err := p.shards.Repair(ctx, req)
	return p.named(err)
}

// Snapshot writes the state of a shard that the peer leads.
func (p *Peer) Snapshot(ctx context.Context, shard uint32, into io.Writer) (*ebbv1.SnapshotSummary, error) {
	stream, err := p.shards.Snapshot(ctx, &ebbv1.SnapshotRequest{Shard: shard}, grpc.MaxCallRecvMsgSize(peerRecvBytesMax))
	for err == nil {
		var part *ebbv1.SnapshotPart
		if part, err = stream.Recv(); err != nil {
			break
		}
		if s := part.GetSummary(); s != nil {
			return s, nil
		}
		_, err = into.Write(part.GetChunk().GetData())
	}
	if errors.Is(err, io.EOF) {
		return nil, proto.ErrCorrupt.Errorf("node %s: the snapshot of shard %d ends too early", p.node, shard)
	}
	return nil, p.named(err)
}

// NodeStatus asks the peer for its status.
func (p *Peer) NodeStatus(ctx context.Context, req *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	resp, err := p.shards.NodeStatus(ctx, req, grpc.MaxCallRecvMsgSize(peerRecvBytesMax))
	return resp, p.named(err)
}

// NodeUsage asks the peer what namespaces hold there.
func (p *Peer) NodeUsage(ctx context.Context, req *ebbv1.NodeUsageRequest) (*ebbv1.NodeUsageResponse, error) {
	resp, err := p.shards.NodeUsage(ctx, req, grpc.MaxCallRecvMsgSize(peerRecvBytesMax))
	return resp, p.named(err)
}

// Table asks the peer for its copy of the table.
func (p *Peer) Table(ctx context.Context) (*ebbv1.TableResponse, error) {
	resp, err := p.ebb.Table(ctx, &ebbv1.TableRequest{}, grpc.MaxCallRecvMsgSize(peerRecvBytesMax))
	return resp, p.named(err)
}

// SetNamespace asks the peer to create or change a namespace.
func (p *Peer) SetNamespace(ctx context.Context, req *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error) {
	var sent peer.Peer
	resp, err := p.ebb.SetNamespace(ctx, req, grpc.Peer(&sent))
	if err != nil {
		return nil, p.writeError(err, sent.Addr != nil)
	}
	return resp, nil
}

// DeleteNamespace asks the peer to delete a namespace.
func (p *Peer) DeleteNamespace(ctx context.Context, req *ebbv1.DeleteNamespaceRequest) (*ebbv1.DeleteNamespaceResponse, error) {
	var sent peer.Peer
	resp, err := p.ebb.DeleteNamespace(ctx, req, grpc.Peer(&sent))
	if err != nil {
		return nil, p.writeError(err, sent.Addr != nil)
	}
	return resp, nil
}

// UndeleteNamespace asks the peer to undelete a namespace.
func (p *Peer) UndeleteNamespace(ctx context.Context, req *ebbv1.UndeleteNamespaceRequest) (*ebbv1.UndeleteNamespaceResponse, error) {
	var sent peer.Peer
	resp, err := p.ebb.UndeleteNamespace(ctx, req, grpc.Peer(&sent))
	if err != nil {
		return nil, p.writeError(err, sent.Addr != nil)
	}
	return resp, nil
}

// ChangeCluster asks the peer to change which nodes hold replicas.
func (p *Peer) ChangeCluster(ctx context.Context, req *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	var sent peer.Peer
	resp, err := p.ebb.ChangeCluster(ctx, req, grpc.Peer(&sent))
	if err != nil {
		return nil, p.writeError(err, sent.Addr != nil)
	}
	return resp, nil
}

// CreateToken asks the peer to make a token.
func (p *Peer) CreateToken(ctx context.Context, req *ebbv1.CreateTokenRequest) (*ebbv1.CreateTokenResponse, error) {
	var sent peer.Peer
	resp, err := p.ebb.CreateToken(ctx, req, grpc.Peer(&sent))
	if err != nil {
		return nil, p.writeError(err, sent.Addr != nil)
	}
	return resp, nil
}

// RevokeToken asks the peer to end a token.
func (p *Peer) RevokeToken(ctx context.Context, req *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error) {
	var sent peer.Peer
	resp, err := p.ebb.RevokeToken(ctx, req, grpc.Peer(&sent))
	if err != nil {
		return nil, p.writeError(err, sent.Addr != nil)
	}
	return resp, nil
}

// Acknowledged asks the peer how far logs of this node reached, as this node had reported to the peer.
func (p *Peer) Acknowledged(
	ctx context.Context, req *ebbv1.AcknowledgedRequest,
) (*ebbv1.AcknowledgedResponse, error) {
	resp, err := p.shards.Acknowledged(ctx, req)
	return resp, p.named(err)
}

// Manage asks the peer to do what only the leader of the control group can do.
func (p *Peer) Manage(ctx context.Context, req *ebbv1.ManageRequest) (*ebbv1.ManageResponse, error) {
	var sent peer.Peer
	resp, err := p.shards.Manage(ctx, req, grpc.Peer(&sent))
	if err != nil {
		return nil, p.writeError(err, sent.Addr != nil)
	}
	return resp, nil
}

// writeError returns UNKNOWN_OUTCOME if a failed write may have been applied, otherwise the coded error.
func (p *Peer) writeError(err error, sent bool) error {
	e := asError(ebbv1grpc.FromStatus(err))
	if sent && (e.Is(proto.ErrUnreachable) || e.Is(proto.ErrDeadline)) {
		return proto.ErrUnknownOutcome.Errorf("node %s: %s", p.node, e.Message)
	}
	return p.named(err)
}

// named returns the coded error. It adds the peer's name if the error is not from the peer itself.
func (p *Peer) named(err error) error {
	if err == nil {
		return nil
	}
	e := asError(ebbv1grpc.FromStatus(err))
	switch {
	case e == errCanceled:
		return context.Canceled
	case e.Is(proto.ErrUnreachable):
		c := *e
		c.Message = fmt.Sprintf("node %s: %s", p.node, e.Message)
		return &c
	}
	return e
}

// PeersConfig configures how to find and reach nodes.
type PeersConfig struct {
	// Address returns where a node listens now. It is called often and must be cheap.
	Address func(node string) (string, error)
	// Dial opens a connection to an address.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Options come after the pool's own and override them (credentials, for example).
	Options []grpc.DialOption
}

// Peers holds one connection to each node that was asked for. A connection is dialled when first used, redialled when
// it breaks, and moves with its node to a new address.
type Peers struct {
	cfg PeersConfig

	mu     sync.Mutex // guards what follows
	peers  map[string]*pooled
	closed bool
}

// pooled is a peer with its connection.
type pooled struct {
	*Peer
	conn *grpc.ClientConn
	cfg  *PeersConfig

	used time.Time // when it was last asked for; guarded by the lock of the pool

	mu      sync.Mutex // guards what follows
	socket  net.Conn   // the newest, possibly closed
	address string     // of socket
}

// forgetAfter is how long a node must not have been asked for before Forget closes its connection. Longer calls, of
// snapshots, are between nodes of the table. They may fail if a node was removed.
const forgetAfter = time.Minute

// NewPeers returns an empty pool.
func NewPeers(cfg PeersConfig) *Peers {
	return &Peers{cfg: cfg, peers: make(map[string]*pooled)}
}

// Peer returns the peer of that name, without waiting for its connection.
func (ps *Peers) Peer(node string) (*Peer, error) {
	address, err := ps.cfg.Address(node)
	if err != nil {
		return nil, proto.ErrUnreachable.Errorf("node %s has no known address: %v", node, err)
	}
	p, err := ps.pooled(node)
	if err != nil {
		return nil, err
	}
	p.follow(address)
	return p.Peer, nil
}

// Backend is Peer with the type that the router and the coordinator need.
func (ps *Peers) Backend(node string) (cluster.Backend, error) {
	p, err := ps.Peer(node)
	if err != nil {
		return nil, err // not a nil *Peer in an interface
	}
	return p, nil
}

func (ps *Peers) pooled(node string) (*pooled, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.closed {
		return nil, proto.ErrShuttingDown.Errorf("connections to peers are closed")
	}
	p := ps.peers[node]
	if p == nil {
		var err error
		if p, err = newPooled(node, &ps.cfg); err != nil {
			return nil, fmt.Errorf("connect to node %s: %w", node, err)
		}
		ps.peers[node] = p
	}
	p.used = time.Now()
	return p, nil
}

// Forget closes the connections to nodes that are not known, if they were not asked for within a minute. A node that is
// asked for again gets a new connection.
func (ps *Peers) Forget(known func(node string) bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for node, p := range ps.peers {
		if !known(node) && time.Since(p.used) >= forgetAfter {
			_ = p.conn.Close() // closed twice is all that it can complain about
			delete(ps.peers, node)
		}
	}
}

func newPooled(node string, cfg *PeersConfig) (*pooled, error) {
	p := &pooled{cfg: cfg}
	own := []grpc.DialOption{
		grpc.WithContextDialer(p.dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithStaticStreamWindowSize(proto.StreamWindow),
		grpc.WithStaticConnWindowSize(proto.ConnWindow),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
	}
	conn, err := grpc.NewClient("passthrough:///"+node, append(own, cfg.Options...)...)
	if err != nil {
		return nil, err
	}
	p.Peer, p.conn = NewPeer(node, conn), conn
	return p, nil
}

// dial is given the node's name and asks for its address each time.
func (p *pooled) dial(ctx context.Context, node string) (net.Conn, error) {
	address, err := p.cfg.Address(node)
	if err != nil {
		return nil, err
	}
	socket, err := p.cfg.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.socket, p.address = socket, address
	return socket, nil
}

// follow closes a socket to an address that is no longer the node's; gRPC then dials the new address.
func (p *pooled) follow(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.socket != nil && p.address != address {
		_ = p.socket.Close() // the other end is not the node that we want
		p.socket = nil
	}
}

// Close closes all connections; calls in flight fail.
func (ps *Peers) Close() error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.closed = true
	var first error
	for _, p := range ps.peers {
		if err := p.conn.Close(); err != nil && first == nil {
			first = err
		}
	}
	clear(ps.peers)
	return first
}
