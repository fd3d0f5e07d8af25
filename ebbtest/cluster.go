package ebbtest

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/sim"
	ebb "github.com/ebbdb/ebb/client"
)

const (
	// startMax is how long the nodes may take to serve.
	startMax = 30 * time.Second
	// clocksAgree is how long nodes distrust all clocks after these have jumped.
	clocksAgree = 600 * time.Millisecond
	// clusterSecret is by which the nodes prove to each other that they are nodes, so that a test may make tokens.
	clusterSecret = "ebb_cluster_secret_of_every_cluster_of_ebbtest"
	// clientIP is where clients are in the simulated network.
	clientIP = "10.0.1.1"
)

// Option changes what New starts.
type Option func(*sim.Options)

// Nodes sets how many nodes there are (3).
func Nodes(n int) Option { return func(o *sim.Options) { o.Nodes = n } }

// Shards sets how many shards there are (4); at least one a node.
func Shards(n uint32) Option { return func(o *sim.Options) { o.Shards = n } }

// Seed sets what the network's delays and power cuts are drawn from (0).
func Seed(seed uint64) Option { return func(o *sim.Options) { o.Seed = seed } }

// Logger sends the nodes' logs there; without it nothing is logged.
func Logger(l *slog.Logger) Option { return func(o *sim.Options) { o.Logger = l } }

// Cluster is a running cluster. Its nodes are numbered from 0. Whatever goes
// wrong with it ends the test.
type Cluster struct {
	t     testing.TB
	nodes *sim.Cluster
}

// New starts a cluster, waits until it serves, and stops it when the test ends.
func New(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	var o sim.Options
	for _, opt := range opts {
		opt(&o)
	}
	o.Secrets = []string{clusterSecret}
	o.Shards = max(o.Shards, 4, uint32(o.Nodes))
	ctx, cancel := context.WithTimeout(context.Background(), startMax)
	defer cancel()
	nodes, err := sim.Start(ctx, o)
	if err != nil {
		t.Fatalf("ebbtest: %v", err)
	}
	c := &Cluster{t: t, nodes: nodes}
	t.Cleanup(c.stop)
	return c
}

func (c *Cluster) stop() {
	c.nodes.Stop()
	for _, err := range c.nodes.Collapses() {
		c.t.Errorf("ebbtest: %v", err)
	}
	if inBubble() {
		time.Sleep(sim.Linger)
	}
}

// inBubble reports whether this is synctest's time, which begins in 2000.
func inBubble() bool { return time.Now().Year() < 2020 }

// Client returns a client of the cluster, which is closed when the test ends.
func (c *Cluster) Client(opts ...ebb.Option) *ebb.Client {
	c.t.Helper()
	client, err := ebb.DialOptions(context.Background(), c.Addrs(), append([]ebb.Option{ebb.WithDialer(c.Dial)}, opts...)...)
	if err != nil {
		c.t.Fatalf("ebbtest: %v", err)
	}
	c.t.Cleanup(func() { _ = client.Close() }) // the test may have closed it
	return client
}

// Addrs returns the nodes' gRPC addresses, which only Dial can reach.
func (c *Cluster) Addrs() []string { return c.nodes.Addrs() }

// Dial opens a connection to a node's address.
func (c *Cluster) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return c.nodes.Dialer(clientIP)(ctx, addr)
}

// Now returns the time of day as the nodes see it.
func (c *Cluster) Now() time.Time { return c.nodes.Clock(0).Now() }

// Advance moves the clocks of all nodes ahead, so that half-lives pass at once.
// Timeouts and elections are not hurried. It returns when the nodes trust each
// other's clocks again, after about half a second.
func (c *Cluster) Advance(d time.Duration) {
	c.nodes.Advance(d)
	time.Sleep(clocksAgree)
}

// Kill ends node i as kill -9 would: its connections break, and its disk keeps
// what was written.
func (c *Cluster) Kill(i int) { c.nodes.Kill(i) }

// PowerLoss ends node i as a power cut would: its disk loses some of what was
// not synced.
func (c *Cluster) PowerLoss(i int) { c.nodes.PowerLoss(i) }

// Restart starts dead nodes again, all of them if none is named, and returns
// when they serve. Without a majority none does, so name enough at a time.
func (c *Cluster) Restart(nodes ...int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startMax)
	defer cancel()
	if len(nodes) == 0 {
		for i := range c.nodes.Nodes() {
			nodes = append(nodes, i)
		}
	}
	for _, i := range nodes {
		if err := c.nodes.Restart(ctx, i); err != nil {
			c.t.Fatalf("ebbtest: %v", err)
		}
	}
	for _, i := range nodes {
		n := c.nodes.Node(i)
		select {
		case <-n.Ready():
		case <-ctx.Done():
			c.t.Fatalf("ebbtest: node %d does not serve %v after its restart: %s", i, startMax, n.Status().GetDetail())
		}
	}
}

// Partition splits the nodes into sides that cannot reach each other; those
// named in no side are one more. Clients still reach every node. It replaces an
// earlier Partition.
func (c *Cluster) Partition(sides ...[]int) {
	c.nodes.Heal()
	side := make([]int, c.nodes.Nodes())
	for s, members := range sides {
		for _, i := range members {
			side[i] = s + 1
		}
	}
	for i := range side {
		for j := range i {
			if side[i] != side[j] {
				c.nodes.Cut(i, j)
			}
		}
	}
}

// Heal joins all sides again.
func (c *Cluster) Heal() { c.nodes.Heal() }

// Leader returns the node that leads the shard of a key; -1 if none does now.
func (c *Cluster) Leader(ns, key string) int { return c.nodes.LeaderOf(ns, key) }
