package transport

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/peerv1"
)

// Mux is the transport of a node: it carries all its groups.
type Mux struct {
	cfg     Config
	version uint64 // proto.WireVersion, unless a test says otherwise
	faults  faults
	started time.Time // zero of the monotonic clock
	ctx     context.Context
	cancel  context.CancelFunc

	installs  installMetrics
	pace      *pace // of snapshots to peers
	ids       atomic.Uint64
	calls     sync.Pool // of *call
	muted     atomic.Bool
	full      atomic.Bool
	pressed   atomic.Bool
	diskFull  atomic.Bool
	readIndex atomic.Pointer[func(group uint32, replica uint64, term uint64) bool]

	mu       sync.RWMutex // guards what follows
	closed   bool
	groups   map[uint32]*Group
	peers    map[string]*peer
	sessions map[sessionKey]*incoming
	wg       sync.WaitGroup // of all goroutines; Add under mu while not closed
}

// faults are containments that a test may take away, to see that what they
// contain is real. All are false in a running node.
type faults struct {
	heartbeatFastPath bool                                                                                     // call the heartbeat handler from the receiving goroutine (#695)
	noDeadlines       bool                                                                                     // let calls hang (#696)
	pipeline          func(g *Group, id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) // (#612)
}

// New makes the transport of a node. It panics if the configuration lacks what
// has no default. Close it after the rafts above it.
func New(cfg Config) *Mux {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Mux{
		cfg: cfg, version: proto.WireVersion, started: time.Now(), ctx: ctx, cancel: cancel,
		pace:   newPace(cfg.SnapshotRate, cfg.ChunkTimeout/2),
		groups: map[uint32]*Group{}, peers: map[string]*peer{}, sessions: map[sessionKey]*incoming{},
	}
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
	g := newGroup(m, group, local, replica)
	m.mu.Lock()
	before, closed := m.groups[group], m.closed
	if !closed {
		m.groups[group] = g
		m.wg.Go(g.serve)
	}
	m.mu.Unlock()
	if before != nil {
		_ = before.Close()
	}
	if closed {
		_ = g.Close()
	}
	return g
}

// group finds the replica of a group; nil if there is none.
func (m *Mux) group(id uint32) *Group {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.groups[id]
}

// forget removes a closed replica, unless another has taken its place.
func (m *Mux) forget(g *Group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups[g.id] == g {
		delete(m.groups, g.id)
	}
}

// peer finds a peer, and starts to connect to it when it is new; nil when the
// Mux is closed.
func (m *Mux) peer(node string) *peer {
	m.mu.RLock()
	p, closed := m.peers[node], m.closed
	if p != nil {
		p.used.Store(int64(m.mono())) // before Forget can look
	}
	m.mu.RUnlock()
	if p != nil || closed {
		return p
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p = m.peers[node]; p == nil && !m.closed {
		p = newPeer(m, node)
		m.peers[node] = p
		m.wg.Go(p.run)
		m.wg.Go(p.runReads)
	}
	if p != nil {
		p.used.Store(int64(m.mono()))
	}
	return p
}

// Forget ends what connects this node to others that are not known, which it has not asked, and whose replicas have not
// asked it, for a minute. Whoever asks such a node again, or is asked by it, begins anew.
func (m *Mux) Forget(known func(node string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for node, p := range m.peers {
		if !known(node) && p.idle() >= forgetAfter {
			p.cancel()
			delete(m.peers, node)
		}
	}
}

// SetReadIndexHandler sets what answers read barriers, our own and other
// nodes': whether the replica's current term is exactly term. It is called on a
// receiving goroutine and must not block.
func (m *Mux) SetReadIndexHandler(h func(group uint32, replica uint64, term uint64) (ok bool)) {
	m.readIndex.Store(&h)
}

// Offsets returns how far the wall clocks of peers are ahead of ours (negative:
// behind), for the peers heard in the last ten seconds, and asked since then. The
// error of each is at most half a round trip, as long as our machine runs: see clock.
func (m *Mux) Offsets(since time.Time) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, p := range m.allPeers() {
		if ahead, _, ok := p.clock.offset(m.mono(), m.cfg.Now(), since.Sub(m.started)); ok {
			out[p.node] = ahead
		}
	}
	return out
}

// SetFull says whether this node has memory left for more, which its peers hear with the next sample of its clock.
func (m *Mux) SetFull(full bool) { m.full.Store(full) }

// SetPressed says whether much of this node's memory is used, which its peers hear likewise. Builds of before storage
// version 9
// cannot hear it: it is not said before that version is in force.
func (m *Mux) SetPressed(pressed bool) { m.pressed.Store(pressed) }

// Pressed returns the peers of whose memory much is used, of those heard in the last ten seconds.
func (m *Mux) Pressed() []string { return m.saying(func(p *peer) bool { return p.pressed.Load() }) }

// SetDiskFull says whether this node has disk space left for more. Builds of before storage version 12 cannot hear it:
// it is not said before that version is in force.
func (m *Mux) SetDiskFull(full bool) { m.diskFull.Store(full) }

// DiskFull returns the peers that have no disk space left for more, of those heard in the last ten seconds.
func (m *Mux) DiskFull() []string { return m.saying(func(p *peer) bool { return p.diskFull.Load() }) }

// Full returns the peers that have no memory left for more, of those heard in the last ten seconds.
func (m *Mux) Full() []string { return m.saying(func(p *peer) bool { return p.full.Load() }) }

// saying returns the peers that last said something, of those heard in the last ten seconds.
func (m *Mux) saying(what func(*peer) bool) []string {
	var out []string
	for _, p := range m.allPeers() {
		if _, _, heard := p.clock.offset(m.mono(), m.cfg.Now(), anytime); heard && what(p) {
			out = append(out, p.node)
		}
	}
	return out
}

// Contacted returns the nodes with a replica that has asked one of ours, or answered one, since this process started.
func (m *Mux) Contacted() []string {
	var out []string
	for _, p := range m.allPeers() {
		if p.contacted.Load() {
			out = append(out, p.node)
		}
	}
	return out
}

// Silent returns the nodes from which nothing has come for so long. It names only nodes with a replica that has ever
// asked one of ours.
func (m *Mux) Silent(atLeast time.Duration) []string {
	var out []string
	m.mu.RLock()
	defer m.mu.RUnlock()
	for node, p := range m.peers {
		if last := time.Duration(p.lastRequest.Load()); last > 0 && m.mono()-last >= atLeast {
			out = append(out, node)
		}
	}
	return out
}

// Linked reports whether there is a session to a node, on which it has answered within the last second or a few pings.
func (m *Mux) Linked(node string) bool {
	m.mu.RLock()
	p := m.peers[node]
	m.mu.RUnlock()
	if p == nil {
		return false
	}
	p.mu.Lock()
	s := p.sess
	p.mu.Unlock()
	return s != nil && m.mono()-time.Duration(s.lastContact.Load()) < max(time.Second, 3*m.cfg.PingInterval)
}

// PeerStatus says how a peer looks from here.
type PeerStatus struct {
	Node      string
	Connected bool
	Err       error         // why not
	RTT       time.Duration // of the best recent sample, 0 without one
	Offset    time.Duration // its wall clock less ours
	InFlight  int           // bytes of entries queued or not yet answered
}

// Peers returns the status of every node this one has had to do with, by name.
func (m *Mux) Peers() []PeerStatus {
	var out []PeerStatus
	for _, p := range m.allPeers() {
		out = append(out, p.status())
	}
	return out
}

func (m *Mux) allPeers() []*peer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []*peer
	for _, node := range slices.Sorted(maps.Keys(m.peers)) {
		out = append(out, m.peers[node])
	}
	return out
}

// Mute stops, or allows again, what keeps this node's leaders in office:
// AppendEntries of all groups fail at once. A node whose disk hangs calls it,
// since Raft would keep its lease (hashicorp/raft #503).
func (m *Mux) Mute(on bool) { m.muted.Store(on) }

// Close ends all sessions and waits for their goroutines.
func (m *Mux) Close() {
	m.mu.Lock()
	m.closed = true
	groups := slices.Collect(maps.Values(m.groups))
	m.mu.Unlock()
	m.cancel()
	for _, g := range groups {
		_ = g.Close()
	}
	m.wg.Wait()
}

// goFunc runs f as a goroutine that Close waits for; false when it is too late.
func (m *Mux) goFunc(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.wg.Go(f)
	return true
}

// mono is the monotonic clock: time since the Mux was made.
func (m *Mux) mono() time.Duration { return time.Since(m.started) }

// sameCluster refuses a node of another cluster, if both know their own.
func (m *Mux) sameCluster(node, cluster string) error {
	if ours := m.cfg.ClusterID(); ours != "" && cluster != "" && ours != cluster {
		return proto.ErrWrongCluster.Errorf("node %s belongs to cluster %s, node %s to %s", node, cluster, m.cfg.Node, ours)
	}
	return nil
}

// newer is the refusal of a node that no longer speaks our version.
func newer(node string, oldest, ours uint64) error {
	return proto.ErrNewerVersion.Errorf("node %s speaks peer protocol %d or later, this one speaks %d", node, oldest, ours).
		WithHint("upgrade this node")
}
