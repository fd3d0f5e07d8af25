// Package budget bounds the memory that answers take: those of one request, and those of all requests of a node at a
// time.
package budget

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto"
)

const (
	// RequestMax is the most bytes of memory that the answers of one request take at a time. On a node with little
	// memory it is half of the pool.
	RequestMax = 256 << 20
	// poolShare is the part of a node's memory limit that answers may take, poolLeast the least, and poolDefault what
	// they take without a limit.
	poolShare   = 4
	poolLeast   = 64 << 20
	poolDefault = 1 << 30
	// waitMax is how long a request waits for room. One that holds answers already waits for heldWaitMax: others may
	// wait for what it holds.
	waitMax     = time.Second
	heldWaitMax = 100 * time.Millisecond
	// retryAfter is the retry time for a caller that found no room.
	retryAfter = 250 * time.Millisecond
	// collectEvery is how often a pool without room looks for answers that will never be sent. Only the garbage
	// collector finds what a connection had to send when it broke.
	collectEvery = 2 * time.Second
	// smallShare is the part of a pool up to which a charge is small, and passedMax how many waiters are looked at for
	// small ones.
	smallShare = 64
	passedMax  = 64
)

// Pool is how many bytes of memory something may take on a node at a time, over all requests. A request that finds no
// room waits for it, first come first served. Small charges that fit pass a large one that does not, until it has
// waited for half of its time: what is given back from then on is kept for it. A nil Pool has no limit and counts
// nothing.
//
// Nothing here allocates what is counted. A request charges an upper bound before it builds an answer, gives back what
// the answer did not take, and gives back the rest when the answer has left the node.
type Pool struct {
	what string // as errors name it
	size int64

	used    atomic.Int64
	waiting atomic.Int64 // entries of queue

	mu    sync.Mutex // guards queue
	queue []*waiter

	waits, refusals atomic.Uint64

	collect   func() // nil: nothing is looked for
	collected atomic.Int64
}

// CollectWith has the pool run the garbage collector when there is no room, every two seconds at most. It is to be
// called before the pool is used.
func (p *Pool) CollectWith(collect func()) { p.collect = collect }

// collectGarbage runs the garbage collector, unless it did so a short time ago.
func (p *Pool) collectGarbage() {
	now, last := time.Now().UnixNano(), p.collected.Load()
	if p.collect != nil && now-last >= int64(collectEvery) && p.collected.CompareAndSwap(last, now) {
		p.collect()
	}
}

// waiter is a request that waits for room.
type waiter struct {
	n       int64
	granted chan struct{} // closed under the pool's lock when n bytes are its own
	passed  time.Time     // until when small charges may pass it
}

// New returns a pool of size bytes. what names in errors what takes them: "answers".
func New(what string, size int64) *Pool { return &Pool{what: what, size: size} }

// SizeFor returns the size of the pool of answers for a process that may take limit bytes; 0 is no limit.
func SizeFor(limit int64) int64 {
	if limit <= 0 {
		return poolDefault
	}
	return max(limit/poolShare, poolLeast)
}

// Size returns how many bytes there are; 0 of a nil pool.
func (p *Pool) Size() int64 {
	if p == nil {
		return 0
	}
	return p.size
}

// Used returns how many bytes are taken.
func (p *Pool) Used() int64 {
	if p == nil {
		return 0
	}
	return p.used.Load()
}

// Waits returns how often a request had to wait for room.
func (p *Pool) Waits() uint64 { return p.waits.Load() }

// Waiting returns how many requests wait for room.
func (p *Pool) Waiting() int { return int(p.waiting.Load()) }

// Refusals returns how often a request found no room.
func (p *Pool) Refusals() uint64 { return p.refusals.Load() }

// take takes n bytes if they are free, and either no request waits or these may pass it.
func (p *Pool) take(n int64) bool {
	if p.waiting.Load() > 0 && !p.mayPass(n) {
		return false
	}
	return p.addUsed(n)
}

// mayPass reports whether a charge may pass the first one that waits.
func (p *Pool) mayPass(n int64) bool {
	if n > p.size/smallShare {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) == 0 || p.smallMayPass()
}

// smallMayPass reports whether small charges may pass the first one that waits. p.mu is held.
func (p *Pool) smallMayPass() bool {
	first := p.queue[0]
	return first.n > p.size/smallShare && time.Now().Before(first.passed)
}

// addUsed takes n bytes if they are free.
func (p *Pool) addUsed(n int64) bool {
	for {
		used := p.used.Load()
		if used+n > p.size {
			return false
		}
		if p.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

func (p *Pool) release(n int64) {
	if n == 0 {
		return
	}
	p.used.Add(-n)
	if p.waiting.Load() > 0 {
		p.mu.Lock()
		p.grant()
		p.mu.Unlock()
	}
}

// grant serves the queue from its head, as far as there is room, and then small charges that may pass the head. p.mu is
// held.
func (p *Pool) grant() {
	for len(p.queue) > 0 && p.addUsed(p.queue[0].n) {
		close(p.queue[0].granted)
		p.queue = p.queue[1:]
		p.waiting.Add(-1)
	}
	if len(p.queue) < 2 || !p.smallMayPass() {
		return
	}
	for i := 1; i < min(len(p.queue), passedMax); {
		w := p.queue[i]
		if w.n > p.size/smallShare {
			i++
			continue
		}
		if !p.addUsed(w.n) {
			return
		}
		close(w.granted)
		p.queue = append(p.queue[:i:i], p.queue[i+1:]...)
		p.waiting.Add(-1)
	}
}

// await waits for n bytes: no longer than d, and than ctx lasts.
func (p *Pool) await(ctx context.Context, n int64, d time.Duration) *proto.Error {
	w := &waiter{n: n, granted: make(chan struct{}), passed: time.Now().Add(d / 2)}
	p.mu.Lock()
	p.queue = append(p.queue, w)
	p.waiting.Add(1)
	p.grant() // a release between take and here has seen no waiter
	p.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	default:
	}
	p.waits.Add(1)
	p.collectGarbage()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.granted:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	if !p.dequeue(w) {
		return nil
	}
	p.refusals.Add(1)
	err := proto.ErrOverloaded.Errorf("%s take %d of the %d bytes that this node has for them, and %d more are needed", p.what, p.Used(), p.size, n).
		WithHint("try again in a moment, or ask for less at once")
	err.RetryAfterUS = retryAfter.Microseconds()
	return err
}

// dequeue removes a waiter from the queue. It returns false if the bytes were granted.
func (p *Pool) dequeue(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.queue {
		if other == w {
			p.queue = append(p.queue[:i:i], p.queue[i+1:]...)
			p.waiting.Add(-1)
			p.grant() // the next may need less
			return true
		}
	}
	return false
}

// Acquire takes n bytes for a caller that keeps count itself and gives them back with Release. It waits for a second at
// most, and no longer than ctx lasts; then it returns OVERLOADED with a retry time.
func (p *Pool) Acquire(ctx context.Context, n int64) *proto.Error {
	if p == nil || p.take(n) {
		return nil
	}
	return p.await(ctx, n, waitMax)
}

// Release gives back n bytes that Acquire took.
func (p *Pool) Release(n int64) {
	if p != nil {
		p.release(n)
	}
}

// Request is what the answers of one request take of a pool. It is for concurrent use. A nil Request has no limit and
// counts nothing.
type Request struct {
	pool   *Pool
	parent *Request // instead of a pool: what is taken is taken from it
	limit  int64    // bytes that it may hold at a time
	answer int64    // bytes that its finished answers may hold; 0: no limit of their own

	mu     sync.Mutex // guards what follows
	used   int64      // with what it waits for
	taken  int64      // from the pool or the parent
	wholes int64      // of taken: finished answers
	over   bool       // an answer did not fit: from then on none is built that may not
	closed bool
}

// Begin returns the budget of a request. answer is how many bytes of memory its finished answers may take; 0 is no
// limit of their own.
func (p *Pool) Begin(answer int64) *Request {
	if p == nil {
		return nil
	}
	return &Request{pool: p, limit: min(RequestMax, p.size/2), answer: answer}
}

// errOver is for who asks for room for a request that has ended.
var errOver = proto.ErrDeadline.Errorf("the request is over")

// Charge takes n bytes before they are allocated. It may wait. It returns RESPONSE_TOO_LARGE when the request would
// hold more than one request may, and OVERLOADED with a retry time when the node finds no room.
func (r *Request) Charge(ctx context.Context, n int) *proto.Error {
	if r == nil || n <= 0 {
		return nil
	}
	held, err := r.reserve(int64(n))
	if err != nil {
		return err
	}
	switch {
	case r.parent != nil:
		err = r.parent.Charge(ctx, n)
	case !r.pool.take(int64(n)):
		wait := waitMax
		if held > 0 {
			wait = heldWaitMax
		}
		err = r.pool.await(ctx, int64(n), wait)
	}
	return r.settle(int64(n), err)
}

// Try is Charge for who cannot wait: it returns false where Charge would wait or fail.
func (r *Request) Try(n int) bool {
	if r == nil || n <= 0 {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checkRoom(int64(n)) != nil {
		return false
	}
	if r.parent != nil && !r.parent.Try(n) || r.parent == nil && !r.pool.take(int64(n)) {
		return false
	}
	r.used += int64(n)
	r.taken += int64(n)
	return true
}

// checkRoom returns why n more bytes cannot be charged; nil if they can. r.mu is held.
func (r *Request) checkRoom(n int64) *proto.Error {
	switch {
	case r.closed:
		return errOver
	case r.parent == nil && r.used+n > r.limit:
		return TooLarge(r.limit)
	case r.over && r.wholes+n > r.answer:
		return TooLarge(r.answer)
	}
	return nil
}

func (r *Request) reserve(n int64) (held int64, err *proto.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkRoom(n); err != nil {
		return 0, err
	}
	r.used += n
	return r.taken, nil
}

// TooLarge is the error of a request whose answers would take more than limit bytes of memory.
func TooLarge(limit int64) *proto.Error {
	return proto.ErrResponseTooLarge.Errorf("the answers of the request take more than %d bytes of memory, which is the limit", limit).
		WithHint("ask fewer questions at once, for the top n bins, or for fewer keys")
}

func (r *Request) settle(n int64, err *proto.Error) *proto.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.used -= n
	case r.closed:
		r.giveBack(n)
		return errOver
	default:
		r.taken += n
	}
	return err
}

// giveBack returns bytes to where they came from. r.mu is held.
func (r *Request) giveBack(n int64) {
	if r.parent != nil {
		r.parent.Refund(int(n))
	} else {
		r.pool.release(n)
	}
}

// Refund gives back n bytes that were charged and are not taken any more.
func (r *Request) Refund(n int) {
	if r == nil || n <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	m := min(int64(n), r.taken)
	r.taken -= m
	r.used -= m
	r.giveBack(m)
}

// Finished notes that n bytes of what was charged are a finished answer. It returns RESPONSE_TOO_LARGE when finished
// answers take more than the request's limit for them: the caller then drops the answer and gives the bytes back.
func (r *Request) Finished(n int) *proto.Error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answer > 0 && r.wholes+int64(n) > r.answer {
		r.over = true
		return TooLarge(r.answer)
	}
	r.wholes += int64(n)
	return nil
}

// Limit gives a stage whose answers are those of the request the room that the request has left for finished answers.
func (r *Request) Limit(of *Request) {
	if r == nil || of.answer == 0 {
		return
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	r.answer = max(of.answer-of.wholes, 1)
}

// Full returns RESPONSE_TOO_LARGE when there is no room left for another finished answer.
func (r *Request) Full() *proto.Error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answer > 0 && r.wholes >= r.answer {
		return TooLarge(r.answer)
	}
	return nil
}

func (r *Request) top() *Request {
	for r.parent != nil {
		r = r.parent
	}
	return r
}

// Left returns how many bytes the request may still charge.
func (r *Request) Left() int {
	top := r.top()
	top.mu.Lock()
	defer top.mu.Unlock()
	return int(top.limit - top.used)
}

// Held returns how many bytes the request holds.
func (r *Request) Held() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return int(r.taken)
}

// Nested returns a budget for a stage of the request: what the stage charges, the request does, and Close gives it back
// together.
func (r *Request) Nested() *Request {
	if r == nil {
		return nil
	}
	return &Request{parent: r}
}

// Close gives back all that is taken. What is charged later is refused.
func (r *Request) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.giveBack(r.taken)
		r.taken, r.used = 0, 0
	}
}

type key struct{}

// With returns a context that carries the budget of a request.
func With(ctx context.Context, r *Request) context.Context {
	if r == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, r)
}

// From returns the budget that a context carries; nil if it carries none.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(key{}).(*Request)
	return r
}

// Stage begins a stage of a request: its context, and its budget, which the caller closes. Both are the request's own
// when it has no budget.
func Stage(ctx context.Context) (context.Context, *Request) {
	r := From(ctx).Nested()
	return With(ctx, r), r
}
