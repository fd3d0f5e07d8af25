package client

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// producer is one writer of commands with its identity in every shard.
type producer struct {
	client  *Client
	ns      string
	streams []shardStream // by shard; 0 is unused
	window  int           // how far a stream's newest command may be ahead of its oldest outstanding one
	source  string        // name of the ordered source; "" for sessions
	room    int           // bytes left free in front of the increments of a command
	outbox  *outbox       // fills the encoders; nil for Increment

	ctx    context.Context // ends when the producer is abandoned
	cancel context.CancelCauseFunc

	bufs sync.Pool // of *[]byte
}

// shardStream holds the commands of one producer for one shard: the one that is being encoded, those that wait, and
// those in flight.
//
// Invariant "window": sequences in flight span less than producer.window. That is below the server's own window, so no
// retry is ever too old.
//
// Invariant "order": a source has at most one command in flight. After a command that was not delivered it sends no
// other.
type shardStream struct {
	producer *producer
	shard    uint32

	mu       sync.Mutex // guards all below
	encoder  commandEncoder
	due      bool              // Linger is over: the encoder's command is sent when nothing is in flight
	waiting  []*pendingCommand // finished, not yet sent
	inFlight []*pendingCommand // outstanding, by sequence; settled ones leave from the front
	orphans  []*pendingCommand // outstanding, of a session that has expired

	session  uint64 // 0: none is open
	secret   uint64 // of the session, and of one that is being opened
	next     uint64 // sequence of the next command
	opening  bool
	openErr  error // why the last one could not be opened
	lastSent time.Time

	epoch   uint64 // of a source
	reached uint64 // of a source: the last offset that the shard is known to have decided
	broken  error  // of a source: a command was lost, nothing may follow
}

func (c *Client) newProducer(ns string, window int) *producer {
	shards := c.routing.shards()
	p := &producer{client: c, ns: ns, window: window, room: roomSession, streams: make([]shardStream, shards+1)}
	p.ctx, p.cancel = context.WithCancelCause(c.ctx)
	for i := range p.streams {
		p.streams[i].producer, p.streams[i].shard = p, uint32(i)
	}
	return p
}

// registerProducer makes Close of the client call abandon. It returns false if the client is closed.
func (c *Client) registerProducer(p *producer, abandon func(error)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.producers[p] = abandon
	return true
}

func (c *Client) unregisterProducer(p *producer) {
	c.mu.Lock()
	delete(c.producers, p)
	c.mu.Unlock()
	p.cancel(ErrClosed)
}

func (p *producer) stream(key string) *shardStream {
	return &p.streams[proto.ShardOf(p.ns, []byte(key), uint32(len(p.streams)-1))]
}

// buffer returns an empty buffer for an encoder.
func (p *producer) buffer() []byte {
	if b, ok := p.bufs.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 0, 1<<10)
}

func (p *producer) reuse(buf []byte) { p.bufs.Put(&buf) }

// finishCommand ends the encoder's command and appends it to the waiting ones. The caller
// holds st.mu; the encoder is not empty.
func (st *shardStream) finishCommand(p *pendingCommand) {
	p.shard, p.stream = st.shard, st
	p.buf, p.room = st.encoder.buf, st.encoder.room
	p.entries, p.merged, p.last = st.encoder.entries, st.encoder.merged, st.encoder.last
	st.encoder.reset(st.producer.buffer(), st.producer.room)
	st.waiting = append(st.waiting, p)
}

// pump sends the commands that the streams' windows allow, and fails those that will never be sent.
func (p *producer) pump(streams ...*shardStream) {
	var ready, dead []*pendingCommand
	for _, st := range streams {
		ready, dead = st.ready(ready, dead)
	}
	for _, q := range dead {
		q.handler.handleResult(q, nil, q.stream.lost(q))
	}
	if len(ready) > 0 {
		p.client.dispatch(ready)
	}
}

// ready appends the commands that may be sent now to ready, and those that will never be sent to dead.
func (st *shardStream) ready(ready, dead []*pendingCommand) (_, _ []*pendingCommand) {
	st.mu.Lock()
	defer st.mu.Unlock()
	at := st.producer.client.pauses.read()
	if st.due && st.idle() {
		st.producer.outbox.finishCommand(st)
	}
	for len(st.waiting) > 0 {
		q := st.waiting[0]
		if q.settled { // given up
			st.shift()
			continue
		}
		if st.unsendable(q, at) != nil {
			q.settled = true
			dead = append(dead, q)
			st.shift()
			continue
		}
		if st.span() >= st.producer.window {
			break
		}
		if st.producer.source == "" && !st.hasSession(at.now) {
			if open := st.open(q); open != nil {
				ready = append(ready, open)
			}
			break
		}
		st.shift()
		st.assignIdentity(q, at.now)
		ready = append(ready, q)
	}
	return ready, dead
}

// idle reports whether nothing waits or is outstanding. The caller holds st.mu.
func (st *shardStream) idle() bool { return len(st.waiting) == 0 && st.span() == 0 }

// unsendable returns why a waiting command will never be sent; nil if it may be sent. The caller holds st.mu.
func (st *shardStream) unsendable(q *pendingCommand, at clockReading) error {
	if st.broken != nil {
		return st.broken
	}
	if st.producer.ctx.Err() != nil {
		return context.Cause(st.producer.ctx)
	}
	return q.over(at)
}

func (st *shardStream) shift() {
	st.waiting[0] = nil
	st.waiting = st.waiting[1:]
	if len(st.waiting) == 0 {
		st.waiting = nil
	}
}

// span is the number of sequences from the oldest outstanding command to the next one.
func (st *shardStream) span() int {
	for len(st.inFlight) > 0 && st.inFlight[0].settled {
		st.inFlight[0] = nil
		st.inFlight = st.inFlight[1:]
	}
	if len(st.inFlight) == 0 {
		st.inFlight = nil
	}
	return len(st.inFlight)
}

// markSettled marks a command as settled. It returns true once: the caller that gets true calls the handler.
func (st *shardStream) markSettled(q *pendingCommand) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	first := !q.settled
	q.settled = true
	return first
}

// settleAll marks as settled, and returns, all commands that wait or are in flight.
func (st *shardStream) settleAll() []*pendingCommand {
	st.mu.Lock()
	defer st.mu.Unlock()
	var out []*pendingCommand
	for _, list := range [][]*pendingCommand{st.waiting, st.inFlight, st.orphans} {
		for _, q := range list {
			if !q.settled {
				q.settled = true
				out = append(out, q)
			}
		}
	}
	st.waiting = nil
	return out
}

// assignIdentity gives a command its identity.
func (st *shardStream) assignIdentity(q *pendingCommand, now time.Time) {
	st.inFlight = append(st.inFlight, q)
	st.lastSent = now
	if st.producer.source != "" {
		q.stampSource(st.producer.ns, st.producer.source, st.epoch)
		return
	}
	q.session, q.sequence, q.secret = st.session, st.next, st.secret
	st.next++
	q.stampSession(st.producer.ns)
}

// hasSession reports whether the stream has a session that the shard still keeps. It drops a session that was idle for
// half of its lifetime; the session then expires in the shard.
func (st *shardStream) hasSession(now time.Time) bool {
	if st.session == 0 {
		return false
	}
	if len(st.inFlight) == 0 && now.Sub(st.lastSent) > proto.SessionExpiryUS*time.Microsecond/2 {
		st.session = 0
		return false
	}
	return true
}

// open returns the command that opens a session for the waiting commands. It returns nil if such a command is in
// flight.
func (st *shardStream) open(first *pendingCommand) *pendingCommand {
	if st.opening {
		return nil
	}
	st.opening, st.secret = true, newSecret()
	st.producer.client.meter.sessions.Add(1)
	q := &pendingCommand{
		shard: st.shard, ctx: first.ctx, made: first.made, handler: (*openSessionHandler)(st),
		deadline: first.deadline, excludesPauses: first.excludesPauses, pausedBefore: first.pausedBefore,
	}
	q.buf = marshal(&ebbv1.Command{
		Namespace: st.producer.ns, Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: st.secret}},
	})
	return q
}

// newSecret draws the number, never 0, that proves who owns a session, or who opened a source.
func newSecret() uint64 {
	secret := uint64(0)
	for secret == 0 {
		var drawn [8]byte
		_, _ = rand.Read(drawn[:]) // it never fails: the process ends instead
		for _, b := range drawn {
			secret = secret<<8 | uint64(b)
		}
	}
	return secret
}

// openSessionHandler handles the result of opening a stream's session.
type openSessionHandler shardStream

func (o *openSessionHandler) handleResult(_ *pendingCommand, result *ebbv1.CommandResult, err error) {
	st := (*shardStream)(o)
	st.mu.Lock()
	st.opening, st.openErr = false, err
	var dead []*pendingCommand
	if err == nil {
		st.session, st.next = result.GetSession(), 1
		st.lastSent = st.producer.client.now()
	} else {
		dead = st.failWaiting(err)
	}
	st.mu.Unlock()
	for _, q := range dead {
		q.handler.handleResult(q, nil, err)
	}
	st.producer.pump(st)
}

// failWaiting is called when a session could not be opened. If no session can ever be opened, it removes and returns
// all waiting commands, which fail. Otherwise pump removes the expired commands, and the next waiting command tries
// again.
func (st *shardStream) failWaiting(err error) []*pendingCommand {
	if classify(coded(err).Code) != final {
		return nil
	}
	var dead []*pendingCommand
	for _, q := range st.waiting {
		if !q.settled {
			q.settled = true
			dead = append(dead, q)
		}
	}
	st.waiting = nil
	return dead
}

// expire handles a command whose session the shard no longer keeps. A command that was never applied continues under a
// new session. A command that may have been applied is given up with err.
func (st *shardStream) expire(q *pendingCommand, err error) {
	st.mu.Lock()
	if q.session == st.session {
		st.orphans = slices.DeleteFunc(append(st.orphans, st.inFlight...), func(o *pendingCommand) bool {
			return o.settled || o == q
		})
		st.session, st.inFlight = 0, nil
		st.producer.client.meter.expired.Add(1)
	}
	told := q.settled
	if q.maybeApplied {
		q.settled = true
	} else if !told {
		st.waiting = append([]*pendingCommand{q}, st.waiting...)
	}
	st.mu.Unlock()
	if q.maybeApplied && !told {
		q.handler.handleResult(q, nil, err)
	}
	st.producer.pump(st)
}

// lost is the error of a command that was never sent.
func (st *shardStream) lost(q *pendingCommand) error {
	c := st.producer.client
	st.mu.Lock()
	err := st.unsendable(q, c.pauses.read())
	if st.openErr != nil {
		err = &contextEnded{err: st.openErr, end: err}
	}
	st.mu.Unlock()
	return c.fail(attempt{op: "apply", shard: st.shard, tries: q.tries, start: q.made}, err)
}

// halt stops an ordered source for good after a lost command. No later command may be applied: its offset would hide
// the loss.
func (p *producer) halt(err error) {
	if p.source == "" {
		return
	}
	for i := range p.streams {
		st := &p.streams[i]
		st.mu.Lock()
		if st.broken == nil {
			st.broken = err
		}
		st.mu.Unlock()
	}
}

func marshal(cmd *ebbv1.Command) []byte {
	b, err := protobuf.Marshal(cmd)
	if err != nil {
		panic("marshal a command: " + err.Error()) // only bad UTF-8 in a name that was checked before
	}
	return b
}

// closeSessions closes the sessions that are still open, so that the shards need not
// remember them for an hour. It ignores errors.
func (p *producer) closeSessions(ctx context.Context) {
	var closing []*pendingCommand
	var done sync.WaitGroup
	deadline, _ := ctx.Deadline()
	for i := range p.streams {
		st := &p.streams[i]
		st.mu.Lock()
		if st.session != 0 && st.span() == 0 {
			q := &pendingCommand{
				shard: st.shard, ctx: ctx, deadline: deadline, made: p.client.now(),
				handler: closeSessionHandler{&done},
			}
			q.buf = marshal(&ebbv1.Command{
				Namespace: p.ns, Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{
					Session: st.session,
					Secret:  st.secret,
				}},
			})
			st.session = 0
			closing = append(closing, q)
		}
		st.mu.Unlock()
	}
	if len(closing) == 0 {
		return
	}
	done.Add(len(closing))
	p.client.dispatch(closing)
	done.Wait() // bounded by the deadline of its commands
}

// closeSessionHandler counts closed sessions.
type closeSessionHandler struct{ done *sync.WaitGroup }

func (f closeSessionHandler) handleResult(*pendingCommand, *ebbv1.CommandResult, error) {
	f.done.Done()
}
