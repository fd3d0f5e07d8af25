package bitmap

import "sort"

// SliceMax is the highest slice that ids have.
const SliceMax = 1<<48 - 1

// Directory is a whole bitmap as whoever keeps it can tell: containers, none of them empty, in the order of their slices.
type Directory interface {
	Len() int
	Slice(i int) uint64
	Lows(i int) int // how many lows container i has, without a look at it
	Container(i int) Container
}

// Bitmap asks a directory about the whole. What counts adds up what the directory says of all slices before the one it looks into: a nanosecond or two each.
type Bitmap struct{ Directory }

// Find is the position of the first container whose slice is not below slice.
func (b Bitmap) Find(slice uint64) int {
	return sort.Search(b.Len(), func(i int) bool { return b.Slice(i) >= slice })
}

// at is the position of an id's slice, and whether it is there.
func (b Bitmap) at(id uint64) (i int, ok bool) {
	i = b.Find(id >> 16)
	return i, i < b.Len() && b.Slice(i) == id>>16
}

// Contains says whether id is in.
func (b Bitmap) Contains(id uint64) bool {
	i, ok := b.at(id)
	return ok && b.Container(i).Contains(uint16(id))
}

// Count is how many ids there are.
func (b Bitmap) Count() uint64 { return b.before(b.Len()) }

// before is how many ids the containers before position i have.
func (b Bitmap) before(i int) uint64 {
	n := uint64(0)
	for k := range i {
		n += uint64(b.Lows(k))
	}
	return n
}

// Rank is how many ids are below id.
func (b Bitmap) Rank(id uint64) uint64 {
	i, ok := b.at(id)
	n := b.before(i)
	if ok {
		n += uint64(b.Container(i).Rank(uint16(id)))
	}
	return n
}

// Select is the id at a position, from 0; there is none at Count and beyond.
func (b Bitmap) Select(position uint64) (id uint64, ok bool) {
	for i := range b.Len() {
		if n := uint64(b.Lows(i)); position >= n {
			position -= n
			continue
		}
		low, ok := b.Container(i).Select(int(position))
		return b.Slice(i)<<16 | uint64(low), ok
	}
	return 0, false
}

// CountRange is how many ids there are from lo to hi, both included; 0 where lo is above hi. It looks at the slices in between only.
func (b Bitmap) CountRange(lo, hi uint64) uint64 {
	n := uint64(0)
	if lo > hi {
		return 0
	}
	for i := b.Find(lo >> 16); i < b.Len() && b.Slice(i) <= hi>>16; i++ {
		if first, last, whole := part(b.Slice(i), lo, hi); whole {
			n += uint64(b.Lows(i))
		} else {
			n += uint64(b.Container(i).CountRange(first, last))
		}
	}
	return n
}

// part is which lows of a slice, of which some are, are ids from lo to hi, and whether all are.
func part(slice, lo, hi uint64) (first, last uint16, whole bool) {
	first, last = 0, SliceLen-1
	if slice == lo>>16 {
		first = uint16(lo)
	}
	if slice == hi>>16 {
		last = uint16(hi)
	}
	return first, last, first == 0 && last == SliceLen-1
}

// Min is the lowest id; there is none in an empty bitmap.
func (b Bitmap) Min() (id uint64, ok bool) {
	if b.Len() == 0 {
		return 0, false
	}
	low, ok := b.Container(0).Min()
	return b.Slice(0)<<16 | uint64(low), ok
}

// Max is the highest id; there is none in an empty bitmap.
func (b Bitmap) Max() (id uint64, ok bool) {
	last := b.Len() - 1
	if last < 0 {
		return 0, false
	}
	low, ok := b.Container(last).Max()
	return b.Slice(last)<<16 | uint64(low), ok
}

// Each yields the ids that are not below from, in order, until yield answers false, and says whether it never did.
func (b Bitmap) Each(from uint64, yield func(id uint64) bool) bool {
	for i := b.Find(from >> 16); i < b.Len(); i++ {
		slice, low := b.Slice(i), uint16(0)
		if slice == from>>16 {
			low = uint16(from)
		}
		if !b.Container(i).Each(low, func(low uint16) bool { return yield(slice<<16 | uint64(low)) }) {
			return false
		}
	}
	return true
}

// AppendIDs appends the ids that are not below from to ids, at most as many as limit.
func (b Bitmap) AppendIDs(ids []uint64, from uint64, limit int) []uint64 {
	if limit <= 0 {
		return ids
	}
	b.Each(from, func(id uint64) bool {
		ids = append(ids, id)
		limit--
		return limit > 0
	})
	return ids
}
