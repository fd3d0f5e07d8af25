package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/peerv1"
)

// Mux is the transport of a node: it carries all its groups.
type Mux struct {
	cfg Config
}

// New makes the transport of a node. It panics if the configuration lacks what
// has no default. Close it after the rafts above it.
func New(cfg Config) *Mux {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		panic(err)
	}
	return &Mux{cfg: cfg}
}

// Register adds the peers' service to a server. Close the Mux before a graceful
// stop of the server: sessions do not end by themselves.
func (m *Mux) Register(s grpc.ServiceRegistrar) { peerv1.RegisterPeerServer(s, server{mux: m}) }

// Group makes the transport of one replica and lets requests to it in. The local
// address is "<node>/<replica id>"; a Group that was there for this group
// number is closed first. It panics on an address of another form or node.
func (m *Mux) Group(group uint32, local raft.ServerAddress) *Group {
	node, replica, err := ParseAddress(local)
	if err != nil || node != m.cfg.Node {
		panic(fmt.Sprintf("transport: %q is no address of node %q: %v", local, m.cfg.Node, err))
	}
	return &Group{mux: m, id: group, local: local, replica: replica, consumer: make(chan raft.RPC), done: make(chan struct{})}
}

// SetReadIndexHandler sets what answers other nodes' read barriers: whether the
// replica's current term is exactly term. It is called on a receiving
// goroutine and must not block.
func (m *Mux) SetReadIndexHandler(h func(group uint32, replica uint64, term uint64) (ok bool)) {}

// ReadIndex confirms that this node led the group in this term at some moment
// after the call began: a majority of voters, each asked after that moment,
// answered that its term is exactly this one and that it is the replica that
// its address names. A voter on this node is asked as well. Everything that waits
// for the same peer goes there in one message.
//
// Any error means that nothing is known: ErrNotLeader if a majority cannot
// be had because voters denied it, ErrNoLeader if they were not reached.
func (m *Mux) ReadIndex(ctx context.Context, group uint32, term uint64, voters []raft.ServerAddress) error {
	return proto.ErrNoLeader.Errorf("group %d: no voter was reached", group)
}

// Offsets returns how far the wall clocks of peers are ahead of ours (negative:
// behind), for the peers heard in the last ten seconds.
func (m *Mux) Offsets() map[string]time.Duration { return nil }

// Mute stops, or allows again, everything that keeps this node's leaders in
// office: AppendEntries of all groups fail at once. A node whose disk hangs
// calls it, since Raft would keep its lease (hashicorp/raft #503).
func (m *Mux) Mute(on bool) {}

// Close ends all sessions and waits for their goroutines.
func (m *Mux) Close() {}

// server keeps the service's methods out of Mux's own.
type server struct {
	peerv1.UnimplementedPeerServer
	mux *Mux
}

func (s server) Control(grpc.BidiStreamingServer[peerv1.Frame, peerv1.Frame]) error {
	return status.Error(codes.Unavailable, "starting")
}
