package shard

import "encoding/binary"

const (
	slotsPerPage = PageBytes / 8
	slotsMin     = slotsPerPage
)

// index finds ids by the hash of their name: open addressing with linear
// probing over pages, 8 bytes a slot, at most three quarters full.
//
//	slot = tag (high 32 bits) | id + 1 (low 32 bits);  0: empty
//
// The tag is 32 bits of the hash; its low bits are where probing begins. The
// index is derived from the names and not part of the replicated state.
type index struct {
	slots pages
	size  uint32 // a power of two, 0 before the first insert
	used  uint32
	// changes counts what came and went: an id that was found is good until the next.
	changes uint32
}

func (x *index) slot(i uint32) uint64 {
	return binary.LittleEndian.Uint64(x.slots.at(i / slotsPerPage)[i%slotsPerPage*8:])
}

// at is where a slot lies.
func (x *index) at(i uint32) *byte { return &x.slots.at(i / slotsPerPage)[i%slotsPerPage*8] }

func (x *index) set(i uint32, v uint64, epoch uint32) {
	binary.LittleEndian.PutUint64(x.slots.edit(i/slotsPerPage, epoch)[i%slotsPerPage*8:], v)
}

// find returns the id with this tag for which same holds.
func (x *index) find(tag uint32, same func(id uint32) bool) (id uint32, ok bool) {
	if x.size == 0 {
		return 0, false
	}
	mask := x.size - 1
	for i := tag & mask; ; i = (i + 1) & mask {
		v := x.slot(i)
		if v == 0 {
			return 0, false
		}
		if uint32(v>>32) == tag && same(uint32(v)-1) {
			return uint32(v) - 1, true
		}
	}
}

// likely returns the first id with this tag, plus one; 0: there is none.
func (x *index) likely(tag uint32) uint32 {
	mask := x.size - 1
	for i := tag & mask; ; i = (i + 1) & mask {
		if v := x.slot(i); v == 0 || uint32(v>>32) == tag {
			return uint32(v)
		}
	}
}

func (x *index) insert(tag, id, epoch uint32) {
	x.changes++
	if x.used >= x.size/4*3 {
		x.resize(max(slotsMin, x.size*2), epoch)
	}
	x.place(uint64(tag)<<32|uint64(id+1), epoch)
	x.used++
}

func (x *index) place(v uint64, epoch uint32) {
	mask := x.size - 1
	i := uint32(v>>32) & mask
	for x.slot(i) != 0 {
		i = (i + 1) & mask
	}
	x.set(i, v, epoch)
}

// remove takes out a slot and moves back those that probed past it, so that
// probing never meets a grave.
func (x *index) remove(tag, id, epoch uint32) {
	x.changes++
	mask := x.size - 1
	hole := tag & mask
	for uint32(x.slot(hole)) != id+1 {
		hole = (hole + 1) & mask
	}
	for i := (hole + 1) & mask; ; i = (i + 1) & mask {
		v := x.slot(i)
		if v == 0 {
			break
		}
		home := uint32(v>>32) & mask
		if (i-home)&mask >= (i-hole)&mask {
			x.set(hole, v, epoch)
			hole = i
		}
	}
	x.set(hole, 0, epoch)
	x.used--
	if x.size > slotsMin && x.used < x.size/8 {
		x.resize(x.size/2, epoch)
	}
}

// resize copies all slots: the one step whose cost grows with the index. Its
// cost a key is a few nanoseconds, and it comes once in a doubling.
func (x *index) resize(size, epoch uint32) {
	old := *x
	*x = index{slots: pages{mem: old.slots.mem}, size: size, used: old.used, changes: old.changes}
	for range (size + slotsPerPage - 1) / slotsPerPage {
		x.slots.add(epoch)
	}
	for i := range old.size {
		if v := old.slot(i); v != 0 {
			x.place(v, epoch)
		}
	}
	old.slots.free()
}

func (x *index) frozen() index {
	return index{slots: x.slots.frozen(), size: x.size, used: x.used}
}
