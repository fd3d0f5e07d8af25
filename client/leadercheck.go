package client

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ebbdb/ebb/proto"
)

const (
	// leaderCheckAfter is how long a node may take to answer a write before the client asks others who leads.
	leaderCheckAfter = 500 * time.Millisecond
	// leaderCheckPauseMin and leaderCheckPauseMax bound how long one of the others may take before the client asks the
	// next. The pause doubles, so that a node that is only slow costs little.
	leaderCheckPauseMin = 250 * time.Millisecond
	leaderCheckPauseMax = time.Second
)

// errDeposed ends the wait for the answer to a write. The write may have been applied: the client sends the same
// command again.
var errDeposed = proto.ErrUnknownOutcome.Errorf("another node leads now")

// leaderCheck holds the writes that one node has not answered for leaderCheckAfter. While there are any, one goroutine
// asks other nodes who leads.
type leaderCheck struct {
	mu      sync.Mutex // guards all below
	open    []*checkedWrite
	running bool // the goroutine that asks other nodes
	next    int  // counts candidates
}

// checkedWrite is one request in flight.
type checkedWrite struct {
	peer   *peer
	node   string
	shards []uint32 // that node was believed to lead when the request was sent
	cancel context.CancelCauseFunc
	timer  *time.Timer // starts the check
}

// answered ends the check of a request; nil stands for a request without one.
func (d *checkedWrite) answered() {
	if d == nil {
		return
	}
	d.cancel(nil) // before it is removed, so that it is not added afterwards
	if !d.timer.Stop() {
		d.peer.leaderCheck.remove(d)
	}
}

// untilDeposed returns a context that ends when other nodes lead those shards of a request that its node led, as far as
// the client knew. A node that is cut off may never answer. A node that did not lead forwards the request, and the
// client waits for it. It also waits for commands without an identity: a second try would apply them again.
func (c *Client) untilDeposed(
	ctx context.Context, p *peer, commands []*pendingCommand,
) (context.Context, *checkedWrite) {
	for _, q := range commands {
		if q.stream == nil {
			return ctx, nil
		}
	}
	d := &checkedWrite{peer: p, node: commands[0].node}
	d.shards = c.routing.led(make([]uint32, 0, len(commands)), commands)
	if len(d.shards) == 0 {
		return ctx, nil
	}
	waited, cancel := context.WithCancelCause(ctx)
	d.cancel = cancel
	d.timer = time.AfterFunc(leaderCheckAfter, func() { c.spawn(func() { c.checkLeader(waited, d) }) })
	return waited, d
}

// checkLeader asks other replicas who leads, one at a time, while a node has unanswered requests. If a goroutine does
// so already, it only adds a request.
func (c *Client) checkLeader(ctx context.Context, d *checkedWrite) {
	p := d.peer
	first := p.leaderCheck.add(ctx, d)
	c.cancelDeposed(p)
	if !first {
		return
	}
	pause := leaderCheckPauseMin
	for ; c.ctx.Err() == nil && !p.leaderCheck.over(); pause = min(2*pause, leaderCheckPauseMax) {
		turn, cancel := context.WithTimeout(c.ctx, pause*3/4+rand.N(pause/2))
		if other := c.nextCandidate(p); other != nil {
			if t, err := c.tableFrom(turn, other); err == nil && c.adopt(t) == nil {
				c.cancelDeposed(p)
			}
		}
		if p.leaderCheck.idle() { // the next request starts a check of its own
			cancel()
		}
		<-turn.Done() // also when the client is closed, which ends all requests
		cancel()
	}
}

// nextCandidate returns the next node to ask who leads: a node with a replica of a checked shard, if possible one that
// is up. It returns nil if there is none.
func (c *Client) nextCandidate(p *peer) *peer {
	now := c.now()
	var up, down []*peer
	b := &p.leaderCheck
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.open {
		for _, shard := range d.shards {
			_, others, _ := c.routing.candidates(shard, now)
			for _, name := range others {
				q := c.nodePeer(name)
				switch {
				case q == nil, name == d.node, slices.Contains(up, q), slices.Contains(down, q):
				case q.up(now):
					up = append(up, q)
				default:
					down = append(down, q)
				}
			}
		}
	}
	if len(up) == 0 {
		up = down
	}
	if len(up) == 0 {
		return nil
	}
	b.next++
	return up[b.next%len(up)]
}

// cancelDeposed cancels the requests to a node whose shards other nodes lead now. It sends the commands in the node's
// queue elsewhere.
func (c *Client) cancelDeposed(p *peer) {
	b := &p.leaderCheck
	b.mu.Lock()
	had := len(b.open)
	b.open = slices.DeleteFunc(b.open, func(d *checkedWrite) bool {
		deposed := c.routing.deposed(d.node, d.shards)
		if deposed {
			d.cancel(errDeposed)
		}
		return deposed
	})
	deposed := len(b.open) < had
	b.mu.Unlock()
	if deposed {
		c.dispatch(p.queue.takeAll())
	}
}

// add adds a request, unless it has ended. It reports whether the caller is the one to ask others.
func (b *leaderCheck) add(ctx context.Context, d *checkedWrite) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	b.open = append(b.open, d)
	first := !b.running
	b.running = true
	return first
}

// remove removes a request that has ended.
func (b *leaderCheck) remove(d *checkedWrite) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = slices.DeleteFunc(b.open, func(o *checkedWrite) bool { return o == d })
}

// idle reports whether there is nothing to check.
func (b *leaderCheck) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open) == 0
}

// over reports whether there is nothing left to check; then the goroutine ends.
func (b *leaderCheck) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = len(b.open) > 0
	return !b.running
}
