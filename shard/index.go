package shard

import "encoding/binary"

const slotsPerPage = PageBytes / 8

// index finds ids by the hash of their name: open addressing with linear probing over pages, 8 bytes a slot. It grows
// by an eighth when it is three quarters full, so that a name takes 10.7 to 12 bytes of it.
//
//	slot = tag (high 32 bits) | id + 1 (low 32 bits);  0: empty
//
// The tag is 32 bits of the hash. Probing begins at a slot in proportion to the tag, so that slots are nearly in the
// order of their tags, however many there are. The index is derived from the names and not part of the replicated
// state.
type index struct {
	slots pages
	size  uint32 // whole pages of slots, 0 before the first insert
	used  uint32
	// changes counts inserts and removals: an id that was found is valid until the next one.
	changes uint32
}

// home is the slot at which probing for a tag begins.
func (x *index) home(tag uint32) uint32 { return uint32(uint64(tag) * uint64(x.size) >> 32) }

// after is the next slot.
func (x *index) after(i uint32) uint32 {
	if i++; i == x.size {
		return 0
	}
	return i
}

// from is how many slots there are from one slot to another.
func (x *index) from(i, to uint32) uint32 {
	if to < i {
		to += x.size
	}
	return to - i
}

func (x *index) slot(i uint32) uint64 {
	return binary.LittleEndian.Uint64(x.slots.at(i / slotsPerPage)[i%slotsPerPage*8:])
}

// at returns the memory of a slot.
func (x *index) at(i uint32) *byte { return &x.slots.at(i / slotsPerPage)[i%slotsPerPage*8] }

func (x *index) set(i uint32, v uint64, epoch uint32) {
	binary.LittleEndian.PutUint64(x.slots.edit(i/slotsPerPage, epoch)[i%slotsPerPage*8:], v)
}

// find returns the id with this tag for which same holds.
func (x *index) find(tag uint32, same func(id uint32) bool) (id uint32, ok bool) {
	if x.size == 0 {
		return 0, false
	}
	for i := x.home(tag); ; i = x.after(i) {
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
	for i := x.home(tag); ; i = x.after(i) {
		if v := x.slot(i); v == 0 || uint32(v>>32) == tag {
			return uint32(v)
		}
	}
}

func (x *index) insert(tag, id, epoch uint32) {
	x.changes++
	if x.full(x.used, x.size/slotsPerPage) {
		x.resize(x.grown(x.size/slotsPerPage), epoch)
	}
	x.place(slotOf(tag, id), epoch)
	x.used++
}

// slotOf returns the slot of an id.
func slotOf(tag, id uint32) uint64 { return uint64(tag)<<32 | uint64(id+1) }

// full says whether an index of so many pages must grow before another id is added to so many.
func (x *index) full(ids, pages uint32) bool { return ids >= pages*slotsPerPage/4*3 }

// grown is the number of pages to which the index grows.
func (x *index) grown(pages uint32) uint32 { return pages + pages/8 + 1 }

// fill puts slots into an empty index. It reports whether two of them have the same name, which same decides. It works
// page by page, since each access to another page is an access to another place in memory.
func (x *index) fill(all []uint64, epoch uint32, same func(id, other uint32) bool) (twice bool) {
	count := uint32(0)
	for len(all) > 0 && x.full(uint32(len(all)-1), count) {
		count = x.grown(count)
	}
	x.resize(count, epoch)
	x.changes++
	x.used = uint32(len(all))
	for _, v := range x.byPage(all) {
		i := x.home(uint32(v >> 32))
		for other := x.slot(i); other != 0; other = x.slot(i) {
			if other>>32 == v>>32 && same(uint32(v)-1, uint32(other)-1) {
				return true
			}
			i = x.after(i)
		}
		x.set(i, v, epoch)
	}
	return false
}

// byPage returns slots in the order of the pages of their homes.
func (x *index) byPage(all []uint64) []uint64 {
	next := make([]uint32, x.size/slotsPerPage+1)
	for _, v := range all {
		next[x.home(uint32(v>>32))/slotsPerPage+1]++
	}
	for page := range next[1:] {
		next[page+1] += next[page]
	}
	out := make([]uint64, len(all))
	for _, v := range all {
		at := &next[x.home(uint32(v>>32))/slotsPerPage]
		out[*at] = v
		*at++
	}
	return out
}

func (x *index) place(v uint64, epoch uint32) {
	i := x.home(uint32(v >> 32))
	for x.slot(i) != 0 {
		i = x.after(i)
	}
	x.set(i, v, epoch)
}

// remove removes a slot and moves back the slots that probed past it, so that there are no marks of removed slots.
func (x *index) remove(tag, id, epoch uint32) {
	x.changes++
	hole := x.home(tag)
	for uint32(x.slot(hole)) != id+1 {
		hole = x.after(hole)
	}
	for i := x.after(hole); ; i = x.after(i) {
		v := x.slot(i)
		if v == 0 {
			break
		}
		if x.from(x.home(uint32(v>>32)), i) >= x.from(hole, i) {
			x.set(hole, v, epoch)
			hole = i
		}
	}
	x.set(hole, 0, epoch)
	x.used--
	if x.size > slotsPerPage && x.used < x.size/4 {
		x.resize(x.size/slotsPerPage/2, epoch)
	}
}

// resize copies all slots into count pages, nearly in order. It is the only step whose cost grows with the index: a few
// nanoseconds a key, once in an eighth more keys.
func (x *index) resize(count, epoch uint32) {
	old := *x
	*x = index{slots: pages{mem: old.slots.mem}, size: count * slotsPerPage, used: old.used, changes: old.changes}
	for range count {
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
