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
	// doubtAfter is how long a node may take to answer a write before others are asked whether it still leads.
	doubtAfter = 500 * time.Millisecond
	// doubtPauseMin and doubtPauseMax bound how long one of the others may take before the next is asked: it doubles, so
	// that a node which is just slow costs little.
	doubtPauseMin = 250 * time.Millisecond
	doubtPauseMax = time.Second
)

// errDeposed is why a write is not waited for any more. It may be applied: what follows is the same command again.
var errDeposed = proto.ErrUnknownOutcome.Errorf("another node leads meanwhile")

// doubt is all the writes that one node has not answered for long. One goroutine asks for them all, while there are any.
type doubt struct {
	mu      sync.Mutex // guards all below
	open    []*doubted
	running bool // whoever asks others about the node
	turn    int  // of those who may be asked
}

// doubted is one request that is waited for.
type doubted struct {
	peer   *peer
	node   string
	shards []uint32 // that node was believed to lead when the request was sent
	cancel context.CancelCauseFunc
	timer  *time.Timer // of the doubt
}

// answered ends the doubt about a request; nil stands for one that is not doubted.
func (d *doubted) answered() {
	if d == nil {
		return
	}
	d.cancel(nil) // before it is removed, so that nobody adds it afterwards
	if !d.timer.Stop() {
		d.peer.doubt.remove(d)
	}
}

// whileItLeads returns a context that ends when the client learns that other nodes lead those shards of a request which its node was believed to
// lead: it may never answer, if it was cut off. A node that was not believed to lead passes the request on, and is waited for. So is one that was
// sent a command which has no identity, which would be applied again.
func (c *Client) whileItLeads(ctx context.Context, p *peer, commands []*pendingCommand) (context.Context, *doubted) {
	for _, q := range commands {
		if q.stream == nil {
			return ctx, nil
		}
	}
	d := &doubted{peer: p, node: commands[0].node}
	d.shards = c.routing.led(make([]uint32, 0, len(commands)), commands)
	if len(d.shards) == 0 {
		return ctx, nil
	}
	waited, cancel := context.WithCancelCause(ctx)
	d.cancel = cancel
	d.timer = time.AfterFunc(doubtAfter, func() { c.spawn(func() { c.resolve(waited, d) }) })
	return waited, d
}

// resolve asks other replicas who leads, one at a time, while requests to a node are in doubt. If somebody does so already, it just adds one.
func (c *Client) resolve(ctx context.Context, d *doubted) {
	p := d.peer
	first := p.doubt.add(ctx, d)
	c.dismiss(p)
	if !first {
		return
	}
	for pause := doubtPauseMin; c.ctx.Err() == nil && !p.doubt.over(); pause = min(2*pause, doubtPauseMax) {
		turn, cancel := context.WithTimeout(c.ctx, pause*3/4+rand.N(pause/2))
		if other := c.rival(p); other != nil {
			if t, err := c.tableFrom(turn, other); err == nil && c.adopt(t) == nil {
				c.dismiss(p)
			}
		}
		if p.doubt.idle() { // what comes next is a doubt of its own
			cancel()
		}
		<-turn.Done() // also when the client is closed, which ends all requests
		cancel()
	}
}

// rival returns whose turn it is to say who leads, of those with replicas of what is in doubt, and of those the ones that are up; nil if there is none.
func (c *Client) rival(p *peer) *peer {
	now := c.now()
	var up, down []*peer
	b := &p.doubt
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
	b.turn++
	return up[b.turn%len(up)]
}

// dismiss ends the requests to a node that others are known to have followed, and takes back what waits for its turn there.
func (c *Client) dismiss(p *peer) {
	b := &p.doubt
	b.mu.Lock()
	had := len(b.open)
	b.open = slices.DeleteFunc(b.open, func(d *doubted) bool {
		deposed := c.routing.deposed(d.node, d.shards)
		if deposed {
			d.cancel(errDeposed)
		}
		return deposed
	})
	deposed := len(b.open) < had
	b.mu.Unlock()
	if deposed {
		c.dispatch(p.post.clear())
	}
}

// add adds a request, unless it has ended. It reports whether the caller is the one to ask others.
func (b *doubt) add(ctx context.Context, d *doubted) bool {
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
func (b *doubt) remove(d *doubted) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = slices.DeleteFunc(b.open, func(o *doubted) bool { return o == d })
}

// idle reports whether nothing is in doubt.
func (b *doubt) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open) == 0
}

// over reports whether nothing is in doubt any more, and nobody asks from now on.
func (b *doubt) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = len(b.open) > 0
	return !b.running
}
