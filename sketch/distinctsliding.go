package sketch

import (
	"fmt"
	"math/bits"
	"slices"
)

// Slices of a DistinctSliding.
const (
	// SlidingSlices is the number of slices in a window.
	SlidingSlices = 1 << 15
	// slidingRound is the number of slices between two removals of what has left the window.
	slidingRound = SlidingSlices / 32
	// slidingCycle is the number of slices that a stored time can distinguish: more than are ever kept.
	slidingCycle = 1<<16 - 1
)

// DistinctSlidingParams say how a DistinctSliding is made.
type DistinctSlidingParams struct {
	Distinct DistinctParams
	// Window, in microseconds, is the longest window of a query: 1 to HalfLifeMax.
	Window Tick
}

// DistinctSliding counts distinct things in any window that ends now, up to Window long. NewDistinctSliding makes one.
// It is a Distinct that stores, for each part of its state, when it was last seen:
//
//	while few   token          -> the slice in which it was last seen
//	then        update k of register i -> the slice in which it last came
//
// A window of the last w microseconds is the Distinct of the tokens, or of the updates, whose slice is in it. So an
// answer equals that of a Distinct of what was seen in these slices, whatever was seen before. Slices are a 32,768th of
// Window long and begin at whole multiples of that since the Unix epoch.
//
//	      k=1   k=2   k=3   ...          time: 2 bytes, 0 for never
//	i=0 | time | time |  0   |
//	i=1 | time |  0   | time |           of m = 2^p registers; as many columns as the largest k
//
// Memory: 6 bytes a thing up to 3/4 * 2^p things. Beyond that 2 * 2^p bytes a column, and about 4 log2(n) columns for n
// things: at p = 11, 330 KB for a million and 500 KB for a thousand million. Registers stay until all has left the
// window.
//
// There is no sweep: the first write in each 32nd of a window drops what has left the window, and no read sees that
// before. Apart from its form, tokens or registers, the state is a function of the set of (slice, hash) and of the
// latest time: Add and Merge commute, associate and are idempotent.
//
// It is a value with one owner: Clone makes an independent copy.
type DistinctSliding struct {
	p      DistinctSlidingParams
	slice  Tick     // the length of a slice
	latest int64    // the slice of the latest now
	used   bool     // latest is set
	last   int64    // the slice of the latest event; valid unless empty
	tokens []uint32 // ascending; nil while there are cells
	times  []uint16 // of tokens, in the format of slidingTime
	cells  []uint16 // times of updates: of update k and register i at (k-1)*m + i
}

// NewDistinctSliding is an empty DistinctSliding. It returns ErrParams for parameters out of range.
func NewDistinctSliding(p DistinctSlidingParams) (DistinctSliding, error) {
	d, err := NewDistinct(p.Distinct)
	if err != nil {
		return DistinctSliding{}, err
	}
	if p.Window < 1 || p.Window > HalfLifeMax {
		return DistinctSliding{}, fmt.Errorf("sliding distinct: window of %d us is not in 1 to %d: %w",
			p.Window, HalfLifeMax, ErrParams)
	}
	p.Distinct = d.Params()
	return DistinctSliding{p: p, slice: (p.Window-1)/SlidingSlices + 1}, nil
}

// Params are the present parameters: those of the constructor, unless a merge has changed them.
func (w *DistinctSliding) Params() DistinctSlidingParams { return w.p }

// Slice is the length of a slice in microseconds. Things up to that much older than a window may be in its answer.
func (w *DistinctSliding) Slice() Tick { return w.slice }

// precision is the precision of the Distinct, and registers the number of its registers.
func (w *DistinctSliding) precision() uint8 { return uint8(w.p.Distinct.Precision) }

func (w *DistinctSliding) registers() int { return 1 << w.p.Distinct.Precision }

func (w *DistinctSliding) sliceOf(t Tick) int64 { return floorDiv(int64(t), int64(w.slice)) }

// slidingTime is the stored form of a slice. It is never 0.
func slidingTime(slice int64) uint16 {
	return uint16(1 + slice - slidingCycle*floorDiv(slice, slidingCycle))
}

// age is the number of slices from a stored time to the latest slice.
func (w *DistinctSliding) age(time uint16) int64 {
	age := int64(slidingTime(w.latest)) - int64(time)
	if age < 0 {
		age += slidingCycle
	}
	return age
}

// cut is the first slice that is kept.
func (w *DistinctSliding) cut() int64 {
	return floorDiv(w.latest, slidingRound)*slidingRound - SlidingSlices
}

// Add adds the thing with this hash, seen at time t, which must not be after now; now must not be before the now of any
// earlier call. It returns false when t's slice has been dropped, and then nothing was added.
func (w *DistinctSliding) Add(now, t Tick, hash uint64) bool {
	w.advance(w.sliceOf(now))
	slice := min(w.sliceOf(t), w.latest)
	if slice < w.cut() {
		return false
	}
	if w.cells == nil {
		w.addToken(tokenOf(hash), slice)
	} else {
		w.addUpdate(hash, slice)
	}
	return true
}

// advance makes a slice the latest, and drops what has left the window.
func (w *DistinctSliding) advance(to int64) {
	if !w.used {
		w.latest, w.used = to, true
		return
	}
	if to <= w.latest {
		return
	}
	before := w.cut()
	w.latest, to = to, w.latest
	if cut := w.cut(); cut > before && !w.empty() {
		if cut > w.last {
			w.clear()
			return
		}
		w.drop(cut, to)
	}
}

// empty says whether nothing is kept.
func (w *DistinctSliding) empty() bool { return w.tokens == nil && w.cells == nil }

func (w *DistinctSliding) clear() { w.tokens, w.times, w.cells, w.last = nil, nil, nil, 0 }

// drop drops what is older than the slice cut. latest is the slice relative to which the times were stored.
func (w *DistinctSliding) drop(cut, latest int64) {
	now := w.latest
	w.latest = latest
	oldest := latest - cut // an age
	n := 0
	for i, token := range w.tokens {
		if w.age(w.times[i]) <= oldest {
			w.tokens[n], w.times[n] = token, w.times[i]
			n++
		}
	}
	if w.tokens != nil {
		w.tokens, w.times = trimmed(w.tokens[:n]), trimmed(w.times[:n])
	}
	used := 0
	for i, time := range w.cells {
		if time == 0 {
			continue
		}
		if w.age(time) > oldest {
			w.cells[i] = 0
		} else {
			used = i + 1
		}
	}
	m := w.registers()
	w.cells = trimmed(w.cells[:(used+m-1)/m*m])
	w.latest = now
}

// later sets kept to the later of two times. kept may be 0, which means no time.
func (w *DistinctSliding) later(kept *uint16, time uint16) {
	if *kept == 0 || w.age(time) < w.age(*kept) {
		*kept = time
	}
}

func (w *DistinctSliding) addToken(token uint32, slice int64) {
	i, found := slices.BinarySearch(w.tokens, token)
	if !found && len(w.tokens) >= w.tokensMax() {
		w.densify()
		w.addUpdate(hashOfToken(token), slice)
		return
	}
	w.note(slice)
	if found {
		w.later(&w.times[i], slidingTime(slice))
		return
	}
	w.tokens = slices.Insert(roomier(w.tokens, w.tokensMax()), i, token)
	w.times = slices.Insert(roomier(w.times, w.tokensMax()), i, slidingTime(slice))
}

// note records the slice of the latest event.
func (w *DistinctSliding) note(slice int64) {
	if w.empty() || slice > w.last {
		w.last = slice
	}
}

// tokensMax is the largest number of tokens, the same as of a Distinct; with one more, they become updates.
func (w *DistinctSliding) tokensMax() int { return 3 * w.registers() / 4 }

// densify turns tokens into updates.
func (w *DistinctSliding) densify() {
	tokens, times := w.tokens, w.times
	w.tokens, w.times, w.cells = nil, nil, []uint16{}
	for i, token := range tokens {
		w.setUpdate(hashOfToken(token), times[i])
	}
}

func (w *DistinctSliding) addUpdate(hash uint64, slice int64) {
	w.note(slice)
	w.setUpdate(hash, slidingTime(slice))
}

func (w *DistinctSliding) setUpdate(hash uint64, time uint16) {
	w.later(w.cell(int(ellValue(hash, w.precision())), int(hash>>2)&(w.registers()-1)), time)
}

// cell is the cell of an update of a register.
func (w *DistinctSliding) cell(k, register int) *uint16 {
	at, m := (k-1)*w.registers()+register, w.registers()
	if at >= len(w.cells) {
		w.cells = slices.Grow(w.cells, k*m-len(w.cells))
		w.cells = w.cells[:k*m]
	}
	return &w.cells[at]
}

// Span is the time, in microseconds, from the beginning of the first slice that a window touches to the window's end:
// the time that an answer covers. It is at most a slice longer than the window, and not longer than what is kept.
func (w *DistinctSliding) Span(at, window Tick) Tick {
	at = max(at, Tick(w.latest)*w.slice)
	window = min(window, w.p.Window)
	return max(window, at-Tick(w.first(at, window))*w.slice)
}

// first is the first slice that a window of at least 1 us touches.
func (w *DistinctSliding) first(at, window Tick) int64 { return w.sliceOf(at - window + 1) }

// Union is a sketch of all things seen in the slices that a window touches. The window ends at at, or at the latest now
// if that is later, and is cut to Window. It does not write.
func (w *DistinctSliding) Union(at, window Tick) Distinct {
	at = max(at, Tick(w.latest)*w.slice)
	return w.since(w.first(at, min(window, w.p.Window)))
}

// Within is Union for the slices that are entirely in the window: nothing in it is older than the window.
func (w *DistinctSliding) Within(at, window Tick) Distinct {
	at = max(at, Tick(w.latest)*w.slice)
	window = min(window, w.p.Window)
	first := w.first(at, window)
	if Tick(first)*w.slice < at-window+1 {
		first++
	}
	return w.since(first)
}

// since is the sketch of what was seen in the slice first or later.
func (w *DistinctSliding) since(first int64) Distinct {
	d := Distinct{p: w.precision(), hash: w.p.Distinct.Hash}
	if w.empty() || first > w.last {
		return d
	}
	oldest := w.latest - first
	if w.cells == nil {
		tokens := make([]uint32, 0, len(w.tokens))
		for i, token := range w.tokens {
			if w.age(w.times[i]) <= oldest {
				tokens = append(tokens, token)
			}
		}
		d.setTokens(tokens, len(tokens), len(tokens)*4/3+1)
		return d
	}
	d.words, d.dense = make([]uint32, w.registers()), true
	for at := 0; at < len(w.cells); at += len(d.words) {
		w.enter(d.words, w.cells[at:at+len(d.words)], uint32(at/len(d.words)+1), oldest)
	}
	return d
}

// enter adds the updates k that are at most oldest slices old. The registers must not have seen an update larger than
// k.
func (w *DistinctSliding) enter(registers []uint32, column []uint16, k uint32, oldest int64) {
	now := int(slidingTime(w.latest))
	for i, time := range column {
		age := now - int(time)
		if age < 0 {
			age += slidingCycle
		}
		if time != 0 && age <= int(oldest) {
			registers[i] = entered(registers[i], k)
		}
	}
}

// entered is a register after an update k that is larger than all before.
func entered(r, k uint32) uint32 { return k<<ellD | (1<<ellD|r&ellMask)>>(k-r>>ellD) }

// Last is the beginning of the latest slice, 0 when there is none.
func (w *DistinctSliding) Last() Tick { return Tick(w.latest) * w.slice }

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (w *DistinctSliding) Reached() Tick { return w.Last() }

// Death is the tick from which on every window is empty, as long as nothing is added; 0 when all are empty now.
func (w *DistinctSliding) Death() Tick {
	if w.empty() {
		return 0
	}
	return Tick(w.last+1)*w.slice + w.p.Window
}

// Merge adds all that o counted; o does not change. Of the two latest times, the later is kept, and of two precisions,
// the lower. Merge returns ErrIncompatible for another window or another hash, and then nothing has changed.
func (w *DistinctSliding) Merge(o *DistinctSliding) error {
	if w.p.Window != o.p.Window {
		return fmt.Errorf("sliding distinct: windows of %d us and of %d us: %w", w.p.Window, o.p.Window, ErrIncompatible)
	}
	if w.p.Distinct.Hash != o.p.Distinct.Hash {
		return fmt.Errorf("sliding distinct: hashes of %+v and of %+v: %w", w.p.Distinct.Hash, o.p.Distinct.Hash,
			ErrIncompatible)
	}
	w.reduce(o.precision())
	if !o.used {
		return nil
	}
	other := o.Clone()
	other.reduce(w.precision())
	w.advance(other.latest)
	other.advance(w.latest)
	if other.empty() {
		return nil
	}
	w.note(other.last)
	if w.empty() {
		w.tokens, w.times, w.cells = other.tokens, other.times, other.cells
		return nil
	}
	w.absorb(&other)
	return nil
}

// absorb merges a sketch with the same parameters and the same latest slice. All its contents must be recent enough to
// be kept.
func (w *DistinctSliding) absorb(o *DistinctSliding) {
	if o.cells != nil && w.cells == nil {
		w.densify()
	}
	for i, token := range o.tokens {
		if w.cells == nil {
			w.addToken(token, w.latest-w.age(o.times[i]))
		} else {
			w.setUpdate(hashOfToken(token), o.times[i])
		}
	}
	m := w.registers()
	for at, time := range o.cells {
		if time != 0 {
			w.later(w.cell(at/m+1, at%m), time)
		}
	}
}

// reduce lowers the precision to at most p; see Distinct.reduce.
func (w *DistinctSliding) reduce(p uint8) {
	had := w.precision()
	if p >= had {
		return
	}
	cells, m, last := w.cells, w.registers(), int(62-had)<<2
	w.p.Distinct.Precision = int(p)
	if cells == nil {
		if len(w.tokens) > w.tokensMax() {
			w.densify()
		}
		return
	}
	w.cells = []uint16{}
	for at, time := range cells {
		if time == 0 {
			continue
		}
		k, i := at/m+1, at%m
		if k > last { // its value was all zeros, which continue in the upper bits of the register's number
			k += (bits.LeadingZeros32(uint32(i)>>p) - (32 - int(had-p))) << 2
		}
		w.later(w.cell(k, i&(w.registers()-1)), time)
	}
}

// Clone is a copy that shares no memory with the original.
func (w *DistinctSliding) Clone() DistinctSliding {
	c := *w
	c.tokens, c.times, c.cells = slices.Clone(w.tokens), slices.Clone(w.times), slices.Clone(w.cells)
	return c
}

// slidingOwn is the size of a DistinctSliding without the memory that it points to.
const slidingOwn = 144

// Size is the memory in bytes, the struct itself included.
func (w *DistinctSliding) Size() int {
	return slidingOwn + 4*cap(w.tokens) + 2*cap(w.times) + 2*cap(w.cells)
}

// Held counts tokens, or columns.
func (w *DistinctSliding) Held() int { return slidingOwn + 6*len(w.tokens) + 2*len(w.cells) }

// Reserved is Held, because this kind did not exist before sketches grew with their contents.
func (w *DistinctSliding) Reserved() int { return w.Held() }

// ReservedMost is Held with a column for every possible update.
func (w *DistinctSliding) ReservedMost() int { return slidingOwn + 2*w.columnsMax()*w.registers() }

// columnsMax is the largest possible update.
func (w *DistinctSliding) columnsMax() int { return 4 * (63 - w.p.Distinct.Precision) }

// Ring converts to a DistinctWindow with slices of another length. Each thing goes into the slice in which its own
// slice ends, but not into one after the latest. So a thing may seem up to Slice younger than it is. Ring lets keys of
// both forms be merged. It returns ErrIncompatible if the slices of p are shorter than Slice.
func (w *DistinctSliding) Ring(p DistinctWindowParams) (DistinctWindow, error) {
	p.Distinct = w.p.Distinct
	ring, err := NewDistinctWindow(p)
	if err != nil || p.Slice < w.slice {
		return DistinctWindow{}, fmt.Errorf("sliding distinct: slices of %d us of windows of %d us: %w",
			p.Slice, w.p.Window, ErrIncompatible)
	}
	if !w.used {
		return ring, nil
	}
	ring.advance(ring.sliceOf(w.Last()))
	for i, part := range w.parts(&ring) {
		if part.words == nil {
			continue
		}
		slice := ring.oldest() + int64(i)
		one := DistinctWindow{p: ring.p, latest: slice, used: true, unions: []windowUnion{{slice: slice, of: part}}}
		if err := ring.Merge(&one); err != nil {
			return DistinctWindow{}, err
		}
	}
	return ring, nil
}

// parts are what was last seen in each slice of a ring, from its oldest slice on. A part without words is empty.
func (w *DistinctSliding) parts(ring *DistinctWindow) []Distinct {
	parts := make([]Distinct, ring.p.Slices)
	for i := range parts {
		parts[i] = ring.empty()
	}
	of := make([]int, w.latest-w.cut()+1) // by age; negative for what has left the ring
	for age := range of {
		end := Tick(w.latest-int64(age)+1)*w.slice - 1
		of[age] = int(min(ring.sliceOf(end), ring.latest) - ring.oldest())
	}
	tokens := make([][]uint32, len(parts))
	for i, token := range w.tokens {
		if at := of[w.age(w.times[i])]; at >= 0 {
			tokens[at] = append(tokens[at], token)
		}
	}
	for i, list := range tokens {
		if len(list) > 0 {
			parts[i].setTokens(list, len(list), len(list)*4/3+1)
		}
	}
	m := w.registers()
	for at, time := range w.cells {
		if time == 0 || of[w.age(time)] < 0 {
			continue
		}
		part := &parts[of[w.age(time)]]
		if part.words == nil {
			part.words, part.dense = make([]uint32, m), true
		}
		part.words[at%m] = entered(part.words[at%m], uint32(at/m+1))
	}
	return parts
}
