// Package budget bounds the memory that answers take at a time: the answers of one request, and those of all requests
// of a node.
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
	// A node's memory limit divided by poolShare is what answers may take. poolLeast is the least, and poolDefault
	// applies without a limit.
	poolShare   = 4
	poolLeast   = 64 << 20
	poolDefault = 1 << 30
	// waitMax is how long a request waits for room. A request that already holds answers waits only heldWaitMax,
	// because others may wait for the memory that it holds.
	waitMax     = time.Second
	heldWaitMax = 100 * time.Millisecond
	// retryAfter is the retry time for a caller that found no room.
	retryAfter = 250 * time.Millisecond
	// collectEvery is how often a pool without room runs the garbage collector. If a connection broke, its unsent
	// answers keep their bytes until the collector finds them.
	collectEvery = 2 * time.Second
	// smallShare bounds a small charge: the size of the pool divided by it. passedMax is how many waiters are searched
	// for small charges.
	smallShare = 64
	passedMax  = 64
)

// Pool bounds how many bytes of memory all requests of a node may take together. A request that finds no room waits for
// it, first come first served. Small charges that fit pass a large one that does not fit, until it has waited for half
// of its time. From then on, bytes that are given back are kept for the large charge. A nil Pool has no limit and
// counts nothing.
//
// Pool does not allocate the memory that it counts. A request charges an upper bound before it builds an answer, and
// gives back what the answer did not take. It gives back the rest when the answer has left the node.
type Pool struct {
	what string // as errors name it
	size int64

	used    atomic.Int64
	waiting atomic.Int64 // entries of queue

	mu    sync.Mutex // guards queue
	queue []*waiter

	waits, refusals atomic.Uint64

	collect   func() // nil: the collector is not run
	collected atomic.Int64
}

// CollectWith sets the function that runs the garbage collector when there is no room, every two seconds at most. Call
// it before the pool is used.
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
	passed  time.Time     // until when small charges may pass this one
}

// New returns a pool of size bytes. Errors use the word in what for the data that takes them, such as "answers".
func New(what string, size int64) *Pool { return &Pool{what: what, size: size} }

// SizeFor returns the size of the pool of answers for a process with a memory limit in bytes; 0 is no limit.
func SizeFor(limit int64) int64 {
	if limit <= 0 {
		return poolDefault
	}
	return max(limit/poolShare, poolLeast)
}

// Size returns the size of the pool in bytes; 0 for a nil pool.
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

// take takes n bytes if they are free, and if no request waits or n may pass those that do.
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

// grant serves the queue from its head, as far as there is room, and then the small charges that may pass the head.
// p.mu is held.
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

// await waits for n bytes, at most for d and until ctx ends.
func (p *Pool) await(ctx context.Context, n int64, d time.Duration) *proto.Error {
	w := &waiter{n: n, granted: make(chan struct{}), passed: time.Now().Add(d / 2)}
	p.mu.Lock()
	p.queue = append(p.queue, w)
	p.waiting.Add(1)
	p.grant() // bytes may have been released since take, when no waiter was in the queue
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
			p.grant() // the next waiter may need fewer bytes
			return true
		}
	}
	return false
}

// Acquire takes n bytes. The caller gives them back with Release. Acquire waits a second at most, and no longer than
// ctx; then it returns OVERLOADED with a retry time.
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

// Request counts the bytes that the answers of one request take from a pool. Several goroutines may use it. A nil
// Request has no limit and counts nothing.
type Request struct {
	pool   *Pool
	parent *Request // if not nil, bytes are taken from it instead of the pool
	limit  int64    // bytes that the request may hold at a time
	answer int64    // bytes that its finished answers may hold; 0: no separate limit

	mu     sync.Mutex // guards what follows
	used   int64      // includes the bytes it waits for
	taken  int64      // from the pool or the parent
	wholes int64      // part of taken: finished answers
	over   bool       // an answer did not fit: from then on only answers that surely fit are built
	closed bool
}

// Begin returns the budget of a request. answer is how many bytes of memory its finished answers may take; 0 means no
// separate limit.
func (p *Pool) Begin(answer int64) *Request {
	if p == nil {
		return nil
	}
	return &Request{pool: p, limit: min(RequestMax, p.size/2), answer: answer}
}

// errOver is the error of a charge to a request that has ended.
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

// Try is Charge without waiting: it returns false where Charge would wait or fail.
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

// giveBack returns bytes to the parent or the pool. r.mu is held.
func (r *Request) giveBack(n int64) {
	if r.parent != nil {
		r.parent.Refund(int(n))
	} else {
		r.pool.release(n)
	}
}

// Refund gives back n bytes that were charged and are no longer used.
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

// Finished notes that n of the charged bytes are a finished answer. It returns RESPONSE_TOO_LARGE when finished answers
// take more than the request's limit for them. The caller then drops the answer and gives the bytes back.
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

// Limit limits the finished answers of a stage to what the request of has left for them. It is for stages whose answers
// are answers of the request.
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

// Nested returns a budget for a stage of the request. The request is charged for all that the stage charges, and Close
// gives it back together.
func (r *Request) Nested() *Request {
	if r == nil {
		return nil
	}
	return &Request{parent: r}
}

// Close gives back all bytes that are taken. Later charges are refused.
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

// Stage begins a stage of a request. It returns the stage's context and budget; the caller closes the budget. If the
// request has no budget, the context stays the same and the budget is nil.
func Stage(ctx context.Context) (context.Context, *Request) {
	r := From(ctx).Nested()
	return With(ctx, r), r
}
