package shard

import "github.com/ebbdb/ebb/sketch"

// summaries stores what keys hold: their records, with bins or ids, in blocks of pages without pointers; and bodies,
// for keys of other kinds, as Go values.
type summaries struct {
	keys      directory
	bins      slab
	bodies    cowTable[boxed]
	freeBoxes []uint32  // places of bodies that are free; absent in a view
	boxes     uint32    // places handed out at least once
	held      []holding // by space; absent in a view
}

// boxed is a body and the epoch in which it became private.
type boxed struct {
	body  body
	epoch uint32
}

func newSummaries(mem Memory) summaries {
	return summaries{keys: directory{mem: mem}, bins: slab{mem: mem}}
}

func (s *summaries) frozen() summaries {
	return summaries{keys: s.keys.frozen(), bins: s.bins.frozen(), bodies: s.bodies.frozen()}
}

// record returns the record of a key, for reading.
func (s *summaries) record(key uint32) record { return s.bins.at(s.keys.block(key)) }

// edit returns the record of a key for writing. The record does not move until something is put.
func (s *summaries) edit(key, epoch uint32) record { return s.bins.edit(s.keys.block(key), epoch) }

// begin makes a record for a key that has none. Its head has head words, its room has words or more. It fills in the
// name and the namespace. The contents of the room are undefined.
func (s *summaries) begin(key uint32, space uint16, name []byte, head, words int, epoch uint32) (r record, into []uint64) {
	var room [nameLenMax / 8]uint64
	in := packName(&room, name)
	before := s.bins.used
	block := s.bins.put(head+len(in)+words, epoch)
	s.charge(space, before)
	s.count(space, 1)
	r = s.bins.at(block)
	r.begin(head, space, len(name))
	copy(r[head:], in)
	s.keys.setBlock(key, block, epoch)
	return r, r[head+len(in):]
}

// end drops the record of a key, and what it holds.
func (s *summaries) end(key, epoch uint32) {
	r, before := s.record(key), s.bins.used
	space, bins := r.space(), r.bins()
	s.release(r, epoch)
	s.bins.drop(s.keys.block(key), epoch)
	s.charge(space, before)
	s.count(space, -1)
	s.holder(space).bins -= bins
	s.keys.setBlock(key, 0, epoch)
}

// rename gives a key another name.
func (s *summaries) rename(key uint32, name []byte, epoch uint32) {
	var sum summary
	s.makePrivate(key, epoch)
	s.load(key, &sum)
	var room [nameLenMax / 8]uint64
	s.store(key, &sum, &packedName{words: packName(&room, name), length: len(name)}, epoch)
}

// load fills in what a key holds, for reading. The caller fills in the upper part of its era.
func (s *summaries) load(key uint32, sum *summary) {
	r := s.record(key)
	r.load(sum)
	switch r.form() {
	case recordBody:
		sum.body = s.bodies.at(r.box()).body
		return
	case recordBitmap:
		sum.body = &bitmapValue{pages: &s.bins, head: r.bitmap(), edited: r.edited()}
		return
	}
	var h sketch.Header
	r.header(&h)
	sum.dist.Load(&h, r.room())
}

// makePrivate makes what a key holds private, so that the result of load may be written.
func (s *summaries) makePrivate(key, epoch uint32) {
	r := s.edit(key, epoch)
	if r.form() != recordBody {
		return
	}
	if box := s.bodies.edit(r.box(), epoch); box.epoch != epoch {
		box.body, box.epoch = box.body.clone(), epoch
	}
}

// put stores what a key holds. Bins or ids that are no longer in their room get a new one, and the name of the key
// moves with them.
func (s *summaries) put(key uint32, sum *summary, epoch uint32) { s.store(key, sum, nil, epoch) }

// packedName is a name as words.
type packedName struct {
	words  []uint64
	length int
}

// store is put; if name is not nil, the key gets that name.
func (s *summaries) store(key uint32, sum *summary, name *packedName, epoch uint32) {
	r := s.edit(key, epoch)
	bits := sum.bitmap()
	space, before := r.space(), s.bins.used
	if bins := sum.dist.Len() - r.bins(); bins != 0 {
		s.holder(space).bins += bins
	}
	switch r.form() {
	case recordBitmap:
		if bits == nil {
			s.release(r, epoch)
		}
	case recordBody:
		if sum.body == nil || bits != nil {
			s.release(r, epoch)
		}
	}
	switch {
	case bits != nil:
		bits.bring(&s.bins, epoch)
		s.storeBitmap(key, r, sum, bits, name, epoch)
	case sum.body != nil:
		s.storeBody(key, r, sum, name, epoch)
	default:
		s.storeDistribution(key, r, sum, name, epoch)
	}
	s.charge(space, before)
}

// release frees what a record refers to elsewhere.
func (s *summaries) release(r record, epoch uint32) {
	switch r.form() {
	case recordBitmap:
		s.bins.dropBitmap(r.bitmap(), epoch)
	case recordBody:
		*s.bodies.edit(r.box(), epoch) = boxed{}
		s.freeBoxes = append(s.freeBoxes, r.box())
	}
}

// roomFor returns how many bins to make room for when there are n, so that more can be added.
func roomFor(n int) int { return n + max(1, n/16) }

func (s *summaries) storeDistribution(key uint32, r record, sum *summary, name *packedName, epoch uint32) {
	n := sum.dist.Len()
	if name == nil && r.form() <= recordMicro && r.holds(sum.dist.Words(), 0) {
		r.storeDistribution(sum)
		return
	}
	words := 0
	if n > 0 {
		words = sum.dist.WordsFor(roomFor(n))
	}
	r, room, had := s.move(key, headWords, words, name, epoch)
	sum.dist.Place(room)
	r.storeDistribution(sum)
	s.bins.drop(had, epoch)
}

func (s *summaries) storeBody(key uint32, r record, sum *summary, name *packedName, epoch uint32) {
	if r.form() == recordBody && name == nil {
		*s.bodies.edit(r.box(), epoch) = boxed{sum.body, epoch}
		r.storeBody(sum, r.box())
		return
	}
	var box uint32
	if r.form() == recordBody {
		box = r.box()
		*s.bodies.edit(box, epoch) = boxed{sum.body, epoch}
	} else {
		box = s.box(sum.body, epoch)
	}
	r, _, had := s.move(key, headBody, 0, name, epoch)
	r.storeBody(sum, box)
	s.bins.drop(had, epoch)
}

func (s *summaries) storeBitmap(key uint32, r record, sum *summary, bits *bitmapValue, name *packedName, epoch uint32) {
	h, head := &bits.head, bitmapHeadWords(sum.due)
	ids, words := h.small().Words, 0
	if h.leaves > 0 {
		words = largeRoom
	}
	if name == nil && r.form() == recordBitmap && r.head() == head && r.holds(ids, words) {
		r.storeBitmap(sum, h, bits.edited)
		return
	}
	if n := len(ids); n > 0 {
		words = min(n+n/16, max(n, largeMax-head-len(r.nameIn()))) // it grows as well
	}
	r, room, had := s.move(key, head, words, name, epoch)
	if len(ids) > 0 {
		copy(room, ids)
		clear(room[len(ids):])
		h.words = room
	}
	r.storeBitmap(sum, h, bits.edited)
	s.bins.drop(had, epoch)
}

// move gives a key a new block, for a record whose head has head words, and whose room has words or more. The head has
// only the name and the namespace, and the contents of the room are undefined. The caller drops the old block, since
// what goes into the room may lie there.
func (s *summaries) move(key uint32, head, words int, name *packedName, epoch uint32) (r record, room []uint64, had blockRef) {
	had = s.keys.block(key)
	old := record(s.bins.at(had))
	as := packedName{old.nameIn(), old.nameLen()}
	if name != nil {
		as = *name
	}
	block := s.bins.put(head+len(as.words)+words, epoch)
	r = s.bins.at(block)
	r.begin(head, old.space(), as.length)
	copy(r[head:], as.words)
	s.keys.setBlock(key, block, epoch)
	return r, r[head+len(as.words):], had
}

// holds says whether these words, of bins or ids, lie in the room. Without words, it says whether the block is as small
// as possible with a room of least words.
func (r record) holds(words []uint64, least int) bool {
	room := r.room()
	if len(words) > 0 {
		return len(room) > 0 && &room[0] == &words[0]
	}
	return int(classes[classOf[len(r)-len(room)+least]].size) == len(r)
}

// gatherWords is how many words of one bitmap are moved at a time.
const gatherWords = 1 << 15

// gather moves the blocks of a key out of sparse runs.
func (s *summaries) gather(key, epoch uint32) {
	block := s.keys.block(key)
	if block == 0 {
		return // free
	}
	if r := s.record(key); r.form() == recordBitmap && r[1]&largeBit != 0 {
		s.gatherBitmap(key, epoch, gatherWords)
	}
	if to, moved := s.bins.gather(block, epoch); moved {
		s.keys.setBlock(key, to, epoch)
	}
}

// box hands out a place for a body.
func (s *summaries) box(b body, epoch uint32) uint32 {
	place := s.boxes
	if n := len(s.freeBoxes); n > 0 {
		place = s.freeBoxes[n-1]
		s.freeBoxes = s.freeBoxes[:n-1]
	} else {
		s.boxes++
		s.bodies.reach(place, epoch)
	}
	*s.bodies.edit(place, epoch) = boxed{b, epoch}
	return place
}
