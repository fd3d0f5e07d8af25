package shard

import (
	"math"
	"math/bits"

	"github.com/ebbdb/ebb/sketch"
)

// record is what is known of a key, in a cache line of words without pointers.
//
//	0  z; the highest level under linear decay
//	1  z2
//	2  last event (57 bits) | on event time | form (3) | 3 unused
//	3  next visit (57)      | 7 unused
//	4  landmark (48)        | moment of the last look for faded bins (16)
//	5  bins (24) | when to look for faded bins (5) | 3 unused | where they lie (32)
//	6  where its name lies (32) | its namespace (16) | era (16)
//	7  place in the order of visits, plus one (32) | 32 unused; not replicated
//
// Of a bitmap 0 is how many ids it has, 1 how many leaves (32) | whether it is small and wide, and 4, in place of the landmark, the entry that edited it last;
// not replicated.
//
// What is under a form lies in a block, or among the Go values when it is
// recordBody. A free key has a record of zeros.
type record [recordWords]uint64

const (
	recordWords    = 8
	recordsPerPage = PageWords / recordWords

	tickBits  = 57
	tickMask  = 1<<tickBits - 1
	neverTick = tickMask // stands for MaxTick
	formMask  = 7
	eraShift  = 48
	eraMask   = 1<<(64-eraShift) - 1
	nameMask  = 1<<eraShift - 1 // of word 6
	markBits  = 48
	binsBits  = 24
)

// wideBit: see bitmap.Small.
const wideBit = 1 << 32

// bitmap is where the bitmap of a key that holds one lies.
func (r *record) bitmap() bitmapHead {
	return bitmapHead{root: blockRef(r.where()), leaves: uint32(r[1]), wide: r[1]&wideBit != 0, ids: r[0]}
}

func (r *record) setBitmap(head bitmapHead) {
	r[0], r[1] = head.ids, uint64(head.leaves)
	if head.wide {
		r[1] |= wideBit
	}
	r.move(uint32(head.root))
}

// edited is the index in the log of the entry that changed the bitmap of a key last.
func (r *record) edited() uint64 { return r[4] & (1<<markBits - 1) }

func (r *record) setEdited(index uint64) { r[4] = r[4]>>markBits<<markBits | index&(1<<markBits-1) }

// Forms of records.
const (
	recordWide = iota
	recordCompact
	recordMicro
	recordBody
	recordBitmap
)

func (r *record) due() sketch.Tick {
	if t := r[3] & tickMask; t != neverTick {
		return sketch.Tick(t)
	}
	return sketch.MaxTick
}

// era is the number of the era, less what is a multiple of eraMask + 1.
func (r *record) era() uint32 { return uint32(r[6] >> eraShift) }

func (r *record) form() int { return int(r[2] >> (tickBits + 1) & formMask) }

// place is where its name lies.
func (r *record) place() place { return place(r[6]) }

// space is the number of its namespace.
func (r *record) space() uint16 { return uint16(r[6] >> 32) }

// name says which namespace it belongs to, and where its name lies.
func (r *record) name(space uint16, at place) {
	r[6] = r[6]&^nameMask | uint64(space)<<32 | uint64(at)
}

// where is the block or the place of the body.
func (r *record) where() uint32 { return uint32(r[5] >> 32) }

// block is where the bins lie, 0 if there are none, or no bins.
func (r *record) block() blockRef {
	if r.form() == recordBody {
		return 0
	}
	return blockRef(r.where())
}

// move says that what is under the record lies elsewhere now.
func (r *record) move(where uint32) { r[5] = r[5]&math.MaxUint32 | uint64(where)<<32 }

func (r *record) bins() int { return int(r[5] & (1<<binsBits - 1)) }

// header fills in that of the distribution.
func (r *record) header(h *sketch.Header) {
	f := r.form()
	h.Z, h.Z2, h.Last = math.Float64frombits(r[0]), math.Float64frombits(r[1]), sketch.Tick(r[2]&tickMask)
	h.Mark, h.Bins = int64(r[4]&(1<<markBits-1)), r.bins()
	h.Compact, h.Micro = f == recordCompact, f == recordMicro
	if h.Micro {
		h.Mark, h.Z = int64(r[0]), 0
	}
}

// visit is its place in the order of visits, plus one; 0: none is to come.
func (r *record) visit() uint32 { return uint32(r[7]) }

func (r *record) setVisit(place uint32) { r[7] = uint64(place) }

// load fills in what the record says of a summary, but for bins, body and the
// era's upper part.
func (r *record) load(sum *summary) {
	sum.due, sum.era, sum.space = r.due(), r.era(), r.space()
	sum.onEvent = r[2]>>tickBits&1 != 0
	sum.pruned = uint16(r[4] >> markBits)
	sum.pruneAt = 1 << (r[5] >> binsBits & 31)
}

// store is the opposite of load and header. It leaves the name and the place among visits as they are.
func (r *record) store(sum *summary, where uint32) {
	var h sketch.Header
	sum.dist.Header(&h)
	f := uint64(recordWide)
	switch {
	case sum.bitmap() != nil:
		f = recordBitmap
	case sum.body != nil:
		f = recordBody
	case h.Micro:
		f = recordMicro
	case h.Compact:
		f = recordCompact
	}
	due := uint64(sum.due)
	if sum.due > clockMax {
		due = neverTick
	}
	onEvent := uint64(0)
	if sum.onEvent {
		onEvent = 1
	}
	r[0], r[1] = math.Float64bits(h.Z), math.Float64bits(h.Z2)
	r[4] = uint64(sum.pruned) << markBits
	if h.Micro {
		r[0] = uint64(h.Mark)
	} else {
		r[4] |= uint64(h.Mark)
	}
	r[2] = uint64(h.Last) | onEvent<<tickBits | f<<(tickBits+1)
	r[3] = due
	r[5] = uint64(h.Bins) | uint64(bits.Len32(sum.pruneAt|1)-1)<<binsBits | uint64(where)<<32
	r[6] = r[6]&nameMask | uint64(sum.era)<<eraShift
}

// records keeps one record a key, in pages with copy-on-write.
type records struct {
	mem    Memory
	pages  [][]uint64
	epochs []uint32 // absent in a view
}

func (p *records) at(key uint32) *record {
	return (*record)(p.pages[key/recordsPerPage][key%recordsPerPage*recordWords:])
}

func (p *records) edit(key, epoch uint32) *record {
	page := key / recordsPerPage
	if p.epochs[page] != epoch {
		p.pages[page], p.epochs[page] = private(p.mem, p.pages[page]), epoch
	}
	return p.at(key)
}

// reach makes room for a key.
func (p *records) reach(key, epoch uint32) {
	for uint32(len(p.pages)) <= key/recordsPerPage {
		p.pages = append(p.pages, p.mem.Run(1))
		p.epochs = append(p.epochs, epoch)
	}
}

func (p *records) frozen() records { return records{pages: append([][]uint64(nil), p.pages...)} }
