package node_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/chaos/sim"
	"github.com/prometheus/client_golang/prometheus"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fail"
	"github.com/ebbdb/ebb/node/fs"
)

// skewed is a node's clock: the bubble's, set wrong.
type skewed struct{ by *atomic.Int64 }

func (s skewed) Now() time.Time { return time.Now().Add(time.Duration(s.by.Load())) }

// bubble is a cluster in virtual time: its network, disks and clocks are simulated.
type bubble struct {
	*testing.T
	net     *sim.Net
	config  []node.Config
	nodes   []*node.Node
	disks   []*fs.Mem
	skews   []atomic.Int64
	fatals  []*atomic.Pointer[error]
	clients []*ebb.Client
	// impostors are ended when the nodes have been.
	impostors []func()
	moved     int // added to the last number of every node's address
}

// long leaves a test to the whole suite: with -short, as the race detector runs, others reach the same code in less
// time.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("only in the whole suite")
	}
}

func inBubble(t *testing.T, nodes int, shards uint32, f func(b *bubble)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{T: t, net: sim.NewNet(1), nodes: make([]*node.Node, nodes), skews: make([]atomic.Int64, nodes)}
		for i := range nodes {
			disk, fatal := fs.NewMem(), new(atomic.Pointer[error])
			b.fatals = append(b.fatals, fatal)
			b.disks = append(b.disks, disk)
			b.config = append(b.config, node.Config{
				Name: fmt.Sprintf("ebb-%d", i), DataDir: "/data", FS: disk, Network: b.net.Host(b.host(i)), Clock: skewed{&b.skews[i]},
				GRPC: b.host(i) + ":7070", HTTP: node.Off, Admin: node.Off, Gossip: b.host(i) + ":7071",
				Join: []string{b.host(0) + ":7071", b.host(1) + ":7071"}, BootstrapExpect: nodes, Shards: shards,
				Logger: testLogger(t), Fail: new(fail.Points),
				Fatal: func(err error) { fatal.Store(&err) },
			})
		}
		defer b.close()
		f(b)
	})
}

// said is why a node could not go on; nil if it could.
func (b *bubble) said(i int) error { return loadError(b.fatals[i]) }

// loadError is the error stored last; nil if none was.
func loadError(p *atomic.Pointer[error]) error {
	if err := p.Load(); err != nil {
		return *err
	}
	return nil
}

// close ends whatever still runs, and waits for what does not wait itself.
func (b *bubble) close() {
	for _, c := range b.clients {
		c.Close()
	}
	for i, n := range b.nodes {
		switch {
		case n == nil:
		case b.Failed() || b.said(i) != nil:
			n.Kill()
		default:
			if err := n.Close(); err != nil {
				b.Errorf("close node %d: %v", i, err)
			}
		}
	}
	for _, end := range b.impostors {
		end()
	}
	time.Sleep(time.Minute) // memberlist does not wait for its probes
}

func (b *bubble) host(i int) string { return fmt.Sprintf("10.0.0.%d", i+1+b.moved) }

func (b *bubble) open(i int) {
	b.Helper()
	b.config[i].Registry = prometheus.NewRegistry()
	b.nodes[i] = b.openConfig(b.config[i])
}

func (b *bubble) openConfig(c node.Config) *node.Node {
	b.Helper()
	n, err := node.Open(context.Background(), c)
	if err != nil {
		b.Fatalf("open node %s: %v", c.Name, err)
	}
	return n
}

// openAll opens all nodes and waits until they serve.
func (b *bubble) openAll() {
	b.Helper()
	for i := range b.nodes {
		b.open(i)
	}
	for i := range b.nodes {
		b.ready(i)
	}
}

func (b *bubble) ready(i int) {
	b.Helper()
	select {
	case <-b.nodes[i].Ready():
	case <-time.After(time.Minute):
		s := b.nodes[i].Status()
		b.Fatalf("node %d is not ready: %s %s (%v)", i, s.Phase, s.Detail, b.said(i))
	}
}

// crash is a loss of power: what was not synced is gone.
func (b *bubble) crash(i int) {
	b.net.Crash(b.host(i))
	image := b.disks[i].Crash(uint64(i + 1))
	b.nodes[i].Kill()
	b.nodes[i], b.disks[i], b.config[i].FS = nil, image, image
	b.fatals[i].Store(nil)
}

func (b *bubble) client() *ebb.Client {
	b.Helper()
	var addrs []string
	for i := range b.nodes {
		addrs = append(addrs, b.host(i)+":7070")
	}
	return b.clientAt("10.0.1.1", addrs...)
}

// clientAt dials from a host of its own.
func (b *bubble) clientAt(ip string, addrs ...string) *ebb.Client {
	b.Helper()
	me := b.net.Host(ip)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := ebb.DialOptions(ctx, addrs, ebb.WithDialer(func(ctx context.Context, addr string) (net.Conn, error) { return me.Dial(ctx, addr) }))
	if err != nil {
		b.Fatalf("dial: %v", err)
	}
	b.clients = append(b.clients, c)
	return c
}

// write adds an amount and waits for the acknowledgement.
func (b *bubble) write(c *ebb.Client, key, bin string, amount float64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Increment(ctx, "plain", ebb.Increment{Key: key, Bin: bin, Amount: amount}); err != nil {
		b.Errorf("increment %s: %v", key, err)
	}
}

func (b *bubble) count(c *ebb.Client, key, bin string) float64 {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	d, err := c.Distribution(ctx, "plain", key)
	if err != nil {
		b.Fatalf("ask %s: %v", key, err)
	}
	for _, x := range d.Bins {
		if x.Name == bin {
			return x.Count
		}
	}
	return 0
}

// plain creates a namespace that forgets nothing.
func (b *bubble) plain(c *ebb.Client) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "plain", Decay: ebb.DecayNone}); err != nil {
		b.Fatalf("create namespace: %v", err)
	}
}

// writing adds 1 to a bin of several keys, again and again, until stopped, and
// then returns how often each was acknowledged.
func (b *bubble) writing(c *ebb.Client, keys int) (stop func() int) {
	w := c.Writer(ebb.WriterOptions{Namespace: "plain", NoAggregate: true, Timeout: 2 * time.Minute, OnError: func(err error) { b.Errorf("write: %v", err) }})
	ctx, cancel := context.WithCancel(context.Background())
	rounds := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			for k := range keys {
				if err := w.Add(context.Background(), fmt.Sprintf("k%d", k), "x", 1); err != nil {
					b.Errorf("add: %v", err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		rounds <- n
	}()
	return func() int {
		cancel()
		n := <-rounds
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			b.Errorf("close writer: %v", err)
		}
		return n
	}
}

func (b *bubble) verify(c *ebb.Client, keys, want int) {
	b.Helper()
	for k := range keys {
		if got := b.count(c, fmt.Sprintf("k%d", k), "x"); got != float64(want) {
			b.Errorf("k%d: %v counted, %d acknowledged", k, got, want)
		}
	}
}

// TestCrashes cuts the power of each node in turn, and of all at once, while
// writes go on. Each acknowledged increment counts, and once.
func TestCrashes(t *testing.T) {
	inBubble(t, 3, 4, func(b *bubble) {
		b.openAll()
		c := b.client()
		defer c.Close()
		b.plain(c)
		stop := b.writing(c, 8)
		time.Sleep(2 * time.Second)
		for i := range 3 {
			b.crash(i)
			time.Sleep(5 * time.Second)
			b.open(i)
			b.ready(i)
			time.Sleep(time.Second)
		}
		for i := range 3 {
			b.crash(i)
		}
		b.openAll()
		time.Sleep(time.Second)
		b.verify(c, 8, stop())
	})
}
