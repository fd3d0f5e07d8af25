package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

const (
	// sendersMax is how many ApplyRequests are in flight to one node at a time. Commands that arrive while that many
	// are in flight share the next requests.
	sendersMax = 8
	// Limits of one ApplyRequest. A single command is within them.
	requestOpsMax   = proto.BatchOpsMax
	requestBytesMax = proto.BatchBytesMax - 64<<10
)

// sendQueue holds the commands that wait for one node.
type sendQueue struct {
	peer *peer

	mu      sync.Mutex // guards all below
	waiting []*pendingCommand
	senders int
}

// dispatch sends commands to the nodes that lead their shards. It never blocks.
func (c *Client) dispatch(commands []*pendingCommand) {
	if len(commands) == 1 {
		p := commands[0]
		c.enqueue(c.address(p), commands)
		return
	}
	groups := map[*peer][]*pendingCommand{}
	for _, p := range commands {
		peer := c.address(p)
		groups[peer] = append(groups[peer], p)
	}
	for peer, group := range groups {
		c.enqueue(peer, group)
	}
}

// address chooses the node to which a command is sent next. After an ambiguous try it prefers another replica, which
// can forward the command. The node of that try may not have noticed that it no longer leads.
func (c *Client) address(p *pendingCommand) *peer {
	node, peer := c.peerFor(p.shard, p.tries, p.node)
	if p.lastTryAmbiguous && node == p.node {
		_, others, lost := c.routing.candidates(p.shard, c.now())
		if name, other := c.replicaBut(others, p.tries, node, lost); other != nil {
			node, peer = name, other
		}
	}
	p.node = node
	return peer
}

func (c *Client) enqueue(peer *peer, commands []*pendingCommand) {
	queue := &peer.queue
	queue.mu.Lock()
	queue.waiting = append(queue.waiting, commands...)
	start := queue.senders < c.cfg.limits.Requests
	if start {
		queue.senders++
	}
	queue.mu.Unlock()
	if start && !c.spawn(func() { c.runSender(queue) }) {
		c.runSender(queue) // closed: each command fails with ErrClosed
	}
}

func (b *sendQueue) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.senders == 0 && len(b.waiting) == 0
}

// runSender sends the commands of a queue until it is empty.
func (c *Client) runSender(queue *sendQueue) {
	c.pauses.begin()
	defer c.pauses.end()
	for {
		commands := queue.takeRequest(&c.cfg.limits)
		if commands == nil {
			return
		}
		c.sendRequest(queue.peer, commands)
	}
}

// takeAll removes all commands.
func (b *sendQueue) takeAll() []*pendingCommand {
	b.mu.Lock()
	defer b.mu.Unlock()
	commands := b.waiting
	b.waiting = nil
	return commands
}

// takeRequest removes the commands that fit into one request; nil ends the sender.
func (b *sendQueue) takeRequest(of *Limits) []*pendingCommand {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		b.waiting = nil
		b.senders--
		return nil
	}
	n, ops, size := 0, 0, 0
	for n < len(b.waiting) {
		p := b.waiting[n]
		ops += p.entries
		size += len(p.encoded())
		if n > 0 && (p.solo || b.waiting[0].solo || ops > of.RequestOps || size > of.RequestBytes) {
			break
		}
		n++
	}
	commands := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	return commands
}

// sendRequest makes one request and handles the result of each command.
func (c *Client) sendRequest(peer *peer, commands []*pendingCommand) {
	commands = c.dropExpired(commands)
	if len(commands) == 0 {
		return
	}
	req := &ebbv1.ApplyRequest{Commands: make([]*ebbv1.ShardCommand, len(commands))}
	wire := make([]ebbv1.ShardCommand, len(commands))
	for i, p := range commands {
		p.tries++
		p.outcomeUnknown.Store(true)
		wire[i].Shard, wire[i].Command = p.shard, p.encoded()
		req.Commands[i] = &wire[i]
	}
	ctx, cancel := c.requestContext(commands)
	defer cancel()
	ctx, check := c.untilDeposed(ctx, peer, commands)
	defer check.answered()
	var resp *ebbv1.ApplyResponse
	start := time.Now()
	sent, err := c.try(ctx, peer, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		resp, err = ebbv1grpc.NewShardsClient(conn).Apply(ctx, req)
		return err
	})
	c.meter.applied(len(commands), time.Since(start), err)
	if err == nil && len(resp.GetResults()) != len(commands) {
		err = proto.ErrInternal.Errorf("%d results for %d commands", len(resp.GetResults()), len(commands))
	}
	if err != nil {
		c.requestFailed(commands, sent, err)
		return
	}
	c.handleResults(commands, resp.GetResults())
}

// dropExpired settles commands whose time or context has ended, and returns the rest.
func (c *Client) dropExpired(commands []*pendingCommand) []*pendingCommand {
	at := c.pauses.read()
	rest := commands[:0]
	for _, p := range commands {
		end := p.over(at)
		if c.ctx.Err() != nil {
			end = ErrClosed
		}
		if end == nil {
			rest = append(rest, p)
			continue
		}
		c.giveUp(p, end)
	}
	return rest
}

// requestContext bounds a request by the last deadline of its commands.
func (c *Client) requestContext(commands []*pendingCommand) (context.Context, context.CancelFunc) {
	at := c.pauses.read()
	var last time.Duration
	for _, p := range commands {
		if p.deadline.IsZero() {
			return context.WithCancel(c.ctx)
		}
		last = max(last, p.left(at))
	}
	return context.WithTimeout(c.ctx, last)
}

// requestFailed handles an error of the whole request.
func (c *Client) requestFailed(commands []*pendingCommand, sent bool, err error) {
	code := coded(err).Code
	v := classify(code)
	if v == final && len(commands) > 1 {
		for _, p := range commands {
			p.solo = true
		}
		c.dispatch(commands)
		return
	}
	var again []*pendingCommand
	for _, p := range commands {
		if c.shouldRetry(p, v, err, sent) {
			again = append(again, p)
		}
	}
	c.retry(again, err)
}

// handleResults settles each command that has its result, and retries commands that were refused for a temporary
// reason.
func (c *Client) handleResults(commands []*pendingCommand, results []*ebbv1.CommandResult) {
	var redirectNow, again []*pendingCommand
	var last error
	for i, p := range commands {
		e := proto.FromWire(results[i].GetError())
		if e == nil {
			p.settle(results[i], nil)
			continue
		}
		v := classify(e.Code)
		if e.Code == ebbv1.Code_CODE_UNREACHABLE {
			v = later // the node could not forward it: this error means that nothing was sent
		}
		if !c.shouldRetry(p, v, e, true) {
			continue
		}
		if v == redirect && p.followedRedirect {
			redirectNow = append(redirectNow, p)
			continue
		}
		again, last = append(again, p), e
	}
	if len(redirectNow) > 0 {
		c.meter.redirects.Add(int64(len(redirectNow)))
		c.dispatch(redirectNow)
	}
	c.retry(again, last)
}

// reason returns the more useful of the errors of two successive tries. That is last, unless last is only a deadline
// and there is an earlier error.
func reason(before, last error) error {
	if before != nil && coded(last).Code == proto.ErrDeadline.Code {
		return before
	}
	return last
}

// shouldRetry records what a failed try means, and reports whether to try again.
func (c *Client) shouldRetry(p *pendingCommand, v retryClass, err error, sent bool) bool {
	p.err = reason(p.err, err)
	redirectedBefore := p.followedRedirect
	p.followedRedirect, p.lastTryAmbiguous = false, v == ambiguous
	p.outcomeUnknown.Store(p.maybeApplied)
	switch v {
	case final:
		if c.retryFenced(p, err) {
			return false
		}
		p.settle(nil, c.finalError(p, err))
		return false
	case expired:
		if p.stream == nil || p.session == 0 {
			p.settle(nil, c.finalError(p, err))
		} else {
			p.stream.expire(p, c.finalError(p, err))
		}
		return false
	case redirect:
		// Only a first redirection is followed at once: while there is no
		// leader, nodes point at each other.
		known := c.routing.learn(p.shard, p.node, coded(err).Leader)
		p.followedRedirect = known && !redirectedBefore
	case ambiguous:
		p.maybeApplied = p.maybeApplied || sent
		p.outcomeUnknown.Store(p.maybeApplied)
		c.routing.lost(p.shard, p.node, c.now())
	}
	if end := p.over(c.pauses.read()); end != nil || c.ctx.Err() != nil {
		if end == nil {
			end = ErrClosed
		}
		c.giveUp(p, end)
		return false
	}
	return true
}

// retry sends commands again after a pause.
func (c *Client) retry(commands []*pendingCommand, err error) {
	if len(commands) == 0 {
		return
	}
	c.meter.retries.Add(int64(len(commands)))
	c.renewIfOld(tableAgeMin)
	pause := c.backoff(commands[0].tries-1, err)
	c.log().Debug("commands wait for another try", "commands", len(commands), "pause", pause, "err", err)
	resend := func() {
		c.pauses.begin()
		defer c.pauses.end()
		_ = c.sleep(c.ctx, pause) // if it ends early, the client is closing, and dispatch fails the commands
		c.dispatch(commands)
	}
	if !c.spawn(resend) {
		c.dropExpired(commands)
	}
}

// giveUp settles a command that will not be tried again because of end.
func (c *Client) giveUp(p *pendingCommand, end error) {
	err := end
	if p.err != nil {
		err = &contextEnded{err: p.err, end: end}
	}
	p.settle(nil, c.finalError(p, err))
}

// finalError is the error of a command that is given up.
func (c *Client) finalError(p *pendingCommand, err error) error {
	if p.maybeApplied {
		err = &unknown{err}
	}
	return c.fail(attempt{op: "apply", shard: p.shard, node: p.node, tries: p.tries, start: p.made}, err)
}

// settle ends a command with its result or error.
func (p *pendingCommand) settle(result *ebbv1.CommandResult, err error) {
	if p.stream == nil {
		p.handler.handleResult(p, result, err)
		return
	}
	if p.stream.markSettled(p) {
		p.handler.handleResult(p, result, err)
	}
	p.stream.producer.pump(p.stream)
}

// isUnknown reports whether err means that the write may or may not have been applied.
func isUnknown(err error) bool { return errors.Is(err, ErrUnknownOutcome) }
