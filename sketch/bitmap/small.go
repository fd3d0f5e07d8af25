package bitmap

import (
	"fmt"
	"math"
	"math/bits"
)

// Small is a view of a whole bitmap of few ids, in one block: the ids in order. If all are below 2^32, a word has two
// ids, from the lowest bits on; otherwise it has one. The rest of the last word is 0. So an id below 2^32 takes 4
// bytes, and a bitmap at most half a word more. The zero Small is an empty bitmap. A lookup is a binary search; an edit
// moves at most 8 KiB.
//
// A bitmap changes from Small to containers when Leaves says so. It may change back when it has SmallAgain ids or fewer
// (FromContainers): by then most containers hold one or two ids. So the form depends on the edits and not only on the
// content, but on nothing else.
type Small struct {
	Wide  bool   // one id to a word: the last id is 2^32 or above
	Count uint32 // ids
	Words []uint64
}

const (
	// SmallWords is the most words of a Small.
	SmallWords = 1024
	// SmallAgain is the most ids with which a bitmap of containers may become Small again.
	SmallAgain = 32

	smallCrowd = 64 // the least number of ids at which Leaves checks whether containers would take less memory
	slicePrice = 12 // ids a slice from which on they do: a slice costs some three words, and a low is half an id
)

// WordsForSmall is the number of words for n ids.
func WordsForSmall(wide bool, n int) int {
	if wide {
		return n
	}
	return (n + 1) / 2
}

// ViewSmall is the Small of count ids at the beginning of a block, which may be longer.
func ViewSmall(wide bool, count uint32, block []uint64) Small {
	return Small{Wide: wide, Count: count, Words: block[:WordsForSmall(wide, int(count)):len(block)]}
}

func (s Small) width() uint {
	if s.Wide {
		return 64
	}
	return 32
}

// at is the id at position i.
func (s Small) at(i int) uint64 {
	if s.Wide {
		return s.Words[i]
	}
	return s.Words[i>>1] >> (uint(i) & 1 * 32) & math.MaxUint32
}

// Rank is the number of ids below id.
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

// Contains says whether id is in the bitmap.
func (s Small) Contains(id uint64) bool {
	i := s.Rank(id)
	return i < int(s.Count) && s.at(i) == id
}

// Select is the id at a position, from 0; ok is false for a position of Count or more.
func (s Small) Select(position uint64) (id uint64, ok bool) {
	if position >= uint64(s.Count) {
		return 0, false
	}
	return s.at(int(position)), true
}

// CountRange is the number of ids from lo to hi, both included; 0 if lo is above hi.
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

// Each yields the ids from from on, in order, until yield returns false. It returns false if yield did.
func (s Small) Each(from uint64, yield func(id uint64) bool) bool {
	for i := s.Rank(from); i < int(s.Count); i++ {
		if !yield(s.at(i)) {
			return false
		}
	}
	return true
}

// Slices is the number of slices that have ids.
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

// Leaves says whether a bitmap should be kept as containers from now on; was is its number of ids before the last edit.
// It should if it fills SmallWords. It also should if its number of ids has reached the next of 64, 128, 256, ... and
// is more than 12 in a slice on average.
func (s Small) Leaves(was uint32) bool {
	if len(s.Words) >= SmallWords {
		return true
	}
	return s.Count >= smallCrowd && bits.Len32(s.Count) > bits.Len32(was) && int(s.Count) > slicePrice*s.Slices()
}

// Containers yields the slices and their containers in order, until yield returns false. The words of a container are
// in dst, of SmallScratch words, and valid until the next container.
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

// Container is the container of one slice, with its words in dst, of SmallScratch words.
func (s Small) Container(dst []uint64, slice uint64) Container {
	first := slice << 16
	from := s.Rank(first)
	return s.container(dst, from, from+s.CountRange(first, first|(SliceLen-1)))
}

// SmallScratch is the number of words of scratch for Container and Containers.
func (s Small) SmallScratch() int { return (int(s.Count)+3)/4 + int(s.Count)/8 + 1 }

// container is the container of the ids at positions from up to to, at most 2,048 ids in one slice.
func (s Small) container(dst []uint64, from, to int) Container {
	half := (to - from + 3) / 4
	w := lowWriter{packer: packer{words: dst[:half]}, next: -1}
	for i := from; i < to; i++ {
		w.add(uint16(s.at(i)))
	}
	return w.container(dst[half:])
}

// ValidateSmall returns an error if a Small of outside origin is invalid. The error wraps ErrCorrupt.
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

// EditSmall returns s after an edit, and the number of ids that it changed. ids must be sorted, without repetitions.
// The words of out are in dst, of SmallWords words, or are those of s when nothing changed. ok is false when the result
// does not fit SmallWords: then the bitmap must become containers first.
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

// narrow changes from one id to a word back to two if possible, in the same words.
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

// idWriter packs ids while there is room. room becomes negative by the number of ids that did not fit.
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

// EditSmallInPlace edits s in its own words, up to their capacity; the caller must be free to write to these. It cannot
// edit in place if the result is longer than the capacity, takes less than half of it, or needs another width of ids.
// Then the result is in dst, of SmallWords words, and moved is true. ok is as in EditSmall: if it is false, s has not
// changed.
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

// editOne edits one id in place, unless the width of ids or the size of the block must change. It returns false if so.
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

// FromContainers is the bitmap of the containers that next returns with their slices, in order, until next's ok is
// false. Its words are in dst, of SmallWords words. ok is false when the ids do not fit.
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
