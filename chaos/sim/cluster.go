package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

// Options configure Start.
type Options struct {
	Nodes  int    // 3 if 0
	Shards uint32 // 4 if 0
	Seed   uint64 // seeds the random choices of the network, and what a power loss leaves on a disk
	Logger *slog.Logger
	// Sync is how long a disk takes to sync; nothing if 0.
	Sync time.Duration
	// Create is how long a disk takes to make a file; nothing if 0.
	Create time.Duration
	// Secrets are the node.Config.ClusterSecrets of every node. Without secrets, the cluster cannot have tokens.
	Secrets []string
	// Configure changes a node's configuration before each start of its process.
	Configure func(i int, cfg *node.Config)
}

// Cluster is a set of real nodes on a simulated network. Each node has its own disk and clock, which outlive its
// process. A Cluster runs in virtual time inside a synctest bubble, and in real time outside.
type Cluster struct {
	Net   *Net
	opts  Options
	shift atomic.Int64   // of all clocks, in ns
	dying sync.WaitGroup // goroutines that stop the nodes of killed processes

	mu    sync.Mutex // guards what follows; never held across a wait
	names []string
	slots []*slot
	// collapses has one Collapse for each node that ended by itself, with the cause.
	collapses []Collapse
}

// slot is a node's place in the cluster, over all lives of its process.
type slot struct {
	ip    string
	disk  *fs.Mem
	clock *Clock
	fail  *fail.Points
	life  *life // nil while dead
	lives int
}

// life is one process.
type life struct {
	node *node.Node
	host *processHost
	over atomic.Bool
}

// Clock is one machine's clock: the time of the bubble plus an offset, with a rate.
type Clock struct {
	all  *atomic.Int64
	skew atomic.Int64
	pace atomic.Pointer[pace]
}

// pace is the rate of a clock: since the time since, the clock gains gain nanoseconds in each nanosecond.
type pace struct {
	gain  float64
	since time.Time
}

// Now implements node.Clock.
func (c *Clock) Now() time.Time {
	now := time.Now()
	ahead := time.Duration(c.all.Load() + c.skew.Load())
	if p := c.pace.Load(); p != nil {
		ahead += time.Duration(p.gain * float64(now.Sub(p.since)))
	}
	return now.Add(ahead)
}

// Set puts the clock ahead of the true time by this duration, at the usual rate. A negative duration puts it behind.
func (c *Clock) Set(ahead time.Duration) {
	c.pace.Store(nil)
	c.skew.Store(int64(ahead))
}

// SetRate sets how fast the clock runs from now on: 1.5 means that it gains half an hour in each hour.
func (c *Clock) SetRate(rate float64) { c.pace.Store(&pace{gain: rate - 1, since: time.Now()}) }

// Ports that every simulated node listens on.
const (
	portGRPC   = "7070"
	portGossip = "7071"
)

// Start starts all nodes, and returns when they serve. If a node does not start, or ctx ends first, Start closes all
// nodes and returns an error.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	if opts.Nodes == 0 {
		opts.Nodes = 3
	}
	if opts.Shards == 0 {
		opts.Shards = 4
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Cluster{Net: NewNet(opts.Seed), opts: opts}
	for range opts.Nodes {
		c.Add()
	}
	for i := range opts.Nodes {
		if err := c.Restart(ctx, i); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	if err := c.Ready(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Add makes a place for another node, with an empty disk, and returns the node's number. Restart starts the node. A
// node that is added after Start joins the existing cluster.
func (c *Cluster) Add() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.slots)
	s := &slot{ip: fmt.Sprintf("10.0.0.%d", i+1), disk: fs.NewMem(), clock: &Clock{all: &c.shift}, fail: &fail.Points{}}
	c.slots = append(c.slots, s)
	c.names = append(c.names, "ebb-"+strconv.Itoa(i))
	c.slow(s, c.opts.Sync)
	return i
}

// Restart starts node i with the disk that it has. If the node lives, Restart does nothing.
func (c *Cluster) Restart(ctx context.Context, i int) error {
	c.mu.Lock()
	s := c.slots[i]
	if s.life != nil {
		c.mu.Unlock()
		return nil
	}
	s.lives++
	if s.fail.Killed() {
		s.fail = &fail.Points{} // the old ones belong to the process that died
	}
	host := c.Net.Host(s.ip)
	host.checks = portGRPC
	l := &life{host: newProcessHost(host)}
	name := c.names[i]
	cfg := node.Config{
		Name: name, DataDir: "/data",
		GRPC: net.JoinHostPort(s.ip, portGRPC), Gossip: net.JoinHostPort(s.ip, portGossip),
		HTTP: node.Off, Admin: node.Off,
		BootstrapExpect: c.opts.Nodes, Shards: c.opts.Shards, Join: c.gossip(i),
		Network: l.host, FS: s.disk, Clock: s.clock, Fail: s.fail, Logger: c.opts.Logger, ClusterSecrets: c.opts.Secrets,
		Fatal: func(err error) { c.collapsed(i, l, err) },
	}
	c.mu.Unlock()
	if c.opts.Configure != nil {
		c.opts.Configure(i, &cfg)
	}
	n, err := node.Open(ctx, cfg)
	if err != nil {
		l.host.die()
		return fmt.Errorf("start %s: %w", name, err)
	}
	c.mu.Lock()
	l.node = n
	s.life = l
	c.mu.Unlock()
	return nil
}

// slot returns the place of node i.
func (c *Cluster) slot(i int) *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots[i]
}

// gossip returns the gossip addresses of the other nodes. c.mu is held.
func (c *Cluster) gossip(self int) []string {
	var out []string
	for i, s := range c.slots {
		if i != self {
			out = append(out, net.JoinHostPort(s.ip, portGossip))
		}
	}
	return out
}

// collapsed is called by a node that cannot continue: its process ends.
func (c *Cluster) collapsed(i int, l *life, err error) {
	if l.over.Load() {
		return // the cluster killed this process, and the error follows from that
	}
	c.opts.Logger.Error("node collapsed", "node", c.Name(i), "err", err)
	c.mu.Lock()
	c.collapses = append(c.collapses, Collapse{Node: i, name: c.names[i], Err: err})
	c.mu.Unlock()
	c.dying.Go(func() { c.end(i, l, (*fs.Mem).Kill) })
}

// Collapse is the reason why a node ended by itself.
type Collapse struct {
	Node int
	Err  error
	name string
}

func (c Collapse) Error() string { return c.name + ": " + c.Err.Error() }

// Unwrap returns the cause.
func (c Collapse) Unwrap() error { return c.Err }

// Collapses returns one Collapse for each node that ended by itself.
func (c *Cluster) Collapses() []Collapse {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.collapses)
}

// Ready returns when every living node serves. When ctx ends, it returns an error that names a node that is not ready.
func (c *Cluster) Ready(ctx context.Context) error {
	for i := range c.Nodes() {
		n := c.Node(i)
		if n == nil {
			continue
		}
		select {
		case <-n.Ready():
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%s): %w", c.Name(i), n.Status().GetDetail(), ctx.Err())
		}
	}
	return nil
}

// Kill ends process i: its connections are reset, and its disk keeps everything that was written, synced or not.
func (c *Cluster) Kill(i int) { c.end(i, nil, (*fs.Mem).Kill) }

// PowerLoss cuts the power of machine i. The seed decides what is left of the data that was not synced.
func (c *Cluster) PowerLoss(i int) {
	c.end(i, nil, func(m *fs.Mem) *fs.Mem {
		return m.Crash(c.opts.Seed<<8 ^ uint64(i)<<4 ^ uint64(c.slots[i].lives)<<16) // c.mu is held
	})
}

// KillAt cuts the power of machine i when its process reaches a failpoint for the n-th time from now. It calls reached
// just before.
func (c *Cluster) KillAt(i int, point string, n int, reached func()) {
	c.Fail(i).Arm(point, n, fail.Kill(func() {
		reached()
		c.PowerLoss(i)
	}))
}

// shutMax is how long a process may take to stop in order. After that, Shut kills the process, as a supervisor does.
const shutMax = 30 * time.Second

// Shut stops process i in order, and returns when nothing of it runs. A process that does not stop, because its disk
// hangs, is killed.
func (c *Cluster) Shut(i int) error {
	c.mu.Lock()
	s := c.slots[i]
	l := s.life
	s.life = nil
	c.mu.Unlock()
	if l == nil {
		return nil
	}
	defer l.host.die()
	late := time.AfterFunc(shutMax, func() {
		l.over.Store(true)
		l.host.die()
		c.Net.Crash(s.ip)
		c.mu.Lock()
		defer c.mu.Unlock()
		s.disk = s.disk.Kill()
		c.slow(s, c.opts.Sync)
	})
	defer late.Stop()
	if err := l.node.Close(); err != nil && !l.over.Load() {
		return fmt.Errorf("close %s: %w", c.Name(i), err)
	}
	return nil
}

// Wipe gives the machine of node i an empty disk. The node must be dead.
func (c *Cluster) Wipe(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.slots[i]
	s.disk = fs.NewMem()
	c.slow(s, c.opts.Sync)
}

// Disk returns the current disk of node i's machine. A crash replaces it by another.
func (c *Cluster) Disk(i int) *fs.Mem { return c.slot(i).disk }

// end ends the process of node i at once. The network and the disk are taken away before the node is stopped, so that
// the process can neither send nor write anything more. If only is not nil, end does so only if that life is the
// current one.
func (c *Cluster) end(i int, only *life, disk func(*fs.Mem) *fs.Mem) {
	c.mu.Lock()
	s := c.slots[i]
	l := s.life
	if l == nil || only != nil && only != l {
		c.mu.Unlock()
		return
	}
	s.life = nil
	l.over.Store(true)
	l.host.die()
	c.Net.Crash(s.ip)
	s.disk = disk(s.disk)
	c.slow(s, c.opts.Sync)
	c.mu.Unlock()
	c.dying.Go(l.node.Kill)
}

// SlowDisk makes every sync of node i's disk take d; 0 restores the usual time. Kill, PowerLoss and Wipe restore it,
// too.
func (c *Cluster) SlowDisk(i int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow(c.slots[i], max(d, c.opts.Sync))
}

// SlowFiles makes every sync of node i's disk take d, and also the creation of every file.
func (c *Cluster) SlowFiles(i int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay(c.slots[i], d, d)
}

func (c *Cluster) slow(s *slot, d time.Duration) {
	c.delay(s, d, c.opts.Create)
}

// delay sets how long a disk takes for a sync, and to create a file. Files are created under names that end in .tmp.
func (c *Cluster) delay(s *slot, sync, create time.Duration) {
	if sync == 0 && create == 0 {
		s.disk.Inject(nil)
		return
	}
	s.disk.Inject(func(op fs.Op, name string) error {
		switch {
		case op == fs.OpSync:
			time.Sleep(sync)
		case op == fs.OpOpen && strings.HasSuffix(name, ".tmp"):
			time.Sleep(create)
		}
		return nil
	})
}

// Move gives the machine of node i another IP address. The node must be dead.
func (c *Cluster) Move(i int, ip string) {
	c.mu.Lock()
	c.slots[i].ip = ip
	c.mu.Unlock()
}

// Cut cuts two nodes off from each other.
func (c *Cluster) Cut(i, j int) { c.Net.Cut(c.IP(i), c.IP(j)) }

// CutOneWay cuts the link from node i to node j, and leaves the other direction.
func (c *Cluster) CutOneWay(i, j int) { c.Net.CutOneWay(c.IP(i), c.IP(j)) }

// Isolate cuts node i off from all other nodes. Clients still reach it.
func (c *Cluster) Isolate(i int) {
	for j := range c.Nodes() {
		if j != i {
			c.Cut(i, j)
		}
	}
}

// Heal makes every link usual again.
func (c *Cluster) Heal() { c.Net.Heal() }

// Advance moves the clocks of all machines ahead by the same duration.
func (c *Cluster) Advance(d time.Duration) { c.shift.Add(int64(d)) }

// Nodes returns the number of nodes, dead or alive.
func (c *Cluster) Nodes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.slots)
}

// Name returns the name of node i.
func (c *Cluster) Name(i int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[i]
}

// Index returns the number of the node with that name, or -1 if there is none.
func (c *Cluster) Index(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Index(c.names, name)
}

// IP returns the IP address of node i.
func (c *Cluster) IP(i int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots[i].ip
}

// Addrs returns the gRPC addresses of all nodes, dead or alive.
func (c *Cluster) Addrs() []string {
	out := make([]string, c.Nodes())
	for i := range out {
		out[i] = net.JoinHostPort(c.IP(i), portGRPC)
	}
	return out
}

// Clock returns the clock of node i's machine.
func (c *Cluster) Clock(i int) *Clock { return c.slot(i).clock }

// Fail returns the failpoints of node i. They stay the same over the node's lives, until it dies at one of them.
func (c *Cluster) Fail(i int) *fail.Points {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots[i].fail
}

// Lives returns how often node i was started.
func (c *Cluster) Lives(i int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots[i].lives
}

// Node returns node i, or nil while it is dead.
func (c *Cluster) Node(i int) *node.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.slots[i].life; l != nil {
		return l.node
	}
	return nil
}

// Dialer returns the dial function of a client with this IP address.
func (c *Cluster) Dialer(ip string) func(ctx context.Context, addr string) (net.Conn, error) {
	return c.Net.Host(ip).Dial
}

// Leader returns the node that leads a shard. If several say that they lead, it is the one of the newest term; it is -1
// if none does.
func (c *Cluster) Leader(shard uint32) int {
	leader, newest := -1, uint64(0)
	for i := range c.Nodes() {
		n := c.Node(i)
		if n == nil {
			continue
		}
		for _, r := range n.Status().GetReplicas() {
			if r.GetShard() == shard && r.GetRole() == "leader" && r.GetTerm() > newest {
				leader, newest = i, r.GetTerm()
			}
		}
	}
	return leader
}

// Linger is how long memberlist's last probes outlive a node. The time of a bubble stops when its main goroutine ends.
// So the main goroutine must wait for the probes.
const Linger = 10 * time.Second

// Stop kills every node, and returns when nothing of them runs.
func (c *Cluster) Stop() {
	for i := range c.Nodes() {
		c.Kill(i)
	}
	c.dying.Wait()
}

// LeaderOf returns the node that leads the shard of a key, or -1 if no node says that it does.
func (c *Cluster) LeaderOf(ns, key string) int {
	return c.Leader(proto.ShardOf(ns, []byte(key), c.opts.Shards))
}

// Close stops every node in order, and returns when nothing of them runs.
func (c *Cluster) Close() error {
	var errs []string
	var mu sync.Mutex // guards errs
	var wg sync.WaitGroup
	for i := range c.Nodes() {
		wg.Go(func() {
			if err := c.Shut(i); err != nil {
				mu.Lock()
				errs = append(errs, err.Error())
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	c.dying.Wait()
	if len(errs) > 0 {
		return fmt.Errorf("%s", strings.Join(errs, "; "))
	}
	return nil
}

// processHost is the network as one process sees it. When the process dies, it can no longer dial or listen.
type processHost struct {
	*Host
	ctx context.Context
	die context.CancelFunc
}

func newProcessHost(h *Host) *processHost {
	ctx, die := context.WithCancel(context.Background())
	return &processHost{h, ctx, die}
}

// Dial implements node.Network.
func (h *processHost) Dial(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	c, err := h.Host.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if h.ctx.Err() != nil {
		c.Close()
		return nil, h.ctx.Err()
	}
	return c, nil
}

// Listen implements node.Network.
func (h *processHost) Listen(ctx context.Context, addr string) (net.Listener, error) {
	if h.ctx.Err() != nil {
		return nil, h.ctx.Err()
	}
	return h.Host.Listen(ctx, addr)
}

// ListenPacket implements node.Network.
func (h *processHost) ListenPacket(ctx context.Context, addr string) (net.PacketConn, error) {
	if h.ctx.Err() != nil {
		return nil, h.ctx.Err()
	}
	return h.Host.ListenPacket(ctx, addr)
}

var (
	_ node.Network = (*processHost)(nil)
	_ io.Closer    = (*Cluster)(nil)
)
