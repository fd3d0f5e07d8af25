package bitmap

import (
	"math/bits"

	"github.com/ebbdb/ebb/internal/kernel"
)

// all is the words of the container with all lows.
var all = []uint64{(SliceLen - 1) << 16}

// Full is the container of all lows. Callers must not write to its words.
func Full() Container { return Container{Form: Run, Count: SliceLen, Words: all} }

// RangeContainer is the container of the lows from lo to hi, both included. Its word is in dst, of at least 1 word.
func RangeContainer(dst []uint64, lo, hi uint16) Container {
	n := int(hi-lo) + 1
	if n >= 4 {
		dst[0] = pair(lo, hi)
		return Container{Form: Run, Count: uint32(n), Words: dst[:1]}
	}
	p := packer{words: dst[:1]}
	for i := range n {
		p.low(lo + uint16(i))
	}
	return Container{Form: Array, Count: uint32(n), Words: dst[:p.end()]}
}

// value is the result of a part of a program: the container of a leaf, an array in scratch, or a block in scratch.
type value struct {
	Container
	block *kernel.Block // instead of the container; its number of lows is unknown
	mem   *kernel.Block // its scratch memory, if any
}

func fullValue() value                { return value{Container: Full()} }
func loose(block *kernel.Block) value { return value{block: block, mem: block} }

func (v *value) empty() bool { return v.block == nil && v.Count == 0 }
func (v *value) full() bool  { return v.block == nil && v.Full() }
func (v *value) array() bool { return v.block == nil && v.Form == Array }

// dense is the block of a value in scratch or of a dense container; nil for other values.
func (v *value) dense() *kernel.Block {
	if v.block == nil && v.Form == Dense {
		return v.Container.block()
	}
	return v.block
}

// count is the number of lows.
func (v *value) count() int {
	if v.block != nil {
		return kernel.Count(v.block[:])
	}
	return int(v.Count)
}

// has says whether low is in the value.
func (v *value) has(low uint16) bool {
	if b := v.dense(); b != nil {
		return b[low>>6]>>(low&63)&1 == 1
	}
	return v.Contains(low)
}

// take returns a block to write to, with arbitrary content.
func (s *Scratch) take() *kernel.Block {
	if n := len(s.free); n > 0 {
		b := s.free[n-1]
		s.free = s.free[:n-1]
		return b
	}
	return new(kernel.Block)
}

// give frees the scratch of a value. The value stays readable until the scratch is taken again.
func (s *Scratch) give(v value) {
	if v.mem != nil {
		s.free = append(s.free, v.mem)
	}
}

// own is a block in scratch that holds the value. It replaces the value.
func (s *Scratch) own(v value) *kernel.Block {
	if v.block != nil {
		return v.block
	}
	b := s.take()
	Expand(b, v.Container)
	s.give(v)
	return b
}

// settle is the container of a value, in the right form.
func (s *Scratch) settle(v value) Container {
	switch {
	case v.mem == nil:
		return v.Container
	case v.block == nil:
		if n := int(v.Count); arrayRuns(v.Words, n, runLimit(n)) <= runLimit(n) {
			return Container{Form: Run, Count: v.Count, Words: s.result[:joinLows(s.result[:], v.Words, n)]}
		}
		return v.Container
	}
	n := kernel.Count(v.block[:])
	switch f := formOf(n, kernel.Runs(v.block, runLimit(n))); f {
	case 0:
		return Container{}
	case Dense:
		return Container{Form: Dense, Count: uint32(n), Words: v.block[:]}
	default:
		return write(s.result[:], v.block, f, n)
	}
}

// unite returns the union of two values. It replaces both.
func (s *Scratch) unite(v, w value) value {
	switch {
	case v.full() || w.empty():
		s.give(w)
		return v
	case w.full() || v.empty():
		s.give(v)
		return w
	case v.block == nil && w.block != nil:
		v, w = w, v
	}
	block := s.own(v)
	if w.block != nil {
		kernel.Or(block, []*kernel.Block{w.block})
	} else {
		Unite(block, w.Container)
	}
	s.give(w)
	return loose(block)
}

// flip returns the symmetric difference of two values. It replaces both.
func (s *Scratch) flip(v, w value) value {
	switch {
	case w.empty():
		return v
	case v.empty():
		return w
	case v.block == nil && w.block != nil:
		v, w = w, v
	}
	block := s.own(v)
	if d := w.dense(); d != nil {
		kernel.Xor(block, d)
	} else {
		flipSparse(block, w.Container)
	}
	s.give(w)
	return loose(block)
}

// flipSparse flips the lows of an array or run container.
func flipSparse(block *kernel.Block, c Container) {
	if c.Form == Array {
		for i := range int(c.Count) {
			low := lowAt(c.Words, i)
			block[low>>6] ^= 1 << (low & 63)
		}
		return
	}
	for i := range c.runs() {
		first, last := runAt(c.Words, i)
		fillRange(block, Flip, first, last)
	}
}

// restrict returns what is in v and in w or, if out, in v and not in w. It replaces both.
func (s *Scratch) restrict(v, w value, out bool) value {
	switch {
	case v.empty() || !out && w.full() || out && w.empty():
		s.give(w)
		return v
	case out && w.full() || !out && w.empty():
		s.give(v)
		s.give(w)
		return value{}
	case v.full() && !out:
		return w
	case v.array():
		r := s.filter(v, func(low uint16) bool { return w.has(low) != out })
		s.give(w)
		return r
	case w.array() && !out:
		r := s.filter(w, func(low uint16) bool { return v.has(low) })
		s.give(v)
		return r
	case !out && v.block == nil && w.block != nil:
		v, w = w, v
	}
	block := s.own(v)
	empty := restrictBlock(block, &w, out)
	s.give(w)
	if empty {
		s.give(loose(block))
		return value{}
	}
	return loose(block)
}

// restrictBlock restricts a block. If it returns true, the block is empty; false means unknown.
func restrictBlock(block *kernel.Block, w *value, out bool) (empty bool) {
	d := w.dense()
	switch {
	case d != nil && out:
		return kernel.AndNot(block, []*kernel.Block{d})
	case d != nil:
		return kernel.And(block, []*kernel.Block{d})
	case w.Form == Array: // taken out
		for i := range int(w.Count) {
			low := lowAt(w.Words, i)
			block[low>>6] &^= 1 << (low & 63)
		}
		return false
	}
	next := 0
	for i := range w.runs() {
		first, last := runAt(w.Words, i)
		if out {
			fillRange(block, Clear, first, last)
		} else if int(first) > next {
			fillRange(block, Clear, uint16(next), first-1)
		}
		next = int(last) + 1
	}
	if !out && next < SliceLen {
		fillRange(block, Clear, uint16(next), SliceLen-1)
	}
	return false
}

// filter returns an array in scratch of the lows of an array that keep accepts. It replaces the array.
func (s *Scratch) filter(v value, keep func(low uint16) bool) value {
	if v.mem == nil {
		v.mem = s.take()
	}
	p, n := packer{words: v.mem[:]}, 0 // may overwrite v: but never a low that is not read yet
	for i := range int(v.Count) {
		if low := lowAt(v.Words, i); keep(low) {
			p.low(low)
			n++
		}
	}
	if n == 0 {
		s.give(v)
		return value{}
	}
	return value{Container: Container{Form: Array, Count: uint32(n), Words: v.mem[:p.end()]}, mem: v.mem}
}

// andCount is the number of lows that two values have in common.
func andCount(v, w value) int {
	if w.array() && (!v.array() || w.Count < v.Count) || w.full() {
		v, w = w, v
	}
	switch {
	case v.empty() || w.empty():
		return 0
	case v.full():
		return w.count()
	case v.array():
		n := 0
		for i := range int(v.Count) {
			if w.has(lowAt(v.Words, i)) {
				n++
			}
		}
		return n
	}
	a, b := v.dense(), w.dense()
	switch {
	case a != nil && b != nil:
		return kernel.AndCount(a, b)
	case a != nil:
		return runsCount(w.Container, a)
	case b != nil:
		return runsCount(v.Container, b)
	}
	return runsInCommon(v.Container, w.Container)
}

// runsCount is the number of bits of a block that are set within the runs of a container.
func runsCount(c Container, block *kernel.Block) int {
	n := 0
	for i := range c.runs() {
		first, last := runAt(c.Words, i)
		n += countRange(block, first, last)
	}
	return n
}

// runsInCommon is the number of lows that two run containers have in common.
func runsInCommon(a, b Container) int {
	n, i, j := 0, 0, 0
	for i < a.runs() && j < b.runs() {
		first, last := runAt(a.Words, i)
		start, end := runAt(b.Words, j)
		if lo, hi := max(first, start), min(last, end); lo <= hi {
			n += int(hi-lo) + 1
		}
		if last < end {
			i++
		} else {
			j++
		}
	}
	return n
}

// countRange is the number of bits of a block that are set from lo to hi.
func countRange(block *kernel.Block, lo, hi uint16) int {
	if lo > hi {
		return 0
	}
	first, last := lo>>6, hi>>6
	begin, end := ^uint64(0)<<(lo&63), ^uint64(0)>>(63-hi&63)
	if first == last {
		return bits.OnesCount64(block[first] & begin & end)
	}
	return bits.OnesCount64(block[first]&begin) + kernel.Count(block[first+1:last]) + bits.OnesCount64(block[last]&end)
}
