package transport

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

// verdict is a voter's answer.
type verdict uint8

const (
	unreached verdict = iota
	denied
	confirmed
)

// barrier is one ReadIndex call. It ends when its result is certain.
type barrier struct {
	done chan struct{} // closed when the result is set
	more chan struct{} // closed when a voter does not confirm, or is late: other voters are asked then

	mu      sync.Mutex // guards what follows
	need    int        // confirmations that are still missing
	spare   int        // voters that may still fail
	denials int
	hedged  bool
	ended   bool
	ok      bool
}

// newBarrier makes the barrier of a group with this number of voters.
func newBarrier(voters int) *barrier {
	need := voters/2 + 1
	return &barrier{done: make(chan struct{}), more: make(chan struct{}), need: need, spare: voters - need}
}

// vote counts one voter's answer.
func (b *barrier) vote(v verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	switch v {
	case confirmed:
		b.need--
	case denied:
		b.denials++
		b.spare--
	case unreached:
		b.spare--
	}
	if v != confirmed {
		b.hedge()
	}
	if b.need <= 0 || b.spare < 0 {
		b.ended, b.ok = true, b.need <= 0
		close(b.done)
	}
}

// late notes that a voter has not answered for a while.
func (b *barrier) late() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hedge()
}

// hedge triggers the questions to the other voters. b.mu is held.
func (b *barrier) hedge() {
	if !b.hedged {
		b.hedged = true
		close(b.more)
	}
}

// err returns the result, after done.
func (b *barrier) err(group uint32, term uint64, voters int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ok:
		return nil
	case b.denials > 0:
		return proto.ErrNotLeader.Errorf("shard %d: a voter has left term %d", group, term).WithShard(group)
	}
	return proto.ErrNoLeader.Errorf("shard %d: no majority of %d voters confirmed term %d", group, voters, term).WithShard(group)
}

// ReadIndex confirms that this node led the group in this term at some moment after the call began. A majority of
// voters, each asked after that moment, must answer that its term is exactly this one and that it is the replica that
// its address names. A voter on this node is asked as well. All barriers that wait for the same peer share one message.
//
// At first ReadIndex asks only as many voters as make a majority, always the same ones, so that the reads of all groups
// share messages. It asks the others when one of these does not confirm, or is late.
//
// An error means that leadership is not confirmed: ErrNotLeader if a voter denied it, ErrNoLeader if too few voters
// answered, the error of ctx, or raft.ErrTransportShutdown if the Mux closed.
func (m *Mux) ReadIndex(ctx context.Context, group uint32, term uint64, voters []raft.ServerAddress) error {
	n := len(voters)
	if n == 0 {
		return proto.ErrNoLeader.Errorf("shard %d: no voters", group).WithShard(group)
	}
	first, err := m.electorate(group, term, voters)
	if err != nil {
		return err
	}
	b := newBarrier(n)
	var rest []elector
	if need := b.need; !slices.ContainsFunc(first[:need], elector.late) {
		first, rest = first[:need], first[need:]
	}
	m.poll(b, first)
	if len(rest) > 0 {
		select {
		case <-b.done:
			return b.err(group, term, n)
		case <-b.more:
		case <-ctx.Done():
			return ctx.Err()
		case <-m.ctx.Done():
			return raft.ErrTransportShutdown
		}
		m.poll(b, rest)
	}
	select {
	case <-b.done:
		return b.err(group, term, n)
	case <-ctx.Done():
		return ctx.Err()
	case <-m.ctx.Done():
		return raft.ErrTransportShutdown
	}
}

// elector is a voter that may be asked.
type elector struct {
	node string
	peer *peer // nil on this node, and if the Mux is closed
	ask  ask
}

func (e elector) late() bool { return e.peer != nil && e.peer.reads.late.Load() }

// electorate returns the voters in the order in which to ask them: this node, then the others by name, beginning after
// this node's name.
func (m *Mux) electorate(group uint32, term uint64, voters []raft.ServerAddress) ([]elector, error) {
	order, err := m.order(group, voters)
	if err != nil {
		return nil, err
	}
	all := slices.Clone(order)
	for i := range all {
		all[i].ask.term = term
		if all[i].node != m.cfg.Node {
			all[i].peer = m.peer(all[i].node)
		}
	}
	return all, nil
}

// pollOrder is the voters of a group in the order in which to ask them, without term and peers. It is immutable.
type pollOrder struct {
	voters   []raft.ServerAddress
	electors []elector
}

// order returns the order of voters, from the cache if they have not changed. The caller must not write to it.
func (m *Mux) order(group uint32, voters []raft.ServerAddress) ([]elector, error) {
	g := m.group(group)
	if g == nil {
		return m.orderOf(group, voters)
	}
	o := g.order.Load()
	if o == nil || !slices.Equal(o.voters, voters) {
		electors, err := m.orderOf(group, voters)
		if err != nil {
			return nil, err
		}
		o = &pollOrder{voters: slices.Clone(voters), electors: electors}
		g.order.Store(o)
	}
	return o.electors, nil
}

func (m *Mux) orderOf(group uint32, voters []raft.ServerAddress) ([]elector, error) {
	all := make([]elector, len(voters))
	for i, v := range voters {
		node, replica, err := ParseAddress(v)
		if err != nil {
			return nil, proto.ErrInternal.Errorf("shard %d: %v", group, err).WithShard(group)
		}
		if slices.Contains(voters[:i], v) {
			return nil, proto.ErrInternal.Errorf("shard %d: voter %s is named twice", group, v).WithShard(group)
		}
		all[i] = elector{node: node, ask: ask{group: group, replica: replica}}
	}
	slices.SortFunc(all, func(x, y elector) int {
		if xb, yb := x.node < m.cfg.Node, y.node < m.cfg.Node; xb != yb {
			if yb {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.node, y.node)
	})
	return all, nil
}

// poll asks voters.
func (m *Mux) poll(b *barrier, voters []elector) {
	for _, e := range voters {
		if e.node == m.cfg.Node {
			b.vote(m.confirm(e.ask))
		} else if e.peer == nil || !e.peer.reads.add(e.ask, b) {
			b.vote(unreached)
		}
	}
}

// confirm answers a question to a replica of this node.
func (m *Mux) confirm(a ask) verdict {
	h := m.readIndex.Load()
	g := m.group(a.group)
	if h == nil || g == nil || g.replica != a.replica || !(*h)(a.group, a.replica, a.term) {
		return denied
	}
	return confirmed
}

// round is one message of questions to one peer.
type round struct {
	id      uint64
	asks    []ask
	waiting [][]*barrier // by ask
	index   map[ask]int
	reply   chan []verdict // receives the answer
}

// readQueue holds the questions of read barriers to one peer.
//
// A barrier joins only the round that is forming. A round is sent as soon as the one before is answered, and no barrier
// joins it after that. This makes sharing safe: every answer was requested after each of its barriers began.
type readQueue struct {
	wake chan struct{} // holds a token when forming is not nil
	late atomic.Bool   // the last round took longer than a hedge

	mu      sync.Mutex // guards what follows
	forming *round
	sent    *round // the round under way
	ids     uint64
	closed  bool
}

func newReadQueue() readQueue { return readQueue{wake: make(chan struct{}, 1)} }

// add adds a barrier's question to the forming round; it returns false after close.
func (q *readQueue) add(a ask, b *barrier) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if q.forming == nil {
		q.ids++
		q.forming = &round{id: q.ids, index: map[ask]int{}, reply: make(chan []verdict, 1)}
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
	r := q.forming
	i, ok := r.index[a]
	if !ok {
		i = len(r.asks)
		r.index[a] = i
		r.asks = append(r.asks, a)
		r.waiting = append(r.waiting, nil)
	}
	r.waiting[i] = append(r.waiting[i], b)
	if q.late.Load() {
		b.late() // delay may have just run
	}
	return true
}

// take closes the forming round to new barriers and makes it the round under way.
func (q *readQueue) take() *round {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sent, q.forming = q.forming, nil
	return q.sent
}

// deliver passes an answer to the round under way. The answer to an earlier round, which was given up, is ignored.
func (q *readQueue) deliver(t *askReply) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.sent
	if r == nil || r.id != t.round || len(r.asks) != t.n {
		return
	}
	q.sent = nil
	verdicts := make([]verdict, t.n)
	for i := range verdicts {
		verdicts[i] = denied
		if t.ok(i) {
			verdicts[i] = confirmed
		}
	}
	r.reply <- verdicts
}

// delay marks the peer as late for all barriers that wait for it.
func (q *readQueue) delay() {
	q.late.Store(true)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range []*round{q.sent, q.forming} {
		if r == nil {
			continue
		}
		for _, barriers := range r.waiting {
			for _, b := range barriers {
				b.late()
			}
		}
	}
}

// giveUp drops the round under way.
func (q *readQueue) giveUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sent = nil
}

func (q *readQueue) close() *round {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	r := q.forming
	q.forming = nil
	return r
}

// end gives every barrier of the round its verdict; unreached if verdicts is nil.
func (r *round) end(verdicts []verdict) {
	for i, barriers := range r.waiting {
		v := unreached
		if verdicts != nil {
			v = verdicts[i]
		}
		for _, b := range barriers {
			b.vote(v)
		}
	}
}

// runReads sends rounds of questions to the peer, one at a time.
func (p *peer) runReads() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	hedge := time.AfterFunc(time.Hour, p.reads.delay) // runs while a round is under way
	hedge.Stop()
	for {
		select {
		case <-p.reads.wake:
		case <-p.ctx.Done():
			if r := p.reads.close(); r != nil {
				r.end(nil)
			}
			return
		}
		timer.Reset(p.mux.cfg.ReadIndexTimeout)
		hedge.Reset(p.mux.cfg.ReadIndexHedge)
		answered := p.readRound(timer.C)
		if hedge.Stop() && answered {
			p.reads.late.Store(false)
		}
		timer.Stop()
	}
}

// readRound sends one round and waits for its answer. Barriers may join until there is a session to send on. It reports
// whether the peer answered.
func (p *peer) readRound(timer <-chan time.Time) (answered bool) {
	s, err := p.session(timer, nil)
	r := p.reads.take()
	if err != nil || len(r.asks) == 0 {
		p.reads.giveUp()
		r.end(nil)
		return false
	}
	var verdicts []verdict
	if s.post(func(b []byte) []byte { return appendAsks(b, r.id, r.asks) }) {
		select {
		case verdicts = <-r.reply:
		case <-timer:
		case <-s.broken:
		}
	}
	p.reads.giveUp()
	r.end(verdicts)
	return verdicts != nil
}
