package rpc

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/internal/cores"
	"github.com/ebbdb/ebb/proto"
)

const (
	// budgetBytesMin and budgetBytesMax bound the memory that a node gives its requests. Without a memory limit it is
	// budgetBytesDefault.
	budgetBytesMin, budgetBytesDefault, budgetBytesMax = 64 << 20, 256 << 20, 1 << 30
	// budgetShare is the part of a memory limit that requests get: one byte in so many.
	budgetShare = 8
	// budgetRetry is the delay that callers are asked to keep when the budget is spent: requests that hold it end
	// within DefaultTimeout.
	budgetRetry = 200 * time.Millisecond
)

// Budget limits how many bytes of memory requests may take at a time, while they arrive and once they are decoded. It
// covers all interfaces of a node.
//
//	used = bodies of HTTP + what has arrived over gRPC + weights of decoded requests (proto.Weigh)
//
// A request that needs more than is left is refused with OVERLOADED before memory is allocated for it. gRPC receives
// messages by itself and cannot refuse them. So their bytes are counted as they arrive (see meteredConn). When they
// exceed their share, all requests are ended that arrive on the connection that holds most of them. What they hold
// stays charged until they have released it.
//
// Arriving bytes may take at most three eighths over HTTP and as much over gRPC. So a flood of slow senders on one
// interface leaves the other its share, and a quarter is left to requests that have arrived.
//
// No request waits for space. A waiting request would hold what has arrived of it, so slow senders would keep each
// other and all others waiting. A request that is refused holds nothing, and may come again.
type Budget struct {
	limit    int64
	arrivals int64 // the most that may arrive at one interface

	used     atomic.Int64
	overHTTP atomic.Int64  // part of used: bodies that arrive
	overGRPC atomic.Int64  // part of used: what arrives
	ending   atomic.Int64  // part of overGRPC: of ended requests that have not released it yet
	ended    atomic.Uint64 // requests that were ended while they arrived
	cutOff   atomic.Uint64 // connections of gRPC that brought nothing but requests that were refused

	slots *budget.Pool // in which large messages are decoded and encoded
	large atomic.Int64 // requests that take largeRequest or more
	spare cores.Spare  // while there are many of these, or many messages wait for a slot

	awaited awaited // streams of gRPC

	mu    sync.Mutex
	conns map[*meteredConn]struct{} // of gRPC
}

// NewBudget returns a Budget for a process that may take limit bytes of memory; 0 means any number. r collects its
// metrics; none are kept when nil.
func NewBudget(limit int64, r prometheus.Registerer) *Budget {
	size := int64(budgetBytesDefault)
	if limit > 0 {
		size = min(max(limit/budgetShare, budgetBytesMin), budgetBytesMax)
	}
	b := &Budget{limit: size, arrivals: size / 8 * 3, conns: make(map[*meteredConn]struct{}), slots: newSlots()}
	if r != nil {
		b.register(r)
	}
	return b
}

func (b *Budget) register(r prometheus.Registerer) {
	registered(r, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ebb_rpc_inflight_bytes", Help: "Memory of requests that arrive or are worked on, over all doors.",
	}, func() float64 { return float64(b.used.Load()) }))
	registered(r, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ebb_rpc_inflight_limit_bytes",
		Help: "The most of it: beyond, requests are refused as OVERLOADED (EBB-1004).",
	}, func() float64 { return float64(b.limit) }))
	registered(r, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "ebb_rpc_arrivals_ended_total",
		Help: "Requests over gRPC that were ended while they arrived: memory for requests was spent.",
	}, func() float64 { return float64(b.ended.Load()) }))
	registered(r, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "ebb_rpc_connections_cut_off_total",
		Help: "Connections over gRPC that were closed: they brought only headers of requests that were refused.",
	}, func() float64 { return float64(b.cutOff.Load()) }))
	registered(r, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "ebb_rpc_slot_waits_total",
		Help: "Large messages that had to wait for a slot to be decoded or encoded in: the cores were busy.",
	}, func() float64 { return float64(b.slots.Waits()) }))
}

// take charges n bytes, or refuses with OVERLOADED.
func (b *Budget) take(n int64) error {
	for {
		used := b.used.Load()
		if used+n > b.limit {
			return b.errSpent() // without a charge in between, for which others would be refused or ended
		}
		if b.used.CompareAndSwap(used, used+n) {
			return nil
		}
	}
}

// takeBody charges n bytes of a body that arrives over HTTP, or refuses with OVERLOADED.
func (b *Budget) takeBody(n int64) error {
	if b.overHTTP.Add(n) > b.arrivals {
		b.overHTTP.Add(-n)
		return b.errSpent()
	}
	if err := b.take(n); err != nil {
		b.overHTTP.Add(-n)
		return err
	}
	return nil
}

func (b *Budget) errSpent() error {
	err := proto.ErrOverloaded.Errorf("requests in flight take the %d bytes of memory that there are for them", b.limit).
		WithHint("send it again later, or in smaller batches; a larger memory limit gives requests more")
	err.RetryAfterUS = budgetRetry.Microseconds()
	return err
}

// charge is what one request has been charged with. Without a budget it is charged nothing. It is used by one
// goroutine.
type charge struct {
	budget *Budget
	ctx    context.Context // of the request; nil in tests
	n      int64
	large  bool // it has had largeRequest, and counts as such until it ends
	forced bool // it is counted and never refused: nodes among themselves, and health
}

// add charges n bytes more, or refuses with OVERLOADED.
func (c *charge) add(n int64) error {
	if c.budget == nil || n == 0 {
		return nil
	}
	if c.forced {
		c.budget.used.Add(n)
	} else if err := c.budget.take(n); err != nil {
		return err
	}
	c.grow(n)
	return nil
}

// grow notes that n bytes more are charged. Many large requests get spare processors before any of them is
// decoded: to read and check them keeps the cores busy, too.
func (c *charge) grow(n int64) {
	c.n += n
	if !c.large && c.n >= largeRequest {
		c.large = true
		if c.budget.large.Add(1) >= spareFrom {
			c.budget.spare.Wait()
		}
	}
}

// arrives charges n bytes of a body that arrives over HTTP, or refuses with OVERLOADED.
func (c *charge) arrives(n int64) error {
	if c.budget == nil {
		return nil
	}
	if err := c.budget.takeBody(n); err != nil {
		return err
	}
	c.grow(n)
	return nil
}

// arrived notes that n of these bytes no longer count as arriving. They stay charged.
func (c *charge) arrived(n int64) {
	if c.budget != nil {
		c.budget.overHTTP.Add(-n)
	}
}

// drop releases n bytes of the charge.
func (c *charge) drop(n int64) {
	if c.budget != nil {
		c.budget.used.Add(-n)
		c.n -= n
	}
}

// end releases the whole charge.
func (c *charge) end() {
	c.drop(c.n)
	if c.large {
		c.large = false
		c.budget.large.Add(-1)
	}
}

type chargeKey struct{}

// charged returns a context in which a request over HTTP is charged, and its charge. b may be nil.
func (b *Budget) charged(ctx context.Context) (context.Context, *charge) {
	c := &charge{budget: b, ctx: ctx}
	return context.WithValue(ctx, chargeKey{}, c), c
}

// chargeOf returns what the request of a context is charged with; one without a budget if it is not.
func chargeOf(ctx context.Context) *charge {
	if c, ok := ctx.Value(chargeKey{}).(*charge); ok {
		return c
	}
	return new(charge)
}
