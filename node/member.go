package node

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/acked"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
)

// machine is a state machine, as a member uses it.
type machine interface {
	raft.BatchingFSM
	// index returns the index of the last entry that the state includes.
	index() uint64
	// configured returns what the machine knows of the group's configurations.
	configured() *configured
}

// pastOf reports what a machine has applied.
type pastOf struct{ machine }

// Applied implements transport.Applied.
func (p pastOf) Applied() uint64 { return p.index() }

// groupLog is the log and the stable store of one group.
type groupLog interface {
	raft.LogStore
	raft.StableStore
	Bytes() int64 // of the entries held
	// Continues reports whether the log continues, without a gap, from a snapshot that ends at index.
	Continues(index uint64) bool
}

// raftLog is the log of a group as its Raft reads it. At a damaged entry that is still to be applied, Raft would panic
// and end the process. raftLog ends the node in order instead: at its next start the node finds the damage and repairs
// the replica. For entries that are already applied, which Raft may want to send, raftLog returns the error.
type raftLog struct {
	groupLog
	m *member
}

// GetLog reads an entry for Raft. It ends the calling goroutine, which is Raft's, where Raft would panic.
func (l raftLog) GetLog(index uint64, to *raft.Log) error {
	err := l.groupLog.GetLog(index, to)
	if errors.Is(err, proto.ErrCorrupt) && l.m.now.Load() != nil && l.m.fatal != nil && index > l.m.machine.index() {
		l.m.fatal(fmt.Errorf("group %d: %w", l.m.group, err))
		runtime.Goexit()
	}
	return err
}

// memberConfig is what a member is made of: its place in the group, its state machine, log, snapshots and transport.
type memberConfig struct {
	group   uint32
	replica uint64
	node    string
	timeout time.Duration // of elections
	appends int           // entries of one append; 0 for appendEntriesMax
	commits time.Duration // see Limits.CommitEvery; 0 for commitTimeout

	machine  machine
	wal      groupLog
	snaps    raft.SnapshotStore
	hurt     *atomic.Bool // damage was found in a snapshot since the last one was begun; nil: not recorded
	arrivals *arrivals
	carrier  func() carrier // makes the transport of one incarnation
	unsound  func() bool    // reports that the machine differs from the majority's; nil: never
	fatal    func(error)    // ends the node, and does not wait for that; nil: Raft panics at a damaged entry
	events   *events
	stall    *diskStall
	logger   hclog.Logger

	// seen is called with the leader of the group ("" if no known node leads). led is called when this replica becomes
	// leader. Neither may wait.
	seen func(leader string, term uint64)
	led  func(term uint64)
}

// member is one member of a Raft group, whatever the group replicates. Its Raft can be restarted in place: the machine
// keeps its state and skips the entries that it has already applied.
type member struct {
	memberConfig
	now     atomic.Pointer[incarnation]
	found   atomic.Pointer[logEnd] // the end of the log when the member started; nil before
	refused refusals
	former  atomic.Pointer[string]      // the node that leads, or led last; nil: no leader was known yet
	known   atomic.Pointer[votersKnown] // for the configuration that was read last
	lacks   atomic.Pointer[acked.Mark]  // how far its log must reach before it votes; nil: it votes

	mu      sync.Mutex // held while an incarnation starts or stops; guards stopped
	stopped bool       // for good
	ledTerm uint64     // the last term passed to led; guarded by events' single actor
}

// incarnation is one run of a member's Raft.
type incarnation struct {
	raft *raft.Raft
	link *link
	life chan struct{} // closed when Raft has ended
	conf sync.Mutex    // held while settings of Raft change
}

// propose hands an entry to Raft. The future resolves at the latest when Raft ends. An entry too large to send to a
// follower is refused here. In the log it would block all entries behind it for as long as this member leads.
func (i *incarnation) propose(entry []byte) raft.ApplyFuture {
	if len(entry) > transport.EntryBytesMax {
		return refusedEntry{proto.ErrMessageTooLarge.Errorf("entry of %d bytes: the limit is %d", len(entry), transport.EntryBytesMax)}
	}
	return withShutdown(i.raft.Apply(entry, 0), i.life)
}

// settle proposes an entry that changes nothing and returns when all entries before it are applied.
func (i *incarnation) settle() error { return withShutdown(i.raft.Barrier(0), i.life).Error() }

func newMember(s memberConfig) *member {
	return &member{memberConfig: s, refused: refusals{after: refuseAfter}}
}

// bootstrap writes the group's first configuration, unless this replica has any
// state already.
func (m *member) bootstrap(configuration raft.Configuration) error {
	l := newLink(m.carrier())
	defer l.Close() //nolint:errcheck // never fails
	err := raft.BootstrapCluster(raftConfig(m.replica, m.timeout, m.logger), m.wal, m.wal, m.snaps, l, configuration)
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrap group %d: %w", m.group, err)
	}
	return nil
}

// logEnd is the index of the last command of a log, and the term of its last entry; 0 if there is none.
type logEnd struct{ index, term uint64 }

// lastOf reads the end of a log. At an entry that cannot be read it stops: Raft finds the damage itself.
func lastOf(log groupLog) (end logEnd) {
	first, _ := log.FirstIndex()
	last, _ := log.LastIndex()
	for index := last; index >= max(first, 1); index-- {
		var entry raft.Log
		if log.GetLog(index, &entry) != nil {
			end.index = last
			break
		}
		end.term = max(end.term, entry.Term)
		if entry.Type == raft.LogCommand {
			end.index = index
			break
		}
	}
	return end
}

// start runs Raft. It restores the newest snapshot, if the machine does not
// include it.
func (m *member) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.run()
}

// begin starts Raft in a goroutine of its own, which raftLog ends when an entry cannot be read.
func (m *member) begin(conf *raft.Config, l *link) (r *raft.Raft, err error) {
	done := make(chan struct{})
	err = proto.ErrDisk.Errorf("start group %d: its log could not be read", m.group)
	go func() {
		defer close(done)
		if m.found.Load() == nil {
			found := lastOf(m.wal)
			m.found.Store(&found)
		}
		begun, failed := raft.NewRaft(conf, m.machine, raftLog{m.wal, m}, m.wal, contiguousSnapshots{m.snaps, m.wal}, l)
		if failed != nil {
			failed = proto.ErrCorrupt.Errorf("start group %d: %v", m.group, failed)
		}
		r, err = begun, failed
	}()
	<-done
	return r, err
}

// run starts an incarnation. m.mu is held.
func (m *member) run() error {
	if m.stopped {
		return raft.ErrRaftShutdown
	}
	conf := raftConfig(m.replica, m.timeout, m.logger)
	if m.appends > 0 {
		conf.MaxAppendEntries = m.appends
	}
	if m.commits > 0 {
		conf.CommitTimeout = m.commits
	}
	snapshots, err := m.snaps.List()
	if err != nil {
		return fmt.Errorf("group %d: list snapshots: %w", m.group, err)
	}
	conf.NoSnapshotRestoreOnStart = len(snapshots) > 0 && snapshots[0].Index <= m.machine.index()
	c := m.carrier()
	if c, ok := c.(snapshotPrioritizer); ok {
		c.Prioritize(m.quorumCritical)
	}
	if c, ok := c.(interface{ Past(of transport.Applied) }); ok {
		c.Past(pastOf{m.machine})
	}
	if m.lacks.Load() != nil {
		conf.HeartbeatTimeout, conf.ElectionTimeout = never, never
		abstain(c, true)
	}
	l := newLink(c)
	l.unsound, l.voter = m.unsound, m
	r, err := m.begin(conf, l)
	if err != nil {
		_ = l.Close()
		return err
	}
	m.now.Store(&incarnation{raft: r, link: l, life: make(chan struct{})})
	m.events.observe(m, r)
	return nil
}

// contiguousSnapshots hides older snapshots that the log does not continue without a gap. Raft falls back on an older
// snapshot when it cannot read the newest. It then panics at the first missing entry or, if the log is empty, serves
// without the missing entries.
type contiguousSnapshots struct {
	raft.SnapshotStore
	wal groupLog
}

// List implements raft.SnapshotStore.
func (s contiguousSnapshots) List() ([]*raft.SnapshotMeta, error) {
	all, err := s.SnapshotStore.List()
	for i, meta := range all {
		if i > 0 && !s.wal.Continues(meta.Index) {
			return all[:i], err
		}
	}
	return all, err
}

// stop shuts Raft down for good and waits for its goroutines.
func (m *member) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	m.halt()
}

// over reports whether the member was stopped for good. It returns false while the member starts or stops.
func (m *member) over() bool {
	if !m.mu.TryLock() {
		return false
	}
	defer m.mu.Unlock()
	return m.stopped
}

// halt ends the incarnation. m.mu is held.
func (m *member) halt() {
	i := m.now.Load()
	if i == nil {
		return
	}
	done := i.raft.Shutdown()
	_ = i.link.Close()
	_ = done.Error() // nil always; waits
	m.events.forget(i.raft)
	select {
	case <-i.life:
	default:
		close(i.life)
	}
}

// restart replaces Raft in place.
func (m *member) restart() error { return m.restartAs(func() error { return nil }) }

// restartAs is restart with a change of what the member has stored, made after its Raft has ended.
func (m *member) restartAs(change func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.halt()
	if m.stopped {
		return raft.ErrRaftShutdown
	}
	if err := change(); err != nil {
		return err
	}
	if err := m.verifyLog(); err != nil {
		return err
	}
	return m.run()
}

// verifyLog reads the entries that Raft reads as it starts. Raft panics at a damaged entry, which would end the whole
// process. A node that starts has just read all of its log and needs no such check.
func (m *member) verifyLog() error {
	snapshots, err := m.snaps.List()
	if err != nil {
		return fmt.Errorf("group %d: list snapshots: %w", m.group, err)
	}
	index, err := m.wal.FirstIndex()
	last, failed := m.wal.LastIndex()
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("group %d: %w", m.group, err)
	}
	if len(snapshots) > 0 {
		index = max(index, snapshots[0].Index+1)
	}
	for index = max(index, 1); index <= last; index++ {
		if err := m.wal.GetLog(index, new(raft.Log)); errors.Is(err, proto.ErrCorrupt) {
			return fmt.Errorf("group %d: %w", m.group, err)
		}
	}
	return nil
}

// leading returns the term in which this member leads its group.
func (m *member) leading() (term uint64, ok bool) {
	i := m.now.Load()
	if i == nil || i.raft.State() != raft.Leader || m.stall.active() {
		return 0, false
	}
	return i.raft.CurrentTerm(), true
}

// leader returns the node that is known to lead; "" if there is none.
func (m *member) leader() string {
	i := m.now.Load()
	if i == nil {
		return ""
	}
	address, _ := i.raft.LeaderWithID()
	node, _, err := transport.ParseAddress(address)
	if err != nil {
		return ""
	}
	return node
}

// propose hands an entry to Raft.
func (m *member) propose(entry []byte) raft.ApplyFuture {
	return m.now.Load().propose(entry)
}

// configuration returns the members of the group as last appended to its log.
func (m *member) configuration() raft.Configuration {
	i := m.now.Load()
	if i == nil {
		return raft.Configuration{}
	}
	return i.raft.GetConfiguration().Configuration()
}

// votersKnown is the voters of a configuration. It is immutable.
type votersKnown struct {
	servers   []raft.Server // the configuration
	addresses []raft.ServerAddress
	nodes     []string
}

// voters returns the addresses of the group's voters, and their nodes. The caller must not change the slices: they are
// computed once for each configuration.
func (m *member) voters() (addresses []raft.ServerAddress, nodes []string) {
	servers := m.configuration().Servers
	v := m.known.Load()
	if v == nil || !slices.Equal(v.servers, servers) {
		v = votersOf(servers)
		m.known.Store(v)
	}
	return v.addresses, v.nodes
}

func votersOf(servers []raft.Server) *votersKnown {
	v := &votersKnown{servers: servers}
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		node, _, err := transport.ParseAddress(s.Address)
		if err != nil {
			continue
		}
		v.addresses, v.nodes = append(v.addresses, s.Address), append(v.nodes, node)
	}
	return v
}

// look acts on a change: it calls seen with the leader, and led if this replica leads in a new term.
func (m *member) look() {
	i := m.now.Load()
	if i == nil {
		return
	}
	term := i.raft.CurrentTerm()
	leader := m.leader()
	if leader != "" {
		m.former.Store(&leader)
	}
	m.seen(leader, term)
	if i.raft.State() == raft.Leader && m.ledTerm != term {
		m.ledTerm = term
		m.led(term)
	}
}

// behind returns how many entries a follower lacks, as far as this leader knows. heard reports whether the follower
// answered within the last half election timeout.
func (m *member) behind(id raft.ServerID) (entries uint64, heard bool) {
	i := m.now.Load()
	term, ok := m.leading()
	if i == nil || !ok {
		return 0, false
	}
	p := i.link.progressOf(id, term)
	last := i.raft.LastIndex()
	return last - min(last, p.match), time.Since(p.lastContact) < m.timeout/2
}
