package sketch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Limits of a TopK.
const (
	TopKEntriesMax = 65_534
	TopKNameMax    = 1024
)

// ErrName says that a name is longer than TopKNameMax bytes.
var ErrName = errors.New("name is too long")

// TopKParams decide the shape of a TopK.
type TopKParams struct {
	// K is the number of items that an answer lists.
	K int
	// Entries is the number of items kept, at least 10*K; 0 means 10*K.
	Entries int
	// HalfLife in microseconds, 0 for none.
	HalfLife Tick
	// Hash seeds the table of names; callers pass names, not hashes.
	Hash Hash
}

func (p *TopKParams) check() error {
	if p.K < 1 || p.K > TopKEntriesMax/10 {
		return fmt.Errorf("%w: top-k: k of %d is not in 1..%d", ErrParams, p.K, TopKEntriesMax/10)
	}
	if p.Entries < 10*p.K || p.Entries > TopKEntriesMax {
		return fmt.Errorf("%w: top-k: %d entries are not in 10*k..%d, k being %d", ErrParams, p.Entries, TopKEntriesMax, p.K)
	}
	if !p.Hash.known() {
		return fmt.Errorf("%w: top-k: hash id %d is unknown", ErrParams, p.Hash.ID)
	}
	return checkHalfLife("top-k", p.HalfLife)
}

// TopK finds the items that occur most, with a bracket for each: weighted SpaceSaving (Metwally, Agrawal, El Abbadi
// 2005) on forward weights. It has m entries, and all weights refer to one landmark. When all entries are in use, a new
// item replaces the entry with the least count and takes over its count, as the error of the new item:
//
//	estimate >= truth >= estimate - err      err <= Z/m, Z the sum of all counts
//
// Where an earlier summary of the key had died (see Born), the truth may exceed the estimate by Lost.
//
// An err is stored in half a double, rounded up by at most a millionth. All weights shrink alike, so the bracket holds
// at every time, not only when it was written. It holds up to the rounding of sums (exactly without a half-life, with
// whole amounts up to 2^53 in total); values below 2^-100 count as 0. An item with more than Z/m is always among the
// entries.
//
// Among equal least entries, a seeded hash of the name decides, then the name: the state depends on the events and
// their order, not on the memory layout. It is a value with one owner: Clone makes an independent copy. An entry takes
// about 25 bytes and its name.
type TopK struct {
	params TopKParams
	fade
	loss
	values []float64 // by position
	errs   []upper   // by position: see err
	names  []uint32  // by position: where in the arena
	hashes []uint16  // by position
	heap   []uint16  // positions, the least at the root
	places []uint16  // by position: where in the heap
	slots  []uint16  // position + 1 by hash, probed linearly; at most 3/4 used
	arena  []byte    // names, each after its length in 2 bytes
	waste  int       // bytes of the arena that nothing refers to
	z      float64
	last   Tick
}

// upper is the upper half of a double that is not negative: its sign, exponent and the first 20 bits after the point.
type upper uint32

// upperOf rounds up, with a relative error below 2^-20. Multiplying v by a power of two does not change that error.
func upperOf(v float64) upper {
	b := math.Float64bits(v)
	return upper((b + 1<<32 - 1) >> 32)
}

func (u upper) float() float64 { return math.Float64frombits(uint64(u) << 32) }

// err is by how much the value at a position may be too high: at most the whole value.
func (s *TopK) err(i int) float64 { return min(s.errs[i].float(), s.values[i]) }

// NewTopK makes an empty summary, or returns ErrParams.
func NewTopK(p TopKParams) (TopK, error) {
	p.Hash = p.Hash.orDefault()
	if p.Entries == 0 && p.K <= TopKEntriesMax/10 {
		p.Entries = 10 * p.K
	}
	if err := p.check(); err != nil {
		return TopK{}, err
	}
	return TopK{params: p, fade: fade{halfLife: p.HalfLife}}, nil
}

// Params are the parameters of NewTopK, Entries filled in.
func (s *TopK) Params() TopKParams { return s.params }

// Len is the number of entries in use.
func (s *TopK) Len() int { return len(s.values) }

// Add counts n events of an item at time t. now is the namespace's clock: not before t, and not before the now of any
// earlier call. It returns ErrName, ErrNegative or ErrOverflow, and then nothing has changed.
func (s *TopK) Add(now, t Tick, name []byte, n float64) error {
	if len(name) > TopKNameMax {
		return fmt.Errorf("%w: %d bytes, more than %d", ErrName, len(name), TopKNameMax)
	}
	if err := checkAmount(n); err != nil || n == 0 {
		return err
	}
	s.settle(now)
	atNow := s.weight(now)
	inc, cut := float64(n*s.weight(t)), faint(atNow)
	if inc < cut {
		s.last = max(s.last, t)
		return nil
	}
	z := atLeast(s.z, cut) + inc
	if z > float64(CountMax*atNow) {
		return ErrOverflow
	}
	s.z = z
	s.last = max(s.last, t)
	s.count(name, inc, cut)
	return nil
}

// count adds to the entry of a name, or makes one.
func (s *TopK) count(name []byte, inc, cut float64) {
	h := s.hash(name)
	i := s.find(name, h)
	if i < 0 && s.Len() < s.params.Entries {
		s.push(name, h, inc, 0)
		return
	}
	if i < 0 {
		i = int(s.heap[0])
		s.unslot(i)
		left := 2 + len(s.name(i))
		s.names[i], s.hashes[i] = s.intern(name), h
		s.waste += left // after intern, which may have packed the old name too
		s.slot(i)
		s.errs[i] = upperOf(s.values[i])
	}
	if s.values[i] < cut {
		s.values[i], s.errs[i] = 0, 0
	}
	s.values[i] += inc
	s.sink(int(s.places[i]))
}

// settle moves the landmark when necessary, so that weights stay small.
func (s *TopK) settle(now Tick) {
	if s.z == 0 {
		s.mark = s.landmark(now)
		return
	}
	if mark, move := s.due(now); move {
		s.rebase(mark)
	}
}

// rebase moves to a later landmark, an exact multiplication by a power of two, and drops what has faded.
func (s *TopK) rebase(mark int64) {
	scale := s.moveTo(mark)
	if s.z = atLeast(float64(s.z*scale), faintest); s.z == 0 {
		s.clear()
		return
	}
	gone := false
	for i := range s.values {
		s.values[i] = atLeast(float64(s.values[i]*scale), faintest)
		s.errs[i] = upperOf(atLeast(float64(s.errs[i].float()*scale), faintest))
		gone = gone || s.values[i] == 0
	}
	if gone {
		s.rebuild(s.entries())
	}
}

// topKEntry is one entry, outside of the arrays of a TopK.
type topKEntry struct {
	name       []byte
	hash       uint16
	value, err float64
}

// entries are the entries that have not faded, in no order. Their names point into the arena.
func (s *TopK) entries() []topKEntry {
	all := make([]topKEntry, 0, s.Len())
	for i, v := range s.values {
		if v != 0 {
			all = append(all, topKEntry{name: s.name(i), hash: s.hashes[i], value: v, err: s.err(i)})
		}
	}
	return all
}

// rebuild makes new arrays of the entries.
func (s *TopK) rebuild(all []topKEntry) {
	s.clear()
	s.reserve(len(all))
	for _, e := range all {
		s.push(e.name, e.hash, e.value, e.err)
	}
}

// clear removes all entries; the names of the old entries stay readable.
func (s *TopK) clear() {
	*s = TopK{params: s.params, fade: s.fade, loss: s.loss, z: s.z, last: s.last}
}

// reserve makes room for n entries in all.
func (s *TopK) reserve(n int) {
	s.values, s.errs = enlarged(s.values, n), enlarged(s.errs, n)
	s.names, s.hashes = enlarged(s.names, n), enlarged(s.hashes, n)
	s.heap, s.places = enlarged(s.heap, n), enlarged(s.places, n)
	if slots := n + n/3 + 1; slots > len(s.slots) {
		s.slots = make([]uint16, slots)
		for i := range s.values {
			s.slot(i)
		}
	}
}

func enlarged[T any](v []T, room int) []T { return append(make([]T, 0, room), v...) }

// push appends an entry for a name that has none.
func (s *TopK) push(name []byte, hash uint16, value, err float64) {
	i := s.Len()
	if i == cap(s.values) {
		s.reserve(min(s.params.Entries, i+i/4+4))
	}
	s.values, s.errs = append(s.values, value), append(s.errs, upperOf(err))
	s.names, s.hashes = append(s.names, s.intern(name)), append(s.hashes, hash)
	s.heap, s.places = append(s.heap, uint16(i)), append(s.places, uint16(i))
	s.slot(i)
	s.lift(i)
}

// name is the name at a position; it is valid until the next write.
func (s *TopK) name(i int) []byte {
	at := s.names[i]
	n := binary.LittleEndian.Uint16(s.arena[at:])
	return s.arena[at+2:][:n:n]
}

// intern appends a name to the arena, and packs the arena first when half of it is waste.
func (s *TopK) intern(name []byte) uint32 {
	if s.waste > 256 && 2*s.waste > len(s.arena) {
		s.pack()
	}
	at := len(s.arena)
	s.arena = append(binary.LittleEndian.AppendUint16(s.arena, uint16(len(name))), name...)
	return uint32(at)
}

func (s *TopK) pack() {
	packed := make([]byte, 0, len(s.arena)-s.waste+len(s.arena)/8)
	for i := range s.names {
		at := uint32(len(packed))
		packed = append(binary.LittleEndian.AppendUint16(packed, uint16(len(s.name(i)))), s.name(i)...)
		s.names[i] = at
	}
	s.arena, s.waste = packed, 0
}

// hash mixes 8 bytes at a time by a product of 128 bits, as wyhash does.
func (s *TopK) hash(name []byte) uint16 {
	h := s.params.Hash.Seed ^ uint64(len(name))*0x9e3779b97f4a7c15
	for ; len(name) >= 8; name = name[8:] {
		hi, lo := bits.Mul64(h^binary.LittleEndian.Uint64(name), 0xd6e8feb86659fd93)
		h = hi ^ lo
	}
	var tail uint64
	for _, c := range name {
		tail = tail<<8 | uint64(c)
	}
	return uint16(remix(h^tail, int(s.params.Hash.ID)) >> 16)
}

// home is the first slot of a hash, and next the slot after a slot.
func (s *TopK) home(hash uint16) int { return int(hash) * len(s.slots) >> 16 }

func (s *TopK) next(slot int) int {
	if slot++; slot < len(s.slots) {
		return slot
	}
	return 0
}

// find is the position of a name, -1 when it has no entry.
func (s *TopK) find(name []byte, hash uint16) int {
	if len(s.slots) == 0 {
		return -1
	}
	for at := s.home(hash); s.slots[at] != 0; at = s.next(at) {
		if i := int(s.slots[at]) - 1; s.hashes[i] == hash && bytes.Equal(s.name(i), name) {
			return i
		}
	}
	return -1
}

// slot enters a position into the hash table.
func (s *TopK) slot(i int) {
	at := s.home(s.hashes[i])
	for s.slots[at] != 0 {
		at = s.next(at)
	}
	s.slots[at] = uint16(i + 1)
}

// unslot removes a position and closes the gap: later slots move back, except to a place before their home.
func (s *TopK) unslot(i int) {
	gap := s.home(s.hashes[i])
	for s.slots[gap] != uint16(i+1) {
		gap = s.next(gap)
	}
	for at := s.next(gap); s.slots[at] != 0; at = s.next(at) {
		home := s.home(s.hashes[s.slots[at]-1])
		if s.behind(at, home) >= s.behind(at, gap) {
			s.slots[gap] = s.slots[at]
			gap = at
		}
	}
	s.slots[gap] = 0
}

// behind is the number of slots from one slot to another, cyclically.
func (s *TopK) behind(to, from int) int {
	if to >= from {
		return to - from
	}
	return to - from + len(s.slots)
}

// less is the order of the heap: by value, then hash, then name. No two entries are equal in it.
func (s *TopK) less(i, j uint16) bool {
	if s.values[i] != s.values[j] {
		return s.values[i] < s.values[j]
	}
	if s.hashes[i] != s.hashes[j] {
		return s.hashes[i] < s.hashes[j]
	}
	return bytes.Compare(s.name(int(i)), s.name(int(j))) < 0
}

// sink restores the heap below a place.
func (s *TopK) sink(at int) {
	i := s.heap[at]
	for {
		child := 2*at + 1
		if child >= len(s.heap) {
			break
		}
		if child+1 < len(s.heap) && s.less(s.heap[child+1], s.heap[child]) {
			child++
		}
		if !s.less(s.heap[child], i) {
			break
		}
		s.put(at, s.heap[child])
		at = child
	}
	s.put(at, i)
}

// lift restores the heap above a place.
func (s *TopK) lift(at int) {
	i := s.heap[at]
	for at > 0 {
		parent := (at - 1) / 2
		if !s.less(i, s.heap[parent]) {
			break
		}
		s.put(at, s.heap[parent])
		at = parent
	}
	s.put(at, i)
}

func (s *TopK) put(at int, i uint16) { s.heap[at], s.places[i] = i, uint16(at) }

// least is the most that an item without an entry may have had: the least value, or 0 while entries are free.
func (s *TopK) least() float64 {
	if s.Len() < s.params.Entries {
		return 0
	}
	return s.values[s.heap[0]]
}

// TopKItem is an item's count at one time: Count - Err <= truth <= Count.
type TopKItem struct {
	Name       []byte
	Count, Err float64
}

// Top appends the k items with the largest counts at a time to dst, ordered by descending count, then by name. Names
// are valid until the next write. k may be up to Entries. Top never writes.
func (s *TopK) Top(at Tick, k int, dst []TopKItem) []TopKItem {
	k = min(k, s.Len())
	if k <= 0 {
		return dst
	}
	best := make([]int, 0, k)
	for i := range s.values {
		if len(best) == k && s.values[i] < s.values[best[k-1]] {
			continue
		}
		place, _ := slices.BinarySearchFunc(best, i, s.compare)
		if place == k {
			continue
		}
		if len(best) == k {
			best = best[:k-1]
		}
		best = slices.Insert(best, place, i)
	}
	scale, cut := s.scale(at), faint(s.weight(at))
	for _, i := range best {
		if s.values[i] >= cut {
			dst = append(dst, TopKItem{
				Name: s.name(i), Count: float64(s.values[i] * scale), Err: float64(atLeast(s.err(i), cut) * scale),
			})
		}
	}
	return dst
}

// compare is the order of items in answers.
func (s *TopK) compare(i, j int) int {
	switch {
	case s.values[i] > s.values[j]:
		return -1
	case s.values[i] < s.values[j]:
		return 1
	}
	return bytes.Compare(s.name(i), s.name(j))
}

// Item reads the count of one item at a time. If the item has no entry, Count and Err are both ErrMax.
func (s *TopK) Item(at Tick, name []byte) TopKItem {
	scale, cut := s.scale(at), faint(s.weight(at))
	value, err := s.least(), s.least()
	if i := s.find(name, s.hash(name)); i >= 0 {
		value, err = s.values[i], s.err(i)
	}
	return TopKItem{Name: name, Count: float64(atLeast(value, cut) * scale), Err: float64(atLeast(err, cut) * scale)}
}

// Z is the sum of all counts at a time.
func (s *TopK) Z(at Tick) float64 { return float64(atLeast(s.z, faint(s.weight(at))) * s.scale(at)) }

// ErrMax is an upper bound, at a time, of every Err and of the count of every item without an entry: at most Z/Entries.
func (s *TopK) ErrMax(at Tick) float64 {
	return float64(atLeast(s.least(), faint(s.weight(at))) * s.scale(at))
}

// Last is the tick of the latest event, 0 when there was none.
func (s *TopK) Last() Tick { return s.last }

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (s *TopK) Reached() Tick { return s.reached(s.last) }

// Death is a tick from which on Z is below a threshold above 0, as long as nothing is added: a few ticks after the
// first such tick. It is MaxTick without a half-life, and 0 when nothing was ever counted. Where something is lost,
// Death waits until lost is a seventh of the threshold.
func (s *TopK) Death(threshold float64) Tick {
	if s.z == 0 {
		return 0
	}
	return max(Faded(s.Z(s.last), s.last, s.halfLife, threshold), s.loss.faded(s.halfLife, threshold))
}

// Merge adds what o holds; o does not change. The bracket holds with the Z of both (Agarwal et al. 2013): an item with
// an entry in only one summary may have had the least value of the other. The m entries with the largest sums stay.
// Merge commutes, bit for bit. It does not associate: callers must merge in a fixed order. It returns ErrIncompatible
// or ErrOverflow, and then nothing has changed.
func (s *TopK) Merge(o *TopK) error {
	if s.params != o.params {
		return &mismatch{kind: "top-k", a: s.params, b: o.params}
	}
	if s.z+o.z > mergedMax {
		return ErrOverflow
	}
	last, lost := max(s.last, o.last), s.loss.plus(o.loss, s.halfLife)
	if s.z == 0 {
		*s = o.Clone()
	} else if o.z != 0 {
		other := o.Clone()
		if other.mark < s.mark {
			other.rebase(s.mark)
		} else if s.mark < other.mark {
			s.rebase(other.mark)
		}
		s.add(&other)
	}
	s.last, s.loss = last, lost
	return nil
}

// add merges entries of the same landmark.
func (s *TopK) add(o *TopK) {
	mine, theirs := s.least(), o.least()
	all := s.entries()
	for i := range all {
		e := &all[i]
		if j := o.find(e.name, e.hash); j >= 0 {
			e.value, e.err = e.value+o.values[j], e.err+o.err(j)
			continue
		}
		e.value, e.err = e.value+theirs, e.err+theirs
	}
	for _, e := range o.entries() {
		if s.find(e.name, e.hash) < 0 {
			e.value, e.err = e.value+mine, e.err+mine
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b topKEntry) int {
		switch {
		case a.value > b.value || a.value == b.value && a.hash > b.hash:
			return -1
		case a.value < b.value || a.hash < b.hash:
			return 1
		}
		return bytes.Compare(b.name, a.name)
	})
	s.z += o.z
	s.rebuild(all[:min(len(all), s.params.Entries)])
}

// Clone is a copy that shares no memory with the original.
func (s *TopK) Clone() TopK {
	c := *s
	c.values, c.errs = slices.Clone(s.values), slices.Clone(s.errs)
	c.names, c.hashes = slices.Clone(s.names), slices.Clone(s.hashes)
	c.heap, c.places, c.slots = slices.Clone(s.heap), slices.Clone(s.places), slices.Clone(s.slots)
	c.arena = slices.Clone(s.arena)
	return c
}

// Size is the memory in bytes, the struct itself included.
func (s *TopK) Size() int {
	return 288 + 8*cap(s.values) + 4*(cap(s.errs)+cap(s.names)) +
		2*(cap(s.hashes)+cap(s.heap)+cap(s.places)+cap(s.slots)) + cap(s.arena)
}

// A TopK in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 'k', 1, or 2 where something is lost
//	hash             9 bytes, see Hash
//	k, entries       uvarints
//	half-life        uvarint
//	mark, last       uvarints; mark is 0 when nothing is stored
//	lost             in version 2: 4 bytes, the upper half of a double above 0, and a uvarint, since when
//	z                8 bytes; 0 is the end
//	n                uvarint: entries in use
//	names            each a uvarint of its length and its bytes; ascending
//	values, errors   8 bytes each, little endian doubles

const topKKind = 'k'

// AppendBinary appends the encoding to b.
func (s *TopK) AppendBinary(b []byte) []byte {
	b = s.params.Hash.append(append(b, topKKind, s.loss.version(codecVersion)))
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.params.K)), uint64(s.params.Entries))
	b = s.loss.append(s.fade.append(b, s.z == 0, s.last))
	b = appendFloat(b, s.z)
	if s.z == 0 {
		return b
	}
	b = binary.AppendUvarint(b, uint64(s.Len()))
	order := make([]int, s.Len())
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return bytes.Compare(s.name(i), s.name(j)) })
	for _, i := range order {
		b = append(binary.AppendUvarint(b, uint64(len(s.name(i)))), s.name(i)...)
	}
	for _, i := range order {
		b = appendFloat(b, s.values[i])
	}
	for _, i := range order {
		b = appendFloat(b, s.err(i))
	}
	return b
}

// Decode replaces the summary by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change.
func (s *TopK) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	version := r.headerLoss(topKKind)
	p := TopKParams{Hash: r.hash(), K: r.int(TopKEntriesMax), Entries: r.int(TopKEntriesMax)}
	f, last := r.fade()
	p.HalfLife = f.halfLife
	lost := r.loss(version, codecVersion, p.HalfLife)
	z := r.float()
	if !r.ok || p.Entries == 0 || z < 0 || z == 0 && f.mark != 0 {
		return nil, ErrCorrupt
	}
	n, err := NewTopK(p)
	if err != nil {
		return nil, ErrCorrupt
	}
	n.fade, n.loss, n.last, n.z = f, lost, last, z
	if z != 0 && !n.decodeEntries(&r) {
		return nil, ErrCorrupt
	}
	*s = n
	return r.b, nil
}

func (s *TopK) decodeEntries(r *reader) bool {
	n := r.int(s.params.Entries)
	if !r.ok || n > len(r.b)/(1+8+8) {
		return false
	}
	all := make([]topKEntry, n)
	for i := range all {
		e := &all[i]
		e.name = r.take(r.int(TopKNameMax))
		if !r.ok || i > 0 && bytes.Compare(all[i-1].name, e.name) >= 0 {
			return false
		}
		e.hash = s.hash(e.name)
	}
	for i := range all {
		all[i].value = r.float()
		if all[i].value <= 0 || all[i].value > float64(s.z*(1+0x1p-10)) {
			return false
		}
	}
	for i := range all {
		all[i].err = r.float()
		if e := all[i]; e.err < 0 || e.err > e.value || e.err != e.value && e.err != upperOf(e.err).float() {
			return false
		}
	}
	if !r.ok {
		return false
	}
	s.rebuild(all)
	return true
}
