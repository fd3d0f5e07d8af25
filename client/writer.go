package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// OnFull decides what a Writer does when its buffer is full.
type OnFull uint8

const (
	// Block makes Add wait for room, or for its context to end.
	Block OnFull = iota
	// Drop makes Add discard the increment and count it in Stats.
	Drop
	// Fail makes Add return ErrBufferFull.
	Fail
)

// Defaults of WriterOptions.
const (
	MaxBatchDefault    = 1_000
	LingerDefault      = 5 * time.Millisecond
	MaxBufferedDefault = 100_000
	WindowDefault      = 128
	WriteTimeout       = 30 * time.Second
)

// WriterOptions configure a Writer. The zero value is useful.
type WriterOptions struct {
	// Namespace of all keys; "default" when empty.
	Namespace string
	// MaxBatch is how many increments a shard's command carries at most, up to
	// 10,000; 1,000 when 0. A command also ends at 64 KiB.
	MaxBatch int
	// Linger is how long an increment may wait for others to share its command; 5 ms when 0. When negative, only a full
	// batch, a full buffer, Flush and Close send.
	Linger time.Duration
	// MaxBuffered is how many increments may be unacknowledged; 100,000 when 0.
	MaxBuffered int
	// OnFull decides what Add does at MaxBuffered. A full buffer is flushed at once in any case.
	OnFull OnFull
	// NoAggregate sends equal increments (same key, bin and time) separately, instead of one increment with their sum.
	NoAggregate bool
	// Timeout is how long a command is tried; 30 s when 0. Of each pause of the process only the first second counts.
	// In a pause the process is stopped or not scheduled, or its machine is paused.
	Timeout time.Duration
	// Window is how far the commands of one shard may be ahead of the oldest that
	// is not acknowledged: 1 to 1,000; 128 when 0.
	Window int
	// OnError is called, from a goroutine of the client, with each command that
	// was not applied, or is of unknown outcome. It must not block.
	OnError func(error)
	// OnRefused is called with each increment that a shard refused, and why. It
	// must not block. Without it refusals go to OnError.
	OnRefused func(Increment, error)
}

func (o *WriterOptions) fill() {
	o.Namespace = namespaceOr(o.Namespace)
	o.MaxBatch = max(1, min(orDefault(o.MaxBatch, MaxBatchDefault), proto.BatchOpsMax))
	o.Linger = orDefault(o.Linger, LingerDefault)
	o.MaxBuffered = max(1, orDefault(o.MaxBuffered, MaxBufferedDefault))
	o.Timeout = orDefault(o.Timeout, WriteTimeout)
	o.Window = max(1, min(orDefault(o.Window, WindowDefault), windowMax))
}

// windowMax is below the number of sequences that a shard remembers of a session.
const windowMax = proto.SessionWindow - 24

func orDefault[T int | time.Duration](v, d T) T {
	if v == 0 {
		return d
	}
	return v
}

// commandBytesMax ends a command before it is larger than a log entry should be.
const commandBytesMax = proto.EntryBytesSoft - entryBytesMax - roomSource

// WriterStats counts what happened to the increments that a Writer was given.
//
//	Added = Merged + Applied + Duplicates + Refused + Lost + Unknown + Buffered
//
// Merged increments were summed into others before they were sent. The terms after Merged count the increments that are
// sent.
type WriterStats struct {
	Added      int64 // accepted by Add
	Merged     int64 // summed into an equal one that was already buffered
	Applied    int64 // acknowledged
	Duplicates int64 // acknowledged: an earlier try, or run, had decided them
	Refused    int64 // by the shard, each for its own reason
	Lost       int64 // given up, surely not applied
	Unknown    int64 // given up, may have been applied
	Dropped    int64 // turned away by a full buffer, and not in Added
	Buffered   int64 // neither acknowledged nor given up
	Commands   int64 // acknowledged
	// Faded is how many of Applied were so old, or of so small an amount, that they weigh less than the namespace
	// keeps.
	Faded int64
}

// Writer buffers increments of one namespace and sends them in batches, exactly once. It is safe for concurrent use.
// Call Close at the end.
type Writer struct {
	out  *outbox
	opts WriterOptions
}

// Writer returns a new Writer. Options out of their bounds are set to the nearest bound.
func (c *Client) Writer(opts WriterOptions) *Writer {
	opts.fill()
	w := &Writer{opts: opts}
	w.out = newOutbox(c, c.newProducer(opts.Namespace, opts.Window), &w.opts)
	if !opts.NoAggregate {
		w.out.aggregate = opts.MaxBatch
	}
	if opts.OnRefused != nil {
		w.out.onRefused = func(_ uint64, in Increment, err error) { w.opts.OnRefused(in, err) }
	}
	w.out.open()
	return w
}

// Add adds amount to a bin of a key, at the shard's own time. It returns at once unless the buffer is full; then OnFull
// decides. An error means that the Writer did not accept this increment. OnError, Flush, Close and Stats report the
// outcome of accepted increments.
func (w *Writer) Add(ctx context.Context, key, bin string, amount float64) error {
	return w.out.add(ctx, &item{key: key, bin: bin, amount: amount})
}

// AddAt is Add for something that happened at time t.
func (w *Writer) AddAt(ctx context.Context, key, bin string, amount float64, t time.Time) error {
	return w.out.add(ctx, &item{key: key, bin: bin, amount: amount, time: microOf(t)})
}

// Write adds an event of any kind; see Increment.
func (w *Writer) Write(ctx context.Context, in Increment) error {
	i := in.item()
	return w.out.add(ctx, &i)
}

// Flush sends all that is buffered. It waits until every increment that was added before is acknowledged or given up.
// It returns an *Undelivered for what went wrong since the last Flush, or the end of ctx.
func (w *Writer) Flush(ctx context.Context) error { return w.out.flush(ctx) }

// Close flushes and ends the Writer. If ctx ends first, the increments still buffered are given up. It returns an
// *Undelivered with the number of increments that were lost since the last Flush.
func (w *Writer) Close(ctx context.Context) error { return w.out.close(ctx) }

// Stats returns the counts so far.
func (w *Writer) Stats() WriterStats { return w.out.stats() }

// Undelivered counts the increments that a Flush or Close could not deliver, and wraps the first cause.
type Undelivered struct {
	Lost    int64 // surely not applied
	Unknown int64 // may have been applied
	// Refused were refused by a shard, each for its own reason. A Writer with OnRefused calls that instead of counting
	// them here.
	Refused int64
	Err     error // the first cause
}

func (u *Undelivered) Error() string {
	return fmt.Sprintf("%d increments not written, %d of unknown outcome, %d refused: %v", u.Lost, u.Unknown, u.Refused, u.Err)
}

// Unwrap returns the first cause, and ErrUnknownOutcome if any outcome is unknown.
func (u *Undelivered) Unwrap() []error {
	if u.Unknown > 0 {
		return []error{u.Err, ErrUnknownOutcome}
	}
	return []error{u.Err}
}

// outbox is the common part of Writer and Source: the encoders, the limit on unacknowledged increments, and the waits
// of Add and Flush.
type outbox struct {
	client    *Client
	producer  *producer
	opts      *WriterOptions
	aggregate int // 0: never merge
	// onRefused is called with each refused increment. If it is nil, refusals count as errors.
	onRefused func(offset uint64, in Increment, err error)

	buffered atomic.Int64 // increments in encoders and commands
	lingers  atomic.Bool  // the timer is set
	closed   atomic.Bool

	counts struct {
		added, merged, applied, duplicates, refused, lost, unknown, dropped, commands, faded atomic.Int64
	}

	mu      sync.Mutex    // guards all below
	timer   *time.Timer   // of Linger
	space   chan struct{} // closed when there is space again; nil while no caller waits
	flushes flushGroups
	timers  sync.WaitGroup
}

func newOutbox(c *Client, p *producer, opts *WriterOptions) *outbox {
	return &outbox{client: c, producer: p, opts: opts, flushes: newFlushGroups()}
}

func (o *outbox) open() {
	o.producer.outbox = o
	if !o.client.registerProducer(o.producer, o.abandon) {
		o.closed.Store(true)
	}
}

func (o *outbox) add(ctx context.Context, in *item) error {
	if err := checkItem(in); err != nil {
		return o.client.fail(attempt{op: "add", key: in.key}, err)
	}
	st := o.producer.stream(in.key)
	for {
		full, err := o.put(st, in)
		if !full {
			return err
		}
		o.finishAll()
		if err := o.room(ctx, in); err != errRoom {
			return err
		}
	}
}

// put encodes one increment. If the buffer is full, it returns full and encodes nothing.
func (o *outbox) put(st *shardStream, in *item) (full bool, err error) {
	st.mu.Lock()
	if err := o.shut(st); err != nil {
		st.mu.Unlock()
		return false, o.client.fail(attempt{op: "add", key: in.key}, err)
	}
	if len(st.encoder.buf) == 0 {
		st.encoder.reset(o.producer.buffer(), o.producer.room)
		st.encoder.aggregate(o.aggregate)
	}
	at, free := st.encoder.find(in)
	if at != 0 && st.encoder.add(at, in.amount) {
		st.mu.Unlock()
		o.counts.added.Add(1)
		return false, nil
	}
	if o.buffered.Add(1) > int64(o.opts.MaxBuffered) {
		o.buffered.Add(-1)
		st.mu.Unlock()
		return true, nil
	}
	st.encoder.write(in, free)
	batchFull := st.encoder.entries >= o.opts.MaxBatch || len(st.encoder.buf) >= commandBytesMax
	if batchFull {
		o.finishCommand(st)
	}
	st.mu.Unlock()
	o.counts.added.Add(1)
	if batchFull {
		o.producer.pump(st)
	} else {
		o.linger()
	}
	return false, nil
}

// shut returns why nothing more may be written; nil if writes are allowed. The caller holds st.mu.
func (o *outbox) shut(st *shardStream) error {
	if o.closed.Load() {
		return ErrClosed
	}
	return st.broken
}

// finishCommand turns the stream's encoder into a command, unless it is empty. The caller holds
// st.mu.
func (o *outbox) finishCommand(st *shardStream) {
	st.due = false
	if st.encoder.entries == 0 {
		return
	}
	p := &pendingCommand{ctx: o.producer.ctx}
	p.allow(o.client.pauses.read(), o.opts.Timeout)
	o.mu.Lock()
	o.flushes.now.open++
	p.handler = &outboxHandler{outbox: o, group: o.flushes.now}
	o.mu.Unlock()
	st.finishCommand(p)
	o.counts.merged.Add(int64(p.merged))
}

// finishAll sends the increments in all encoders.
func (o *outbox) finishAll() { o.finishIf(func(*shardStream) bool { return true }) }

// finishDue sends the increments of streams that have nothing in flight. The other streams send theirs as soon as the
// command in flight is answered. So batches grow with the load, and with the response time. Otherwise many small
// batches would queue.
func (o *outbox) finishDue() {
	o.finishIf(func(st *shardStream) bool {
		st.due = true
		return st.idle()
	})
}

func (o *outbox) finishIf(now func(*shardStream) bool) {
	var streams []*shardStream
	for i := range o.producer.streams {
		st := &o.producer.streams[i]
		st.mu.Lock()
		if st.encoder.entries > 0 && now(st) {
			o.finishCommand(st)
			streams = append(streams, st)
		}
		st.mu.Unlock()
	}
	if len(streams) > 0 {
		o.producer.pump(streams...)
	}
}

// linger sets the timer, if it is not set.
func (o *outbox) linger() {
	if o.opts.Linger < 0 || o.lingers.Load() || !o.lingers.CompareAndSwap(false, true) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed.Load() {
		return
	}
	o.timers.Add(1)
	o.timer = time.AfterFunc(o.opts.Linger, func() {
		defer o.timers.Done()
		o.lingers.Store(false)
		o.finishDue()
	})
}

// room handles a full buffer by OnFull. With Block it waits until there may be space, and returns errRoom. With
// Drop it returns nil, and with Fail ErrBufferFull; both count in as dropped.
func (o *outbox) room(ctx context.Context, in *item) error {
	switch o.opts.OnFull {
	case Drop:
		o.counts.dropped.Add(1)
		return nil
	case Fail:
		o.counts.dropped.Add(1)
		return o.client.fail(attempt{op: "add", key: in.key}, ErrBufferFull)
	}
	o.mu.Lock()
	if o.buffered.Load() < int64(o.opts.MaxBuffered) || o.closed.Load() {
		o.mu.Unlock()
		return errRoom
	}
	if o.space == nil {
		o.space = make(chan struct{})
	}
	space := o.space
	o.mu.Unlock()
	select {
	case <-space:
		return errRoom
	case <-ctx.Done():
		return o.client.fail(attempt{op: "add", key: in.key}, context.Cause(ctx))
	}
}

// errRoom means that the buffer may have space now.
var errRoom = fmt.Errorf("room")

// outboxHandler handles the result of an outbox's command.
type outboxHandler struct {
	outbox *outbox
	group  *flushGroup
}

func (n *outboxHandler) handleResult(p *pendingCommand, result *ebbv1.CommandResult, err error) {
	o := n.outbox
	switch {
	case err == nil:
		o.acknowledged(n.group, p, result)
	case o.producer.source == "" && isRefusal(err):
		o.refuseAll(n.group, p, err)
	default:
		o.producer.halt(err)
		o.undelivered(n.group, p, err)
	}
	entries := int64(p.entries)
	o.mu.Lock()
	o.buffered.Add(-entries)
	if o.space != nil {
		close(o.space)
		o.space = nil
	}
	n.group.settled()
	o.mu.Unlock()
}

func (o *outbox) acknowledged(e *flushGroup, p *pendingCommand, result *ebbv1.CommandResult) {
	if o.producer.source != "" {
		p.stream.reach(p.last)
	}
	refused := int64(len(result.GetRefused()))
	duplicates := min(int64(result.GetDuplicates()), int64(p.entries)-refused)
	o.counts.commands.Add(1)
	o.counts.refused.Add(refused)
	o.counts.duplicates.Add(duplicates)
	o.counts.faded.Add(min(int64(result.GetFaded()), int64(p.entries)))
	o.counts.applied.Add(int64(p.entries) - refused - duplicates)
	o.client.meter.increments.Add(int64(p.entries) - refused - duplicates)
	for _, r := range result.GetRefused() {
		o.refuse(e, p, int(r.GetIndex()), proto.FromWire(r.GetError()))
	}
	o.producer.reuse(p.buf[:0])
}

// isRefusal reports whether err means that the command itself is wrong, not that it could not be delivered.
func isRefusal(err error) bool {
	return coded(err).Code/1000 == 2 && !isUnknown(err)
}

// refuseAll handles a command that was refused as a whole.
func (o *outbox) refuseAll(e *flushGroup, p *pendingCommand, err error) {
	o.counts.refused.Add(int64(p.entries))
	for i := range p.entries {
		o.refuse(e, p, i, coded(err))
	}
}

func (o *outbox) refuse(e *flushGroup, p *pendingCommand, index int, err error) {
	wire, ok := p.increment(index)
	if !ok {
		return
	}
	in := Increment{Key: string(wire.Key), Bin: string(wire.Bin), Amount: wire.Amount, Time: timeOf(wire.TimeUS), Kind: wire.Kind, Value: wire.Value}
	err = o.client.fail(attempt{op: "increment", key: in.Key, shard: p.shard, node: p.node, tries: p.tries, start: p.made}, err)
	if o.onRefused != nil {
		o.onRefused(wire.Offset, in, err)
		return
	}
	o.mu.Lock()
	e.note(0, 0, 1, err)
	o.mu.Unlock()
	if o.opts.OnError != nil {
		o.opts.OnError(err)
	}
}

func (o *outbox) undelivered(e *flushGroup, p *pendingCommand, err error) {
	n := int64(p.entries)
	lost, unknown := n, int64(0)
	if isUnknown(err) {
		lost, unknown = 0, n
	}
	o.mu.Lock()
	e.note(lost, unknown, 0, err)
	o.mu.Unlock()
	o.counts.lost.Add(lost)
	o.counts.unknown.Add(unknown)
	o.client.meter.lost.Add(n)
	o.client.log().Warn("increments were not delivered", "increments", n, "shard", p.shard, "err", err)
	if o.opts.OnError != nil {
		o.opts.OnError(err)
	}
}

// flush finishes all commands and waits for all groups so far.
func (o *outbox) flush(ctx context.Context) error {
	o.finishAll()
	o.mu.Lock()
	list := o.flushes.next()
	o.mu.Unlock()
	if err := o.client.await(ctx, list); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.flushes.result(list)
}

func (o *outbox) close(ctx context.Context) error {
	if o.closed.Swap(true) {
		return ErrClosed
	}
	o.mu.Lock()
	if o.timer != nil && o.timer.Stop() {
		o.timers.Done()
	}
	if o.space != nil {
		close(o.space)
		o.space = nil
	}
	o.mu.Unlock()
	o.timers.Wait()
	err := o.flush(ctx)
	if ctx.Err() != nil {
		o.abandon(context.Cause(ctx))
		err = o.flush(context.WithoutCancel(ctx)) // everything is settled, it does not wait
	} else {
		o.closeSessions(ctx)
	}
	o.client.unregisterProducer(o.producer)
	return err
}

// closeSessionsMax bounds the time that closing sessions takes.
const closeSessionsMax = 500 * time.Millisecond

func (o *outbox) closeSessions(ctx context.Context) {
	if o.producer.source != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, closeSessionsMax)
	defer cancel()
	o.producer.closeSessions(ctx)
}

// abandon gives up all that is not acknowledged.
func (o *outbox) abandon(err error) {
	o.closed.Store(true)
	o.producer.cancel(err)
	o.finishAll()
	for i := range o.producer.streams {
		for _, p := range o.producer.streams[i].settleAll() {
			p.handler.handleResult(p, nil, o.client.gaveUpError(p, err))
		}
	}
}

func (o *outbox) stats() WriterStats {
	c := &o.counts
	s := WriterStats{
		Added: c.added.Load(), Merged: c.merged.Load(), Applied: c.applied.Load(), Duplicates: c.duplicates.Load(),
		Refused: c.refused.Load(), Lost: c.lost.Load(), Unknown: c.unknown.Load(), Dropped: c.dropped.Load(),
		Buffered: o.buffered.Load(), Commands: c.commands.Load(), Faded: c.faded.Load(),
	}
	for i := range o.producer.streams {
		st := &o.producer.streams[i]
		st.mu.Lock()
		s.Merged += int64(st.encoder.merged)
		st.mu.Unlock()
	}
	return s
}
