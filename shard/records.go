package shard

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/ebbdb/ebb/sketch"
)

// record is the block of a key: a head, its name, and room for what it holds, in words without pointers. All that an
// increment reads of a key lies together.
//
//	0  form (3) | length of the name (10) | its namespace (16) | era (16) | bins, lower part (19)
//	1  next cleanup (57) | bins, upper part (5) | on event time | something is lost
//	2  last event (57) | when to look for faded bins (5) | 2 unused
//	3  landmark (48) | moment of the last look for faded bins (16)
//	4  z; the highest level under linear decay
//	5  z2; what is lost under linear decay
//	name, 8 bytes a word, the last ones 0
//	room: the bins
//
// A record with something lost never has the two fields about faded bins (see sketch.Params.OrderFree). The lost count
// takes their bits:
//
//	2  last event (57) | lost, upper part (7)
//	3  landmark (40) | lost, lower part (24)
//
// A body is a Go value, and its head ends after the third word:
//
//	2  its place among the bodies (32)
//
// The head of a bitmap has two words, or a third if a cleanup is to come:
//
//	0  as above, but for bins: ids of a small one (18) | whether it is wide
//	1  the entry that edited it last (48), not replicated | large | on event time | whether the third word is there
//	2  next cleanup (57)
//	room: of a small one the ids; of a large one their number, and leaves (32) | root (32)
type record []uint64

const (
	tickBits  = 57
	tickMask  = 1<<tickBits - 1
	neverTick = tickMask // stands for MaxTick
	markBits  = 48

	formMask   = 7
	nameShift  = 3
	nameMask   = 1<<10 - 1
	spaceShift = 13
	eraShift   = 29
	eraMask    = 1<<16 - 1
	lowerShift = 45
	lowerBits  = 64 - lowerShift
	upperMask  = 31
	lateBit    = 1 << 62 // on event time
	lostBit    = 1 << 63 // something is lost

	// lostMarkBits is the width of a landmark where something is lost: for a half-life of a second, 36 bits are enough.
	lostMarkBits = 40
	lostLower    = 64 - lostMarkBits

	idsMask     = 1<<18 - 1
	wideShift   = 63
	largeBit    = 1 << markBits
	bitsLateBit = 2 << markBits
	timedBit    = 4 << markBits
)

// Forms of records.
const (
	recordWide = iota
	recordCompact
	recordMicro
	recordBody
	recordBitmap
)

// Words of heads.
const (
	headWords       = 6
	headBody        = 3
	headBitmap      = 2
	headBitmapTimed = 3
	// largeRoom is how many words the room of a large bitmap has.
	largeRoom = 2
)

// nameWords is how many words a name of n bytes takes.
func nameWords(n int) int { return (n + 7) / 8 }

func (r record) form() int { return int(r[0] & formMask) }

// head is how many words come before the name.
func (r record) head() int {
	switch r.form() {
	case recordBody:
		return headBody
	case recordBitmap:
		if r[1]&timedBit == 0 {
			return headBitmap
		}
		return headBitmapTimed
	}
	return headWords
}

func (r record) nameLen() int { return int(r[0] >> nameShift & nameMask) }

// nameIn are the words of the name.
func (r record) nameIn() []uint64 {
	head := r.head()
	return r[head : head+nameWords(r.nameLen())]
}

// room returns the words after the name, for what the key holds.
func (r record) room() []uint64 { return r[r.head()+nameWords(r.nameLen()):] }

// is says whether the record has this name and this namespace.
func (r record) is(space uint16, name []byte) bool {
	if r.space() != space || r.nameLen() != len(name) {
		return false
	}
	words := r.nameIn()
	for len(name) >= 8 {
		if words[0] != binary.LittleEndian.Uint64(name) {
			return false
		}
		words, name = words[1:], name[8:]
	}
	return len(name) == 0 || words[0] == lastWord(name)
}

// lastWord packs the rest of a name, less than 8 bytes, into a word.
func lastWord(name []byte) (w uint64) {
	for i, c := range name {
		w |= uint64(c) << (8 * i)
	}
	return w
}

// appendName appends the name to b.
func (r record) appendName(b []byte) []byte {
	end := len(b) + r.nameLen()
	for _, w := range r.nameIn() {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b[:end]
}

// packName returns a name as words, in room.
func packName(room *[nameLenMax / 8]uint64, name []byte) []uint64 {
	words := room[:0]
	for ; len(name) >= 8; name = name[8:] {
		words = append(words, binary.LittleEndian.Uint64(name))
	}
	if len(name) > 0 {
		words = append(words, lastWord(name))
	}
	return words
}

// space is the number of its namespace.
func (r record) space() uint16 { return uint16(r[0] >> spaceShift) }

// era is the number of the era, modulo eraMask + 1.
func (r record) era() uint32 { return uint32(r[0] >> eraShift & eraMask) }

func (r record) due() sketch.Tick {
	at := uint64(neverTick)
	switch {
	case r.form() != recordBitmap:
		at = r[1] & tickMask
	case r[1]&timedBit != 0:
		at = r[2] & tickMask
	}
	if at == neverTick {
		return sketch.MaxTick
	}
	return sketch.Tick(at)
}

// dueWord returns the time of a cleanup as a record stores it.
func dueWord(due sketch.Tick) uint64 {
	if due > clockMax {
		return neverTick
	}
	return uint64(due)
}

// bins is how many a distribution has.
func (r record) bins() int {
	if r.form() > recordMicro {
		return 0
	}
	return int(r[0]>>lowerShift | r[1]>>tickBits&upperMask<<lowerBits)
}

// box is the place of a body.
func (r record) box() uint32 { return uint32(r[2]) }

// bitmap returns the head of the bitmap that the key holds.
func (r record) bitmap() bitmapHead {
	room := r.room()
	if r[1]&largeBit == 0 {
		return bitmapHead{ids: r[0] >> lowerShift & idsMask, wide: r[0]>>wideShift != 0, words: room}
	}
	return bitmapHead{ids: room[0], leaves: uint32(room[1]), root: blockRef(room[1] >> 32)}
}

// setRoot stores the position of the root of a large bitmap.
func (r record) setRoot(root blockRef) {
	room := r.room()
	room[1] = room[1]&math.MaxUint32 | uint64(root)<<32
}

// edited is the index in the log of the entry that changed the bitmap of a key last.
func (r record) edited() uint64 { return r[1] & (1<<markBits - 1) }

// header fills in the header of the distribution.
func (r record) header(h *sketch.Header) {
	f := r.form()
	h.Z, h.Z2, h.Last = math.Float64frombits(r[4]), math.Float64frombits(r[5]), sketch.Tick(r[2]&tickMask)
	h.Mark, h.Bins = int64(r[3]&(1<<markBits-1)), r.bins()
	h.Compact, h.Micro = f == recordCompact, f == recordMicro
	if h.Micro {
		h.Mark, h.Z, h.Z2, h.Lost = int64(r[4]), 0, 0, math.Float64frombits(r[5])
	}
	if r[1]&lostBit != 0 {
		h.Mark = int64(r[3] & (1<<lostMarkBits - 1))
		h.Lost = math.Float64frombits((r[2]>>tickBits<<lostLower | r[3]>>lostMarkBits) << 32)
	}
}

// setSums stores the fields of a header that addExisting changes.
func (r record) setSums(z, z2 float64, last sketch.Tick) {
	r[4], r[5] = math.Float64bits(z), math.Float64bits(z2)
	r[2] = r[2]&^tickMask | uint64(last)
}

// load fills in a summary from the record, except for bins, body and the upper part of the era.
func (r record) load(sum *summary) {
	sum.due, sum.era, sum.space = r.due(), r.era(), r.space()
	sum.pruneAt = pruneMin
	switch r.form() {
	case recordBitmap:
		sum.onEvent = r[1]&bitsLateBit != 0
		return
	case recordBody:
	default:
		if r[1]&lostBit == 0 {
			sum.pruned = uint16(r[3] >> markBits)
			sum.pruneAt = 1 << (r[2] >> tickBits & 31)
		}
	}
	sum.onEvent = r[1]&lateBit != 0
}

// begin clears a head of so many words, and stores the namespace and the length of the name.
func (r record) begin(head int, space uint16, length int) {
	clear(r[:head])
	r[0] = uint64(length)<<nameShift | uint64(space)<<spaceShift
}

// common stores the fields that the first word of every form has.
func (r record) common(sum *summary, form uint64) {
	const kept = nameMask<<nameShift | math.MaxUint16<<spaceShift
	r[0] = r[0]&kept | form | uint64(sum.era&eraMask)<<eraShift
}

// storeDistribution is the opposite of load and header.
func (r record) storeDistribution(sum *summary) {
	var h sketch.Header
	sum.dist.Header(&h)
	form := uint64(recordWide)
	r[3], r[4], r[5] = uint64(sum.pruned)<<markBits, math.Float64bits(h.Z), math.Float64bits(h.Z2)
	switch {
	case h.Micro:
		form = recordMicro
		r[4], r[5] = uint64(h.Mark), math.Float64bits(h.Lost)
	case h.Compact:
		form = recordCompact
		fallthrough
	default:
		r[3] |= uint64(h.Mark)
	}
	r.common(sum, form)
	r[0] |= uint64(h.Bins) << lowerShift
	r[1] = dueWord(sum.due) | uint64(h.Bins)>>lowerBits<<tickBits
	if sum.onEvent {
		r[1] |= lateBit
	}
	r[2] = uint64(h.Last) | uint64(bits.Len32(sum.pruneAt|1)-1)<<tickBits
	if h.Lost > 0 && !h.Micro {
		r.storeLost(&h)
	}
}

// storeLost stores what is lost, in the bits of the fields about faded bins.
func (r record) storeLost(h *sketch.Header) {
	lost := math.Float64bits(h.Lost) >> 32
	r[1] |= lostBit
	r[2] = uint64(h.Last) | lost>>lostLower<<tickBits
	r[3] = uint64(h.Mark) | lost<<lostMarkBits
}

// storeBody stores a body that lies in a place.
func (r record) storeBody(sum *summary, box uint32) {
	r.common(sum, recordBody)
	r[1], r[2] = dueWord(sum.due), uint64(box)
	if sum.onEvent {
		r[1] |= lateBit
	}
}

// bitmapHeadWords is how many words come before the name of a bitmap with this time of the next cleanup.
func bitmapHeadWords(due sketch.Tick) int {
	if due > clockMax {
		return headBitmap
	}
	return headBitmapTimed
}

// storeBitmap stores a bitmap whose ids, if it is small, are in its room already.
func (r record) storeBitmap(sum *summary, head *bitmapHead, edited uint64) {
	r.common(sum, recordBitmap)
	r[1] = edited & (1<<markBits - 1)
	if sum.onEvent {
		r[1] |= bitsLateBit
	}
	if sum.due <= clockMax {
		r[1] |= timedBit
		r[2] = uint64(sum.due)
	}
	switch {
	case head.leaves > 0:
		r[1] |= largeBit
		room := r.room()
		room[0], room[1] = head.ids, uint64(head.root)<<32|uint64(head.leaves)
	case head.wide:
		r[0] |= 1 << wideShift
		fallthrough
	default:
		r[0] |= head.ids << lowerShift
	}
}

// directory hands out the numbers of keys as a slotTable does. It has the block of each key's record, and the key's
// position in the cleanup queue.
//
//	block (32) | position in the cleanup queue, plus one (32); not replicated
//	0          | next free number, plus one (32)              of a free one
//
// The words lie in pages with copy-on-write.
type directory struct {
	mem    Memory
	pages  [][]uint64
	epochs []uint32 // absent in a view

	slots uint32 // 0 to slots-1 have been handed out at least once
	free  uint32 // the first free number plus one; 0: none
	live  uint32
}

// keysPerPage is how many keys a page of a directory is for.
const keysPerPage = PageWords

func (p *directory) at(key uint32) *uint64 { return &p.pages[key/keysPerPage][key%keysPerPage] }

func (p *directory) edit(key, epoch uint32) *uint64 {
	page := key / keysPerPage
	if p.epochs[page] != epoch {
		p.pages[page], p.epochs[page] = private(p.mem, p.pages[page]), epoch
	}
	return p.at(key)
}

// block is where the record of a key lies; 0 if it has none.
func (p *directory) block(key uint32) blockRef { return blockRef(*p.at(key)) }

func (p *directory) setBlock(key uint32, block blockRef, epoch uint32) {
	w := p.edit(key, epoch)
	*w = *w&^math.MaxUint32 | uint64(block)
}

// cleanupAt is the position of a key in the cleanup queue, plus one; 0: no cleanup is to come.
func (p *directory) cleanupAt(key uint32) uint32 { return uint32(*p.at(key) >> 32) }

func (p *directory) setCleanupAt(key, place, epoch uint32) {
	w := p.edit(key, epoch)
	*w = *w&math.MaxUint32 | uint64(place)<<32
}

// alive says whether a number belongs to a key with a record.
func (p *directory) alive(key uint32) bool { return key < p.slots && p.block(key) != 0 }

// all yields the keys with a record, in order.
func (p *directory) all(yield func(key uint32) bool) {
	for key := range p.slots {
		if p.block(key) != 0 && !yield(key) {
			return
		}
	}
}

// add returns the number of a new key; the caller makes its record.
func (p *directory) add(epoch uint32) uint32 {
	p.live++
	if p.free == 0 {
		return p.append(0, epoch)
	}
	key := p.free - 1
	p.free = p.link(key)
	*p.edit(key, epoch) = 0
	return key
}

// drop frees the number of a key whose record is gone.
func (p *directory) drop(key, epoch uint32) {
	*p.edit(key, epoch) = uint64(p.free) << 32
	p.free = key + 1
	p.live--
}

// append adds a number that was never handed out. link is 0 for a key; for a free number it is the next free one, plus
// one.
func (p *directory) append(link, epoch uint32) uint32 {
	key := p.slots
	p.slots++
	if key%keysPerPage == 0 {
		p.pages = append(p.pages, p.mem.Run(1))
		p.epochs = append(p.epochs, epoch)
	}
	*p.edit(key, epoch) = uint64(link) << 32
	return key
}

// link implements freeList.
func (p *directory) link(key uint32) uint32 {
	w := *p.at(key)
	if uint32(w) != 0 {
		return inUse
	}
	return uint32(w >> 32)
}

// ends implements freeList.
func (p *directory) ends() (slots, free, live uint32) { return p.slots, p.free, p.live }

// restore implements freeList.
func (p *directory) restore(link, epoch uint32) uint32 {
	if link != inUse {
		return p.append(link, epoch)
	}
	p.live++
	return p.append(0, epoch)
}

// begin implements freeList.
func (p *directory) begin(free uint32) { p.free = free }

func (p *directory) frozen() directory {
	return directory{pages: append([][]uint64(nil), p.pages...), slots: p.slots, free: p.free, live: p.live}
}
