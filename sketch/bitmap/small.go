package bitmap

import (
	"fmt"
	"math"
	"math/bits"
)

// Small is a view of a whole bitmap of few ids, in one block: the ids in order. When all are below 2^32 there are two
// to a word from the lowest bits on, else one to a word. What is left of the last word is 0. So an id below 2^32 takes
// 4 bytes, and a bitmap half a word more at most. The zero Small is an empty bitmap. A look is a binary search, an edit
// moves 8 KiB at most.
//
// A bitmap leaves Small for containers when Leaves says so. It may come back when it has SmallAgain ids or fewer
// (FromContainers): by then most containers hold one or two, so which of the two it is depends on the edits and not on
// the content alone, but on nothing else.
type Small struct {
	Wide  bool   // one id to a word: the last one is 2^32 or above
	Count uint32 // ids
	Words []uint64
}

const (
	// SmallWords is how many words a Small has at most.
	SmallWords = 1024
	// SmallAgain is up to how many ids a bitmap of containers may be made Small again.
	SmallAgain = 32

	smallCrowd = 64 // ids from which on a Small looks whether they would take less as containers
	slicePrice = 12 // ids a slice from which on they do: a directory's entry and a block are some three words a slice, and a low is half the size of an id
)

// WordsForSmall is how many words n ids take.
func WordsForSmall(wide bool, n int) int {
	if wide {
		return n
	}
	return (n + 1) / 2
}

// ViewSmall is the Small of count ids that begins a block, which may be longer.
func ViewSmall(wide bool, count uint32, block []uint64) Small {
	return Small{Wide: wide, Count: count, Words: block[:WordsForSmall(wide, int(count)):len(block)]}
}

func (s Small) width() uint {
	if s.Wide {
		return 64
	}
	return 32
}

// at is id i.
func (s Small) at(i int) uint64 {
	if s.Wide {
		return s.Words[i]
	}
	return s.Words[i>>1] >> (uint(i) & 1 * 32) & math.MaxUint32
}

// Rank is how many ids are below id.
func (s Small) Rank(id uint64) int {
	from, to := 0, int(s.Count)
	for from < to {
		if mid := int(uint(from+to) / 2); s.at(mid) < id {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from
}

// Contains says whether id is in.
func (s Small) Contains(id uint64) bool {
	i := s.Rank(id)
	return i < int(s.Count) && s.at(i) == id
}

// Select is the id at a position, from 0; there is none at Count and beyond.
func (s Small) Select(position uint64) (id uint64, ok bool) {
	if position >= uint64(s.Count) {
		return 0, false
	}
	return s.at(int(position)), true
}

// CountRange is how many ids there are from lo to hi, both included; 0 where lo is above hi.
func (s Small) CountRange(lo, hi uint64) int {
	if lo > hi {
		return 0
	}
	below := int(s.Count)
	if hi < math.MaxUint64 {
		below = s.Rank(hi + 1)
	}
	return below - s.Rank(lo)
}

// Each yields the ids that are not below from, in order, until yield answers false, and says whether it never did.
func (s Small) Each(from uint64, yield func(id uint64) bool) bool {
	for i := s.Rank(from); i < int(s.Count); i++ {
		if !yield(s.at(i)) {
			return false
		}
	}
	return true
}

// Slices is how many slices the ids lie in.
func (s Small) Slices() int {
	n, before := 0, uint64(0)
	for i := range int(s.Count) {
		slice := s.at(i) >> 16
		if i == 0 || slice != before {
			n++
		}
		before = slice
	}
	return n
}

// Leaves says whether a bitmap that had this many ids before the last edit should be kept as containers from now on:
// because it fills SmallWords, or because it has twice as many ids as when it was last looked at (64, 128, 256, ...)
// and more than 12 in a slice on average.
func (s Small) Leaves(was uint32) bool {
	if len(s.Words) >= SmallWords {
		return true
	}
	return s.Count >= smallCrowd && bits.Len32(s.Count) > bits.Len32(was) && int(s.Count) > slicePrice*s.Slices()
}

// Containers yields the slices and their containers in order, until yield answers false. Words of containers lie in
// dst, of SmallScratch words, until the next one.
func (s Small) Containers(dst []uint64, yield func(slice uint64, c Container) bool) {
	for i := 0; i < int(s.Count); {
		slice, end := s.at(i)>>16, i+1
		for end < int(s.Count) && s.at(end)>>16 == slice {
			end++
		}
		if !yield(slice, s.container(dst, i, end)) {
			return
		}
		i = end
	}
}

// Container is what lies in one slice, with words in dst, of SmallScratch words.
func (s Small) Container(dst []uint64, slice uint64) Container {
	first := slice << 16
	from := s.Rank(first)
	return s.container(dst, from, from+s.CountRange(first, first|(SliceLen-1)))
}

// SmallScratch is how many words its containers need.
func (s Small) SmallScratch() int { return (int(s.Count)+3)/4 + int(s.Count)/8 + 1 }

// container is that of ids from one position up to another, which are at most 2,048 and in one slice.
func (s Small) container(dst []uint64, from, to int) Container {
	half := (to - from + 3) / 4
	w := lowWriter{packer: packer{words: dst[:half]}, next: -1}
	for i := from; i < to; i++ {
		w.add(uint16(s.at(i)))
	}
	return w.container(dst[half:])
}

// ValidateSmall says what is wrong with a Small that came from outside.
func ValidateSmall(s Small) error {
	n := int(s.Count)
	if len(s.Words) > SmallWords || s.Count > 2*SmallWords || len(s.Words) != WordsForSmall(s.Wide, n) {
		return fmt.Errorf("%w: %d ids in %d words", ErrCorrupt, s.Count, len(s.Words))
	}
	for i := 1; i < n; i++ {
		if s.at(i) <= s.at(i-1) {
			return fmt.Errorf("%w: id %d behind %d", ErrCorrupt, s.at(i), s.at(i-1))
		}
	}
	if !s.Wide && n%2 == 1 && s.Words[n/2]>>32 != 0 {
		return fmt.Errorf("%w: something behind the last id", ErrCorrupt)
	}
	if s.Wide && (n == 0 || s.at(n-1) <= math.MaxUint32) {
		return fmt.Errorf("%w: wide without a wide id", ErrCorrupt)
	}
	return nil
}

// EditSmall answers s after an edit, and how many ids it changed. The ids are sorted and each is there once. The words
// of out lie in dst, of SmallWords words, or are those of s when nothing changed. When the result does not go into
// SmallWords, ok is false: the bitmap must become containers first.
func EditSmall(dst []uint64, s Small, op Op, ids []uint64) (out Small, changed int, ok bool) {
	if len(ids) == 0 || s.Count == 0 && op == Clear {
		return s, 0, true
	}
	wide := s.Wide || op != Clear && ids[len(ids)-1] > math.MaxUint32
	if len(dst) < SmallWords {
		panic("bitmap: scratch too short")
	}
	room := SmallWords
	if !wide {
		room *= 2
	}
	w := idWriter{packer: packer{words: dst}, width: 32, room: room}
	if wide {
		w.width = 64
	}
	at, old := 0, int(s.Count)
	for _, id := range ids {
		for at < old && s.at(at) < id {
			w.add(s.at(at))
			at++
		}
		in := at < old && s.at(at) == id
		if in {
			at++
		}
		to := op == Set || op == Flip && !in
		if to != in {
			changed++
		}
		if to {
			w.add(id)
		}
	}
	for ; at < old; at++ {
		w.add(s.at(at))
	}
	if w.room < 0 {
		return s, 0, false
	}
	if changed == 0 {
		return s, 0, true
	}
	out = Small{Wide: wide, Count: uint32(room - w.room), Words: dst[:w.end()]}
	return out.narrow(), changed, true
}

// narrow takes one id to a word back to two where it can, over the same words.
func (s Small) narrow() Small {
	n := int(s.Count)
	if !s.Wide || n > 0 && s.at(n-1) > math.MaxUint32 {
		return s
	}
	p := packer{words: s.Words}
	for i := range n {
		p.put(s.at(i), 32)
	}
	return Small{Count: s.Count, Words: s.Words[:p.end()]}
}

// idWriter packs ids while there is room, and counts below 0 how many there were too many.
type idWriter struct {
	packer
	width uint
	room  int
}

func (w *idWriter) add(id uint64) {
	if w.room--; w.room >= 0 {
		w.put(id, w.width)
	}
}

// EditSmallInPlace edits s in its own words, which the caller must be free to write to, up to their capacity. Where it
// cannot, because s becomes longer than that, less than half of it, or needs ids of another width, the result lies in
// dst, of SmallWords words, and moved is true. ok is that of EditSmall: if it is false, s is as it was.
func EditSmallInPlace(dst []uint64, s *Small, op Op, ids []uint64) (changed int, moved, ok bool) {
	if len(ids) == 1 && s.Count > 0 && s.editOne(op, ids[0], &changed) {
		return changed, false, true
	}
	out, changed, ok := EditSmall(dst, *s, op, ids)
	if !ok || changed == 0 {
		return 0, false, ok
	}
	n, room := len(out.Words), cap(s.Words)
	switch {
	case n == 0:
		*s = Small{}
		return changed, false, true
	case n > room || 2*n < room:
		*s = out
		return changed, true, true
	}
	words := s.Words[:room]
	copy(words, out.Words)
	clear(words[n:max(n, len(s.Words))])
	*s = Small{Wide: out.Wide, Count: out.Count, Words: words[:n]}
	return changed, false, true
}

// editOne edits one id in place, if neither width nor size of the block must change.
func (s *Small) editOne(op Op, id uint64, changed *int) bool {
	n, i := int(s.Count), s.Rank(id)
	in := i < n && s.at(i) == id
	if in && op == Set || !in && op == Clear {
		return true
	}
	to := n + 1
	if in {
		to = n - 1
	}
	size := WordsForSmall(s.Wide, to)
	switch {
	case !s.Wide && id > math.MaxUint32, s.Wide && in && i == n-1: // the width may change
		return false
	case to == 0, size > cap(s.Words), size > SmallWords, in && 2*size < cap(s.Words):
		return false
	}
	if in {
		cutLane(s.Words, i, s.width())
		s.Words = s.Words[:size]
	} else {
		was := len(s.Words)
		s.Words = s.Words[:size]
		clear(s.Words[min(was, size):])
		putLane(s.Words, i, s.width(), id)
	}
	s.Count = uint32(to)
	*changed = 1
	return true
}

// FromContainers is the bitmap of the containers that next yields with their slices, in order, until ok is false; words
// in dst, of SmallWords words. ok is false when they do not go in.
func FromContainers(dst []uint64, next func() (slice uint64, c Container, ok bool)) (s Small, ok bool) {
	n, last := 0, uint64(0)
	for {
		slice, c, more := next()
		if !more {
			break
		}
		if n+int(c.Count) > SmallWords {
			return Small{}, false
		}
		c.Each(0, func(low uint16) bool {
			last = slice<<16 | uint64(low)
			dst[n] = last
			n++
			return true
		})
	}
	if n == 0 {
		return Small{}, true
	}
	return Small{Wide: true, Count: uint32(n), Words: dst[:n]}.narrow(), true
}
