package shard

import (
	"strings"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// writeSlotTables writes the tables that keep commands from being applied twice, and the orphans.
func (f *frame) writeSlotTables(b *blockWriter) {
	owned := f.format() >= formatOwners
	b.section(sectionSessions)
	writeSlotTable(b, &f.sessions, func(_ uint32, s *session) { s.write(b, owned) })
	b.section(sectionSources)
	writeSlotTable(b, &f.sources, func(_ uint32, s *source) { s.write(b, owned) })
	b.section(sectionAnswered)
	writeSlotTable(b, &f.answered, func(_ uint32, a *answered) { a.write(b, owned) })
	b.section(sectionOrphans)
	writeSlotTable(b, &f.orphans, func(_ uint32, r *orphan) { r.write(b) })
}

func (f *frame) writeHeader(b *blockWriter) {
	b.section(sectionHeader)
	b.buf = append(b.buf, snapshotMagic...)
	b.byte(f.format())
	b.uvarint(uint64(f.id))
	b.uvarint(uint64(f.behaviour))
	b.uvarint(f.applied)
	b.tick(f.now)
	b.uvarint(f.lastSession)
	b.uvarint(f.lastEpoch)
	b.text([]byte(f.restored))
}

func (f *frame) writeNamespaces(b *blockWriter) {
	b.section(sectionNamespaces)
	b.uvarint(uint64(len(f.namespaces)))
	for _, ns := range f.namespaces {
		writeDefinition(b, ns.definition)
		if f.format() >= formatUploads {
			writeClock(b, ns.definition)
		}
		if f.format() >= formatDeletion {
			writeDeletion(b, ns)
		}
		if f.format() >= formatUploads {
			b.uvarint(uint64(ns.definition.GetSetHash()))
		}
		b.bool(ns.signed)
		b.tick(ns.eventTime)
		b.tick(ns.began)
		b.tick(ns.exposure.From)
		b.float(ns.exposure.Had)
		if f.format() >= formatUploads {
			writeActive(b, ns.active)
		}
		b.uvarint(f.primaryOf(ns))
		b.bool(ns.closed)
		b.uvarint(uint64(ns.eraBase))
		b.uvarint(uint64(len(ns.eras)))
		for i := range ns.eras {
			writeParams(b, &ns.eras[i].params)
			b.tick(ns.eras[i].from)
			b.bool(ns.eras[i].fresh)
			if f.format() >= formatUploads {
				b.bool(ns.eras[i].rewound)
			}
		}
		if f.format() >= formatGone {
			writeGone(b, &ns.params().Gone, f.format())
		}
		b.ended(uint64(ns.space))
	}
}

func writeActive(b *blockWriter, s activePeriods) {
	b.uvarint(uint64(len(s)))
	for _, p := range s {
		b.tick(p.first)
		b.tick(p.last)
		b.uvarint(p.events)
	}
}

// writeDeletion writes the state of a deletion: 0 if the namespace is not deleted, 1 in grace, 2 while it is purged, 3
// once it is emptied.
func writeDeletion(b *blockWriter, ns *namespace) {
	d := ns.definition.GetDeletion()
	switch {
	case d == nil:
		b.byte(notDeleted)
		return
	case ns.emptied:
		b.byte(deletedEmptied)
	case d.GetPurging():
		b.byte(deletedPurging)
	default:
		b.byte(deletedInGrace)
	}
	b.tick(sketch.Tick(d.GetDeletedUs()))
	b.tick(sketch.Tick(d.GetPurgeUs()))
}

// States of a namespace in a snapshot.
const (
	notDeleted = iota
	deletedInGrace
	deletedPurging
	deletedEmptied
)

func writeDefinition(b *blockWriter, def *ebbv1.Namespace) {
	b.text([]byte(def.Name))
	b.uvarint(def.Version)
	b.uvarint(uint64(def.Decay))
	b.uvarint(uint64(def.HalfLifeUs))
	b.uvarint(uint64(def.Floor))
	b.float(def.Threshold)
	b.float(def.Prior)
	b.uvarint(uint64(def.Clock))
	b.uvarint(uint64(def.Precision))
	b.bool(def.GetAllowNegative())
	b.uvarint(uint64(def.BinsMax))
	b.fixed(def.HashSeed)
	b.uvarint(uint64(def.Kind))
	writeSizes(b, def.Sizes)
	b.uvarint(uint64(def.GetWindowUs()))
	b.uvarint(uint64(def.GetSlowHalfLifeUs()))
	b.uvarint(uint64(def.GetBitmapPlacement()))
	b.text(def.GetUniverse())
	b.uvarint(uint64(def.GetDictionary().GetParts()))
	b.uvarint(uint64(len(def.GetRollups().GetUnits())))
	for _, unit := range def.GetRollups().GetUnits() {
		b.uvarint(uint64(unit))
	}
}

// writeClock writes the event clock of a definition: max_jump plus one, or 0 if there is none, and the setting.
func writeClock(b *blockWriter, def *ebbv1.Namespace) {
	jump := uint64(0)
	if def.MaxJumpUs != nil {
		jump = uint64(def.GetMaxJumpUs()) + 1
	}
	b.uvarint(jump)
	b.uvarint(def.GetClockSetting().GetEpoch())
	b.tick(sketch.Tick(def.GetClockSetting().GetTimeUs()))
}

// primaryOf returns, for a slow namespace, the number of its namespace plus one; 0 for any other.
func (f *frame) primaryOf(ns *namespace) uint64 {
	if !ns.isSlow {
		return 0
	}
	name := strings.TrimSuffix(ns.definition.GetName(), slowSuffix)
	return 1 + uint64(f.spaces[name])
}

func writeGone(b *blockWriter, g *sketch.Gone, format byte) {
	b.float(g.Count)
	b.tick(g.Since)
	b.tick(g.HalfLife)
	if format >= formatGoneBack {
		b.tick(g.Shortest)
		b.bool(g.Grown)
	}
}

func writeParams(b *blockWriter, p *sketch.Params) {
	b.byte(byte(p.Decay))
	b.uvarint(uint64(p.HalfLife))
	b.byte(byte(p.Floor))
	b.float(p.Threshold)
	b.float(p.Prior)
	b.bool(p.Compact)
	b.bool(p.AllowNegative)
	b.uvarint(uint64(p.BinsMax))
}

func (f *frame) writeKey(b *blockWriter, key uint32) {
	sum := f.stored(key)
	b.uvarint(uint64(sum.space))
	b.scratch = f.keys.appendName(b.scratch[:0], key)
	b.text(b.scratch)
	b.uvarint(uint64(sum.era))
	b.tick(sum.due)
	b.bool(sum.onEvent)
	b.uvarint(uint64(sum.pruneAt))
	b.uvarint(uint64(sum.pruned))
	if v := sum.bitmap(); v != nil {
		b.byte(byte(formBitmap))
		if b.scratch = b.scratch[:0]; v.head.ids <= idsWithKey {
			b.scratch = v.appendIDs(b.scratch)
		} else {
			b.later = append(b.later, key)
		}
	} else if sum.body != nil {
		b.byte(byte(sum.body.form()))
		b.scratch = sum.body.appendBinary(b.scratch[:0])
	} else {
		b.byte(byte(formDistribution))
		b.scratch = sum.dist.AppendBinary(b.scratch[:0])
	}
	b.text(b.scratch)
}

func (f *frame) writeExpiries(b *blockWriter) {
	last := uint32(0)
	for key := range f.summaries.keys.all {
		if t := f.expiries.at(key); t != 0 {
			b.uvarint(1 + uint64(key-last))
			b.tick(t)
			b.ended(uint64(key))
			last = key
		}
	}
	b.uvarint(0)
}

func (f *frame) writeBitmaps(b *blockWriter) {
	for _, key := range b.later {
		sum := f.stored(key)
		writeBitmap(b, key, sum.bitmap())
	}
}

func writeBitmap(b *blockWriter, key uint32, v *bitmapValue) {
	next := uint64(0)
	v.each(func(slice uint64, c bitmap.Container) bool {
		b.buf = appendContainer(b.buf, slice-next, c)
		b.ended(uint64(key)<<32 + slice)
		next = slice + 1
		return true
	})
	b.byte(0)
}

func (s *session) write(b *blockWriter, owned bool) {
	if owned {
		b.text([]byte(s.namespace))
		b.fixed(s.secret)
	}
	b.uvarint(s.id)
	b.uvarint(s.top)
	b.uvarint(s.low)
	b.tick(s.used)
	b.tick(s.due)
	window := min(s.top, uint64(len(s.ring)))
	b.uvarint(window)
	for back := window; back > 0; back-- { // counted, for top may be the last number there is
		b.uvarint(uint64(s.ring[(s.top-back+1)&uint64(len(s.ring)-1)]))
	}
	b.uvarint(uint64(len(s.extras)))
	for _, o := range s.extras {
		b.uvarint(o.sequence)
		b.text([]byte(o.more))
	}
}

func (s *source) write(b *blockWriter, owned bool) {
	if owned {
		b.text([]byte(s.namespace))
	}
	b.text([]byte(s.name))
	b.uvarint(s.epoch)
	b.fixed(s.token)
	b.uvarint(s.last)
	b.uvarint(uint64(len(s.refused)))
	before := uint64(0)
	for _, row := range s.refused {
		b.uvarint(row.offset - before)
		b.uvarint(uint64(row.code))
		before = row.offset
	}
}

func (a *answered) write(b *blockWriter, owned bool) {
	if owned {
		b.text([]byte(a.key.namespace))
	}
	b.tick(sketch.Tick(a.key.issuedAt))
	b.fixed(a.key.hi)
	b.fixed(a.key.lo)
	b.uvarint(uint64(a.result.applied))
	b.text([]byte(a.result.more))
}

func writeSlotTable[T any](b *blockWriter, r *slotTable[T], item func(i uint32, item *T)) {
	writeFreeList(b, r, func(i uint32) { item(i, r.at(i)) })
}

func writeFreeList(b *blockWriter, c freeList, item func(i uint32)) {
	slots, free, _ := c.ends()
	b.uvarint(uint64(slots))
	b.uvarint(uint64(free))
	writeLinks(b, c, 0, slots, item)
}

// writeLinks writes the slots in [from, to).
func writeLinks(b *blockWriter, c freeList, from, to uint32, item func(i uint32)) {
	for i := from; i < to; i++ {
		if link := c.link(i); link == inUse {
			b.uvarint(0)
			item(i)
		} else {
			b.uvarint(1 + uint64(link))
		}
		b.ended(uint64(i))
	}
}
