package client

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// SetBits puts ids into the bitmap of a key, and returns how many were not in it. It makes the key if necessary. Each
// call counts once, even if it is sent several times. It returns when all is acknowledged; for a stream of ids use a
// BitWriter. The error of many ids is an *Undelivered, which counts edits of 4,096 ids.
func (c *Client) SetBits(ctx context.Context, ns, key string, ids ...uint64) (changed int, err error) {
	return c.editBits(ctx, ns, key, ebbv1.BitOp_BIT_OP_SET, ids)
}

// ClearBits takes ids out of the bitmap of a key, and returns how many were in it. The key is removed when no id is
// left. See SetBits.
func (c *Client) ClearBits(ctx context.Context, ns, key string, ids ...uint64) (changed int, err error) {
	return c.editBits(ctx, ns, key, ebbv1.BitOp_BIT_OP_CLEAR, ids)
}

// FlipBits takes out those ids that are in the bitmap of a key, and puts in the others. An id that is named twice is
// flipped once. See SetBits.
func (c *Client) FlipBits(ctx context.Context, ns, key string, ids ...uint64) (changed int, err error) {
	return c.editBits(ctx, ns, key, ebbv1.BitOp_BIT_OP_FLIP, ids)
}

// SetBitRange puts all ids from first to last into the bitmap of a key, 134,217,728 at most. It returns how many were
// not in it.
func (c *Client) SetBitRange(ctx context.Context, ns, key string, first, last uint64) (changed int, err error) {
	return c.editRange(ctx, ns, key, ebbv1.BitOp_BIT_OP_SET, first, last)
}

// ClearBitRange takes all ids from first to last out of the bitmap of a key, and returns how many were in it.
func (c *Client) ClearBitRange(ctx context.Context, ns, key string, first, last uint64) (changed int, err error) {
	return c.editRange(ctx, ns, key, ebbv1.BitOp_BIT_OP_CLEAR, first, last)
}

// FlipBitRange flips all ids from first to last in the bitmap of a key.
func (c *Client) FlipBitRange(ctx context.Context, ns, key string, first, last uint64) (changed int, err error) {
	return c.editRange(ctx, ns, key, ebbv1.BitOp_BIT_OP_FLIP, first, last)
}

func (c *Client) editBits(ctx context.Context, ns, key string, op ebbv1.BitOp, ids []uint64) (changed int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	ids = slices.Clone(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if c.placesBySlice(ctx, ns) {
		return c.slicedEdits(ctx, ns, &ebbv1.BitChange{Key: []byte(key), Op: op, Ids: ids})
	}
	return c.sendEdits(ctx, ns, key, func(put func(*bitEncoder)) {
		enc := new(bitEncoder)
		enc.reset(roomSession)
		for len(ids) > 0 {
			if ids = enc.write(key, op, ids); len(ids) > 0 {
				put(enc)
				enc = new(bitEncoder)
				enc.reset(roomSession)
			}
		}
		put(enc)
	})
}

func (c *Client) editRange(ctx context.Context, ns, key string, op ebbv1.BitOp, first, last uint64) (changed int, err error) {
	e := proto.BitEditWire{Key: []byte(key), Op: op, Ranged: true, First: first, Last: last}
	if err := e.Check(); err != nil {
		return 0, c.fail(attempt{op: "bits", key: key}, err)
	}
	if c.placesBySlice(ctx, ns) {
		return c.slicedEdits(ctx, ns, &ebbv1.BitChange{Key: []byte(key), Op: op, Range: &ebbv1.BitRange{First: first, Last: last}})
	}
	return c.sendEdits(ctx, ns, key, func(put func(*bitEncoder)) {
		enc := new(bitEncoder)
		enc.reset(roomSession)
		enc.writeRange(key, op, first, last)
		put(enc)
	})
}

// sendEdits sends the commands that fill passes to put, and waits for them.
func (c *Client) sendEdits(
	ctx context.Context, ns, key string, fill func(put func(*bitEncoder)),
) (changed int, err error) {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	e := &directWrite{client: c, start: c.now(), done: make(chan struct{}), key: key, op: "bits"}
	if err := proto.CheckKey([]byte(key)); err != nil {
		return 0, e.fail(err)
	}
	p, err := c.directProducer(namespaceOr(ns))
	if err != nil {
		return 0, e.fail(err)
	}
	st := p.stream(key)
	deadline, _ := ctx.Deadline()
	fill(func(enc *bitEncoder) {
		e.commands = append(e.commands, &pendingCommand{
			shard: st.shard, stream: st, body: proto.FieldCommandBits, buf: enc.buf, room: enc.room, entries: enc.edits,
			ctx: ctx, deadline: deadline, made: e.start, handler: e,
		})
	})
	e.single = len(e.commands) == 1
	weight := 0
	for _, q := range e.commands {
		weight += q.entries
	}
	e.run(ctx, p, weight)
	err = e.outcome()
	return int(e.changed), err
}

// bitEncoder writes the edits of one command, directly in wire format, after free space for the identity.
type bitEncoder struct {
	buf     []byte
	room    int
	edits   int
	ids     int
	scratch []byte
}

const (
	// editIDs is how many ids one edit carries at most, so that it always fits a command.
	editIDs = 4096
	// editHead is the most that an edit takes, without its key and ids.
	editHead = 1 + 3 + 1 + 2 + 2 + 1 + 3 + 1 + 1 + 2*11
)

func (e *bitEncoder) reset(room int) {
	e.buf = append(e.buf[:0], make([]byte, room)...)
	e.room, e.edits, e.ids = room, 0, 0
}

// write writes as many edits of ids, which ascend, as fit into the command, and returns the ids that are left.
func (e *bitEncoder) write(key string, op ebbv1.BitOp, ids []uint64) (rest []uint64) {
	for len(ids) > 0 {
		n := min(len(ids), editIDs)
		e.scratch = proto.AppendBitIDs(e.scratch[:0], ids[:n])
		full := len(e.buf)+editHead+len(key)+len(e.scratch) > commandBytesMax ||
			e.ids+n > proto.BitIDsMax || e.edits == proto.BitEditsMax
		if e.edits > 0 && full {
			return ids
		}
		e.edit(key, op, func(b []byte) []byte {
			b = protowire.AppendTag(b, proto.FieldBitEditIDs, protowire.BytesType)
			return protowire.AppendBytes(b, e.scratch)
		}, 1+protowire.SizeBytes(len(e.scratch)))
		e.ids += n
		ids = ids[n:]
	}
	return nil
}

func (e *bitEncoder) writeRange(key string, op ebbv1.BitOp, first, last uint64) {
	size := 2 + protowire.SizeVarint(first) + protowire.SizeVarint(last)
	e.edit(key, op, func(b []byte) []byte {
		b = protowire.AppendTag(b, proto.FieldBitEditRange, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(size))
		b = protowire.AppendVarint(protowire.AppendTag(b, proto.FieldBitRangeFirst, protowire.VarintType), first)
		return protowire.AppendVarint(protowire.AppendTag(b, proto.FieldBitRangeLast, protowire.VarintType), last)
	}, 1+protowire.SizeBytes(size))
}

// edit writes an edit. what appends its content, which takes size bytes.
func (e *bitEncoder) edit(key string, op ebbv1.BitOp, what func(b []byte) []byte, size int) {
	b := protowire.AppendTag(e.buf, proto.FieldBitEditsEdits, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(1+protowire.SizeBytes(len(key))+2+size))
	b = protowire.AppendString(protowire.AppendTag(b, proto.FieldBitEditKey, protowire.BytesType), key)
	b = protowire.AppendVarint(protowire.AppendTag(b, proto.FieldBitEditOp, protowire.VarintType), uint64(op))
	e.buf = what(b)
	e.edits++
}

// Defaults of BitWriterOptions.
const (
	BitBatchDefault    = 32 << 10
	BitBufferedDefault = 1 << 20
)

// BitWriterOptions configure a BitWriter. The zero value is useful.
type BitWriterOptions struct {
	// Namespace of all keys; "default" when empty.
	Namespace string
	// MaxBatch is how many ids wait for one shard at most before they are sent, up to 65,536; 32,768 when 0.
	MaxBatch int
	// Linger is how long an id may wait for others to share its command; 5 ms when 0, and 100 ms at least where bitmaps
	// are placed by slice. When negative, only a full batch, Flush and Close send.
	Linger time.Duration
	// MaxBuffered is how many ids may be unacknowledged before Set, Clear and Flip wait; 1,048,576 when 0.
	MaxBuffered int
	// Timeout is how long a command is tried; 30 s when 0. Of each pause of the process only the first second counts;
	// where bitmaps are placed by slice all of it counts.
	Timeout time.Duration
	// OnError is called, from a goroutine of the client, with each command that was not applied, or is of unknown
	// outcome, and each edit that was refused. It must not block.
	OnError func(error)
}

// BitWriterStats counts ids.
type BitWriterStats struct {
	Added    int64 // given to Set, Clear and Flip
	Changed  int64 // put in or taken out, as far as it is acknowledged
	Buffered int64 // neither acknowledged nor given up
}

// BitWriter edits bitmaps of one namespace in batches, exactly once. It groups ids by key and sorts them before it
// sends them. Edits of one key are applied in the order in which they were given. It is safe for concurrent use. Call
// Close at the end.
type BitWriter struct {
	client   *Client
	producer *producer
	opts     BitWriterOptions
	placed   atomic.Pointer[bool] // whether the namespace places bitmaps by slice; nil: unknown

	mu          sync.Mutex // guards all below
	closed      bool
	edits       map[*shardStream]*shardEdits
	batches     map[string]*bitBatch // the last of each key, in edits
	buffered    int                  // ids in edits and in commands
	stats       BitWriterStats
	space       chan struct{} // closed when something was acknowledged; nil if no caller waits
	timer       *time.Timer   // of Linger; nil when not set
	flushes     flushGroups
	encoder     bitEncoder
	sliced      map[string]*slicedQueue // by key
	slicedSlots chan struct{}           // one for each request in flight about those bitmaps
}

// shardEdits holds the edits that wait for one shard.
type shardEdits struct {
	stream *shardStream
	order  []*bitBatch
	ids    int
}

// bitBatch holds the ids of one operation that wait for one key.
type bitBatch struct {
	key   string
	op    ebbv1.BitOp
	ids   []uint64
	edits *shardEdits // nil of bitmaps that are placed by slice
}

// BitWriter returns a new BitWriter. Options out of their bounds are set to the nearest bound.
func (c *Client) BitWriter(opts BitWriterOptions) *BitWriter {
	opts.Namespace = namespaceOr(opts.Namespace)
	opts.MaxBatch = max(1, min(orDefault(opts.MaxBatch, BitBatchDefault), proto.BitIDsMax))
	opts.Linger = orDefault(opts.Linger, LingerDefault)
	opts.MaxBuffered = max(opts.MaxBatch, orDefault(opts.MaxBuffered, BitBufferedDefault))
	opts.Timeout = orDefault(opts.Timeout, WriteTimeout)
	// One command at a time is in flight in a shard. Edits do not commute: a command that is sent again must not be
	// applied after the next one.
	w := &BitWriter{
		client: c, producer: c.newProducer(opts.Namespace, 1), opts: opts, flushes: newFlushGroups(),
		edits: map[*shardStream]*shardEdits{}, batches: map[string]*bitBatch{},
		sliced: map[string]*slicedQueue{}, slicedSlots: make(chan struct{}, slicedFlights),
	}
	if !c.registerProducer(w.producer, w.abandon) {
		w.closed = true
	}
	return w
}

// Set puts ids into the bitmap of a key. It returns at once unless the buffer is full.
func (w *BitWriter) Set(ctx context.Context, key string, ids ...uint64) error {
	return w.add(ctx, key, ebbv1.BitOp_BIT_OP_SET, ids)
}

// Clear takes ids out of the bitmap of a key.
func (w *BitWriter) Clear(ctx context.Context, key string, ids ...uint64) error {
	return w.add(ctx, key, ebbv1.BitOp_BIT_OP_CLEAR, ids)
}

// Flip flips ids in the bitmap of a key, each as often as it is named.
func (w *BitWriter) Flip(ctx context.Context, key string, ids ...uint64) error {
	return w.add(ctx, key, ebbv1.BitOp_BIT_OP_FLIP, ids)
}

func (w *BitWriter) add(ctx context.Context, key string, op ebbv1.BitOp, ids []uint64) error {
	if err := proto.CheckKey([]byte(key)); err != nil {
		return w.client.fail(attempt{op: "bits", key: key}, err)
	}
	bySlice := w.placed.Load()
	if bySlice == nil { // which never changes
		places := w.client.placesBySlice(ctx, w.opts.Namespace)
		if bySlice = &places; w.client.settings(ctx, w.opts.Namespace) != nil {
			w.placed.Store(bySlice)
		}
	}
	for len(ids) > 0 {
		n := min(len(ids), w.opts.MaxBatch)
		err := error(nil)
		if *bySlice {
			err = w.putSliced(ctx, key, op, ids[:n])
		} else {
			err = w.put(ctx, key, op, ids[:n])
		}
		if err != nil {
			return w.client.fail(attempt{op: "bits", key: key}, err)
		}
		ids = ids[n:]
	}
	return nil
}

func (w *BitWriter) put(ctx context.Context, key string, op ebbv1.BitOp, ids []uint64) error {
	w.mu.Lock()
	for w.buffered+len(ids) > w.opts.MaxBuffered && !w.closed {
		if w.space == nil {
			w.space = make(chan struct{})
		}
		space, streams := w.space, w.finishAll()
		w.mu.Unlock()
		w.producer.pump(streams...)
		select {
		case <-space:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		w.mu.Lock()
	}
	if w.closed {
		w.mu.Unlock()
		return ErrClosed
	}
	batch := w.batches[key]
	if batch == nil || batch.op != op {
		batch = w.batch(key, op)
	}
	batch.ids = append(batch.ids, ids...)
	b := batch.edits
	b.ids += len(ids)
	w.buffered += len(ids)
	w.stats.Added += int64(len(ids))
	full := b.ids >= w.opts.MaxBatch
	if full {
		w.finishCommands(b.stream, b)
	} else {
		w.linger(0)
	}
	w.mu.Unlock()
	if full {
		w.producer.pump(b.stream)
	}
	return nil
}

// batch begins another batch of a key. The caller holds w.mu.
func (w *BitWriter) batch(key string, op ebbv1.BitOp) *bitBatch {
	st := w.producer.stream(key)
	b := w.edits[st]
	if b == nil {
		b = &shardEdits{stream: st}
		w.edits[st] = b
	}
	batch := &bitBatch{key: key, op: op, edits: b}
	w.batches[key] = batch
	b.order = append(b.order, batch)
	return batch
}

// sorted sorts the ids of a batch. Of ids that are flipped, it keeps those that were named an odd number of times.
func (b *bitBatch) sorted() []uint64 {
	slices.Sort(b.ids)
	if b.op != ebbv1.BitOp_BIT_OP_FLIP {
		return slices.Compact(b.ids)
	}
	out := b.ids[:0]
	for i := 0; i < len(b.ids); {
		end := i + 1
		for end < len(b.ids) && b.ids[end] == b.ids[i] {
			end++
		}
		if (end-i)%2 == 1 {
			out = append(out, b.ids[i])
		}
		i = end
	}
	return out
}

// finishCommands makes commands of the edits that wait for a shard. The caller holds w.mu and pumps the stream.
func (w *BitWriter) finishCommands(st *shardStream, b *shardEdits) {
	left := b.ids
	w.encoder.reset(w.producer.room)
	end := func(ids int) {
		p := &pendingCommand{
			shard: st.shard, stream: st, body: proto.FieldCommandBits,
			buf: w.encoder.buf, room: w.encoder.room, entries: w.encoder.edits,
			ctx: w.producer.ctx, handler: &bitHandler{writer: w, group: w.flushes.now, ids: ids},
		}
		p.allow(w.client.pauses.read(), w.opts.Timeout)
		w.flushes.now.open++
		st.mu.Lock()
		st.waiting = append(st.waiting, p)
		st.mu.Unlock()
		w.encoder = bitEncoder{scratch: w.encoder.scratch}
		w.encoder.reset(w.producer.room)
	}
	for _, batch := range b.order {
		if w.batches[batch.key] == batch {
			delete(w.batches, batch.key)
		}
		for ids := batch.sorted(); len(ids) > 0; {
			if ids = w.encoder.write(batch.key, batch.op, ids); len(ids) > 0 {
				n := min(left, w.encoder.ids)
				left -= n
				end(n)
			}
		}
	}
	end(left) // also what came several times
	delete(w.edits, st)
}

// finishAll makes commands of all edits that wait, and returns the streams to pump. The caller holds w.mu.
func (w *BitWriter) finishAll() (streams []*shardStream) {
	w.sendAllSliced()
	for st, b := range w.edits {
		w.finishCommands(st, b)
		streams = append(streams, st)
	}
	return streams
}

// linger sets the timer, if it is not set. The caller holds w.mu.
func (w *BitWriter) linger(least time.Duration) {
	if w.opts.Linger < 0 || w.timer != nil {
		return
	}
	w.timer = time.AfterFunc(max(w.opts.Linger, least), func() {
		w.mu.Lock()
		w.timer = nil
		streams := w.finishAll()
		w.mu.Unlock()
		w.producer.pump(streams...)
	})
}

// bitHandler handles the result of a command of a BitWriter.
type bitHandler struct {
	writer *BitWriter
	group  *flushGroup
	ids    int
}

func (n *bitHandler) handleResult(p *pendingCommand, result *ebbv1.CommandResult, err error) {
	w := n.writer
	var failed []error
	w.mu.Lock()
	switch {
	case err != nil && isUnknown(err):
		n.group.note(0, int64(p.entries), 0, err)
		failed = append(failed, err)
	case err != nil:
		n.group.note(int64(p.entries), 0, 0, err)
		failed = append(failed, err)
	default:
		w.stats.Changed += int64(result.GetChanged())
		w.client.meter.increments.Add(int64(p.entries - len(result.GetRefused())))
		for _, r := range result.GetRefused() {
			err := w.client.fail(attempt{op: "bits", key: p.editKey(int(r.GetIndex())), shard: p.shard, node: p.node, tries: p.tries, start: p.made}, proto.FromWire(r.GetError()))
			n.group.note(0, 0, 1, err)
			failed = append(failed, err)
		}
	}
	w.buffered -= n.ids
	if w.space != nil {
		close(w.space)
		w.space = nil
	}
	n.group.settled()
	w.mu.Unlock()
	if w.opts.OnError != nil {
		for _, err := range failed {
			w.opts.OnError(err)
		}
	}
}

// editKey is the key of an edit of a command.
func (p *pendingCommand) editKey(index int) (key string) {
	proto.BitEdits(p.buf[p.room:], func(e *proto.BitEditWire) bool {
		key = string(e.Key)
		index--
		return index >= 0
	})
	return key
}

// Flush sends all that is buffered. It waits until every edit that was added before is acknowledged or given up. It
// returns an *Undelivered for what went wrong since the last Flush, or the end of ctx. The *Undelivered counts edits of
// up to 4,096 ids.
func (w *BitWriter) Flush(ctx context.Context) error {
	w.mu.Lock()
	streams := w.finishAll()
	list := w.flushes.next()
	w.mu.Unlock()
	w.producer.pump(streams...)
	if err := w.client.await(ctx, list); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flushes.result(list)
}

// Close flushes and ends the BitWriter. When ctx ends first, what is still buffered is given up.
func (w *BitWriter) Close(ctx context.Context) error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return ErrClosed
	}
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	err := w.Flush(ctx)
	if ctx.Err() != nil {
		w.abandon(context.Cause(ctx))
		err = w.Flush(context.WithoutCancel(ctx)) // everything is settled, it does not wait
	} else {
		bye, cancel := context.WithTimeout(ctx, closeSessionsMax)
		w.producer.closeSessions(bye)
		cancel()
	}
	w.client.unregisterProducer(w.producer)
	return err
}

// abandon gives up all that is not acknowledged.
func (w *BitWriter) abandon(err error) {
	w.mu.Lock()
	w.closed = true
	streams := w.finishAll()
	w.mu.Unlock()
	w.producer.cancel(err)
	w.producer.pump(streams...)
	for i := range w.producer.streams {
		for _, p := range w.producer.streams[i].settleAll() {
			p.handler.handleResult(p, nil, w.client.gaveUpError(p, err))
		}
	}
}

// Stats returns the counts so far.
func (w *BitWriter) Stats() BitWriterStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Buffered = int64(w.buffered)
	return s
}
