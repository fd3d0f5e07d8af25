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

// Options say what Start starts.
type Options struct {
	Nodes  int    // 3 if 0
	Shards uint32 // 4 if 0
	Seed   uint64 // of the network's chances and of what a power cut leaves
	Logger *slog.Logger
	// Sync is how long a disk takes to sync; nothing if 0.
	Sync time.Duration
	// Configure changes a node's configuration before each of its lives.
	Configure func(i int, cfg *node.Config)
}

// Cluster is whole nodes on a simulated network, each with a disk and a clock
// of its own that outlive its process. It runs inside a synctest bubble, and
// outside of one in real time.
type Cluster struct {
	Net   *Net
	opts  Options
	names []string
	shift atomic.Int64   // of all clocks, in ns
	dying sync.WaitGroup // what is left of killed processes

	mu    sync.Mutex // guards what follows; never held across a wait
	seats []*seat
	// collapses are why nodes could not go on, one for each that died of itself.
	collapses []error
}

// seat is a node's place, over its lives.
type seat struct {
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
	host *mortalHost
	over atomic.Bool
}

// Clock is one machine's clock: the bubble's time, moved.
type Clock struct {
	all  *atomic.Int64
	skew atomic.Int64
}

// Now implements node.Clock.
func (c *Clock) Now() time.Time {
	return time.Now().Add(time.Duration(c.all.Load() + c.skew.Load()))
}

// Set puts the clock this much ahead of what it should be.
func (c *Clock) Set(ahead time.Duration) { c.skew.Store(int64(ahead)) }

// Ports that every simulated node listens on.
const (
	portGRPC   = "7070"
	portGossip = "7071"
)

// Start starts all nodes and returns when they serve.
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
	for i := range opts.Nodes {
		s := &seat{ip: fmt.Sprintf("10.0.0.%d", i+1), disk: fs.NewMem(), clock: &Clock{all: &c.shift}, fail: &fail.Points{}}
		c.seats = append(c.seats, s)
		c.names = append(c.names, "ebb-"+strconv.Itoa(i))
		c.slow(s, opts.Sync)
	}
	for i := range c.seats {
		if err := c.Restart(ctx, i); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	if err := c.Ready(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Restart starts node i with the disk it has; it does nothing if it lives.
func (c *Cluster) Restart(ctx context.Context, i int) error {
	c.mu.Lock()
	s := c.seats[i]
	if s.life != nil {
		c.mu.Unlock()
		return nil
	}
	s.lives++
	l := &life{host: newMortalHost(c.Net.Host(s.ip))}
	cfg := node.Config{
		Name: c.names[i], DataDir: "/data",
		GRPC: net.JoinHostPort(s.ip, portGRPC), Gossip: net.JoinHostPort(s.ip, portGossip),
		HTTP: node.Off, Admin: node.Off,
		BootstrapExpect: len(c.seats), Shards: c.opts.Shards, Join: c.gossip(i),
		Network: l.host, FS: s.disk, Clock: s.clock, Fail: s.fail, Logger: c.opts.Logger,
		Fatal: func(err error) { c.collapsed(i, l, err) },
	}
	c.mu.Unlock()
	if c.opts.Configure != nil {
		c.opts.Configure(i, &cfg)
	}
	n, err := node.Open(ctx, cfg)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.names[i], err)
	}
	c.mu.Lock()
	l.node = n
	s.life = l
	c.mu.Unlock()
	return nil
}

// gossip returns where the other nodes gossip. c.mu is held.
func (c *Cluster) gossip(self int) []string {
	var out []string
	for i, s := range c.seats {
		if i != self {
			out = append(out, net.JoinHostPort(s.ip, portGossip))
		}
	}
	return out
}

// collapsed is told by a node that it cannot go on: the process is gone.
func (c *Cluster) collapsed(i int, l *life, err error) {
	if l.over.Load() {
		return // it was killed, and noticed
	}
	c.opts.Logger.Error("node collapsed", "node", c.names[i], "err", err)
	c.mu.Lock()
	c.collapses = append(c.collapses, fmt.Errorf("%s: %w", c.names[i], err))
	c.mu.Unlock()
	c.dying.Go(func() { c.end(i, l, (*fs.Mem).Kill) })
}

// Collapses returns why nodes could not go on, one error for each that died of itself.
func (c *Cluster) Collapses() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.collapses)
}

// Ready returns when every node that lives serves.
func (c *Cluster) Ready(ctx context.Context) error {
	for i := range c.seats {
		n := c.Node(i)
		if n == nil {
			continue
		}
		select {
		case <-n.Ready():
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%s): %w", c.names[i], n.Status().GetDetail(), ctx.Err())
		}
	}
	return nil
}

// Kill ends process i: its connections are reset, and its disk keeps all that was written.
func (c *Cluster) Kill(i int) { c.end(i, nil, (*fs.Mem).Kill) }

// PowerLoss cuts the power of machine i: of what was not synced, the seed
// decides what is left.
func (c *Cluster) PowerLoss(i int) {
	c.end(i, nil, func(m *fs.Mem) *fs.Mem {
		return m.Crash(c.opts.Seed<<8 ^ uint64(i)<<4 ^ uint64(c.seats[i].lives)<<16)
	})
}

// end ends the process at once: the network and the disk forget it before
// anything of it is stopped, so that it cannot say or write another word. If
// only is not nil, just that life.
func (c *Cluster) end(i int, only *life, disk func(*fs.Mem) *fs.Mem) {
	c.mu.Lock()
	s := c.seats[i]
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

// SlowDisk makes every sync of node i's disk take d; 0 makes it usual again.
// Its next life has a usual disk.
func (c *Cluster) SlowDisk(i int, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow(c.seats[i], max(d, c.opts.Sync))
}

func (c *Cluster) slow(s *seat, d time.Duration) {
	if d == 0 {
		s.disk.Inject(nil)
		return
	}
	s.disk.Inject(func(op fs.Op, _ string) error {
		if op == fs.OpSync {
			time.Sleep(d)
		}
		return nil
	})
}

// Move gives the machine of node i, which must be dead, another address.
func (c *Cluster) Move(i int, ip string) {
	c.mu.Lock()
	c.seats[i].ip = ip
	c.mu.Unlock()
}

// Cut cuts two nodes off from each other.
func (c *Cluster) Cut(i, j int) { c.Net.Cut(c.IP(i), c.IP(j)) }

// CutOneWay loses all that node i sends to node j.
func (c *Cluster) CutOneWay(i, j int) { c.Net.CutOneWay(c.IP(i), c.IP(j)) }

// Isolate cuts node i off from all other nodes. Clients still reach it.
func (c *Cluster) Isolate(i int) {
	for j := range c.seats {
		if j != i {
			c.Cut(i, j)
		}
	}
}

// Heal mends every link.
func (c *Cluster) Heal() { c.Net.Heal() }

// Advance moves the clocks of all machines together.
func (c *Cluster) Advance(d time.Duration) { c.shift.Add(int64(d)) }

// Nodes is how many nodes there are, dead or alive.
func (c *Cluster) Nodes() int { return len(c.seats) }

// Name is the name of node i.
func (c *Cluster) Name(i int) string { return c.names[i] }

// Index is the number of the node with that name; -1 if there is none.
func (c *Cluster) Index(name string) int { return slices.Index(c.names, name) }

// IP is where node i is.
func (c *Cluster) IP(i int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seats[i].ip
}

// Addrs returns the gRPC addresses of all nodes, dead or alive.
func (c *Cluster) Addrs() []string {
	out := make([]string, len(c.seats))
	for i := range out {
		out[i] = net.JoinHostPort(c.IP(i), portGRPC)
	}
	return out
}

// Clock is the clock of node i's machine.
func (c *Cluster) Clock(i int) *Clock { return c.seats[i].clock }

// Fail holds the failpoints of node i, over all its lives.
func (c *Cluster) Fail(i int) *fail.Points { return c.seats[i].fail }

// Node returns node i, or nil while it is dead.
func (c *Cluster) Node(i int) *node.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.seats[i].life; l != nil {
		return l.node
	}
	return nil
}

// Dialer returns how a client at this address of the network dials.
func (c *Cluster) Dialer(ip string) func(ctx context.Context, addr string) (net.Conn, error) {
	return c.Net.Host(ip).Dial
}

// Leader returns the node that leads a shard in the newest term that any living
// node knows of; -1 if none says that it does.
func (c *Cluster) Leader(shard uint32) int {
	leader, newest := -1, uint64(0)
	for i := range c.seats {
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

// Linger is how long memberlist's last probes outlive it. A bubble's time stands
// still once its main goroutine ends, so that must wait for them.
const Linger = 10 * time.Second

// Stop kills every node, and returns when nothing of any of them runs.
func (c *Cluster) Stop() {
	for i := range c.seats {
		c.Kill(i)
	}
	c.dying.Wait()
}

// LeaderOf returns the node that leads the shard of a key; -1 if none says that it does.
func (c *Cluster) LeaderOf(ns, key string) int {
	return c.Leader(proto.ShardOf(ns, []byte(key), c.opts.Shards))
}

// Close stops every node in order, and returns when nothing of any of them runs.
func (c *Cluster) Close() error {
	var errs []string
	var mu sync.Mutex // guards errs
	var wg sync.WaitGroup
	for i := range c.seats {
		c.mu.Lock()
		l := c.seats[i].life
		c.seats[i].life = nil
		c.mu.Unlock()
		if l == nil {
			continue
		}
		wg.Go(func() {
			if err := l.node.Close(); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Sprintf("close %s: %v", c.names[i], err))
				mu.Unlock()
			}
			l.host.die()
		})
	}
	wg.Wait()
	c.dying.Wait()
	if len(errs) > 0 {
		return fmt.Errorf("%s", strings.Join(errs, "; "))
	}
	return nil
}

// mortalHost is the network as one process sees it: it ends with the process.
type mortalHost struct {
	*Host
	ctx context.Context
	die context.CancelFunc
}

func newMortalHost(h *Host) *mortalHost {
	ctx, die := context.WithCancel(context.Background())
	return &mortalHost{h, ctx, die}
}

// Dial implements node.Network.
func (h *mortalHost) Dial(ctx context.Context, addr string) (net.Conn, error) {
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
func (h *mortalHost) Listen(ctx context.Context, addr string) (net.Listener, error) {
	if h.ctx.Err() != nil {
		return nil, h.ctx.Err()
	}
	return h.Host.Listen(ctx, addr)
}

// ListenPacket implements node.Network.
func (h *mortalHost) ListenPacket(ctx context.Context, addr string) (net.PacketConn, error) {
	if h.ctx.Err() != nil {
		return nil, h.ctx.Err()
	}
	return h.Host.ListenPacket(ctx, addr)
}

var (
	_ node.Network = (*mortalHost)(nil)
	_ io.Closer    = (*Cluster)(nil)
)
