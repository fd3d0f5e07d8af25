package client

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Kind is what a key holds. The write that makes the key decides it.
type Kind = ebbv1.Kind

// The kinds.
const (
	// KindDistribution is the kind of a key if no other is given.
	KindDistribution = ebbv1.Kind_KIND_DISTRIBUTION
	// KindDistinct estimates how many different bins there were. In a namespace with a half-life, a bin counts less the
	// longer it was not seen. It takes up to 8 KB.
	KindDistinct = ebbv1.Kind_KIND_DISTINCT
	// KindCountMin estimates how often each of any number of bins was counted. An estimate is at most 1% of all counts
	// too high (99% of the time). It takes 11 KB.
	KindCountMin = ebbv1.Kind_KIND_COUNTMIN
	// KindQuantile estimates the quantiles of values, within 1% of the value.
	KindQuantile = ebbv1.Kind_KIND_QUANTILE
	// KindTopK finds the bins that were counted most, of any number. Its count of a bin is at most 0.1% of all counts
	// too high. Every bin with more than 0.1% of all counts is among them. It keeps up to 1,000 bins; each takes 32
	// bytes and its name.
	KindTopK = ebbv1.Kind_KIND_TOPK
	// KindLinear counts different bins. Up to 250 it is exact, and keeps which they are. Then it has a standard error
	// of 1% up to a million, in 19 KB. It has no half-life of its own: in a namespace with one, all of it is removed
	// when its latest event has faded.
	KindLinear = ebbv1.Kind_KIND_LINEAR
	// KindMorris estimates the sum of all amounts with a standard error of 1.6%. Its register has two bytes; the whole
	// key takes 64 bytes. Each event is rounded at random, so sums are right on average. Each answer includes its
	// precision.
	KindMorris = ebbv1.Kind_KIND_MORRIS
	// KindSet estimates how many different bins there were, and what it has in common with other sets (Overlap, Graph).
	// It also gives a sample of the bins. It is exact up to 1,024 bins, with a standard error of 3.1% beyond. Where the
	// namespace decays, a bin counts less the longer it was not seen.
	KindSet = ebbv1.Kind_KIND_SET
	// KindBloom answers whether a bin was there. A yes is wrong for at most 1% of the bins that were not there; a no is
	// never wrong. Without decay it grows with what it holds, from 15 KB for 10,000 bins. Keys merge if they have grown
	// alike. In a namespace with a half-life, a bin is found for one half-life after it was last seen, and is gone
	// after 1.2. The key then takes 26 KB, and is made for 10,000 bins in a half-life. Its Total assumes that every bin
	// comes once. A bin that comes again and again counts up to 8 times; Low accounts for that.
	KindBloom = ebbv1.Kind_KIND_BLOOM
	// KindString is one value of up to 128 KiB. Each write replaces it; the last write in the order of the shard's log
	// stays. It does not fade.
	KindString = ebbv1.Kind_KIND_STRING
	// KindPhrases is a set of up to 65,536 phrases of up to 256 bytes (2 MiB together), which Match finds in texts and
	// Feed counts. A phrase is a Bin; an Amount below 0 removes it. It does not fade.
	KindPhrases = ebbv1.Kind_KIND_PHRASES
	// KindBitmap is an exact set of 64-bit ids. SetBits, ClearBits, FlipBits and a BitWriter change it, and Bitmap asks
	// about it. It does not fade, and no Increment writes it.
	KindBitmap = ebbv1.Kind_KIND_BITMAP
)

// Increment is one event: it adds an amount to a bin of a distribution, or
// brings a bin or a value to a key of another kind.
type Increment struct {
	Key, Bin string
	Amount   float64   // added as it is: 0 adds nothing
	Time     time.Time // when it happened; the shard's own time when zero
	// Kind, if given, is the kind of a new key. If the key has another kind, the increment is refused with WRONG_KIND.
	Kind Kind
	// Value is the value for a KindQuantile, which counts it Amount times. Other kinds ignore it.
	Value float64
	// Text is the value of a KindString. Other kinds have none.
	Text string
}

// One is an Increment by 1 at the shard's own time.
func One(key, bin string) Increment { return Increment{Key: key, Bin: bin, Amount: 1} }

// Seen is a member for KindDistinct at the shard's own time.
func Seen(key, member string) Increment {
	return Increment{Key: key, Bin: member, Amount: 1, Kind: KindDistinct}
}

// Measured is a value for KindQuantile at the shard's own time.
func Measured(key string, value float64) Increment {
	return Increment{Key: key, Amount: 1, Kind: KindQuantile, Value: value}
}

func (in *Increment) item() item {
	return item{
		key: in.Key, bin: in.Bin, amount: in.Amount, time: microOf(in.Time),
		kind: in.Kind, value: in.Value, valued: in.Kind == KindQuantile, text: in.Text, texted: in.Kind == KindString || in.Text != "",
	}
}

// Increment applies increments to keys of a namespace, and returns when all are acknowledged. Each counts once, even if
// it is sent several times.
//
// The error of a single increment is an *Error. The error of several is an *Undelivered; the increments that it does
// not count were applied.
func (c *Client) Increment(ctx context.Context, ns string, increments ...Increment) error {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	e := &directWrite{client: c, start: c.now(), done: make(chan struct{}), single: len(increments) == 1}
	if len(increments) == 0 {
		return nil
	}
	e.key = increments[0].Key
	p, err := c.directProducer(namespaceOr(ns))
	if err == nil {
		err = e.encode(ctx, p, increments)
	}
	if err != nil {
		return e.fail(err)
	}
	e.run(ctx, p, len(increments))
	return e.outcome()
}

// directProducer returns the producer of Increment in a namespace.
func (c *Client) directProducer(ns string) (*producer, error) {
	if err := proto.CheckNamespaceName(ns); err != nil {
		return nil, err
	}
	c.mu.Lock()
	p := c.direct[ns]
	c.mu.Unlock()
	if p != nil {
		return p, nil
	}
	fresh := c.newProducer(ns, c.cfg.window)
	c.mu.Lock()
	defer c.mu.Unlock()
	if p = c.direct[ns]; p == nil {
		p = fresh
		c.direct[ns] = p
	}
	return p, nil
}

// directWrite is one call of Increment, SetBits or the like: its commands and their results.
type directWrite struct {
	client   *Client
	start    time.Time
	key      string // of the first increment
	single   bool
	op       string // "increment" when empty
	commands []*pendingCommand

	mu      sync.Mutex // guards all below
	open    int
	done    chan struct{} // closed when open is 0
	sum     flushGroup
	changed uint64 // ids of bitmaps
}

// encode writes the increments into commands, by shard. Nothing is sent if one is bad.
func (e *directWrite) encode(ctx context.Context, p *producer, increments []Increment) error {
	encoders := map[*shardStream]*commandEncoder{}
	deadline, _ := ctx.Deadline()
	finishCommand := func(st *shardStream, n *commandEncoder) {
		e.commands = append(e.commands, &pendingCommand{
			shard: st.shard, stream: st, buf: n.buf, room: n.room, entries: n.entries,
			ctx: ctx, deadline: deadline, made: e.start, handler: e,
		})
		delete(encoders, st)
	}
	for i := range increments {
		in := increments[i].item()
		if err := checkItem(&in); err != nil {
			e.key = in.key
			return err
		}
		st := p.stream(in.key)
		n := encoders[st]
		if n == nil {
			n = &commandEncoder{}
			n.reset(nil, p.room)
			encoders[st] = n
		}
		n.write(&in, nil)
		if n.entries >= proto.BatchOpsMax || len(n.buf) >= commandBytesMax {
			finishCommand(st, n)
		}
	}
	for st, n := range encoders {
		finishCommand(st, n)
	}
	return nil
}

// run sends the commands when the writeLimiter admits them, and waits until all are settled.
func (e *directWrite) run(ctx context.Context, p *producer, weight int) {
	pass, waited, end := e.client.writeLimiter.acquire(ctx, weight)
	if waited {
		e.client.meter.waited.Add(1)
	}
	if end != nil {
		e.client.meter.unsent.Add(1)
		e.sum.note(int64(weight), 0, 0, e.fail(&contextEnded{err: errNotSent(e.client.now().Sub(e.start)), end: end}))
		return
	}
	defer e.client.writeLimiter.release(pass)
	e.send(p)
	select {
	case <-e.done:
	case <-ctx.Done():
		e.giveUp(context.Cause(ctx))
	}
}

func errNotSent(waited time.Duration) error {
	return proto.ErrOverloaded.Errorf("the cluster acknowledges less than this client writes: not sent in %v",
		waited.Round(time.Millisecond)).
		WithHint("write less at once, or use a Writer; `ebb status` shows what the nodes are busy with")
}

func (e *directWrite) send(p *producer) {
	e.open = len(e.commands)
	streams := make([]*shardStream, 0, len(e.commands))
	for _, q := range e.commands {
		q.stream.mu.Lock()
		q.stream.waiting = append(q.stream.waiting, q)
		q.stream.mu.Unlock()
		streams = append(streams, q.stream)
	}
	p.pump(streams...)
}

func (e *directWrite) handleResult(q *pendingCommand, result *ebbv1.CommandResult, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err != nil && isUnknown(err):
		e.sum.note(0, int64(q.entries), 0, err)
	case err != nil:
		e.sum.note(int64(q.entries), 0, 0, err)
	default:
		e.changed += result.GetChanged()
		e.client.meter.increments.Add(int64(q.entries - len(result.GetRefused())))
	}
	for _, r := range result.GetRefused() {
		key := e.key
		if in, ok := q.increment(int(r.GetIndex())); ok && q.body == 0 {
			key = string(in.Key)
		}
		e.sum.note(0, 0, 1, e.client.fail(attempt{
			op: cmp.Or(e.op, "increment"), key: key, shard: q.shard, node: q.node, tries: q.tries, start: e.start,
		}, proto.FromWire(r.GetError())))
	}
	if e.open--; e.open == 0 {
		close(e.done)
	}
}

// giveUp gives up what is not settled when the caller's context ends.
func (e *directWrite) giveUp(end error) {
	for _, q := range e.commands {
		if q.stream.markSettled(q) {
			e.handleResult(q, nil, e.client.gaveUpError(q, end))
		}
	}
	<-e.done // another goroutine may be about to handle a command that it has settled
	for _, q := range e.commands {
		q.stream.producer.pump(q.stream) // commands that waited for their place may be sent
	}
}

// gaveUpError is the error of a command that is given up because of end.
func (c *Client) gaveUpError(q *pendingCommand, end error) error {
	if q.outcomeUnknown.Load() {
		end = &unknown{end}
	}
	return c.fail(attempt{op: "apply", shard: q.shard, start: q.made}, end)
}

func (e *directWrite) outcome() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sum.sum.Err == nil {
		return nil
	}
	if e.single {
		return e.fail(e.sum.sum.Err)
	}
	return &e.sum.sum
}

func (e *directWrite) fail(err error) error {
	failed := e.client.fail(attempt{op: cmp.Or(e.op, "increment"), key: e.key, start: e.start}, err)
	failed.Op, failed.Key = cmp.Or(e.op, "increment"), e.key
	return failed
}
