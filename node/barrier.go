package node

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

const (
	// roundTimeout is the most that one confirmation of leadership may take. The reads that share it have deadlines of
	// their own.
	roundTimeout = 2 * time.Second
	// limitKept is how long rounds share a context. The last round that shares one has at least roundTimeout -
	// limitKept. A context for each round would cost 2% of the time that a busy node spends on reads.
	limitKept = roundTimeout / 4
)

// ledGroup is what a barrier asks of its group.
type ledGroup interface {
	leading() (term uint64, ok bool)
	notLeader() *proto.Error
	// committed returns the commit index.
	committed() uint64
	voters() ([]raft.ServerAddress, []string)
	// awaitTerm returns when an entry of this term has been applied here, and
	// awaitIndex when this entry has.
	awaitTerm(ctx context.Context, term uint64) error
	awaitIndex(ctx context.Context, index uint64) error
}

// confirm asks a majority of voters whether their term is still exactly term.
type confirm func(ctx context.Context, group uint32, term uint64, voters []raft.ServerAddress) error

// barrier makes reads of one group linearizable. A read that passes sees every
// write acknowledged before it began:
//
//	led in term T, an entry of T applied     so the commit index covers all earlier terms
//	index := commit index                    then
//	a majority is still in exactly term T    so no other replica led when we took the index
//	still led in T                           and
//	applied >= index
//
// Reads that come while a confirmation is in flight share the next one, since a confirmation must begin after its
// reads.
type barrier struct {
	shard   uint32
	group   ledGroup
	confirm confirm
	count   *readMetrics
	life    context.Context // ends with close
	end     context.CancelFunc
	wg      sync.WaitGroup
	limit   roundLimit // of rounds; only run uses it

	mu      sync.Mutex // guards what follows
	running bool
	next    *readRound // of the reads that wait for the running one to end; nil if none waits
	closed  bool
}

func newBarrier(shard uint32, group ledGroup, confirm confirm, count *readMetrics) *barrier {
	b := &barrier{shard: shard, group: group, confirm: confirm, count: count}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// readRound is one confirmation and the reads that share it.
type readRound struct {
	done  chan struct{} // closed when what follows is set
	index uint64
	err   error
}

// join returns a round that begins after this call.
func (b *barrier) join() *readRound {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		return b.next
	}
	r := &readRound{done: make(chan struct{})}
	switch {
	case b.closed:
		r.err = errShuttingDown(b.shard)
		close(r.done)
	case b.running:
		b.next = r
	default:
		b.running = true
		b.wg.Go(func() { b.run(r) })
	}
	return r
}

// run runs rounds until no read waits for another.
func (b *barrier) run(r *readRound) {
	for r != nil {
		b.hold(r)
		close(r.done)
		r = b.advance()
	}
}

func (b *barrier) advance() *readRound {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.next
	b.next = nil
	b.running = r != nil
	return r
}

// hold runs one round: it confirms the leadership and sets r.index or r.err.
func (b *barrier) hold(r *readRound) {
	ctx := b.limit.context(b.life)
	b.count.round()
	term, ok := b.group.leading()
	if !ok {
		r.err = b.group.notLeader()
		return
	}
	if r.err = b.group.awaitTerm(ctx, term); r.err != nil {
		return
	}
	r.index = b.group.committed()
	if voters, _ := b.group.voters(); len(voters) > 1 {
		if r.err = b.confirm(ctx, b.shard, term, voters); r.err != nil {
			return
		}
	}
	if now, ok := b.group.leading(); !ok || now != term {
		r.err = b.group.notLeader()
	}
}

// roundLimit bounds rounds that follow each other. The zero value is ready.
type roundLimit struct {
	ctx    context.Context // nil before the first round
	cancel context.CancelFunc
	until  time.Time // rounds that begin before it share ctx
}

// context returns a context that ends with life, and at the latest roundTimeout from now. At least roundTimeout -
// limitKept of its time is left.
func (l *roundLimit) context(life context.Context) context.Context {
	now := time.Now()
	if l.ctx == nil || !now.Before(l.until) {
		if l.ctx != nil {
			l.cancel()
		}
		l.ctx, l.cancel = context.WithTimeout(life, roundTimeout)
		l.until = now.Add(limitKept)
	}
	return l.ctx
}

// pass waits for the round and for its index to be applied here.
func (b *barrier) pass(ctx context.Context, r *readRound) error {
	select {
	case <-r.done:
	case <-ctx.Done():
		return errDeadline(b.shard)
	}
	if r.err != nil {
		return b.refusal(r.err)
	}
	if err := b.group.awaitIndex(ctx, r.index); err != nil {
		return errDeadline(b.shard)
	}
	return nil
}

// refusal returns a coded error for the error of a round.
func (b *barrier) refusal(err error) *proto.Error {
	e := proto.AsError(err)
	if e.Is(proto.ErrInternal) { // a deadline, or a transport that is closing
		return proto.ErrNoLeader.Errorf("shard %d: leadership could not be confirmed: %v", b.shard, err).WithShard(b.shard)
	}
	return e.WithShard(b.shard)
}

// close refuses further reads and waits for the round in flight.
func (b *barrier) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.end()
	b.wg.Wait()
}

func errDeadline(shard uint32) *proto.Error {
	return proto.ErrDeadline.Errorf("shard %d: the deadline passed while the read waited", shard).WithShard(shard)
}
