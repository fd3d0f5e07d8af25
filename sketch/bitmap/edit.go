package bitmap

import (
	"math/bits"

	"github.com/ebbdb/ebb/internal/kernel"
)

// Op is the operation of an edit on lows. Ops are written to logs, so their numbers must not change.
type Op uint8

// Set adds lows, Clear removes them, and Flip changes each.
const (
	Set Op = 1 + iota
	Clear
	Flip
)

func (op Op) String() string {
	switch op {
	case Set:
		return "set"
	case Clear:
		return "clear"
	case Flip:
		return "flip"
	}
	return "unknown"
}

// ScratchWords is the number of words of scratch for an edit: a block, followed by room for the result in another form.
const ScratchWords = DenseWords + DenseWords/2

// Edit returns c after an edit, and the number of lows that it changed. lows must be sorted, without repetitions. The
// words of out are in dst, of ScratchWords words, or are those of c when nothing changed. Edit does not write to the
// words of c; they must not be in dst.
func Edit(dst []uint64, c Container, op Op, lows []uint16) (out Container, changed int) {
	switch {
	case len(lows) == 0 || c.Count == 0 && op == Clear || c.Full() && op == Set:
		return c, 0
	case c.Form != Dense && c.Form != Run && int(c.Count)+len(lows) <= ArrayMax:
		out, changed = merge(dst, c, op, lows)
	default:
		block := (*kernel.Block)(dst)
		Expand(block, c)
		changed, _ = editBlock(block, op, lows)
		out = Settle(dst)
	}
	if changed == 0 {
		return c, 0
	}
	return out, changed
}

// EditRange returns c after an edit of all lows from lo to hi, both included, and the number of lows that it changed.
// It does nothing if lo is above hi. Words are as in Edit.
func EditRange(dst []uint64, c Container, op Op, lo, hi uint16) (out Container, changed int) {
	changed = c.rangeChanges(op, lo, hi)
	if changed == 0 {
		return c, 0
	}
	block := (*kernel.Block)(dst)
	if lo == 0 && hi == SliceLen-1 && op != Flip {
		if op == Clear {
			return Container{}, changed
		}
		dst[0] = uint64(hi) << 16
		return Container{Form: Run, Count: SliceLen, Words: dst[:1]}, changed
	}
	Expand(block, c)
	fillRange(block, op, lo, hi)
	return Settle(dst), changed
}

// rangeChanges is the number of lows from lo to hi that an edit changes.
func (c Container) rangeChanges(op Op, lo, hi uint16) int {
	if lo > hi {
		return 0
	}
	all := int(hi-lo) + 1
	switch op {
	case Set:
		return all - c.CountRange(lo, hi)
	case Clear:
		return c.CountRange(lo, hi)
	}
	return all
}

// EditInPlace edits c in its own words, up to their capacity; the caller must be free to write to these. It cannot edit
// in place if the result is longer than the capacity, takes less than half of it, or has another form. Then the result
// is in dst and moved is true. The caller must allocate new words for c, copy c.Words there, and may reuse the old
// words, whose content is lost. Words that are no longer needed are 0 afterwards. When the last low is removed, c
// becomes the zero Container.
func EditInPlace(dst []uint64, c *Container, op Op, lows []uint16) (changed int, moved bool) {
	switch {
	case len(lows) == 0:
		return 0, false
	case c.Form == Dense:
		was := int(c.Count)
		changed, more := editBlock(c.block(), op, lows)
		c.Count = uint32(was + more.count)
		return changed, changed > 0 && c.settleDense(dst, was, more)
	case len(lows) <= fewLows && c.Count > 0:
		for i, low := range lows {
			ok, did := c.editOne(op, low)
			if !ok {
				rest, moved := c.replace(dst, op, lows[i:])
				return changed + rest, moved
			}
			if did {
				changed++
			}
		}
		return changed, false
	}
	return c.replace(dst, op, lows)
}

// fewLows is the most lows that are edited one by one in arrays and run containers.
const fewLows = 24

// replace edits by Edit, and copies the result over the old words when it fits there well.
func (c *Container) replace(dst []uint64, op Op, lows []uint16) (changed int, moved bool) {
	out, changed := Edit(dst, *c, op, lows)
	return changed, changed > 0 && c.bring(out)
}

// bring sets c to a result in other memory. It copies the result into the words of c if they have the right size.
// Otherwise c refers to the other memory, and bring returns true.
func (c *Container) bring(out Container) (moved bool) {
	n, room := len(out.Words), cap(c.Words)
	if n == 0 {
		*c = Container{}
		return false
	}
	if n > room || 2*n < room {
		*c = out
		return true
	}
	words := c.Words[:room]
	copy(words, out.Words)
	clear(words[n:max(n, len(c.Words))])
	*c = Container{Form: out.Form, Count: out.Count, Words: words[:n]}
	return false
}

// EditRangeInPlace is EditRange in the words of c, as EditInPlace does it.
func EditRangeInPlace(dst []uint64, c *Container, op Op, lo, hi uint16) (changed int, moved bool) {
	if c.Form != Dense {
		out, changed := EditRange(dst, *c, op, lo, hi)
		return changed, changed > 0 && c.bring(out)
	}
	if changed = c.rangeChanges(op, lo, hi); changed == 0 {
		return 0, false
	}
	fillRange(c.block(), op, lo, hi)
	n, runs := kernel.Count(c.Words), kernel.Runs(c.block(), RunMax)
	c.Count = uint32(n)
	return changed, c.reform(dst, formOf(n, runs))
}

// difference is the change that an edit makes to the number of lows and, unless unknown, to the number of runs.
type difference struct {
	count, runs int
	unknown     bool // the runs were not examined
}

// settleDense gives a dense container, which had was lows before an edit, the form that it must have, as reform does. A
// valid dense container had more than runLimit runs. So if the edit does not join many runs, the container stays dense,
// and settleDense counts nothing.
func (c *Container) settleDense(dst []uint64, was int, more difference) (moved bool) {
	n := int(c.Count)
	if n > ArrayMax && !more.unknown && runLimit(was)+1+more.runs > runLimit(n) {
		return false
	}
	return c.reform(dst, formOf(n, kernel.Runs(c.block(), runLimit(n))))
}

// reform writes a dense container into dst if it must have another form.
func (c *Container) reform(dst []uint64, f Form) (moved bool) {
	switch f {
	case Dense:
		return false
	case 0:
		*c = Container{}
		return false
	}
	out := write(dst[:DenseWords/2], c.block(), f, int(c.Count))
	*c = out
	return true
}

// Expand writes the lows of c as a block.
func Expand(block *kernel.Block, c Container) {
	if c.Form == Dense {
		copy(block[:], c.Words)
		return
	}
	clear(block[:])
	Unite(block, c)
}

// Unite sets the lows of c in a block.
func Unite(block *kernel.Block, c Container) {
	switch c.Form {
	case Array:
		for i := range int(c.Count) {
			low := lowAt(c.Words, i)
			block[low>>6] |= 1 << (low & 63)
		}
	case Dense:
		kernel.Or(block, []*kernel.Block{c.block()})
	case Run:
		for i := range c.runs() {
			first, last := runAt(c.Words, i)
			fillRange(block, Set, first, last)
		}
	}
}

// United is a container of the union of two, in newly allocated memory.
func United(a, b Container) Container {
	words := make([]uint64, ScratchWords)
	block := (*kernel.Block)(words)
	Expand(block, a)
	Unite(block, b)
	return Settle(words)
}

// Settle is the container of the lows in the block at the beginning of dst, of ScratchWords words. Its words are in
// dst: the block itself if it stays dense, otherwise the words after it.
func Settle(dst []uint64) Container {
	block := (*kernel.Block)(dst)
	n := kernel.Count(block[:])
	f := formOf(n, kernel.Runs(block, runLimit(n)))
	switch f {
	case 0:
		return Container{}
	case Dense:
		return Container{Form: Dense, Count: uint32(n), Words: dst[:DenseWords]}
	}
	return write(dst[DenseWords:ScratchWords], block, f, n)
}

// write writes the n lows of a block as an array or as runs. The block must not overlap words.
func write(words []uint64, block *kernel.Block, f Form, n int) Container {
	size := 0
	if f == Array {
		size = writeArray(words, block)
	} else {
		size = writeRuns(words, block)
	}
	return Container{Form: f, Count: uint32(n), Words: words[:size]}
}

// writeArray writes the lows of a block four to a word, and returns the number of words.
func writeArray(words []uint64, block *kernel.Block) int {
	p := packer{words: words}
	for i, w := range block {
		for ; w != 0; w &= w - 1 {
			p.low(uint16(64*i + bits.TrailingZeros64(w)))
		}
	}
	return p.end()
}

// writeRuns writes the runs of a block two to a word, and returns the number of words.
func writeRuns(words []uint64, block *kernel.Block) int {
	p := packer{words: words}
	for at := nextBit(block, 0, 0); at < SliceLen; {
		end := nextBit(block, at, ^uint64(0))
		p.run(uint16(at), uint16(end-1))
		at = nextBit(block, end, 0)
	}
	return p.end()
}

// nextBit is the first position from at on where the block, xored with flip, has a 1; SliceLen if there is none.
func nextBit(block *kernel.Block, at int, flip uint64) int {
	if at >= SliceLen {
		return SliceLen
	}
	i := at >> 6
	w := (block[i] ^ flip) & (^uint64(0) << (at & 63))
	for w == 0 {
		if i++; i == DenseWords {
			return SliceLen
		}
		w = block[i] ^ flip
	}
	return 64*i + bits.TrailingZeros64(w)
}

// packer writes lows or runs into words.
type packer struct {
	words []uint64
	word  uint64
	shift uint
	n     int // whole words written
}

func (p *packer) low(low uint16)         { p.put(uint64(low), 16) }
func (p *packer) run(first, last uint16) { p.put(uint64(last)<<16|uint64(first), 32) }

func (p *packer) put(v uint64, width uint) {
	p.word |= v << p.shift
	if p.shift += width; p.shift == 64 {
		p.words[p.n] = p.word
		p.n++
		p.word, p.shift = 0, 0
	}
}

// end writes the last word if it is not complete, and returns the number of words.
func (p *packer) end() int {
	if p.shift != 0 {
		p.words[p.n] = p.word
		p.n++
	}
	return p.n
}

// fillRange edits all bits from lo to hi, both included.
func fillRange(block *kernel.Block, op Op, lo, hi uint16) {
	first, last := lo>>6, hi>>6
	for i := first; ; i++ {
		mask := ^uint64(0)
		if i == first {
			mask <<= lo & 63
		}
		if i == last {
			mask &= ^uint64(0) >> (63 - hi&63)
		}
		switch op {
		case Set:
			block[i] |= mask
		case Clear:
			block[i] &^= mask
		case Flip:
			block[i] ^= mask
		}
		if i == last {
			return
		}
	}
}

// manyLows is the least number of lows for which the runs of a block are counted after the edit, instead of examining
// the neighbours of each low.
const manyLows = 64

// editBlock edits the bits of lows.
func editBlock(block *kernel.Block, op Op, lows []uint16) (changed int, more difference) {
	near := len(lows) < manyLows
	more.unknown = !near
	for _, low := range lows {
		w := &block[low>>6]
		bit := uint64(1) << (low & 63)
		in := *w&bit != 0
		if in && op == Set || !in && op == Clear {
			continue
		}
		*w ^= bit
		changed++
		sign := 1
		if in {
			sign = -1
		}
		more.count += sign
		if near {
			more.runs += sign * (1 - neighbours(block, low))
		}
	}
	return changed, more
}

// neighbours is the number of bits next to low that are set.
func neighbours(block *kernel.Block, low uint16) int {
	n := 0
	if low > 0 {
		n += int(block[(low-1)>>6] >> ((low - 1) & 63) & 1)
	}
	if low < SliceLen-1 {
		n += int(block[(low+1)>>6] >> ((low + 1) & 63) & 1)
	}
	return n
}

// arrayRuns is the number of runs in an array of n lows, or any number above limit if there are more than limit.
func arrayRuns(words []uint64, n, limit int) int {
	runs, next := 0, -1
	for i := 0; i < n && runs <= limit; i++ {
		low := int(lowAt(words, i))
		if low != next {
			runs++
		}
		next = low + 1
	}
	return runs
}

// merge edits an array or an absent container. It must have at most ArrayMax lows even if all are added.
func merge(dst []uint64, c Container, op Op, lows []uint16) (out Container, changed int) {
	w := lowWriter{packer: packer{words: dst[:DenseWords/2]}, next: -1}
	at, old := 0, int(c.Count)
	for _, low := range lows {
		for at < old && lowAt(c.Words, at) < low {
			w.add(lowAt(c.Words, at))
			at++
		}
		in := at < old && lowAt(c.Words, at) == low
		if in {
			at++
		}
		to := op == Set || op == Flip && !in
		if to != in {
			changed++
		}
		if to {
			w.add(low)
		}
	}
	for ; at < old; at++ {
		w.add(lowAt(c.Words, at))
	}
	return w.container(dst[DenseWords/2:]), changed
}

// lowWriter packs lows as an array, at most ArrayMax, and counts runs.
type lowWriter struct {
	packer
	count, runs, next int // next is the low that extends the last run; -1 before the first
}

func (w *lowWriter) add(low uint16) {
	w.low(low)
	w.count++
	if int(low) != w.next {
		w.runs++
	}
	w.next = int(low) + 1
}

// container is what was written, in the form that it must have. Runs are written to rest, which must have half as many
// words as the array.
func (w *lowWriter) container(rest []uint64) Container {
	size := w.end()
	switch f := formOf(w.count, w.runs); f {
	case 0:
		return Container{}
	case Array:
		return Container{Form: Array, Count: uint32(w.count), Words: w.words[:size]}
	}
	size = joinLows(rest, w.words[:size], w.count)
	return Container{Form: Run, Count: uint32(w.count), Words: rest[:size]}
}

// joinLows writes the n lows of an array as runs, and returns the number of words.
func joinLows(words, lows []uint64, n int) int {
	p := packer{words: words}
	for i := 0; i < n; {
		first := lowAt(lows, i)
		last := first
		for i++; i < n && int(lowAt(lows, i)) == int(last)+1; i++ {
			last++
		}
		p.run(first, last)
	}
	return p.end()
}

// editOne edits one low of an array or run container in place. ok is false, and nothing has changed, if the form or the
// size of the block must change.
func (c *Container) editOne(op Op, low uint16) (ok, did bool) {
	if c.Count == 0 {
		return false, false
	}
	if c.Form == Array {
		return c.editArray(op, low)
	}
	return c.editRun(op, low)
}

func (c *Container) editArray(op Op, low uint16) (ok, did bool) {
	n := int(c.Count)
	i := c.findLow(low)
	in := i < n && lowAt(c.Words, i) == low
	if in && op == Set || !in && op == Clear {
		return true, false
	}
	beside, after := 0, i
	if in {
		after++
	}
	if i > 0 && lowAt(c.Words, i-1)+1 == low {
		beside++
	}
	if after < n && lowAt(c.Words, after)-1 == low {
		beside++
	}
	to, runs := n+1, 1-beside
	if in {
		to, runs = n-1, beside-1
	}
	if to == 0 || to > ArrayMax || runLimit(n)+1+runs <= runLimit(to) && arrayRuns(c.Words, n, runLimit(to)-runs)+runs <= runLimit(to) {
		return false, false
	}
	if !c.resize(WordsFor(Array, to, 0), func() {
		if in {
			cutLane(c.Words, i, 16)
		}
	}) {
		return false, false
	}
	if !in {
		putLane(c.Words, i, 16, uint64(low))
	}
	c.Count = uint32(to)
	return true, true
}

// resize changes the number of words of c to n, if that uses their capacity well, and calls before just before the
// change. Otherwise it returns false.
func (c *Container) resize(n int, before func()) bool {
	if n > cap(c.Words) || n < len(c.Words) && 2*n < cap(c.Words) {
		return false
	}
	before()
	was := len(c.Words)
	c.Words = c.Words[:n]
	if n > was {
		clear(c.Words[was:])
	}
	return true
}

func (c *Container) editRun(op Op, low uint16) (ok, did bool) {
	n, r := int(c.Count), c.runs()
	i := c.findRun(low)
	var first, last uint16
	if i < r {
		first, last = runAt(c.Words, i)
	}
	in := i < r && first <= low
	if in {
		if op == Set {
			return true, false
		}
		return c.takeFromRun(i, first, last, low, n-1, r)
	}
	if op == Clear {
		return true, false
	}
	return c.addToRuns(i, low, n+1, r)
}

// takeFromRun removes low from run i of r; n lows remain.
func (c *Container) takeFromRun(i int, first, last, low uint16, n, r int) (ok, did bool) {
	to := r
	switch {
	case first == last:
		to--
	case low != first && low != last:
		to++
	}
	if formOf(n, to) != Run || !c.resize(WordsFor(Run, 0, to), func() {
		if to < r {
			cutLane(c.Words, i, 32)
		}
	}) {
		return false, false
	}
	switch {
	case to > r:
		putLane(c.Words, i, 32, pair(first, low-1))
		setLane(c.Words, i+1, 32, pair(low+1, last))
	case to == r && low == first:
		setLane(c.Words, i, 32, pair(first+1, last))
	case to == r:
		setLane(c.Words, i, 32, pair(first, last-1))
	}
	c.Count = uint32(n)
	return true, true
}

// addToRuns adds low, which is in no run, before run i of r; n is the number of lows afterwards.
func (c *Container) addToRuns(i int, low uint16, n, r int) (ok, did bool) {
	first, last, to := low, low, r+1
	joinsLeft, joinsRight := false, false
	if i > 0 {
		if f, l := runAt(c.Words, i-1); l+1 == low {
			first, joinsLeft = f, true
			to--
		}
	}
	if i < r {
		if f, l := runAt(c.Words, i); f-1 == low {
			last, joinsRight = l, true
			to--
		}
	}
	if formOf(n, to) != Run || !c.resize(WordsFor(Run, 0, to), func() {
		if to < r {
			cutLane(c.Words, i, 32)
		}
	}) {
		return false, false
	}
	switch {
	case joinsLeft:
		setLane(c.Words, i-1, 32, pair(first, last))
	case joinsRight:
		setLane(c.Words, i, 32, pair(first, last))
	default:
		putLane(c.Words, i, 32, pair(first, last))
	}
	c.Count = uint32(n)
	return true, true
}

func pair(first, last uint16) uint64 { return uint64(last)<<16 | uint64(first) }

// putLane inserts v at position i of a row of numbers of width bits, packed into words from the lowest bits on. It
// moves the numbers after it; the last number, which must be 0, is dropped.
func putLane(words []uint64, i int, width uint, v uint64) {
	at, shift := place(i, width)
	for j := len(words) - 1; j > at; j-- {
		words[j] = words[j]<<width | words[j-1]>>(64-width)
	}
	w := words[at]
	words[at] = w&(1<<shift-1) | v<<shift | w>>shift<<shift<<width
}

// cutLane removes the number at position i, and moves the numbers after it; the last number becomes 0.
func cutLane(words []uint64, i int, width uint) {
	at, shift := place(i, width)
	w := words[at]
	words[at] = w&(1<<shift-1) | w>>shift>>width<<shift
	for j := at + 1; j < len(words); j++ {
		words[j-1] |= words[j] << (64 - width)
		words[j] >>= width
	}
}

// setLane replaces the number at position i by v.
func setLane(words []uint64, i int, width uint, v uint64) {
	at, shift := place(i, width)
	words[at] = words[at]&^((1<<width-1)<<shift) | v<<shift
}

func place(i int, width uint) (word int, shift uint) {
	each := 64 / width
	return i / int(each), uint(i) % each * width
}
