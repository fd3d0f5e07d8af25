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
	client *Client
	ns     string
	lanes  []lane  // by shard; 0 is unused
	window int     // how far a lane's newest command may be ahead of its oldest outstanding one
	source string  // name of the ordered source; "" for sessions
	room   int     // in front of the increments of a command
	outbox *outbox // that fills the pens; nil for Increment

	ctx    context.Context // ends when the producer is abandoned
	cancel context.CancelCauseFunc

	bufs sync.Pool // of *[]byte
}

// lane is one shard of a producer: what is being written, what waits, and what
// is outstanding.
//
// Invariant "window": sequences in flight span less than producer.window, which
// is below the server's own window, so that no retry is ever too old.
// Invariant "order": a source has one command in flight, and none after one
// that was not delivered.
type lane struct {
	producer *producer
	shard    uint32

	mu      sync.Mutex // guards all below
	pen     pen
	due     bool      // the pen has lingered long enough, and goes when nothing is in flight
	waiting []*parcel // sealed, not yet sent
	flight  []*parcel // outstanding, by sequence; settled ones leave from the front
	orphans []*parcel // outstanding, of a session that has expired

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
	p := &producer{client: c, ns: ns, window: window, room: roomSession, lanes: make([]lane, shards+1)}
	p.ctx, p.cancel = context.WithCancelCause(c.ctx)
	for i := range p.lanes {
		p.lanes[i].producer, p.lanes[i].shard = p, uint32(i)
	}
	return p
}

// enlist makes Close of the client end the producer; false if it is closed.
func (c *Client) enlist(p *producer, abandon func(error)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.producers[p] = abandon
	return true
}

func (c *Client) discharge(p *producer) {
	c.mu.Lock()
	delete(c.producers, p)
	c.mu.Unlock()
	p.cancel(ErrClosed)
}

func (p *producer) lane(key string) *lane {
	return &p.lanes[proto.ShardOf(p.ns, []byte(key), uint32(len(p.lanes)-1))]
}

// buffer returns an empty buffer for a pen.
func (p *producer) buffer() []byte {
	if b, ok := p.bufs.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 0, 1<<10)
}

func (p *producer) reuse(buf []byte) { p.bufs.Put(&buf) }

// seal ends the pen's command and puts it among the waiting ones. The caller
// holds l.mu; the pen is not empty.
func (l *lane) seal(p *parcel) {
	p.shard, p.lane = l.shard, l
	p.buf, p.room = l.pen.buf, l.pen.room
	p.entries, p.merged, p.last = l.pen.entries, l.pen.merged, l.pen.last
	l.pen.reset(l.producer.buffer(), l.producer.room)
	l.waiting = append(l.waiting, p)
}

// pump sends what the lanes' windows allow.
func (p *producer) pump(lanes ...*lane) {
	var ready, dead []*parcel
	for _, l := range lanes {
		ready, dead = l.ready(ready, dead)
	}
	for _, q := range dead {
		q.delivery.delivered(q, nil, q.lane.lost(q))
	}
	if len(ready) > 0 {
		p.client.dispatch(ready)
	}
}

// ready appends the parcels that may go now, and those that are over.
func (l *lane) ready(ready, dead []*parcel) (_, _ []*parcel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.producer.client.awake.look()
	if l.due && l.idle() {
		l.producer.outbox.seal(l)
	}
	for len(l.waiting) > 0 {
		q := l.waiting[0]
		if q.settled { // recalled
			l.shift()
			continue
		}
		if l.hopelessFor(q, at) != nil {
			q.settled = true
			dead = append(dead, q)
			l.shift()
			continue
		}
		if l.span() >= l.producer.window {
			break
		}
		if l.producer.source == "" && !l.hasSession(at.now) {
			if open := l.open(q); open != nil {
				ready = append(ready, open)
			}
			break
		}
		l.shift()
		l.launch(q, at.now)
		ready = append(ready, q)
	}
	return ready, dead
}

// idle reports whether nothing waits or is outstanding. The caller holds l.mu.
func (l *lane) idle() bool { return len(l.waiting) == 0 && l.span() == 0 }

// hopelessFor says why a waiting parcel will never be sent. The caller holds l.mu.
func (l *lane) hopelessFor(q *parcel, at moment) error {
	if l.broken != nil {
		return l.broken
	}
	if l.producer.ctx.Err() != nil {
		return context.Cause(l.producer.ctx)
	}
	return q.over(at)
}

func (l *lane) shift() {
	l.waiting[0] = nil
	l.waiting = l.waiting[1:]
	if len(l.waiting) == 0 {
		l.waiting = nil
	}
}

// span is how many sequences lie between the oldest outstanding command and the next.
func (l *lane) span() int {
	for len(l.flight) > 0 && l.flight[0].settled {
		l.flight[0] = nil
		l.flight = l.flight[1:]
	}
	if len(l.flight) == 0 {
		l.flight = nil
	}
	return len(l.flight)
}

// recall takes a parcel out of the courier's hands, unless its owner has been
// told already: whoever gets true tells the owner.
func (l *lane) recall(q *parcel) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !q.settled
	q.settled = true
	return first
}

// recallAll takes back everything that waits or is outstanding.
func (l *lane) recallAll() []*parcel {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*parcel
	for _, list := range [][]*parcel{l.waiting, l.flight, l.orphans} {
		for _, q := range list {
			if !q.settled {
				q.settled = true
				out = append(out, q)
			}
		}
	}
	l.waiting = nil
	return out
}

// launch gives a parcel its identity.
func (l *lane) launch(q *parcel, now time.Time) {
	l.flight = append(l.flight, q)
	l.lastSent = now
	if l.producer.source != "" {
		q.stampSource(l.producer.ns, l.producer.source, l.epoch)
		return
	}
	q.session, q.sequence, q.secret = l.session, l.next, l.secret
	l.next++
	q.stampSession(l.producer.ns)
}

// hasSession reports whether there is a session that the shard still knows.
// One that has been idle for half its life is left to expire.
func (l *lane) hasSession(now time.Time) bool {
	if l.session == 0 {
		return false
	}
	if len(l.flight) == 0 && now.Sub(l.lastSent) > proto.SessionExpiryUS*time.Microsecond/2 {
		l.session = 0
		return false
	}
	return true
}

// open returns the command that opens a session for those who wait; nil if one
// is on its way.
func (l *lane) open(first *parcel) *parcel {
	if l.opening {
		return nil
	}
	l.opening, l.secret = true, newSecret()
	l.producer.client.meter.sessions.Add(1)
	q := &parcel{
		shard: l.shard, ctx: first.ctx, made: first.made, delivery: (*opening)(l),
		deadline: first.deadline, lenient: first.lenient, stood: first.stood,
	}
	q.buf = marshal(&ebbv1.Command{
		Namespace: l.producer.ns, Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: l.secret}},
	})
	return q
}

// newSecret draws what shows that a session, or the opening of a source, is one's own; never 0.
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

// opening hears of a lane's new session.
type opening lane

func (o *opening) delivered(_ *parcel, result *ebbv1.CommandResult, err error) {
	l := (*lane)(o)
	l.mu.Lock()
	l.opening, l.openErr = false, err
	var dead []*parcel
	if err == nil {
		l.session, l.next = result.GetSession(), 1
		l.lastSent = l.producer.client.now()
	} else {
		dead = l.hopeless(err)
	}
	l.mu.Unlock()
	for _, q := range dead {
		q.delivery.delivered(q, nil, err)
	}
	l.producer.pump(l)
}

// hopeless removes the waiting parcels that fail with the session that could not
// be opened: all, if no session ever will be; otherwise pump sorts out those
// whose time is over, and the next in line tries again.
func (l *lane) hopeless(err error) []*parcel {
	if judge(coded(err).Code) != final {
		return nil
	}
	var dead []*parcel
	for _, q := range l.waiting {
		if !q.settled {
			q.settled = true
			dead = append(dead, q)
		}
	}
	l.waiting = nil
	return dead
}

// expire handles a command whose session the shard does not know any more: one
// that was never applied goes on under a new session, one that may have been is
// given up with err.
func (l *lane) expire(q *parcel, err error) {
	l.mu.Lock()
	if q.session == l.session {
		l.orphans = slices.DeleteFunc(append(l.orphans, l.flight...), func(o *parcel) bool { return o.settled || o == q })
		l.session, l.flight = 0, nil
		l.producer.client.meter.expired.Add(1)
	}
	told := q.settled
	if q.tainted {
		q.settled = true
	} else if !told {
		l.waiting = append([]*parcel{q}, l.waiting...)
	}
	l.mu.Unlock()
	if q.tainted && !told {
		q.delivery.delivered(q, nil, err)
	}
	l.producer.pump(l)
}

// lost is the error of a parcel that was never sent.
func (l *lane) lost(q *parcel) error {
	c := l.producer.client
	l.mu.Lock()
	err := l.hopelessFor(q, c.awake.look())
	if l.openErr != nil {
		err = &outlived{err: l.openErr, end: err}
	}
	l.mu.Unlock()
	return c.fail(attempt{op: "apply", shard: l.shard, tries: q.tries, start: q.made}, err)
}

// halt stops an ordered source for good: what follows a lost command may not be
// applied, or its offset would hide the loss.
func (p *producer) halt(err error) {
	if p.source == "" {
		return
	}
	for i := range p.lanes {
		l := &p.lanes[i]
		l.mu.Lock()
		if l.broken == nil {
			l.broken = err
		}
		l.mu.Unlock()
	}
}

func marshal(cmd *ebbv1.Command) []byte {
	b, err := protobuf.Marshal(cmd)
	if err != nil {
		panic("marshal a command: " + err.Error()) // only bad UTF-8 in a name that was checked before
	}
	return b
}

// retire closes the sessions that are still open, so that the shards need not
// remember them for an hour. It is a courtesy: whatever goes wrong is ignored.
func (p *producer) retire(ctx context.Context) {
	var closing []*parcel
	var done sync.WaitGroup
	deadline, _ := ctx.Deadline()
	for i := range p.lanes {
		l := &p.lanes[i]
		l.mu.Lock()
		if l.session != 0 && l.span() == 0 {
			q := &parcel{shard: l.shard, ctx: ctx, deadline: deadline, made: p.client.now(), delivery: farewell{&done}}
			q.buf = marshal(&ebbv1.Command{
				Namespace: p.ns, Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{
					Session: l.session,
					Secret:  l.secret,
				}},
			})
			l.session = 0
			closing = append(closing, q)
		}
		l.mu.Unlock()
	}
	if len(closing) == 0 {
		return
	}
	done.Add(len(closing))
	p.client.dispatch(closing)
	done.Wait() // bounded by the deadline of its parcels
}

// farewell hears that a session is closed.
type farewell struct{ done *sync.WaitGroup }

func (f farewell) delivered(*parcel, *ebbv1.CommandResult, error) { f.done.Done() }
