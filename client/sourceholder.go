package client

import (
	"context"
	"errors"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Several writers may open one source at the same time, and their commands reach the shards in different orders. So
// one shard decides who holds a source: the arbiter.
//
//	open   the arbiter first, then the other shards, then check that the arbiter still has the epoch of this writer
//	write  where another shard fences a writer, it checks the arbiter, opens that shard again, and checks once more
//	drop   the arbiter first, then the other shards
//
// INVARIANT source-one-holder: a writer writes in a shard only if it held the arbiter after it opened that shard. Of
// any number of writers exactly one continues: the last that opened the arbiter. A writer that stood still while
// another one took over, finished and was dropped does not hold the arbiter, and writes nothing.
const arbiter = 1

// applyTo applies a command in one shard and waits for it. The command may be applied twice.
func (c *Client) applyTo(ctx context.Context, shard uint32, command *ebbv1.Command) (*ebbv1.CommandResult, error) {
	return c.applyRaw(ctx, shard, marshal(command))
}

func (c *Client) applyRaw(ctx context.Context, shard uint32, command []byte) (*ebbv1.CommandResult, error) {
	deadline, _ := ctx.Deadline()
	heard := make(chan loadStep, 1)
	c.dispatch([]*pendingCommand{{
		shard: shard, buf: command, ctx: ctx, deadline: deadline, made: c.now(), handler: resultChan(heard),
	}})
	select {
	case step := <-heard:
		return step.result, step.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// openSource returns the command that takes over the producer's source.
func (p *producer) openSource(token uint64) *ebbv1.Command {
	return &ebbv1.Command{
		Namespace: p.ns,
		Body:      &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: p.source, Token: token}},
	}
}

// asHolder returns a command with the identity of the source's holder. A shard refuses it if epoch is not the current
// one.
func (p *producer) asHolder(epoch uint64) *ebbv1.Command {
	return &ebbv1.Command{
		Namespace: p.ns,
		Identity:  &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: p.source, Epoch: epoch}},
	}
}

// holds checks that the arbiter has the epoch of this producer. It returns nil if so. The check is a batch without
// rows: a shard compares the epoch before it looks at the batch.
func (p *producer) holds(ctx context.Context) error {
	command := p.asHolder(p.streams[arbiter].heldEpoch())
	command.Body = &ebbv1.Command_Increments{Increments: &ebbv1.Increments{}}
	_, err := p.client.applyTo(ctx, arbiter, command)
	if err != nil && isRefusal(err) {
		return nil // refused for another reason, such as a namespace that is not there: the epoch is the current one
	}
	return err
}

func (st *shardStream) heldEpoch() uint64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.epoch
}

// hold notes the epoch that a shard gave, and the last offset that it has decided.
func (st *shardStream) hold(result *ebbv1.CommandResult) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.epoch, st.reached = result.GetEpoch(), max(st.reached, result.GetLastOffset())
}

// reach notes the last offset that the shard has acknowledged.
func (st *shardStream) reach(offset uint64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.reached = max(st.reached, offset)
}

// retryFenced handles a command of a source that a shard other than the arbiter has fenced. The other writer may
// already have lost the source at the arbiter. retryFenced returns true if it resends or settles the command.
func (c *Client) retryFenced(q *pendingCommand, fenced error) bool {
	if q.stream == nil || q.stream.producer.source == "" || q.shard == arbiter ||
		!errors.Is(fenced, proto.ErrSourceFenced) {
		return false
	}
	return c.spawn(func() {
		c.pauses.begin()
		defer c.pauses.end()
		if !c.reopenSource(q) {
			q.settle(nil, c.finalError(q, fenced))
			return
		}
		c.dispatch([]*pendingCommand{q})
	})
}

// reopenSource opens the source again in the shard of a fenced command, if this producer is its holder.
func (c *Client) reopenSource(q *pendingCommand) bool {
	ctx, cancel := context.WithTimeout(q.ctx, q.left(c.pauses.read()))
	defer cancel()
	st, p := q.stream, q.stream.producer
	if p.holds(ctx) != nil {
		return false
	}
	result, err := c.applyTo(ctx, st.shard, p.openSource(newSecret()))
	if err != nil {
		return false
	}
	st.mu.Lock()
	dropped := result.GetLastOffset() < st.reached
	st.mu.Unlock()
	if dropped || p.holds(ctx) != nil {
		return false
	}
	st.hold(result)
	q.stampSource(p.ns, p.source, st.heldEpoch())
	return true
}

// Discard removes the source from the shards after Close. It leaves out shards where another writer has opened it
// since, or where rows had been decided before this Source was opened. It is for a source that had no row counted. The
// record of refused rows is removed with it. It needs storage version 12, and changes nothing before.
func (s *Source) Discard(ctx context.Context) error {
	p := s.out.producer
	ctx, cancel := withDefaultTimeout(ctx, p.client.cfg.timeout)
	defer cancel()
	if err := p.discard(ctx, s.resume.Shards); err != nil {
		return p.client.fail(attempt{op: "discard source", key: p.source}, err)
	}
	return nil
}

// discard drops the source in those shards that this producer holds, and that had decided nothing before. The arbiter
// is first; the others follow only if the arbiter agrees.
func (p *producer) discard(ctx context.Context, before []uint64) error {
	drop := func(shard uint32) []byte {
		epoch := p.streams[shard].heldEpoch()
		if epoch == 0 || before[shard] > 0 {
			return nil
		}
		command := p.asHolder(epoch)
		command.Body = &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: p.source}}
		return marshal(command)
	}
	if raw := drop(arbiter); raw != nil {
		if _, err := p.client.applyRaw(ctx, arbiter, raw); err != nil {
			return err
		}
	}
	return p.client.applyIn(ctx, arbiter+1, drop, nil)
}
