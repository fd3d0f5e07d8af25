package shard

// slab keeps records, and the parts of large bitmaps, in blocks, which lie in runs of pages. A run holds blocks of one
// size class; a block above the largest class has a run of its own.
//
//	run of class 15 words:  | block | block | free -+ | block | free -> 0 | never used
//	                                                +----------^
//
// Blocks that are dropped leave holes. When holes are an eighth of all, blocks are compacted, some with each entry: see
// State.gather. Where a block lies is not part of the replicated state.
type slab struct {
	mem  Memory
	runs []run
	// The rest is for writing, and absent in a view.
	usage []usage
	lists [classCount]uint32 // the first run with room of each class, plus one; it is filled before the others
	empty []uint32           // numbers without a run
	taken int                // words of all runs
	used  int                // words of all blocks
	moved uint32             // counts drops and runs made private: a block that was found is good until the next
}

// run is some pages and the size of the blocks in them.
type run struct {
	words []uint64
	size  uint32
	epoch uint32 // in which it became private; means nothing in a view
}

// usage describes a run.
type usage struct {
	prev, next uint32 // of its list, plus one
	class      uint8
	used       uint8 // blocks taken
	top        uint8 // blocks that have been used at least once
	free       uint8 // the first free block plus one; 0: none
}

// blockRef is the position of a block: the number of its run, and in the lower 8 bits its place there, plus one. 0 is
// none.
type blockRef uint32

// runsMax is how many runs a blockRef can address: 64 GiB of small blocks.
const runsMax = 1 << 24

// blockClass is a size of blocks.
type blockClass struct {
	size  uint16 // words
	count uint8  // blocks a run
	pages uint8  // of a run
}

// Blocks of up to 512 bytes lie in single pages, those of up to 8 KiB in runs of 8 pages at most. So when a view shares
// a run, a write copies not much more than it writes. And a shard of few keys does not take a long run for each size
// with only one block. Sizes are those that divide a page, or 8 pages. A step from one size to the next is less than an
// eighth, above 4 KiB a fifth.
const (
	smallMax   = 64
	smallLeast = 3
	largeRun   = 8
	largeMax   = 1024
	classCount = 70
)

// classes are the size classes from the smallest on, and classOf the class of each number of words. Class 0 is for
// blocks with runs of their own.
var classes, classOf = makeClasses()

func makeClasses() (list [classCount]blockClass, of [largeMax + 1]uint8) {
	n := 1
	for count := PageWords / smallLeast; count >= PageWords/smallMax; count-- {
		if size := uint16(PageWords / count); size > list[n-1].size {
			list[n] = blockClass{size: size, count: uint8(count), pages: 1}
			n++
		}
	}
	for count := largeRun * PageWords / smallMax; count >= largeRun*PageWords/largeMax; count-- {
		if size := uint16(largeRun * PageWords / count); size >= list[n-1].size+list[n-1].size/16 {
			list[n] = shortRun(size)
			n++
		}
	}
	class := uint8(1)
	for words := range of {
		for list[class].size < uint16(words) {
			class++
		}
		of[words] = class
	}
	return list, of
}

// shortRun is the class of a size in the shortest run that leaves no more than a sixteenth over.
func shortRun(size uint16) blockClass {
	for pages := 1; ; pages++ {
		if count := pages * PageWords / int(size); count*int(size)*16 >= pages*PageWords*15 {
			return blockClass{size: size, count: uint8(count), pages: uint8(pages)}
		}
	}
}

// at returns a block.
func (b *slab) at(ref blockRef) []uint64 {
	r := &b.runs[ref>>8]
	i := (uint32(ref)&0xff - 1) * r.size
	return r.words[i : i+r.size : i+r.size]
}

// edit returns a block for writing.
func (b *slab) edit(ref blockRef, epoch uint32) []uint64 {
	b.own(uint32(ref>>8), epoch)
	return b.at(ref)
}

func (b *slab) own(number, epoch uint32) {
	if r := &b.runs[number]; r.epoch != epoch {
		r.words, r.epoch = private(b.mem, r.words), epoch
		b.moved++
	}
}

// put returns a new block of at least so many words, whose contents are undefined.
func (b *slab) put(words int, epoch uint32) blockRef {
	if words > largeMax {
		pages := (words + PageWords - 1) / PageWords
		number := b.add(run{words: b.mem.Run(pages), size: uint32(pages * PageWords), epoch: epoch}, usage{used: 1, top: 1})
		b.used += pages * PageWords
		return blockRef(number<<8 | 1)
	}
	number := b.withRoom(classOf[words], epoch)
	b.own(number, epoch)
	u := &b.usage[number]
	at := u.free
	if at != 0 {
		u.free = uint8(b.at(blockRef(number<<8 | uint32(at)))[0])
	} else {
		u.top++
		at = u.top
	}
	b.count(number, 1)
	return blockRef(number<<8 | uint32(at))
}

// withRoom returns a run with room for a block.
func (b *slab) withRoom(class uint8, epoch uint32) uint32 {
	if first := b.lists[class]; first != 0 {
		return first - 1
	}
	c := &classes[class]
	number := b.add(run{words: b.mem.Run(int(c.pages)), size: uint32(c.size), epoch: epoch}, usage{class: class})
	b.link(number)
	return number
}

// add gives a run a number.
func (b *slab) add(r run, u usage) uint32 {
	b.taken += len(r.words)
	if n := len(b.empty); n > 0 {
		number := b.empty[n-1]
		b.empty = b.empty[:n-1]
		b.runs[number], b.usage[number] = r, u
		return number
	}
	if len(b.runs) == runsMax {
		panic("shard: more than 64 GiB of distributions in one shard")
	}
	b.runs = append(b.runs, r)
	b.usage = append(b.usage, u)
	return uint32(len(b.runs) - 1)
}

// drop frees a block. A run without blocks is freed too.
func (b *slab) drop(ref blockRef, epoch uint32) {
	b.moved++
	number := uint32(ref >> 8)
	if u := &b.usage[number]; u.used > 1 {
		b.edit(ref, epoch)[0] = uint64(u.free)
		u.free = uint8(ref)
		b.count(number, -1)
		return
	}
	if b.usage[number].hasRoom() {
		b.unlink(number)
	}
	b.taken -= len(b.runs[number].words)
	b.used -= int(b.runs[number].size)
	b.mem.FreeRun(b.runs[number].words)
	b.runs[number], b.usage[number] = run{}, usage{}
	b.empty = append(b.empty, number)
}

// count records that a run has one block more or less.
func (b *slab) count(number uint32, change int8) {
	u := &b.usage[number]
	before := u.hasRoom()
	u.used += uint8(change)
	b.used += int(change) * int(b.runs[number].size)
	switch after := u.hasRoom(); {
	case before && !after:
		b.unlink(number)
	case after && !before:
		b.link(number)
	}
}

// hasRoom says whether a run has room for a block, and so is in the list of its class.
func (u *usage) hasRoom() bool { return u.class != 0 && u.used < classes[u.class].count }

// link puts a run into its list, in second place: the first run is filled before another is begun.
func (b *slab) link(number uint32) {
	u := &b.usage[number]
	head := &b.lists[u.class]
	if *head == 0 {
		*head = number + 1
		return
	}
	first := &b.usage[*head-1]
	u.prev, u.next = *head, first.next
	if first.next != 0 {
		b.usage[first.next-1].prev = number + 1
	}
	first.next = number + 1
}

func (b *slab) unlink(number uint32) {
	u := &b.usage[number]
	if u.prev != 0 {
		b.usage[u.prev-1].next = u.next
	} else {
		b.lists[u.class] = u.next
	}
	if u.next != 0 {
		b.usage[u.next-1].prev = u.prev
	}
	u.prev, u.next = 0, 0
}

// sparse says whether a block should be moved: its run is not nearly full, and another run is to be filled first.
func (b *slab) sparse(ref blockRef) bool {
	u := &b.usage[ref>>8]
	return u.prev != 0 && int(u.used)*16 < int(classes[u.class].count)*15
}

// gather moves a block of a sparse run to a run that is to be filled first.
func (b *slab) gather(had blockRef, epoch uint32) (ref blockRef, moved bool) {
	if !b.sparse(had) {
		return had, false
	}
	ref = b.put(int(b.runs[had>>8].size), epoch)
	copy(b.at(ref), b.at(had))
	b.drop(had, epoch)
	return ref, true
}

// fragmented says whether blocks should be compacted: whether holes are more than an eighth of what is used, without
// the holes of runs that are being filled. Once no block is sparse, there is half of that.
func (b *slab) fragmented() bool {
	holes := b.taken - b.used - b.used/8
	if holes <= 0 {
		return false
	}
	for _, first := range b.lists {
		if first != 0 {
			holes -= len(b.runs[first-1].words)
		}
	}
	return holes > 0
}

func (b *slab) frozen() slab { return slab{runs: append([]run(nil), b.runs...)} }
