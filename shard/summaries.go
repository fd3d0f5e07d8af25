package shard

import "github.com/ebbdb/ebb/sketch"

// summaries keeps what keys hold: records and blocks of bins in pages without
// pointers, and bodies, of the keys that hold another kind, as Go values.
type summaries struct {
	records records
	bins    slab
	bodies  table[boxed]
	spare   []uint32 // places of bodies that are free; absent in a view
	boxes   uint32   // places handed out at least once
}

// boxed is a body and the epoch in which it became private.
type boxed struct {
	body  body
	epoch uint32
}

func newSummaries(mem Memory) summaries {
	return summaries{records: records{mem: mem}, bins: slab{mem: mem}}
}

func (s *summaries) frozen() summaries {
	return summaries{records: s.records.frozen(), bins: s.bins.frozen(), bodies: s.bodies.frozen()}
}

// load fills in what a key holds, to be read. The upper part of its era is for
// the caller to fill in.
func (s *summaries) load(key uint32, sum *summary) {
	r := s.records.at(key)
	r.load(sum)
	switch r.form() {
	case recordBody:
		sum.body = s.bodies.at(r.where()).body
		return
	case recordBitmap:
		sum.body = &bitmapValue{pages: &s.bins, head: r.bitmap(), edited: r.edited()}
		return
	}
	var words []uint64
	if where := blockRef(r.where()); where != 0 {
		words = s.bins.at(where)
	}
	var h sketch.Header
	r.header(&h)
	sum.dist.Load(&h, words)
}

// own makes what a key holds private, so that at returns what may be written.
func (s *summaries) own(key, epoch uint32) {
	r := s.records.edit(key, epoch)
	where := r.where()
	switch {
	case r.form() == recordBody:
		if box := s.bodies.edit(where, epoch); box.epoch != epoch {
			box.body, box.epoch = box.body.clone(), epoch
		}
	case where != 0:
		s.bins.own(where>>8, epoch)
	}
}

// put stores what a key holds. Bins that have left their block get another one.
func (s *summaries) put(key uint32, sum *summary, epoch uint32) {
	r := s.records.edit(key, epoch)
	had, form := r.where(), r.form()
	where := had
	bits := sum.bitmap()
	if form == recordBitmap && bits == nil {
		s.bins.dropBitmap(r.bitmap(), epoch)
		had, where = 0, 0
	}
	if form == recordBody && (sum.body == nil || bits != nil) {
		*s.bodies.edit(had, epoch) = boxed{}
		s.spare = append(s.spare, had)
		had, where = 0, 0
	}
	switch {
	case bits != nil:
		if form != recordBitmap {
			s.release(blockRef(had), epoch)
		}
		bits.bring(&s.bins, epoch)
		r.store(sum, 0)
		r.setBitmap(bits.head)
		r.setEdited(bits.edited)
		return
	case sum.body != nil:
		if form != recordBody {
			s.release(blockRef(had), epoch)
			where = s.box()
		}
		s.bodies.reach(where, epoch)
		*s.bodies.edit(where, epoch) = boxed{sum.body, epoch}
	default:
		where = uint32(s.settle(blockRef(had), &sum.dist, epoch))
	}
	r.store(sum, where)
}

// settle brings bins home: it returns the block that they lie in from now on.
func (s *summaries) settle(had blockRef, d *sketch.Distribution, epoch uint32) blockRef {
	words := d.Words()
	if len(words) == 0 {
		s.release(had, epoch)
		return 0
	}
	if had != 0 && &s.bins.at(had)[0] == &words[0] {
		return had
	}
	n := d.Len()
	where := s.bins.put(d.WordsFor(n+max(1, n/16)), epoch) // it grows: there will be more
	d.Place(s.bins.at(where))
	s.release(had, epoch)
	return where
}

// gatherWords is how many words of one bitmap move at a time.
const gatherWords = 1 << 15

// gather moves the bins of a key to where they have company, if they lie among holes.
func (s *summaries) gather(key, epoch uint32) {
	r := s.records.at(key)
	if r.form() == recordBitmap {
		s.gatherBitmap(key, epoch, gatherWords)
		return
	}
	had := blockRef(r.where())
	if r.form() == recordBody || had == 0 || !s.bins.sparse(had) {
		return
	}
	where := s.bins.put(int(s.bins.runs[had>>8].size), epoch)
	copy(s.bins.at(where), s.bins.at(had))
	s.bins.drop(had, epoch)
	s.records.edit(key, epoch).move(uint32(where))
}

func (s *summaries) release(had blockRef, epoch uint32) {
	if had != 0 {
		s.bins.drop(had, epoch)
	}
}

// box hands out a place for a body.
func (s *summaries) box() uint32 {
	if n := len(s.spare); n > 0 {
		place := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return place
	}
	s.boxes++
	return s.boxes - 1
}
