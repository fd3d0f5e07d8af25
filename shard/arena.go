package shard

import "encoding/binary"

const (
	cellBytes = 16
	// nameLenMax is the longest name that an arena or a record holds.
	nameLenMax = 512
	cellsMax   = (nameLenMax + 2 + cellBytes - 1) / cellBytes
	// pageCells is how many cells a page has.
	pageCells = PageBytes / cellBytes
	// arenaPagesMax is how many pages a place can address.
	arenaPagesMax = 1 << 32 / pageCells
)

// arena keeps the bytes of names in pages of one size class each. A name, after its length as a uvarint, takes whole
// cells of 16 bytes. Free places of a page are chained through their first two bytes. A page without names may take any
// class again.
//
//	page of class 3:  | length, name; 48 bytes | name | free -+ | name | free -> 0 | never used
//	                                                          +--------^
//
// Only the arena knows where a name lies: it is not part of the replicated state.
type arena struct {
	pages pages
	// The rest is for writing, and absent in a view.
	classes []class
	room    [cellsMax + 1]uint32 // by cells: the first page with room, plus one; room[0]: empty pages
}

// class describes one page.
type class struct {
	cells      uint16 // per place; 0: an empty page
	used       uint16 // places taken
	top        uint16 // bytes that have been used at least once
	free       uint16 // the first free place's cell plus one; 0: none
	prev, next uint32 // pages with room of the same class, plus one
}

// place is the position of a name: the number of its first cell in all pages.
type place uint32

// lengthBytes is how many bytes the length of a name of n bytes takes.
func lengthBytes(n int) int {
	if n < 0x80 {
		return 1
	}
	return 2
}

// cells is how many cells a name of n bytes takes.
func cells(n int) uint16 { return uint16((lengthBytes(n) + n + cellBytes - 1) / cellBytes) }

// bytes returns a name without a copy. To keep it, a caller must copy it before the state is written again, or its view
// is released.
func (a *arena) bytes(p place) []byte {
	b := a.pages.at(uint32(p / pageCells))[p%pageCells*cellBytes:]
	if n := int(b[0]); n < 0x80 {
		return b[1:][:n:n]
	}
	n := int(b[0]&0x7f) | int(b[1])<<7
	return b[2:][:n:n]
}

func (a *arena) put(b []byte, epoch uint32) place {
	c := cells(len(b))
	number := a.withRoom(c, epoch)
	info := &a.classes[number]
	page := a.pages.edit(number, epoch)
	var at uint16
	if info.free != 0 {
		at = (info.free - 1) * cellBytes
		info.free = binary.LittleEndian.Uint16(page[at:])
	} else {
		at = info.top
		info.top += c * cellBytes
	}
	info.used++
	if !info.hasRoom() {
		a.unlink(number)
	}
	binary.PutUvarint(page[at:], uint64(len(b)))
	copy(page[int(at)+lengthBytes(len(b)):], b)
	return place(number*pageCells + uint32(at)/cellBytes)
}

func (a *arena) drop(p place, epoch uint32) {
	number, at := uint32(p/pageCells), p%pageCells*cellBytes
	info := &a.classes[number]
	page := a.pages.edit(number, epoch)
	if !info.hasRoom() {
		a.link(number)
	}
	binary.LittleEndian.PutUint16(page[at:], info.free)
	info.free = uint16(at/cellBytes) + 1
	info.used--
	if info.used == 0 {
		a.unlink(number)
		*info = class{}
		a.link(number)
	}
}

func (c *class) hasRoom() bool {
	return c.free != 0 || int(c.top)+int(c.cells)*cellBytes <= PageBytes
}

// withRoom returns a page with room for a name of c cells.
func (a *arena) withRoom(c uint16, epoch uint32) uint32 {
	if first := a.room[c]; first != 0 {
		return first - 1
	}
	var number uint32
	if first := a.room[0]; first != 0 {
		number = first - 1
		a.unlink(number)
	} else {
		if a.pages.len() == arenaPagesMax {
			panic("shard: more than 64 GiB of names in one shard")
		}
		number = a.pages.add(epoch)
		a.classes = append(a.classes, class{})
	}
	a.classes[number].cells = c
	a.link(number)
	return number
}

func (a *arena) link(page uint32) {
	info := &a.classes[page]
	first := a.room[info.cells]
	info.prev, info.next = 0, first
	if first != 0 {
		a.classes[first-1].prev = page + 1
	}
	a.room[info.cells] = page + 1
}

func (a *arena) unlink(page uint32) {
	info := &a.classes[page]
	if info.prev != 0 {
		a.classes[info.prev-1].next = info.next
	} else {
		a.room[info.cells] = info.next
	}
	if info.next != 0 {
		a.classes[info.next-1].prev = info.prev
	}
	info.prev, info.next = 0, 0
}

func (a *arena) frozen() arena { return arena{pages: a.pages.frozen()} }
