package shard

import (
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// orphan is a generation of a bitmap by slice that no home names: not yet, or no longer. The shard of the home keeps it
// until all shards have dropped the parts under it (see proto/slices.go):
//
//	     reserve                put                           any way in which a home goes
//	---------------> pending --------> the generation of a home --------------------------------+
//	                    |                                                                   v
//	                    +-- a lease is over ---------------------------------------> parts to be swept ---> swept
//
// INVARIANT a-home-or-an-orphan: a generation under which parts may have been made, and are not swept, is the
// generation of a home or of an orphan.
type orphan struct {
	space      uint16
	generation uint64 // 0: a free slot
	key        string
	since      sketch.Tick // of the shard's clock
	pending    bool        // it may still be put, for the time of a lease
}

// home applies a command about generations of bitmaps that are placed by slice.
func (s *State) home(c *command) *ebbv1.CommandResult {
	ns := s.lookup(c.namespace)
	if ns == nil {
		return failed(namespaceNotFound(c.namespace))
	}
	ns = s.editNamespace(ns.space)
	var h ebbv1.HomeCommand
	if pb.Unmarshal(c.body, &h) != nil || !proto.BySlice(ns.definition) {
		return failed(errMalformedCommand())
	}
	r := &ebbv1.CommandResult{Applied: 1}
	err := proto.CheckHome(&h)
	switch what := h.GetWhat().(type) {
	case *ebbv1.HomeCommand_Reserve:
		if err == nil {
			err = s.reserve(ns, what.Reserve)
		}
	case *ebbv1.HomeCommand_Put:
		if err == nil {
			err = s.putGeneration(ns, what.Put)
		}
		r.Changed = what.Put.GetCount()
	case *ebbv1.HomeCommand_Swept:
		for _, generation := range what.Swept.GetNumbers() {
			s.swept(ns, generation)
		}
	}
	if err != nil {
		return failed(err.WithShard(uint32(s.id)))
	}
	return r
}

// reserve records a generation before there are parts under it.
func (s *State) reserve(ns *namespace, n *ebbv1.HomeNumber) *proto.Error {
	if slot, known := s.orphanSlots[n.GetNumber()]; known {
		if r := s.orphans.at(slot); r.pending && r.space == ns.space && r.key == string(n.GetKey()) {
			return nil
		}
		return proto.ErrBadRequest.Errorf("number %x is taken", n.GetNumber())
	}
	if s.orphans.live >= proto.OrphansMax {
		return proto.ErrOverloaded.Errorf("shard %d has %d bitmaps to sweep, which is the limit", s.id, s.orphans.live).WithHint("try again in some minutes")
	}
	s.addOrphan(orphan{
		space: ns.space, generation: n.GetNumber(), key: string(n.GetKey()), since: s.now, pending: true,
	})
	return nil
}

// putGeneration gives a key a generation that was reserved for it in time. The generation that the key had becomes an
// orphan.
func (s *State) putGeneration(ns *namespace, p *ebbv1.HomePut) *proto.Error {
	generation, name := p.GetNumber().GetNumber(), p.GetNumber().GetKey()
	slot, known := s.orphanSlots[generation]
	if !known {
		return errUnreserved(name)
	}
	if r := s.orphans.at(slot); !r.pending || r.space != ns.space || r.key != string(name) || s.now > r.since+proto.SliceLeaseUS {
		return errUnreserved(name)
	}
	if key, there := s.findKey(ns, name); there {
		s.forget(ns, key)
	}
	if p.GetCount() == 0 { // there are no parts either
		s.dropOrphan(slot)
		return nil
	}
	if s.editor == nil {
		s.editor = new(bitmapEditor)
	}
	made := proto.BitEditWire{Key: name, Op: ebbv1.BitOp_BIT_OP_SET, IDs: proto.AppendBitIDs(nil, []uint64{generation}), Fresh: true}
	if _, code := s.editBits(ns, &made, 0, false); code != 0 {
		return refusedEdit(ns, &made, code)
	}
	s.dropOrphan(slot)
	return nil
}

func errUnreserved(key []byte) *proto.Error {
	return proto.ErrKeyBusy.Errorf("key %s: what it was to hold took longer to store than %s", quote(key), text(proto.SliceLeaseUS)).WithHint("store it again, under a new idempotency key if it had one, or store parts of it first")
}

// swept drops the orphan of a generation whose parts are gone.
func (s *State) swept(ns *namespace, generation uint64) {
	slot, known := s.orphanSlots[generation]
	if known && s.orphans.at(slot).space == ns.space && s.now >= s.orphans.at(slot).since+proto.SliceSweepUS {
		s.dropOrphan(slot)
	}
}

// addOrphanOf makes an orphan of the generation of a home that is about to be dropped.
func (s *State) addOrphanOf(key uint32, sum *summary) {
	ns := s.namespaces[sum.space]
	if !proto.BySlice(ns.definition) || ns.definition.GetDeletion().GetPurging() {
		return // in a purge all shards drop its parts
	}
	name := s.keys.bytesOf(key)
	if proto.IsPartName(name) {
		return
	}
	v := sum.bitmap()
	if v == nil {
		return
	}
	c := s.summaries.bins.cursor(v.head)
	if generation, ok := c.selectID(0); ok && generation != 0 {
		s.addOrphan(orphan{space: ns.space, generation: generation, key: string(name), since: s.now})
	}
}

func (s *State) addOrphan(r orphan) {
	slot, known := s.orphanSlots[r.generation]
	if !known {
		slot = s.orphans.add(s.epoch)
		s.orphanSlots[r.generation] = slot
	}
	*s.orphans.edit(slot, s.epoch) = r
}

func (s *State) dropOrphan(slot uint32) {
	delete(s.orphanSlots, s.orphans.at(slot).generation)
	s.orphans.drop(slot, s.epoch)
}

// Orphan is a generation whose parts are to be swept, when the clocks of their shards have reached After.
type Orphan struct {
	Namespace  string
	Key        []byte
	Generation uint64
	After      sketch.Tick
}

// Orphans returns the first generations whose parts may be swept at now, n at most.
func (f *frame) Orphans(now sketch.Tick, n int) (list []Orphan) {
	for _, r := range f.orphans.all {
		if len(list) == n {
			break
		}
		if f.namespaces[r.space].deleted() {
			continue // its parts go with it
		}
		if after := r.since + proto.SliceSweepUS; after <= now {
			list = append(list, Orphan{f.namespaces[r.space].definition.GetName(), []byte(r.key), r.generation, after})
		}
	}
	return list
}

// OrphanCount is how many generations are orphans, whether their parts are to be swept soon or later.
func (f *frame) OrphanCount() uint32 { return f.orphans.live }

func (r *orphan) write(b *blockWriter) {
	b.uvarint(uint64(r.space))
	b.fixed(r.generation)
	b.tick(r.since)
	b.bool(r.pending)
	b.text([]byte(r.key))
}

func (s *State) readOrphan(b *blockReader, slot uint32) {
	space := b.uvarint()
	r := orphan{generation: b.fixed(), since: b.tick(), pending: b.bool(), key: string(b.text(proto.PartKeyLenMax))}
	_, known := s.orphanSlots[r.generation]
	if space >= uint64(len(s.namespaces)) || known || r.generation == 0 || r.since > s.now || proto.CheckSliceKey([]byte(r.key)) != nil {
		b.corrupt("a number of a bitmap that there cannot be")
	}
	if b.err != nil {
		return
	}
	r.space = uint16(space)
	*s.orphans.edit(slot, s.epoch) = r
	s.orphanSlots[r.generation] = slot
}
