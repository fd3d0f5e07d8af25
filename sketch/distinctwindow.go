package sketch

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// WindowSlicesMax is the most slices of a DistinctWindow.
const WindowSlicesMax = 1024

// DistinctWindowParams say how a DistinctWindow is made.
type DistinctWindowParams struct {
	Distinct DistinctParams
	// Slice is the length of a slice in microseconds, at least 1. Slices begin at whole multiples of it since the Unix
	// epoch.
	Slice Tick
	// Slices is the number of slices, 1 to 1024: windows are up to Slice * Slices long.
	Slices int
}

// DistinctWindow counts distinct things in windows that end now: the last few slices of a ring. NewDistinctWindow makes
// one.
//
// For every slice with events it keeps the union of that slice and the following ones. So a window is a union of at
// most two sketches, whatever its length. It is a queue of two stacks of running unions. Time is split into blocks of 8
// slices. Unions that begin in the open block reach to now; all others reach to the end of the last closed block.
//
//	slices      ... | 16 ... 23 | 24 ... 31 | 32 33 34     34 is the latest
//	unions           16..31 ... 23..31  24..31 ... 31..31    32..34 33..34 34..34
//
// An event is added to the union of its own slice and then to earlier unions, until one has it already: seldom more
// than two or three. Closing a block takes a Merge for each union before it. Memory is a Distinct for each slice with
// events.
//
// There is no sweep: the next write drops what has left the ring, and no read sees it. The state is a function of the
// set of (slice, hash) still in the ring and of the latest time.
//
// It is a value with one owner: Clone makes an independent copy.
type DistinctWindow struct {
	p      DistinctWindowParams
	latest int64 // the slice of the latest now
	used   bool  // latest is set
	unions []windowUnion
}

// windowUnion is the union of all events from a slice on.
type windowUnion struct {
	slice int64
	of    Distinct
}

// windowBlock is the number of slices in a block: about the most unions that one Add writes to.
const windowBlock = 8

// NewDistinctWindow is an empty DistinctWindow. It returns ErrParams for parameters out of range.
func NewDistinctWindow(p DistinctWindowParams) (DistinctWindow, error) {
	d, err := NewDistinct(p.Distinct)
	if err != nil {
		return DistinctWindow{}, err
	}
	if p.Slice < 1 || p.Slices < 1 || p.Slices > WindowSlicesMax {
		return DistinctWindow{}, fmt.Errorf("distinct window: %d slices of %d us, not 1 to %d of at least 1: %w", p.Slices, p.Slice, WindowSlicesMax, ErrParams)
	}
	p.Distinct = d.Params()
	return DistinctWindow{p: p}, nil
}

// Params are the present parameters: those of the constructor, unless a merge has changed them.
func (w *DistinctWindow) Params() DistinctWindowParams { return w.p }

func (w *DistinctWindow) sliceOf(t Tick) int64 { return floorDiv(int64(t), int64(w.p.Slice)) }

// oldest is the first slice of the ring.
func (w *DistinctWindow) oldest() int64 { return w.latest - int64(w.p.Slices) + 1 }

// open is the first slice of the open block.
func (w *DistinctWindow) open() int64 { return floorDiv(w.latest, windowBlock) * windowBlock }

// from is the position of the first union that begins at a slice or later.
func (w *DistinctWindow) from(slice int64) int {
	i := len(w.unions)
	for i > 0 && w.unions[i-1].slice >= slice {
		i--
	}
	return i
}

// Add adds the thing with this hash, seen at time t, which must not be after now; now must not be before the now of any
// earlier call. It returns false when t's slice has left the ring, and then nothing was added: callers should count
// such events as late.
func (w *DistinctWindow) Add(now, t Tick, hash uint64) bool {
	w.advance(w.sliceOf(now))
	slice := min(w.sliceOf(t), w.latest)
	if slice < w.oldest() {
		return false
	}
	i := w.own(slice)
	last := 0
	if slice >= w.open() {
		last = w.from(w.open())
	}
	for ; i >= last && w.unions[i].of.Add(hash); i-- { // a union that has it is part of all earlier ones
	}
	return true
}

// advance makes a slice the latest.
func (w *DistinctWindow) advance(to int64) {
	if !w.used {
		w.latest, w.used = to, true
		return
	}
	if to <= w.latest {
		return
	}
	open := w.open()
	w.latest = to
	w.unions = trimmed(slices.Delete(w.unions, 0, w.from(w.oldest())))
	if first := w.from(open); w.open() > open && first < len(w.unions) {
		for i := range first {
			w.mustMerge(&w.unions[i].of, &w.unions[first].of)
		}
	}
}

// mustMerge merges sketches that have the same hash by construction. It panics if they do not.
func (w *DistinctWindow) mustMerge(d, o *Distinct) {
	if err := d.Merge(o); err != nil {
		panic(err)
	}
}

// own is the position of a slice's own union. If there is none, it makes one from the next union in the same block or
// stack.
func (w *DistinctWindow) own(slice int64) int {
	i := w.from(slice)
	if i < len(w.unions) && w.unions[i].slice == slice {
		return i
	}
	w.unions = slices.Insert(roomier(w.unions, w.p.Slices), i, windowUnion{slice: slice, of: w.unionAt(i, slice)})
	return i
}

// unionAt is a copy of the union from a slice on, to now or to the end of the closed blocks. i must be from(slice).
func (w *DistinctWindow) unionAt(i int, slice int64) Distinct {
	if i < len(w.unions) && (slice < w.open()) == (w.unions[i].slice < w.open()) {
		return w.unions[i].of.Clone()
	}
	return w.empty()
}

func (w *DistinctWindow) empty() Distinct {
	return Distinct{p: uint8(w.p.Distinct.Precision), hash: w.p.Distinct.Hash}
}

// Union is a sketch of all things seen in the window that ends with the slice of at, or of the latest now if that is
// later. It covers the length of the window in slices, rounded up, and at most the ring. It does not write.
func (w *DistinctWindow) Union(at, window Tick) Distinct {
	older, newer := w.window(at, window)
	if older == nil {
		return w.empty()
	}
	d := older.Clone()
	if newer != nil {
		w.mustMerge(&d, newer)
	}
	return d
}

// Within is Union for the slices that are entirely in the window: nothing in it is older than the window.
func (w *DistinctWindow) Within(at, window Tick) Distinct {
	at = max(at, w.Last())
	first := floorDiv(int64(at-window), int64(w.p.Slice)) + 1
	return w.Union(at, Tick(w.sliceOf(at)-first+1)*w.p.Slice)
}

// Span is the time, in microseconds, from the beginning of the first slice in Union of a window to the window's end.
func (w *DistinctWindow) Span(at, window Tick) Tick {
	at = max(at, w.Last())
	length := min(floorDiv(int64(window)-1, int64(w.p.Slice))+1, int64(w.p.Slices))
	return at - Tick(w.sliceOf(at)-length+1)*w.p.Slice
}

// Estimate is the number of distinct things in the window, and its standard error: see Union and Distinct.Estimate.
func (w *DistinctWindow) Estimate(at, window Tick) (n, stdErr float64) {
	older, newer := w.window(at, window)
	if older == nil {
		return 0, 0
	}
	if newer == nil {
		return older.Estimate()
	}
	d := w.Union(at, window)
	return d.Estimate()
}

// window returns the one or two sketches whose union is a window.
func (w *DistinctWindow) window(at, window Tick) (older, newer *Distinct) {
	if !w.used || window <= 0 {
		return nil, nil
	}
	length := min(floorDiv(int64(window)-1, int64(w.p.Slice))+1, int64(w.p.Slices))
	first := w.from(max(w.sliceOf(at), w.latest) - length + 1)
	if first == len(w.unions) {
		return nil, nil
	}
	if open := w.from(w.open()); first < open && open < len(w.unions) {
		return &w.unions[first].of, &w.unions[open].of
	}
	return &w.unions[first].of, nil
}

// Last is the beginning of the latest slice, 0 when there is none.
func (w *DistinctWindow) Last() Tick { return Tick(w.latest) * w.p.Slice }

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (w *DistinctWindow) Reached() Tick { return w.Last() }

// Death is the tick from which on every window is empty, as long as nothing is added; 0 when all are empty now.
func (w *DistinctWindow) Death() Tick {
	if len(w.unions) == 0 {
		return 0
	}
	return Tick(w.unions[len(w.unions)-1].slice+int64(w.p.Slices)) * w.p.Slice
}

// Merge adds all that o counted; o does not change. Of the two latest times, the later is kept, and of two precisions,
// the lower. Merge returns ErrIncompatible for other slices or another hash, and then nothing changes. It commutes,
// associates and is idempotent.
func (w *DistinctWindow) Merge(o *DistinctWindow) error {
	if w.p.Slice != o.p.Slice || w.p.Slices != o.p.Slices {
		return fmt.Errorf("distinct window: %d slices of %d us and %d slices of %d us: %w", w.p.Slices, w.p.Slice, o.p.Slices, o.p.Slice, ErrIncompatible)
	}
	if probe := w.empty(); w.p.Distinct.Hash != o.p.Distinct.Hash {
		other := o.empty()
		return probe.Merge(&other)
	}
	w.reduce(o.p.Distinct.Precision)
	if !o.used {
		return nil
	}
	w.advance(o.latest)
	if o.latest < w.latest {
		c := o.Clone()
		c.advance(w.latest)
		o = &c
	}
	// in ascending order, so that the unions from which own makes a union have not changed yet
	for i, j := 0, 0; j < len(o.unions) || i < len(w.unions); i++ {
		slice := int64(0)
		switch {
		case i == len(w.unions) || j < len(o.unions) && o.unions[j].slice < w.unions[i].slice:
			slice = o.unions[j].slice
			w.own(slice)
		default:
			slice = w.unions[i].slice
		}
		other := o.unionAt(j, slice)
		w.mustMerge(&w.unions[i].of, &other)
		if j < len(o.unions) && o.unions[j].slice == slice {
			j++
		}
	}
	return nil
}

// reduce lowers the precision to at most p.
func (w *DistinctWindow) reduce(p int) {
	if p >= w.p.Distinct.Precision {
		return
	}
	w.p.Distinct.Precision = p
	for i := range w.unions {
		w.unions[i].of.reduce(uint8(p))
	}
}

// Clone is a copy that shares no memory with the original.
func (w *DistinctWindow) Clone() DistinctWindow {
	c := *w
	c.unions = slices.Clone(w.unions)
	for i := range c.unions {
		c.unions[i].of = w.unions[i].of.Clone()
	}
	return c
}

// Size is the memory in bytes, the struct itself included.
func (w *DistinctWindow) Size() int {
	size := 80 + 56*(cap(w.unions)-len(w.unions))
	for i := range w.unions {
		size += 8 + w.unions[i].of.Size()
	}
	return size
}

// A DistinctWindow in bytes. Every state has one encoding.
//
//	version    1 byte, 1
//	precision  1 byte
//	hash       9 bytes, see Hash
//	slice      uvarint, its length
//	slices     uvarint, their number
//	used       1 byte, 0 or 1; what follows is there only then
//	latest     varint (zigzag)
//	count      uvarint, of unions
//	unions     each a uvarint, how far its slice is beyond the one before, less 1 (the first: beyond the oldest,
//	           less 0), and a Distinct

const distinctWindowVersion = 1

// AppendBinary appends the encoding to b.
func (w *DistinctWindow) AppendBinary(b []byte) []byte {
	b = append(b, distinctWindowVersion, byte(w.p.Distinct.Precision))
	b = w.p.Distinct.Hash.append(b)
	b = binary.AppendUvarint(b, uint64(w.p.Slice))
	b = binary.AppendUvarint(b, uint64(w.p.Slices))
	if !w.used {
		return append(b, 0)
	}
	b = append(b, 1)
	b = binary.AppendVarint(b, w.latest)
	b = binary.AppendUvarint(b, uint64(len(w.unions)))
	next := w.oldest()
	for i := range w.unions {
		u := &w.unions[i]
		b = binary.AppendUvarint(b, uint64(u.slice-next))
		b = u.of.AppendBinary(b)
		next = u.slice + 1
	}
	return b
}

// Decode replaces w by the one encoded at the start of b, and returns the bytes that follow. It returns ErrCorrupt for
// bytes that AppendBinary cannot have written, and then the receiver does not change.
func (w *DistinctWindow) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	version, precision := r.byte(), r.byte()
	p := DistinctWindowParams{Distinct: DistinctParams{Precision: int(precision), Hash: r.hash()}}
	slice, count := r.uvarint(), r.uvarint()
	if !r.ok || version != distinctWindowVersion || precision == 0 || slice > 1<<62 || count > WindowSlicesMax {
		return nil, ErrCorrupt
	}
	p.Slice, p.Slices = Tick(slice), int(count)
	n, err := NewDistinctWindow(p)
	if err != nil {
		return nil, ErrCorrupt
	}
	switch r.byte() {
	case 0:
	case 1:
		n.used = true
		n.decodeUnions(&r)
	default:
		r.ok = false
	}
	if !r.ok {
		return nil, ErrCorrupt
	}
	*w = n
	return r.b, nil
}

func (w *DistinctWindow) decodeUnions(r *reader) {
	w.latest = r.varint()
	count := r.uvarint()
	if w.latest != w.sliceOf(Tick(w.latest*int64(w.p.Slice))) || w.latest > 1<<62 || w.latest < -1<<62 || count > uint64(w.p.Slices) {
		r.ok = false
		return
	}
	next := w.oldest()
	for range count {
		far := r.uvarint()
		if !r.ok || far > uint64(w.latest-next) || next > w.latest {
			r.ok = false
			return
		}
		u := windowUnion{slice: next + int64(far)}
		rest, err := u.of.Decode(r.b)
		if err != nil || u.of.Params() != w.p.Distinct || len(u.of.words) == 0 {
			r.ok = false
			return
		}
		r.b = rest
		next = u.slice + 1
		w.unions = append(w.unions, u)
	}
	open := w.from(w.open())
	for i := range w.unions {
		if i+1 < len(w.unions) && i+1 != open && !w.unions[i].of.covers(&w.unions[i+1].of) {
			r.ok = false
		}
	}
}

// covers says whether merging o would change nothing.
func (d *Distinct) covers(o *Distinct) bool {
	if o.dense && !d.dense {
		return false
	}
	if o.dense {
		for i, r := range o.words {
			if ellMerge(d.words[i], r) != d.words[i] {
				return false
			}
		}
		return true
	}
	c := d.Clone()
	for _, token := range o.words {
		if token != 0 && c.Add(hashOfToken(token)) {
			return false
		}
	}
	return true
}
