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
	version uint64 // proto.WireVersion, except in tests
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

// faults switch off containments, so that a test can show that the contained faults are real. All are false in a
// running node.
type faults struct {
	heartbeatFastPath bool                                                                                     // call the heartbeat handler from the receiving goroutine (#695)
	noDeadlines       bool                                                                                     // let calls hang (#696)
	pipeline          func(g *Group, id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) // (#612)
}

// New makes the transport of a node. It panics if cfg lacks a required field or has an invalid one. Close the Mux after
// the Raft instances that use it.
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

// Register adds the peers' service to a server. Close the Mux before a graceful stop of the server: otherwise the
// sessions keep the server from stopping.
func (m *Mux) Register(s grpc.ServiceRegistrar) { peerv1.RegisterPeerServer(s, server{mux: m}) }

// Group makes the transport of one replica and accepts requests to it. The local address is "<node>/<replica id>";
// Group panics on an address of another form or node. An earlier Group of the same group number is closed first.
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

// peer returns a peer, and starts to connect if it is new; nil when the Mux is closed.
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

// Forget drops the connections to nodes for which known returns false, if neither this node asked them nor their
// replicas asked this node for a minute. A later request from either side connects again.
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

// SetReadIndexHandler sets the function that answers read barriers of this node and of others: whether the replica's
// current term is exactly term. It is called on a receiving goroutine and must not block.
func (m *Mux) SetReadIndexHandler(h func(group uint32, replica uint64, term uint64) (ok bool)) {
	m.readIndex.Store(&h)
}

// Offsets returns how far the wall clocks of peers are ahead of ours (negative: behind). It includes peers with a
// sample of the last ten seconds whose ping was sent at or after since. The error is at most half a round trip, as long
// as our machine is not suspended: see clock.
func (m *Mux) Offsets(since time.Time) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, p := range m.allPeers() {
		if ahead, _, ok := p.clock.offset(m.mono(), m.cfg.Now(), since.Sub(m.started)); ok {
			out[p.node] = ahead
		}
	}
	return out
}

// SetFull sets whether this node has no memory left for more. Peers learn it with the next sample of its clock.
func (m *Mux) SetFull(full bool) { m.full.Store(full) }

// SetPressed sets whether much of this node's memory is used. Peers learn it with the next sample of its clock. Builds
// from before storage version 9 cannot decode it, so it must not be set before that version is in force.
func (m *Mux) SetPressed(pressed bool) { m.pressed.Store(pressed) }

// Pressed returns the peers that use much of their memory, among those with a sample of the last ten seconds.
func (m *Mux) Pressed() []string { return m.saying(func(p *peer) bool { return p.pressed.Load() }) }

// SetDiskFull sets whether this node has no disk space left for more. Builds from before storage version 12 cannot
// decode it, so it must not be set before that version is in force.
func (m *Mux) SetDiskFull(full bool) { m.diskFull.Store(full) }

// DiskFull returns the peers that have no disk space left for more, among those with a sample of the last ten seconds.
func (m *Mux) DiskFull() []string { return m.saying(func(p *peer) bool { return p.diskFull.Load() }) }

// Full returns the peers that have no memory left for more, among those with a sample of the last ten seconds.
func (m *Mux) Full() []string { return m.saying(func(p *peer) bool { return p.full.Load() }) }

// saying returns the peers for which what holds, among those with a sample of the last ten seconds.
func (m *Mux) saying(what func(*peer) bool) []string {
	var out []string
	for _, p := range m.allPeers() {
		if _, _, heard := p.clock.offset(m.mono(), m.cfg.Now(), anytime); heard && what(p) {
			out = append(out, p.node)
		}
	}
	return out
}

// Contacted returns the nodes with a replica that has sent one of ours a request, or answered one, since this process
// started.
func (m *Mux) Contacted() []string {
	var out []string
	for _, p := range m.allPeers() {
		if p.contacted.Load() {
			out = append(out, p.node)
		}
	}
	return out
}

// Silent returns the nodes from which nothing has arrived for at least this time. It includes only nodes with a replica
// that has ever sent one of ours a request.
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

// Linked reports whether there is a session to a node that was not silent for longer than a second, or three ping
// intervals if that is more.
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

// PeerStatus is the state of a peer, as this node sees it.
type PeerStatus struct {
	Node      string
	Connected bool
	Err       error         // why it is not connected
	RTT       time.Duration // of the best recent sample, 0 without one
	Offset    time.Duration // its wall clock minus ours
	InFlight  int           // bytes of entries queued or not yet answered
}

// Peers returns the status of every node with which this one has communicated or tried to, by name.
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

// Mute makes AppendEntries of all groups fail at once, so that this node's leaders lose their leadership, or ends that.
// A node whose disk stalls calls it, since Raft would keep its lease (hashicorp/raft #503).
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

// goFunc runs f in a goroutine that Close waits for; it returns false if the Mux is closed.
func (m *Mux) goFunc(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.wg.Go(f)
	return true
}

// mono returns the time since the Mux was made, by the monotonic clock.
func (m *Mux) mono() time.Duration { return time.Since(m.started) }

// sameCluster returns an error for a node of another cluster, if both clusters are known.
func (m *Mux) sameCluster(node, cluster string) error {
	if ours := m.cfg.ClusterID(); ours != "" && cluster != "" && ours != cluster {
		return proto.ErrWrongCluster.Errorf("node %s belongs to cluster %s, node %s to %s", node, cluster, m.cfg.Node, ours)
	}
	return nil
}

// newer returns the error for a node that no longer supports our version.
func newer(node string, oldest, ours uint64) error {
	return proto.ErrNewerVersion.Errorf("node %s speaks peer protocol %d or later, this one speaks %d", node, oldest, ours).
		WithHint("upgrade this node")
}
