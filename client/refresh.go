package client

import (
	"context"
	"slices"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// tableAgeMax is how old the table gets before its next use asks for a newer one.
	tableAgeMax = 30 * time.Second
	// tableAgeMin keeps a storm of failures from becoming a storm of table requests.
	tableAgeMin = 50 * time.Millisecond
	// tablesAsked is how many nodes are asked at once.
	tablesAsked = 3
)

// refresh is one renewal of the table. Callers that need it wait for done.
type refresh struct {
	done chan struct{}
	err  error // set before done is closed
}

// renew fetches the table from whichever node answers first. One renewal runs at
// a time, owned by the client: a caller that leaves does not end it.
func (c *Client) renew(ctx context.Context) error {
	r := c.renewal()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// renewIfOld starts a renewal in the background when the table has aged.
func (c *Client) renewIfOld(age time.Duration) {
	if c.routing.age(c.now()) > age {
		c.renewal()
	}
}

func (c *Client) renewal() *refresh {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refresh != nil {
		return c.refresh
	}
	r := &refresh{done: make(chan struct{})}
	if c.closed {
		r.err = ErrClosed
		close(r.done)
		return r
	}
	c.refresh = r
	c.work.Go(func() {
		r.err = c.fetchTable()
		c.mu.Lock()
		c.refresh = nil
		c.mu.Unlock()
		close(r.done)
	})
	return r
}

// fetchTable asks a few nodes at once, those that are up first.
func (c *Client) fetchTable() error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	type reply struct {
		table *ebbv1.Table
		err   error
	}
	peers := c.anyPeers()
	replies := make(chan reply, len(peers))
	next, open := 0, 0
	ask := func() {
		p := peers[next]
		next++
		open++
		go func() { // owned by this function, which receives from each
			t, err := c.tableFrom(ctx, p)
			replies <- reply{t, err}
		}()
	}
	for next < min(tablesAsked, len(peers)) {
		ask()
	}
	var last error
	adopted := false
	for open > 0 {
		r := <-replies
		open--
		if r.err == nil && !adopted {
			last = c.adopt(r.table)
			adopted = last == nil
		} else if !adopted {
			last = r.err
		}
		if adopted {
			cancel()
		} else if next < len(peers) {
			ask()
		}
	}
	return last
}

func (c *Client) adopt(t *ebbv1.Table) error {
	if have := c.routing.clusterID(); have != "" && t.GetClusterId() != "" && t.GetClusterId() != have {
		return proto.ErrWrongCluster.Errorf("node belongs to cluster %s, this client to %s", t.GetClusterId(), have)
	}
	c.routing.adopt(t, c.now())
	c.closeUnknownPeers()
	return nil
}

// closeUnknownPeers closes the connections to addresses where no node is any more.
func (c *Client) closeUnknownPeers() {
	known := slices.Clone(c.seeds)
	for _, n := range c.routing.nodes() {
		known = append(known, c.routing.addressOf(n))
	}
	var gone []*peer
	c.mu.Lock()
	for addr, p := range c.peers {
		if !slices.Contains(known, addr) && p.queue.idle() {
			gone = append(gone, p)
			delete(c.peers, addr)
		}
	}
	c.mu.Unlock()
	for _, p := range gone {
		p.retire() // a call that still goes there fails, and is tried elsewhere
	}
}

// anyPeers lists every known peer: nodes of the table, then seeds, those that
// are up first.
func (c *Client) anyPeers() []*peer {
	now := c.now()
	var up, down []*peer
	seen := map[*peer]bool{}
	add := func(addr string) {
		if addr == "" {
			return
		}
		p := c.peerAt(addr)
		if seen[p] {
			return
		}
		seen[p] = true
		if p.up(now) {
			up = append(up, p)
		} else {
			down = append(down, p)
		}
	}
	for _, n := range c.routing.nodes() {
		add(c.routing.addressOf(n))
	}
	for _, a := range c.seeds {
		add(a)
	}
	return append(up, down...)
}

// peerFor chooses the node to ask about a shard at the given try (from 0). It takes the leader if that is known and up.
// Otherwise it takes the replicas in turn, except last, which was asked before, and the leader that was recently lost.
// Then it takes the lost leader. If none of them is up, it takes any node, because every node forwards.
func (c *Client) peerFor(shard uint32, tries int, last string) (node string, p *peer) {
	c.renewIfOld(c.cfg.limits.TableAge)
	now := c.now()
	leader, replicas, lost := c.routing.candidates(shard, now)
	if p := c.nodePeer(leader); p != nil && p.up(now) {
		return leader, p
	}
	if leader == "" && c.routing.leaderless(shard, now) {
		c.renewal()
	}
	if name, p := c.replicaBut(replicas, tries, last, lost); p != nil {
		return name, p
	}
	if p := c.nodePeer(lost); p != nil && lost != last && p.up(now) {
		return lost, p
	}
	others := c.anyPeers()
	q := others[tries%len(others)]
	if others[0].up(now) {
		q = others[0]
	}
	return c.routing.nodeAt(q.addr), q
}

// replicaBut chooses in turn from replicas that are up; nil if there is none. It skips last and lost, unless there is
// only one replica.
func (c *Client) replicaBut(replicas []string, tries int, last, lost string) (node string, p *peer) {
	now := c.now()
	for i := range replicas {
		name := replicas[(i+tries)%len(replicas)]
		if (name == last || name == lost) && len(replicas) > 1 {
			continue
		}
		if p := c.nodePeer(name); p != nil && p.up(now) {
			return name, p
		}
	}
	return "", nil
}

// nodePeer returns the peer of a node; nil if its address is unknown.
func (c *Client) nodePeer(name string) *peer {
	addr := c.routing.addressOf(name)
	if addr == "" {
		return nil
	}
	return c.peerAt(addr)
}
