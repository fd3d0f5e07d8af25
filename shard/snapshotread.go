package shard

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// Restore reads a snapshot of a shard. Bytes that WriteTo cannot have written are refused with CORRUPT, a snapshot by a
// newer version with NEWER_VERSION; nothing may follow the snapshot. No memory is allocated for a length before that
// many bytes have come. All that Apply and Ask rely on is checked.
func Restore(id ID, mem Memory, r io.Reader) (*State, error) {
	return RestoreUnder(DefaultLimits(), id, mem, r)
}

// RestoreUnder is Restore for a shard with other limits than the default ones.
func RestoreUnder(limits Limits, id ID, mem Memory, r io.Reader) (*State, error) {
	return restoreAt(0, limits, id, mem, r)
}

// restoreAt restores a snapshot from another log. If index is not 0, the state is the outcome of the entry at this
// index of this log.
func restoreAt(index uint64, limits Limits, id ID, mem Memory, r io.Reader) (*State, error) {
	s := New(id, mem)
	s.limits = limits
	s.applying = index
	b := &blockReader{r: r}
	s.restore(b)
	if b.err == nil {
		b.end()
	}
	if b.err != nil {
		return nil, fmt.Errorf("restore shard %d: %w", id, b.err)
	}
	return s, nil
}

// SnapshotNamespaces reads from a snapshot only the definitions of namespaces, in no order, without those that the
// shard has purged. It reads as much of r as it needs, and does not check what follows.
func SnapshotNamespaces(id ID, r io.Reader) (held []*ebbv1.Namespace, err error) {
	s := New(id, Heap{})
	b := &blockReader{r: r}
	s.readHeader(b)
	s.readNamespaces(b)
	if b.err != nil {
		return nil, fmt.Errorf("namespaces of shard %d: %w", id, b.err)
	}
	for _, ns := range s.namespaces {
		if !ns.isSlow && !ns.emptied {
			held = append(held, ns.definition)
		}
	}
	return held, nil
}

func (s *State) restore(b *blockReader) {
	s.readHeader(b)
	if s.applying != 0 {
		s.applied = s.applying
	}
	s.applying = s.applied // for bitmaps: the snapshot does not say when they were edited
	s.readNamespaces(b)
	b.section(sectionBins)
	readSlotTable(b, &s.bins.names, s.epoch, func(bin uint32) { s.readBin(b, bin) })
	b.section(sectionKeys)
	keys := newKeyLoader(s, b)
	readFreeList(b, &s.summaries.keys, s.epoch, keys.read)
	keys.end()
	s.pairAll()
	b.section(sectionExpiries)
	s.readExpiries(b)
	b.section(sectionBitmaps)
	s.readBitmaps(b, keys.later)
	b.section(sectionDictPartitions)
	s.readDictPartitions(b)
	b.section(sectionSessions)
	readSlotTable(b, &s.sessions, s.epoch, func(slot uint32) { s.readSession(b, slot) })
	b.section(sectionSources)
	readSlotTable(b, &s.sources, s.epoch, func(slot uint32) { s.readSource(b, slot) })
	b.section(sectionAnswered)
	readSlotTable(b, &s.answered, s.epoch, func(slot uint32) { s.readAnswered(b, slot) })
	b.section(sectionOrphans)
	readSlotTable(b, &s.orphans, s.epoch, func(slot uint32) { s.readOrphan(b, slot) })
	b.section(sectionStaged)
	s.staged.read(b)
	s.readUploads(b)
	b.section(sectionEnd)
	if crcs := b.bytes(4); len(crcs) == 4 && binary.LittleEndian.Uint32(crcs) != b.crcs {
		b.corrupt("a block is missing or out of place")
	}
	s.checkReferences(b)
}

func (s *State) readHeader(b *blockReader) {
	b.section(sectionHeader)
	if magic := b.bytes(len(snapshotMagic)); string(magic) != snapshotMagic {
		b.corrupt("not a snapshot of a shard")
		return
	}
	if format := b.byte(); format > snapshotFormat {
		b.newer("snapshot format %d: this binary reads format %d", format, snapshotFormat)
		return
	} else if b.format = format; format < formatOldest {
		b.corrupt("format %d, from before the first release", format)
		return
	}
	if id := b.uvarint(); id != uint64(s.id) {
		b.corrupt("it is of shard %d", id)
	}
	if behaviour := b.uvarint(); behaviour > BehaviourMax {
		b.newer("behaviour version %d: this binary knows up to %d", behaviour, BehaviourMax)
	} else if s.behaviour = uint32(behaviour); b.format != s.format() {
		b.corrupt("format %d with behaviour version %d", b.format, behaviour)
	}
	s.applied = b.uvarint()
	s.now = b.tick()
	s.lastSession = b.uvarint()
	s.lastEpoch = b.uvarint()
	s.restored = string(b.text(proto.RestoreNameLenMax))
	if s.now > clockMax || s.lastSession > lastSessionMax || s.lastEpoch > lastEpochMax {
		b.corrupt("clock %d, last session %d and last epoch %d: more than there can be", s.now, s.lastSession, s.lastEpoch)
	}
}

func (s *State) readNamespaces(b *blockReader) {
	b.section(sectionNamespaces)
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		ns := &namespace{definition: readDefinition(b)}
		if b.format >= formatUploads {
			readClock(b, ns.definition)
		}
		readDeletion(b, ns)
		readSetHash(b, ns.definition)
		ns.seed = ns.definition.HashSeed
		ns.signed = b.bool()
		ns.eventTime = b.tick()
		ns.began, ns.exposure = b.tick(), sketch.Exposure{From: b.tick(), Had: b.float()}
		if b.format >= formatUploads {
			ns.active = readActive(b)
		}
		primary := b.uvarint()
		ns.closed = b.bool()
		ns.eraBase = b.uint32()
		for eras := b.uvarint(); eras > 0 && b.err == nil; eras-- {
			e := era{params: s.readParams(b), from: b.tick(), fresh: b.bool()}
			e.rewound = b.format >= formatUploads && b.bool()
			ns.eras = append(ns.eras, e)
		}
		if b.format >= formatGone && len(ns.eras) > 0 {
			ns.present().params.Gone = readGone(b, s.now)
		}
		if b.err != nil {
			return
		}
		s.attach(b, ns, primary)
		s.checkNamespace(b, ns)
		if b.err == nil {
			s.addNamespace(ns)
		}
	}
}

func readActive(b *blockReader) (s activePeriods) {
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		if len(s) == activeMax {
			b.corrupt("more than %d active periods", activeMax)
			return nil
		}
		s = append(s, activePeriod{first: b.tick(), last: b.tick(), events: b.uvarint()})
	}
	return s
}

func readDeletion(b *blockReader, ns *namespace) {
	if b.format < formatDeletion {
		return
	}
	state := b.byte()
	switch {
	case state > deletedEmptied:
		b.corrupt("namespace %q: deletion %d", ns.definition.Name, state)
	case state != notDeleted:
		ns.emptied = state == deletedEmptied
		ns.definition.Deletion = &ebbv1.NamespaceDeletion{
			DeletedUs: int64(b.tick()), PurgeUs: int64(b.tick()), Purging: state != deletedInGrace,
		}
	}
}

func readSetHash(b *blockReader, def *ebbv1.Namespace) {
	if b.format < formatUploads {
		return
	}
	if h := ebbv1.SetHash(b.uint32()); h != ebbv1.SetHash_SET_HASH_UNSPECIFIED {
		def.SetHash = &h
	}
}

func readDefinition(b *blockReader) *ebbv1.Namespace {
	def := &ebbv1.Namespace{
		Name:          string(b.text(proto.NamespaceLenMax + len(slowSuffix))),
		Version:       b.uvarint(),
		Decay:         ebbv1.Decay(b.uint32()),
		HalfLifeUs:    int64(b.uvarint()),
		Floor:         ebbv1.Floor(b.uint32()),
		Threshold:     b.float(),
		Prior:         b.float(),
		Clock:         ebbv1.Clock(b.uint32()),
		Precision:     ebbv1.Precision(b.uint32()),
		AllowNegative: new(b.bool()),
		BinsMax:       b.uint32(),
		HashSeed:      b.fixed(),
	}
	def.Kind, def.Sizes, def.WindowUs = ebbv1.Kind(b.uint32()), readSizes(b), new(int64(b.uvarint()))
	def.SlowHalfLifeUs = new(int64(b.uvarint()))
	def.BitmapPlacement = ebbv1.BitmapPlacement(b.uint32())
	if universe := b.text(proto.KeyLenMax); len(universe) > 0 {
		def.Universe = slices.Clone(universe)
	}
	if parts := b.uint32(); parts > 0 {
		def.Dictionary = &ebbv1.Dictionary{Parts: parts}
	}
	def.Rollups = readRollups(b)
	return def
}

func readClock(b *blockReader, def *ebbv1.Namespace) {
	if jump := b.uvarint(); jump > 0 {
		def.MaxJumpUs = new(int64(jump - 1))
	}
	if epoch, at := b.uvarint(), b.tick(); epoch > 0 {
		def.ClockSetting = &ebbv1.ClockSetting{Epoch: epoch, TimeUs: int64(at)}
	}
}

func readRollups(b *blockReader) *ebbv1.Rollups {
	r := &ebbv1.Rollups{}
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		unit := ebbv1.Period(b.uint32())
		if proto.PeriodName(unit) == "" || slices.Contains(r.Units, unit) {
			b.corrupt("a roll-up by period %d", unit)
		}
		r.Units = append(r.Units, unit)
	}
	if len(r.Units) == 0 {
		return nil
	}
	return r
}

func readGone(b *blockReader, now sketch.Tick) sketch.Gone {
	g := sketch.Gone{Count: b.float(), Since: b.tick(), HalfLife: b.tick()}
	if b.format >= formatGoneBack {
		g.Shortest, g.Grown = b.tick(), b.bool()
	}
	valid := g.Count >= 0 && g.Count <= 2*sketch.CountMax && g.HalfLife >= 0 && g.Shortest >= 0
	if !valid || g.Since < 0 || g.Since > now {
		b.corrupt("what keys that are gone may have held")
	}
	return g
}

func (s *State) readParams(b *blockReader) sketch.Params {
	p := sketch.Params{
		Decay:         sketch.Decay(b.byte()),
		HalfLife:      sketch.Tick(b.uvarint()),
		Floor:         sketch.Floor(b.byte()),
		Threshold:     b.float(),
		Prior:         b.float(),
		Compact:       b.bool(),
		AllowNegative: b.bool(),
		BinsMax:       int(b.uint32()),
		OrderFree:     s.behaviour >= BehaviourOrderFree,
		Bounded:       s.behaviour >= BehaviourBounded,
		KeepsFaint:    s.behaviour >= BehaviourFaint,
		Lowers:        s.behaviour >= BehaviourGone,
	}
	if !validParams(&p) {
		b.corrupt("settings out of range")
	}
	return p
}

func (s *State) readBin(b *blockReader, bin uint32) {
	text := b.text(proto.BinLenMax)
	tag := tagOf(text, 0)
	if _, known := s.bins.find(tag, text); known || len(text) == 0 {
		b.corrupt("bin %d: empty, or a name that another has", bin)
	}
	if b.err == nil {
		s.bins.adopt(bin, tag, text, s.epoch)
	}
}

func (s *State) readExpiries(b *blockReader) {
	last := uint64(0)
	for first := true; ; first = false {
		distance := b.uvarint()
		if distance == 0 || b.err != nil {
			return
		}
		key, t := last+distance-1, b.tick()
		if key < last || key == last && !first || key >= uint64(s.summaries.keys.slots) || !s.summaries.keys.alive(uint32(key)) ||
			t == 0 || t > clockMax || s.summaries.record(uint32(key)).due() > t {
			b.corrupt("key %d: it cannot expire at %d", key, t)
			return
		}
		s.expiries.set(uint32(key), t, s.epoch)
		last = key
	}
}

// readBitmaps reads the bitmaps of keys, in the order of keys.
func (s *State) readBitmaps(b *blockReader, keys []uint32) {
	var t bitmapEditor
	for _, key := range keys {
		before := s.summaries.bins.used
		t.begin(&s.summaries.bins, s.epoch, bitmapHead{})
		if readBitmap(b, &t, uint64(key)); b.err != nil {
			return
		}
		if t.head.ids <= idsWithKey {
			b.corrupt("key %d: a bitmap of %d ids out of its place", key, t.head.ids)
			return
		}
		sum := s.loadForWrite(key)
		s.summaries.charge(sum.space, before)
		sum.bitmap().head = t.head
		s.put(key, &sum)
	}
}

func readBitmap(b *blockReader, t *bitmapEditor, key uint64) {
	l := bitmapLoader{to: t}
	for next := uint64(0); ; {
		skip := b.uvarint()
		if skip == 0 || b.err != nil {
			break
		}
		slice, n := next+skip-1, b.uvarint()
		form, units := bitmap.Form(n&containerForm), n>>2
		bytes := containerBytes(form, units)
		if slice < next || slice > sliceMax || bytes == 0 {
			b.corrupt("key %d: a slice out of place", key)
			break
		}
		raw := b.bytes(bytes)
		if b.err != nil {
			break
		}
		c, err := readContainer(form, units, raw)
		if err != nil {
			b.corrupt("key %d: %v", key, err)
			break
		}
		l.add(looseSlice{slice, c})
		next = slice + 1
	}
	l.end()
}

func (s *State) readSession(b *blockReader, slot uint32) {
	namespace, secret := s.shared(b.owner()), uint64(0)
	if b.format >= formatOwners {
		secret = b.fixed()
	}
	w := session{
		namespace: namespace, secret: secret, id: b.uvarint(), top: b.uvarint(), low: b.uvarint(),
		used: b.tick(), due: b.tick(), epoch: s.epoch,
	}
	w.readRing(b)
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		o := extraResult{b.uvarint(), readMore(b)}
		w.extras = append(w.extras, o)
		w.extraBytes += len(o.more)
	}
	if _, known := s.sessionSlots[w.id]; known || w.id == 0 || w.id > s.lastSession || w.used > s.now ||
		w.due-s.limits.SessionExpiry > w.used || w.namespace == "" && w.secret != 0 {
		b.corrupt("session %d: a number that it cannot have", w.id)
	}
	if b.err == nil && !w.consistent(s.limits.SessionWindow) {
		b.corrupt("session %d: its window does not agree with what is remembered", w.id)
	}
	if b.err != nil {
		return
	}
	*s.sessions.edit(slot, s.epoch) = w
	s.sessionSlots[w.id] = slot
	s.sessionExpiries.set(slot, w.due)
}

// readRing reads the values of the window, oldest first.
func (w *session) readRing(b *blockReader) {
	window := b.uvarint()
	if window > w.top {
		b.corrupt("session %d: window of %d", w.id, window)
		return
	}
	var values []uint32
	for ; window > 0 && b.err == nil; window-- {
		values = append(values, b.uint32())
	}
	if len(values) > 0 {
		w.grow(uint64(len(values)))
	}
	for i, v := range values {
		w.ring[(w.top-uint64(len(values)-1-i))&uint64(len(w.ring)-1)] = v
	}
	// A ring that is not full has been written since sequence 1.
	if len(values) < len(w.ring) && uint64(len(values)) != w.top {
		b.corrupt("session %d: a part of its window", w.id)
	}
}

// memoBytesMax bounds the bytes of one result: every increment of an entry refused, and a message.
const memoBytesMax = 1 << 20

func readMore(b *blockReader) string {
	more := b.text(memoBytesMax)
	if !wellFormedDedupResult(more) {
		b.corrupt("a result that does not decode")
	}
	return string(more)
}

// owner reads the name of a namespace; it is empty if there is none.
func (b *blockReader) owner() string {
	if b.format < formatOwners {
		return ""
	}
	name := string(b.text(proto.NamespaceLenMax))
	if name != "" && proto.CheckNamespaceName(name) != nil {
		b.corrupt("what belongs to namespace %q", name)
	}
	return name
}

// shared returns the same name, in the memory of the namespace of that name if the shard has one.
func (s *State) shared(name string) string {
	if space, ok := s.spaces[name]; ok {
		return s.namespaces[space].definition.GetName()
	}
	return name
}

func (s *State) readSource(b *blockReader, slot uint32) {
	src := source{
		sourceName: sourceName{s.shared(b.owner()), string(b.text(proto.SourceNameLenMax))},
		epoch:      b.uvarint(), token: b.fixed(), last: b.uvarint(),
	}
	offset := uint64(0)
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		gap, code := b.uvarint(), b.uint32()
		if gap == 0 || offset+gap < offset || offset+gap > src.last || code == 0 || code > codeMax {
			b.corrupt("source %q: rows out of order", src.name)
			return
		}
		offset += gap
		src.refused = append(src.refused, refusedRow{offset, ebbv1.Code(code)})
	}
	if _, known := s.sourceSlots[src.sourceName]; known || src.name == "" || len(src.refused) > s.limits.SourceRefusals {
		b.corrupt("source %q: a name that it cannot have", src.name)
	}
	if src.epoch == 0 || src.epoch > s.lastEpoch {
		b.corrupt("source %q: epoch %d of %d", src.name, src.epoch, s.lastEpoch)
	}
	if b.err != nil {
		return
	}
	*s.sources.edit(slot, s.epoch) = src
	s.sourceSlots[src.sourceName] = slot
}

func (s *State) readAnswered(b *blockReader, slot uint32) {
	a := answered{
		key:    idempotencyKey{namespace: s.shared(b.owner()), issuedAt: int64(b.tick()), hi: b.fixed(), lo: b.fixed()},
		result: dedupResult{applied: b.uint32(), more: readMore(b)},
	}
	if _, known := s.keySlots[a.key]; known {
		b.corrupt("an idempotency key twice")
	}
	if b.err != nil {
		return
	}
	*s.answered.edit(slot, s.epoch) = a
	s.answeredBytes += len(a.result.more)
	s.keySlots[a.key] = slot
	s.answerExpiries.set(slot, sketch.Tick(a.key.issuedAt))
}

func readSlotTable[T any](b *blockReader, r *slotTable[T], epoch uint32, item func(i uint32)) {
	readFreeList(b, r, epoch, item)
}

func readFreeList(b *blockReader, c freeList, epoch uint32, item func(i uint32)) {
	slots, free := b.uvarint(), b.uvarint()
	if slots >= uint64(inUse) || free > slots {
		b.corrupt("%d slots, the first free one %d", slots, free)
	}
	for i := uint64(0); i < slots && b.err == nil; i++ {
		link := b.uvarint()
		if link > slots+1 {
			b.corrupt("slot %d: next free %d of %d", i, link-1, slots)
			return
		}
		slot := c.restore(uint32(link)-1, epoch) // inUse, if link is 0
		if link == 0 {
			item(slot)
		}
	}
	c.begin(uint32(free))
	if b.err == nil && !freeListComplete(c) {
		b.corrupt("free slots are not a chain")
	}
}
