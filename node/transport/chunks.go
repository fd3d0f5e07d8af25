package transport

import (
	"context"
	"encoding/binary"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/proto"
)

// Listed is a snapshot that can list its chunks before they are read. The data given to InstallSnapshot is Listed,
// unless it comes from elsewhere than a snap.Store.
type Listed interface {
	Items() []snap.Item
	// Next returns the next chunk, valid until the next call, and Skip skips it.
	Next() ([]byte, error)
	Skip() error
}

var _ Listed = (*snap.Content)(nil)

// Shelf receives the chunks of snapshots before Raft processes the snapshot.
type Shelf interface {
	// Arrive begins a snapshot of these chunks, or continues an interrupted one.
	Arrive(index, term uint64, items []snap.Item) (Arrival, error)
}

// Arrival is a snapshot that is being received.
type Arrival interface {
	// Has reports whether a chunk is already here, and Put stores the first missing one.
	Has(i int) bool
	Put(chunk []byte) error
	// Ready is called when all chunks are here. It returns the bytes that Raft gets in place of the content.
	Ready(ctx context.Context) ([]byte, error)
	// Close releases the snapshot, whether or not it was received.
	Close() error
}

// The sender sends the list before the request, in frames of many items. The receiver answers which items it wants:
//
//	list   more(1) { hash 20 | length }
//	want   more(1) { skip | take }          runs of items
//
// more is 0 in the last frame.
const (
	itemBytesMax = len(snap.Hash{}) + binary.MaxVarintLen32
	runBytesMax  = 2 * binary.MaxVarintLen32
)

// appendList encodes as many items as fit into a frame, and returns how many.
func appendList(b []byte, items []snap.Item) (out []byte, n int) {
	n = min(len(items), chunkBytes/itemBytesMax)
	b, at := begin(b)
	b = appendFlag(b, n < len(items))
	for _, item := range items[:n] {
		b = append(b, item.Hash[:]...)
		b = binary.AppendUvarint(b, uint64(item.Length))
	}
	return finish(b, at, kindList), n
}

// itemsMax bounds the items of a snapshot; a snapshot of 48 GB has about as many.
const itemsMax = 1 << 24

// decodeList appends the items of a frame to items.
func decodeList(payload []byte, items []snap.Item) (_ []snap.Item, more bool, err error) {
	f := fields{b: payload}
	more = f.flag()
	for len(f.b) > 0 {
		var item snap.Item
		if len(f.b) < len(item.Hash) {
			return nil, false, errMalformed
		}
		f.b = f.b[copy(item.Hash[:], f.b):]
		item.Length = f.uint32()
		items = append(items, item)
	}
	if f.end() != nil || len(items) > itemsMax {
		return nil, false, errMalformed
	}
	return items, more, nil
}

// appendWant encodes runs of skipped and wanted items, beginning at from. It returns where the frame is full, or to.
func appendWant(b []byte, from, to int, has func(i int) bool) (out []byte, end int) {
	b, at := begin(b)
	b = append(b, 0)
	for end = from; end < to && len(b)-at < chunkBytes-runBytesMax; {
		for _, here := range []bool{true, false} {
			start := end
			for end < to && has(end) == here {
				end++
			}
			b = binary.AppendUvarint(b, uint64(end-start))
		}
	}
	if end < to {
		b[at+wordBytes] = 1
	}
	return finish(b, at, kindWant), end
}

// decodeWant decodes a frame and calls run for each of its runs; the first one begins at from, and there are so many
// items in all.
func decodeWant(payload []byte, from, items int, run func(wanted bool, n int) error) (end int, more bool, err error) {
	f := fields{b: payload}
	more, end = f.flag(), from
	for wanted := false; len(f.b) > 0; wanted = !wanted {
		n := f.uint()
		if f.bad || n > uint64(items-end) {
			return end, false, errMalformed
		}
		if err := run(wanted, int(n)); err != nil {
			return end, false, err
		}
		end += int(n)
	}
	if f.end() != nil || more == (end == items) {
		return end, false, errMalformed
	}
	return end, more, nil
}

// list sends the list of a snapshot.
func (o *outgoing) list(items []snap.Item) error {
	for more := true; more; {
		b, n := appendList(nil, items)
		if err := o.post(frameOf(b)); err != nil {
			return err
		}
		items, more = items[n:], n < len(items)
	}
	return nil
}

// wanted receives which chunks of a snapshot the other side lacks, and sends these.
func (o *outgoing) wanted(data Listed, items []snap.Item) (size int64, err error) {
	c := &sending{to: o, data: data}
	o.stall.Reset(o.group.mux.cfg.InstallTimeout) // the other side checks which chunks it has
	for at, more := 0, true; more; {
		runs, err := o.receive(kindWant)
		if err != nil {
			return 0, err
		}
		c.runs = append(c.runs, runs) // all of them arrive before the first chunk is sent
		if at, more, err = decodeWant(runs, at, len(items), func(bool, int) error { return nil }); err != nil {
			return 0, err
		}
	}
	return c.all(items)
}

// receive waits for a message of one kind.
func (o *outgoing) receive(want kind) ([]byte, error) {
	var f frame
	defer f.free()
	for {
		if err := o.stream.RecvMsg(&f); err != nil {
			return nil, o.session.explain(err)
		}
		k, payload, _, err := nextMessage(f.body)
		switch {
		case err != nil:
			return nil, err
		case k == want:
			return append([]byte(nil), payload...), nil
		case k == kindAnswer: // a refusal
			if err := decodeAnswer(payload, o.session.peer.node, kindInstall, &raft.InstallSnapshotResponse{}); err != nil {
				return nil, err
			}
			return nil, errMalformed
		case k != kindWelcome:
			return nil, errMalformed
		}
	}
}

// sending is the chunks of a snapshot that is being sent.
type sending struct {
	to    *outgoing
	data  Listed
	runs  [][]byte // payloads of the want messages
	frame []byte
	size  int64
}

func (c *sending) all(items []snap.Item) (int64, error) {
	count := &c.to.group.mux.installs
	at := 0
	for _, payload := range c.runs {
		end, _, err := decodeWant(payload, at, len(items), func(wanted bool, n int) error {
			for range n {
				if err := c.one(wanted, items[at].Length, count); err != nil {
					return err
				}
				at++
			}
			return nil
		})
		if err != nil {
			return c.size, err
		}
		at = end
	}
	return c.size, c.flush()
}

// one sends a chunk, or skips it if it is not wanted.
func (c *sending) one(wanted bool, length uint32, count *installMetrics) error {
	if !wanted {
		count.skipped.Add(uint64(length))
		return c.data.Skip()
	}
	chunk, err := c.data.Next()
	if err != nil {
		return err
	}
	if len(c.frame) > wordBytes && len(c.frame)+len(chunk) > c.to.group.mux.cfg.ChunkBytes {
		if err := c.flush(); err != nil {
			return err
		}
	}
	if len(c.frame) == 0 {
		c.frame, _ = begin(c.frame)
	}
	c.frame = append(c.frame, chunk...)
	c.size += int64(len(chunk))
	count.sent.Add(uint64(len(chunk)))
	return nil
}

func (c *sending) flush() error {
	if len(c.frame) == 0 {
		return nil
	}
	err := c.to.bulk(finish(c.frame, 0, kindChunk))
	c.frame = c.frame[:0]
	return err
}

// fetch receives the chunks of a snapshot on a shelf, and returns the bytes for Raft.
func (a *arriving) fetch(shelf Shelf, st *started) (Arrival, []byte, error) {
	to, err := shelf.Arrive(st.command.LastLogIndex, st.command.LastLogTerm, st.items)
	if err != nil {
		return nil, nil, err
	}
	sign, err := a.store(to, st.items)
	if err != nil {
		_ = to.Close() // the first error counts
		return nil, nil, err
	}
	return to, sign, nil
}

// ask requests the missing items.
func (a *arriving) ask(items int, has func(i int) bool) error {
	for at, more := 0, true; more; more = at < items {
		var b []byte
		b, at = appendWant(nil, at, items, has)
		if err := a.stream.SendMsg(frameOf(b)); err != nil {
			return err
		}
	}
	return nil
}

// store requests the missing items, and stores them as they arrive.
func (a *arriving) store(to Arrival, items []snap.Item) ([]byte, error) {
	if err := a.ask(len(items), to.Has); err != nil {
		return nil, err
	}
	wanted := make([]uint32, 0, len(items)) // lengths
	for i, item := range items {
		if !to.Has(i) {
			wanted = append(wanted, item.Length)
		}
	}
	for {
		f, err := a.frame()
		if err != nil {
			return nil, err
		}
		var done bool
		wanted, done, err = a.put(to, wanted, f)
		f.free()
		switch {
		case err != nil:
			return nil, err
		case done:
			return to.Ready(a.group.ctx)
		}
	}
}

// put stores a frame of chunks with these lengths, and returns the lengths still to come; done is true at the end.
func (a *arriving) put(to Arrival, wanted []uint32, f *frame) (left []uint32, done bool, err error) {
	k, payload, rest, err := nextMessage(f.body)
	switch {
	case err != nil || len(rest) > 0:
		return nil, false, errMalformed
	case k == kindEnd && len(wanted) > 0:
		return nil, false, io.ErrUnexpectedEOF
	case k == kindEnd:
		return nil, true, nil
	case k != kindChunk:
		return nil, false, errMalformed
	}
	for len(payload) > 0 {
		if len(wanted) == 0 || int(wanted[0]) > len(payload) {
			return nil, false, proto.ErrCorrupt.Errorf("a part of a snapshot that is none of its chunks")
		}
		if err := to.Put(payload[:wanted[0]]); err != nil {
			return nil, false, err
		}
		payload, wanted = payload[wanted[0]:], wanted[1:]
	}
	return wanted, false, nil
}

// installMetrics counts the snapshots that a node sends and receives.
type installMetrics struct {
	sent, skipped atomic.Uint64 // bytes of chunks
	out, in       atomic.Int64  // streams
}

// Installs are counts of the snapshots sent to and received from other nodes.
type Installs struct {
	Sent, Skipped uint64        // bytes of chunks sent, and of chunks that the receivers already had
	Out, In       int64         // under way
	Waited        time.Duration // time that sent snapshots waited for Config.SnapshotRate, in total
}

// Installs returns the counts since the Mux was made, and the streams under way.
func (m *Mux) Installs() Installs {
	i := &m.installs
	return Installs{Sent: i.sent.Load(), Skipped: i.skipped.Load(), Out: i.out.Load(), In: i.in.Load(), Waited: time.Duration(m.pace.waited.Load())}
}
