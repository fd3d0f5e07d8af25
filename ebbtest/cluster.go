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
	// startMax is how long the nodes may take until they serve.
	startMax = 30 * time.Second
	// clocksAgree is how long nodes distrust all clocks after the clocks have jumped.
	clocksAgree = 600 * time.Millisecond
	// clusterSecret is the secret by which nodes recognize each other. It also lets a test create tokens.
	clusterSecret = "ebb_cluster_secret_of_every_cluster_of_ebbtest"
	// clientIP is the address of clients in the simulated network.
	clientIP = "10.0.1.1"
)

// Option changes the cluster that New starts.
type Option func(*sim.Options)

// Nodes sets the number of nodes; the default is 3.
func Nodes(n int) Option { return func(o *sim.Options) { o.Nodes = n } }

// Shards sets the number of shards; the default is 4. There is at least one shard for each node.
func Shards(n uint32) Option { return func(o *sim.Options) { o.Shards = n } }

// Seed sets the random seed of the network's delays and of power cuts; the default is 0.
func Seed(seed uint64) Option { return func(o *sim.Options) { o.Seed = seed } }

// Logger sends the logs of the nodes to l. Without it nothing is logged.
func Logger(l *slog.Logger) Option { return func(o *sim.Options) { o.Logger = l } }

// Cluster is a running cluster. Its nodes are numbered from 0. A failure of the cluster fails the test.
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

// inBubble reports whether the test runs in a synctest bubble, whose time begins in 2000.
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

// Advance moves the clocks of all nodes ahead by d, so that half-lives pass at once. Timeouts and elections do not
// become faster. It returns when the nodes trust each other's clocks again, after about half a second.
func (c *Cluster) Advance(d time.Duration) {
	c.nodes.Advance(d)
	time.Sleep(clocksAgree)
}

// Kill ends node i as kill -9 does: its connections break, and its disk keeps all that was written.
func (c *Cluster) Kill(i int) { c.nodes.Kill(i) }

// PowerLoss ends node i as a power cut does: its disk loses some of the data that was not synced.
func (c *Cluster) PowerLoss(i int) { c.nodes.PowerLoss(i) }

// Restart starts dead nodes again, or all nodes if none is named. It returns when they serve. They serve only with a
// majority, so name enough nodes in one call.
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

// Partition splits the nodes into sides that cannot reach each other. The nodes that no side names form one more side.
// Clients still reach every node. A second Partition replaces the first.
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

// Leader returns the node that leads the shard of a key; -1 if no node leads it now.
func (c *Cluster) Leader(ns, key string) int { return c.nodes.LeaderOf(ns, key) }
