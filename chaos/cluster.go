package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/node/fs"
)

// ClusterOptions defines what StartCluster starts.
type ClusterOptions struct {
	Nodes  int    // 3 if 0
	Shards uint32 // 16 if 0
	Dir    string // below it, each node has its data directory
	// Host returns the network of a node and the host part of its addresses;
	// by default all share a Switch over loopback.
	Host func(name string) (node.Network, string)
	// FS, Clock and Logger are passed to each node; by default a node uses the machine's own.
	FS     func(name string) fs.FS
	Clock  node.Clock
	Logger *slog.Logger
	// HTTP is the HTTP address of the first node; a free port if empty.
	HTTP string
	// HTTPHosts are further host names that HTTP requests to every node may use.
	HTTPHosts []string
	// Secrets are each node's node.Config.ClusterSecrets; without any, the cluster cannot have tokens.
	Secrets []string
	// KeepAddresses makes a restarted node listen at its earlier addresses, if they are free. So addresses that a
	// person has read stay valid. Clients find each node again, however fast all nodes are restarted one after the
	// other.
	KeepAddresses bool
}

// Cluster is some nodes in this process. Each of them can be killed, started again, cut off and healed.
type Cluster struct {
	opts   ClusterOptions
	Switch *Switch // nil when Host is given

	mu    sync.Mutex // guards what follows; never held across a wait
	slots []slot
}

// slot is one node of the cluster; it stays the same across restarts of the node.
type slot struct {
	name      string
	node      *node.Node // nil while dead
	addresses node.Addresses
	cut       bool
}

// StartCluster starts all nodes and returns when they are ready.
func StartCluster(ctx context.Context, opts ClusterOptions) (*Cluster, error) {
	if opts.Nodes == 0 {
		opts.Nodes = 3
	}
	if opts.Shards == 0 {
		opts.Shards = 16
	}
	c := &Cluster{opts: opts, slots: make([]slot, opts.Nodes)}
	if opts.Host == nil {
		c.Switch = NewSwitch(node.OSNetwork{})
		c.opts.Host = func(name string) (node.Network, string) { return c.Switch.Port(name), "127.0.0.1" }
	}
	for i := range c.slots {
		c.slots[i].name = "ebb-" + strconv.Itoa(i)
	}
	for i := range c.slots {
		if err := c.Start(ctx, i); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	for i := range c.slots {
		if err := c.WaitReady(ctx, i); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// Start starts node i, for the first time or again with the data it has. Without KeepAddresses a restarted node listens
// at other ports, so callers must not depend on them.
func (c *Cluster) Start(ctx context.Context, i int) error {
	network, host := c.opts.Host(c.Name(i))
	cfg := node.Config{
		Name: c.Name(i), DataDir: filepath.Join(c.opts.Dir, c.Name(i)),
		GRPC: host + ":0", HTTP: host + ":0", Gossip: host + ":0", Admin: node.Off,
		BootstrapExpect: c.opts.Nodes, Shards: c.opts.Shards, Join: c.gossip(),
		Network: network, Clock: c.opts.Clock, Logger: c.opts.Logger, HTTPHosts: c.opts.HTTPHosts,
		ClusterSecrets: c.opts.Secrets,
	}
	if i == 0 && c.opts.HTTP != "" {
		cfg.HTTP = c.opts.HTTP
	}
	if c.opts.FS != nil {
		cfg.FS = c.opts.FS(c.Name(i))
	}
	cfg.Fatal = func(error) { go c.Kill(i) }
	n, err := c.open(ctx, cfg, i)
	if err != nil {
		return fmt.Errorf("start %s: %w", c.Name(i), err)
	}
	c.mu.Lock()
	c.slots[i].node, c.slots[i].addresses = n, n.Addresses()
	c.mu.Unlock()
	return nil
}

// open opens node i. With KeepAddresses it opens the node at its earlier addresses, unless one of them is taken.
func (c *Cluster) open(ctx context.Context, cfg node.Config, i int) (*node.Node, error) {
	c.mu.Lock()
	was := c.slots[i].addresses
	c.mu.Unlock()
	if !c.opts.KeepAddresses || was.GRPC == "" {
		return node.Open(ctx, cfg)
	}
	kept := cfg
	kept.GRPC, kept.Gossip = was.GRPC, was.Gossip
	if was.HTTP != "" {
		kept.HTTP = was.HTTP
	}
	n, err := node.Open(ctx, kept)
	if err != nil && strings.Contains(err.Error(), "address already in use") {
		return node.Open(ctx, cfg)
	}
	return n, err
}

// gossip returns the gossip addresses of the running nodes.
func (c *Cluster) gossip() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, s := range c.slots {
		if s.node != nil {
			out = append(out, s.addresses.Gossip)
		}
	}
	return out
}

// WaitReady waits until node i serves.
func (c *Cluster) WaitReady(ctx context.Context, i int) error {
	n := c.Node(i)
	if n == nil {
		return fmt.Errorf("%s is dead", c.Name(i))
	}
	select {
	case <-n.Ready():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s is not ready: %w", c.Name(i), ctx.Err())
	}
}

// Kill ends node i at once. The node flushes nothing, transfers no leadership and does not notify other nodes.
func (c *Cluster) Kill(i int) {
	c.mu.Lock()
	n := c.slots[i].node
	c.slots[i].node = nil
	c.mu.Unlock()
	if n != nil {
		n.Kill()
	}
}

// Isolate cuts node i off from the others (over the Switch).
func (c *Cluster) Isolate(i int) {
	c.Switch.Isolate(c.Name(i))
	c.mu.Lock()
	c.slots[i].cut = true
	c.mu.Unlock()
}

// Heal reconnects every node and starts the dead ones.
func (c *Cluster) Heal(ctx context.Context) error {
	if c.Switch != nil {
		c.Switch.Heal()
	}
	for i := range c.slots {
		c.mu.Lock()
		c.slots[i].cut = false
		dead := c.slots[i].node == nil
		c.mu.Unlock()
		if dead {
			if err := c.Start(ctx, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// Nodes is how many nodes there are, dead or alive.
func (c *Cluster) Nodes() int { return len(c.slots) }

// Name is the name of node i.
func (c *Cluster) Name(i int) string { return c.slots[i].name }

// Node returns node i, or nil while it is dead.
func (c *Cluster) Node(i int) *node.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots[i].node
}

// State returns the state of node i: "up", "dead" or "cut off".
func (c *Cluster) State(i int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.slots[i].node == nil:
		return "dead"
	case c.slots[i].cut:
		return "cut off"
	}
	return "up"
}

// Addrs returns the gRPC addresses of the nodes that run.
func (c *Cluster) Addrs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, s := range c.slots {
		if s.node != nil {
			out = append(out, s.addresses.GRPC)
		}
	}
	return out
}

// HTTP returns the HTTP address of node i.
func (c *Cluster) HTTP(i int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slots[i].addresses.HTTP
}

// Close shuts all nodes down cleanly, one after the other, and returns the first error.
func (c *Cluster) Close() error {
	var first error
	for i := range c.slots {
		c.mu.Lock()
		n := c.slots[i].node
		c.slots[i].node = nil
		c.mu.Unlock()
		if n == nil {
			continue
		}
		if err := n.Close(); err != nil && first == nil {
			first = fmt.Errorf("close %s: %w", c.Name(i), err)
		}
	}
	return first
}
