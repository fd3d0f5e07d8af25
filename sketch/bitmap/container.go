package bitmap

import (
	"math/bits"
	"sort"

	"github.com/ebbdb/ebb/internal/kernel"
)

// Form is the encoding of a container's lows. The zero Form is the form of an absent container. Forms are stored, so
// their numbers must not change.
type Form uint8

// The forms. See the package comment.
const (
	Array Form = 1 + iota
	Dense
	Run
)

func (f Form) String() string {
	switch f {
	case Array:
		return "array"
	case Dense:
		return "dense"
	case Run:
		return "run"
	}
	return "absent"
}

const (
	// SliceLen is the number of ids in a slice.
	SliceLen = 1 << 16
	// DenseWords is the number of words of a dense container, the largest of any container.
	DenseWords = kernel.Words
	// ArrayMax is the most lows of an array, RunMax the most runs of a run container.
	ArrayMax = 2048
	RunMax   = 1024
)

// Container is a view of the lows of one slice. The zero Container is absent and empty. Callers that make a Container
// from words of outside origin must call Validate; all other functions assume that it is valid.
type Container struct {
	Form  Form
	Count uint32   // lows, 1 to 65,536; 0 only in the zero Container
	Words []uint64 // exactly as many as the form needs; EditInPlace may use their capacity
}

// runLimit is the most runs of n lows in a run container.
func runLimit(n int) int { return min(n/4, RunMax) }

// formOf is the form of n lows in this number of runs.
func formOf(n, runs int) Form {
	switch {
	case n == 0:
		return 0
	case runs <= runLimit(n):
		return Run
	case n <= ArrayMax:
		return Array
	}
	return Dense
}

// WordsFor is the number of words of a container of n lows. runs, the number of runs, matters for run containers only.
func WordsFor(f Form, n, runs int) int {
	switch f {
	case Array:
		return (n + 3) / 4
	case Dense:
		return DenseWords
	case Run:
		return (runs + 1) / 2
	}
	return 0
}

// View is the container of count lows at the beginning of a block of words, which may be longer than needed. After the
// words of a run container all words of the block must be 0, as EditInPlace leaves them. The container's capacity ends
// with the block.
func View(f Form, count uint32, block []uint64) Container {
	n := 0
	switch f {
	case Array, Dense:
		n = WordsFor(f, int(count), 0)
	case Run: // a word of a run container is never 0
		n = sort.Search(len(block), func(i int) bool { return block[i] == 0 })
	}
	return Container{Form: f, Count: count, Words: block[:n:len(block)]}
}

// Runs is the number of runs of consecutive lows. It is fast for a run container; other forms are counted.
func (c Container) Runs() int {
	switch c.Form {
	case Array:
		return arrayRuns(c.Words, int(c.Count), SliceLen)
	case Dense:
		return kernel.Runs(c.block(), SliceLen)
	case Run:
		return c.runs()
	}
	return 0
}

// block is the words of a dense container.
func (c Container) block() *kernel.Block { return (*kernel.Block)(c.Words) }

// Full says whether all lows are in the container.
func (c Container) Full() bool { return c.Count == SliceLen }

// lowAt is low i of an array.
func lowAt(words []uint64, i int) uint16 { return uint16(words[i>>2] >> (uint(i) & 3 * 16)) }

// runAt is run i of a run container.
func runAt(words []uint64, i int) (first, last uint16) {
	pair := words[i>>1] >> (uint(i) & 1 * 32)
	return uint16(pair), uint16(pair >> 16)
}

// runs is the number of runs in a run container. Its last word has one or two runs, and the second of two is never 0.
func (c Container) runs() int {
	n := 2 * len(c.Words)
	if c.Words[len(c.Words)-1]>>32 == 0 {
		n--
	}
	return n
}

// findLow is the position of the first low of an array that is at least low.
func (c Container) findLow(low uint16) int {
	from, to := 0, int(c.Count)
	for from < to {
		if mid := int(uint(from+to) / 2); lowAt(c.Words, mid) < low {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from
}

// findRun is the position of the first run of a run container that ends at low or later.
func (c Container) findRun(low uint16) int {
	from, to := 0, c.runs()
	for from < to {
		mid := int(uint(from+to) / 2)
		if _, last := runAt(c.Words, mid); last < low {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from
}

// Contains says whether low is in the container.
func (c Container) Contains(low uint16) bool {
	switch c.Form {
	case Array:
		i := c.findLow(low)
		return i < int(c.Count) && lowAt(c.Words, i) == low
	case Dense:
		return c.Words[low>>6]>>(low&63)&1 == 1
	case Run:
		if i := c.findRun(low); i < c.runs() {
			first, _ := runAt(c.Words, i)
			return first <= low
		}
	}
	return false
}

// Rank is the number of lows below low: the position of low, from 0, if it is or were in the container.
func (c Container) Rank(low uint16) int {
	switch c.Form {
	case Array:
		return c.findLow(low)
	case Dense:
		return kernel.Count(c.Words[:low>>6]) + bits.OnesCount64(c.Words[low>>6]&(1<<(low&63)-1))
	case Run:
		n := 0
		for i := range c.runs() {
			first, last := runAt(c.Words, i)
			if low <= first {
				break
			}
			n += int(min(last, low-1)-first) + 1
		}
		return n
	}
	return 0
}

// Select is the low at a position, from 0; ok is false for a position of Count or more.
func (c Container) Select(position int) (low uint16, ok bool) {
	if position < 0 || position >= int(c.Count) {
		return 0, false
	}
	switch c.Form {
	case Array:
		return lowAt(c.Words, position), true
	case Dense:
		for i, w := range c.Words {
			n := bits.OnesCount64(w)
			if position < n {
				for range position {
					w &= w - 1
				}
				return uint16(64*i + bits.TrailingZeros64(w)), true
			}
			position -= n
		}
	case Run:
		for i := range c.runs() {
			first, last := runAt(c.Words, i)
			if n := int(last-first) + 1; position >= n {
				position -= n
				continue
			}
			return first + uint16(position), true
		}
	}
	return 0, false
}

// Min is the lowest low; ok is false for an empty container.
func (c Container) Min() (low uint16, ok bool) { return c.Select(0) }

// Max is the highest low; ok is false for an empty container.
func (c Container) Max() (low uint16, ok bool) {
	switch c.Form {
	case Array:
		return lowAt(c.Words, int(c.Count)-1), true
	case Dense:
		for i := DenseWords - 1; i >= 0; i-- {
			if w := c.Words[i]; w != 0 {
				return uint16(64*i + 63 - bits.LeadingZeros64(w)), true
			}
		}
	case Run:
		_, last := runAt(c.Words, c.runs()-1)
		return last, true
	}
	return 0, false
}

// CountRange is the number of lows from lo to hi, both included; 0 if lo is above hi.
func (c Container) CountRange(lo, hi uint16) int {
	if lo > hi {
		return 0
	}
	below := int(c.Count)
	if hi < SliceLen-1 {
		below = c.Rank(hi + 1)
	}
	return below - c.Rank(lo)
}

// Each yields the lows from from on, in order, until yield returns false. It returns false if yield did.
func (c Container) Each(from uint16, yield func(low uint16) bool) bool {
	switch c.Form {
	case Array:
		for i := c.findLow(from); i < int(c.Count); i++ {
			if !yield(lowAt(c.Words, i)) {
				return false
			}
		}
	case Dense:
		for i := int(from >> 6); i < DenseWords; i++ {
			w := c.Words[i]
			if i == int(from>>6) {
				w &= ^uint64(0) << (from & 63)
			}
			for ; w != 0; w &= w - 1 {
				if !yield(uint16(64*i + bits.TrailingZeros64(w))) {
					return false
				}
			}
		}
	case Run:
		for i := c.findRun(from); i < c.runs(); i++ {
			first, last := runAt(c.Words, i)
			for low := int(max(first, from)); low <= int(last); low++ {
				if !yield(uint16(low)) {
					return false
				}
			}
		}
	}
	return true
}

// AppendLows appends the lows from from on to lows, at most limit of them.
func (c Container) AppendLows(lows []uint16, from uint16, limit int) []uint16 {
	if limit <= 0 {
		return lows
	}
	c.Each(from, func(low uint16) bool {
		lows = append(lows, low)
		limit--
		return limit > 0
	})
	return lows
}
