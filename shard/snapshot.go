package shard

import (
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// A snapshot is the replicated state in bytes; equal states have equal bytes.
// It is a sequence of blocks (see block.go), grouped in sections. Numbers are
// uvarints unless said otherwise, times are zigzag varints, text is a length
// and its bytes, doubles and hashes take 8 bytes, little endian.
//
//	header      "EBBSHARD" format(1) shard behaviour applied now last-session last-epoch
//	namespaces  count { definition signed event-time began exposure-from exposure companion-of closed era-base eras { params from fresh } }
//	bins        roster { name }
//	keys        roster { space name era due on-event prune-at pruned len distribution }
//	expiries    { 1 + distance-from-last-key time } 0     of keys that have one, by slot
//	bitmaps     { 1 + distance-from-last-key { slice } 0 } 0   of keys that hold one, by slot; a slice as in bodybitmap.go
//	ledgers     count { space part strings { text } }   in the order in which they began
//	sessions    roster { id top low used due window { value } odd { sequence more } }
//	sources     roster { name epoch token last refused { gap code } }
//	answered    roster { issued-at hi lo applied more }
//	remnants    roster { space number since pending key }
//	end
//
//	roster = slots first-free { 0 item | 1 + next free }
//
// Reference counts, indexes, heaps and the places of bytes are derived.
const (
	snapshotMagic  = "EBBSHARD"
	snapshotFormat = 3 // 2: keys of other kinds than distributions; 3: templates, windows and companions of namespaces, rounder times of pruning, expiries
)

const (
	sectionHeader = iota + 1
	sectionNamespaces
	sectionBins
	sectionKeys
	sectionSessions
	sectionSources
	sectionAnswered
	sectionEnd
	sectionExpiries
	sectionBitmaps
	sectionLedgers
	sectionRemnants = 20
)

// distributionBytesMax bounds one encoded distribution: 2^24 bins.
const distributionBytesMax = 1 << 28

// WriteTo writes a snapshot. It may run beside Apply on a View, and must not on
// a State.
func (f *frame) WriteTo(w io.Writer) (int64, error) {
	b := &blockWriter{w: w}
	f.writeHeader(b)
	f.writeNamespaces(b)
	b.section(sectionBins)
	writeRoster(b, &f.bins.names, func(bin uint32, _ *name) { b.text(f.bins.bytesOf(bin)) })
	b.section(sectionKeys)
	writeRoster(b, &f.keys.names, func(key uint32, _ *struct{}) { f.writeKey(b, key) })
	b.section(sectionExpiries)
	f.writeExpiries(b)
	b.section(sectionBitmaps)
	f.writeBitmaps(b)
	b.section(sectionLedgers)
	f.writeLedgers(b)
	b.section(sectionSessions)
	writeRoster(b, &f.sessions, func(_ uint32, s *session) { s.write(b) })
	b.section(sectionSources)
	writeRoster(b, &f.sources, func(_ uint32, s *source) { s.write(b) })
	b.section(sectionAnswered)
	writeRoster(b, &f.answered, func(_ uint32, a *answered) { a.write(b) })
	b.section(sectionRemnants)
	writeRoster(b, &f.remnants, func(_ uint32, r *remnant) { r.write(b) })
	b.section(sectionEnd)
	b.flush()
	if b.err != nil {
		return b.written, fmt.Errorf("write snapshot of shard %d: %w", f.id, b.err)
	}
	return b.written, nil
}

// Checksum returns a hash of everything that is replicated: that of the
// snapshot's bytes.
func (f *frame) Checksum() uint64 {
	h := xxh3.New()
	_, _ = f.WriteTo(h) // a hash takes everything
	return h.Sum64()
}

func (f *frame) writeHeader(b *blockWriter) {
	b.section(sectionHeader)
	b.buf = append(b.buf, snapshotMagic...)
	b.byte(snapshotFormat)
	b.uvarint(uint64(f.id))
	b.uvarint(uint64(f.behaviour))
	b.uvarint(f.applied)
	b.tick(f.now)
	b.uvarint(f.lastSession)
	b.uvarint(f.lastEpoch)
}

func (f *frame) writeNamespaces(b *blockWriter) {
	b.section(sectionNamespaces)
	b.uvarint(uint64(len(f.namespaces)))
	for _, ns := range f.namespaces {
		writeDefinition(b, ns.definition)
		b.bool(ns.signed)
		b.tick(ns.eventTime)
		b.tick(ns.began)
		b.tick(ns.exposure.From)
		b.float(ns.exposure.Had)
		b.uvarint(f.primaryOf(ns))
		b.bool(ns.closed)
		b.uvarint(uint64(ns.eraBase))
		b.uvarint(uint64(len(ns.eras)))
		for i := range ns.eras {
			writeParams(b, &ns.eras[i].params)
			b.tick(ns.eras[i].from)
			b.bool(ns.eras[i].fresh)
		}
		b.flushFull()
	}
}

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

// primaryOf returns what a companion is written with: the number of its namespace and one, 0 for what is none.
func (f *frame) primaryOf(ns *namespace) uint64 {
	if !ns.companion {
		return 0
	}
	name := strings.TrimSuffix(ns.definition.GetName(), companionSuffix)
	return 1 + uint64(f.spaces[name])
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
	sum := f.summary(key)
	b.uvarint(uint64(sum.space))
	b.text(f.keys.bytesOf(key))
	b.uvarint(uint64(sum.era))
	b.tick(sum.due)
	b.bool(sum.onEvent)
	b.uvarint(uint64(sum.pruneAt))
	b.uvarint(uint64(sum.pruned))
	if sum.bitmap() != nil {
		b.byte(byte(formBitmap)) // what it holds has a section of its own: it may be long
		b.scratch = b.scratch[:0]
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
	for key := range f.keys.names.all {
		if t := f.expiries.at(key); t != 0 {
			b.uvarint(1 + uint64(key-last))
			b.tick(t)
			b.flushFull()
			last = key
		}
	}
	b.uvarint(0)
}

func (f *frame) writeBitmaps(b *blockWriter) {
	last := uint32(0)
	for key := range f.keys.names.all {
		sum := f.summary(key)
		v := sum.bitmap()
		if v == nil {
			continue
		}
		b.uvarint(1 + uint64(key-last))
		last = key
		next := uint64(0)
		v.each(func(slice uint64, c bitmap.Container) bool {
			b.buf = appendContainer(b.buf, slice-next, c)
			b.flushFull()
			next = slice + 1
			return true
		})
		b.byte(0)
	}
	b.uvarint(0)
}

func (s *session) write(b *blockWriter) {
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
	b.uvarint(uint64(len(s.odd)))
	for _, o := range s.odd {
		b.uvarint(o.sequence)
		b.text([]byte(o.more))
	}
}

func (s *source) write(b *blockWriter) {
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

func (a *answered) write(b *blockWriter) {
	b.tick(sketch.Tick(a.key.issuedAt))
	b.fixed(a.key.hi)
	b.fixed(a.key.lo)
	b.uvarint(uint64(a.memo.applied))
	b.text([]byte(a.memo.more))
}

func writeRoster[T any](b *blockWriter, r *roster[T], item func(i uint32, item *T)) {
	b.uvarint(uint64(r.slots))
	b.uvarint(uint64(r.free))
	for i := range r.slots {
		if link := *r.links.at(i); link == inUse {
			b.uvarint(0)
			item(i, r.at(i))
		} else {
			b.uvarint(1 + uint64(link))
		}
		b.flushFull()
	}
}

// Restore reads a snapshot of a shard. Bytes that WriteTo cannot have written
// are refused with CORRUPT, a snapshot by a newer version with NEWER_VERSION;
// nothing may follow it. What a length claims is never allocated before the
// bytes are there, and what Apply and Ask rely on is checked, not believed.
func Restore(id ID, mem Memory, r io.Reader) (*State, error) {
	return restoreUnder(DefaultLimits(), id, mem, r)
}

func restoreUnder(limits Limits, id ID, mem Memory, r io.Reader) (*State, error) {
	s := New(id, mem)
	s.limits = limits
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

func (s *State) restore(b *blockReader) {
	s.readHeader(b)
	s.applying = s.applied // for bitmaps, of which it does not say when they were edited
	s.readNamespaces(b)
	b.section(sectionBins)
	readRoster(b, &s.bins.names, s.epoch, func(bin uint32) { s.readBin(b, bin) })
	b.section(sectionKeys)
	readRoster(b, &s.keys.names, s.epoch, func(key uint32) { s.readKey(b, key) })
	if n := s.keys.names.slots; n > 0 {
		s.summaries.records.reach(n-1, s.epoch) // free slots have a record as well: gather looks at all
	}
	if b.format > 2 {
		b.section(sectionExpiries)
		s.readExpiries(b)
		b.section(sectionBitmaps)
		s.readBitmaps(b)
		b.section(sectionLedgers)
		s.readLedgers(b)
	}
	b.section(sectionSessions)
	readRoster(b, &s.sessions, s.epoch, func(slot uint32) { s.readSession(b, slot) })
	b.section(sectionSources)
	readRoster(b, &s.sources, s.epoch, func(slot uint32) { s.readSource(b, slot) })
	b.section(sectionAnswered)
	readRoster(b, &s.answered, s.epoch, func(slot uint32) { s.readAnswered(b, slot) })
	if b.format > 2 {
		b.section(sectionRemnants)
		readRoster(b, &s.remnants, s.epoch, func(slot uint32) { s.readRemnant(b, slot) })
	}
	b.section(sectionEnd)
	s.checkReferences(b)
}

// checkReferences looks for what nothing refers to any more.
func (s *State) checkReferences(b *blockReader) {
	for bin, n := range s.bins.names.all {
		if n.use == 0 {
			b.corrupt("bin %d belongs to no key", bin)
		}
	}
	for _, ns := range s.namespaces {
		if ns.definition.GetSlowHalfLifeUs() > 0 && ns.slow == 0 {
			b.corrupt("namespace %q has no companion", ns.definition.Name)
		}
		if len(ns.eras) > 1 && ns.eras[0].keys == 0 {
			b.corrupt("namespace %q: era %d has no keys", ns.definition.Name, ns.eraBase)
		}
	}
}

func (s *State) readHeader(b *blockReader) {
	b.section(sectionHeader)
	if magic := b.bytes(len(snapshotMagic)); string(magic) != snapshotMagic {
		b.corrupt("not a snapshot of a shard")
		return
	}
	if b.format = b.byte(); b.format > snapshotFormat {
		b.newer("snapshot format %d: this binary reads up to %d", b.format, snapshotFormat)
		return
	}
	if id := b.uvarint(); id != uint64(s.id) {
		b.corrupt("it is of shard %d", id)
	}
	if behaviour := b.uvarint(); behaviour > BehaviourMax {
		b.newer("behaviour version %d: this binary knows up to %d", behaviour, BehaviourMax)
	} else {
		s.behaviour = uint32(behaviour)
	}
	s.applied = b.uvarint()
	s.now = b.tick()
	s.lastSession = b.uvarint()
	s.lastEpoch = b.uvarint()
	if s.now > clockMax || s.lastSession > lastSessionMax || s.lastEpoch > lastEpochMax {
		b.corrupt("clock %d, last session %d and last epoch %d: more than there can be", s.now, s.lastSession, s.lastEpoch)
	}
}

const (
	// lastSessionMax leaves room for more sessions than will ever be opened
	// above those that the clock has numbered.
	lastSessionMax = math.MaxUint64 / 2
	// lastEpochMax leaves room in the same way for further openings of sources.
	lastEpochMax = math.MaxUint64 / 2
	// eraMax leaves room in the same way for further changes of settings.
	eraMax = noEra / 2
)

func (s *State) readNamespaces(b *blockReader) {
	b.section(sectionNamespaces)
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		ns := &namespace{definition: readDefinition(b)}
		ns.seed = ns.definition.HashSeed
		ns.signed = b.bool()
		ns.eventTime = b.tick()
		primary := uint64(0)
		if b.format > 2 {
			ns.began, ns.exposure = b.tick(), sketch.Exposure{From: b.tick(), Had: b.float()}
			primary, ns.closed = b.uvarint(), b.bool()
		}
		ns.eraBase = b.uint32()
		for eras := b.uvarint(); eras > 0 && b.err == nil; eras-- {
			e := era{params: readParams(b), from: b.tick()}
			if b.format > 2 {
				e.fresh = b.bool()
			}
			ns.eras = append(ns.eras, e)
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

// attach makes a companion of what is one.
func (s *State) attach(b *blockReader, ns *namespace, primary uint64) {
	if primary == 0 {
		return
	}
	if primary > uint64(len(s.namespaces)) {
		b.corrupt("a companion of namespace %d, which is not there", primary-1)
		return
	}
	of := s.namespaces[primary-1]
	if of.companion || of.slow != 0 || of.definition.Name+companionSuffix != ns.definition.Name || of.seed != ns.seed {
		b.corrupt("namespace %q is no companion of %q", ns.definition.Name, of.definition.Name)
		return
	}
	on := of.definition.GetSlowHalfLifeUs()
	if on > 0 == ns.closed || on > 0 && !pb.Equal(ns.definition, companionDefinition(of.definition)) {
		b.corrupt("companion of namespace %q: settings do not agree", of.definition.Name)
		return
	}
	ns.companion = true
	of.slow = uint16(len(s.namespaces))
	s.drop(&namespace{space: of.slow})
}

func (s *State) checkNamespace(b *blockReader, ns *namespace) {
	if b.err != nil {
		return
	}
	name := ns.definition.Name
	if ns.companion {
		shown := pb.CloneOf(ns.definition)
		shown.Name = strings.TrimSuffix(name, companionSuffix)
		ns = ns.clone(ns.epoch)
		ns.definition = shown
	}
	_, known := s.spaces[name]
	if err := proto.CheckNamespace(ns.definition); err != nil {
		b.corrupt("namespace %q: %v", name, err)
	} else if err := proto.CheckSecondHalfLife(ns.definition); err != nil {
		b.corrupt("namespace %q: %v", name, err)
	} else if ns.began > s.now || ns.exposure.From > s.now || !(ns.exposure.Had >= 0 && ns.exposure.Had <= math.MaxFloat64) || ns.closed && !ns.companion {
		b.corrupt("namespace %q: what it has counted", name)
	} else if known || len(s.namespaces) >= math.MaxUint16 {
		b.corrupt("namespace %q is one too many", name)
	} else if len(ns.eras) == 0 || *ns.params() != paramsOf(ns.definition) {
		b.corrupt("namespace %q: settings do not agree", name)
	} else if len(ns.eras) > eraMask || uint64(ns.eraBase)+uint64(len(ns.eras)) > uint64(eraMax) {
		b.corrupt("namespace %q: era %d", name, ns.eraBase)
	} else if ns.eventTime > s.now || !ns.soundEras(s.now) {
		b.corrupt("namespace %q: its times are ahead or out of order, or its signs are not known", name)
	}
}

// soundEras reports whether eras follow each other up to now, and whether the
// namespace is signed if one of them is. The first may have begun on another
// clock than the rest.
func (ns *namespace) soundEras(now sketch.Tick) bool {
	for i := range ns.eras {
		e := &ns.eras[i]
		if e.fresh && !ns.companion || e.from > now || e.params.AllowNegative && !ns.signed || i > 1 && e.from < ns.eras[i-1].from {
			return false
		}
	}
	return true
}

// until returns the time up to which an era's distributions may have been written.
func (ns *namespace) until(era uint32, now sketch.Tick) sketch.Tick {
	if i := era - ns.eraBase + 1; i < uint32(len(ns.eras)) {
		return ns.eras[i].from
	}
	return ns.clock(now)
}

func readDefinition(b *blockReader) *ebbv1.Namespace {
	def := &ebbv1.Namespace{
		Name:          string(b.text(proto.NamespaceLenMax)),
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
		Kind:          ebbv1.Kind_KIND_DISTRIBUTION,
		Sizes:         proto.DefaultSizes(),
	}
	if b.format >= 3 {
		def.Kind, def.Sizes, def.WindowUs = ebbv1.Kind(b.uint32()), readSizes(b), new(int64(b.uvarint()))
		def.SlowHalfLifeUs = new(int64(b.uvarint()))
		def.BitmapPlacement = ebbv1.BitmapPlacement(b.uint32())
		if universe := b.text(proto.KeyLenMax); len(universe) > 0 {
			def.Universe = universe
		}
		if parts := b.uint32(); parts > 0 {
			def.Dictionary = &ebbv1.Dictionary{Parts: parts}
		}
		def.Rollups = readRollups(b)
	}
	return def
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

func readParams(b *blockReader) sketch.Params {
	p := sketch.Params{
		Decay:         sketch.Decay(b.byte()),
		HalfLife:      sketch.Tick(b.uvarint()),
		Floor:         sketch.Floor(b.byte()),
		Threshold:     b.float(),
		Prior:         b.float(),
		Compact:       b.bool(),
		AllowNegative: b.bool(),
		BinsMax:       int(b.uint32()),
	}
	if !soundParams(&p) {
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

func (s *State) readKey(b *blockReader, key uint32) {
	space := b.uvarint()
	text := slices.Clone(b.text(proto.KeyLenMax))
	sum := summary{
		era: b.uint32(), due: b.tick(), onEvent: b.bool(), pruneAt: b.uint32(), space: uint16(space),
	}
	if sum.due > clockMax { // as records have it
		sum.due = sketch.MaxTick
	}
	sum.readPruned(b)
	if sum.due > clockMax {
		sum.due = sketch.MaxTick // no clock comes that far
	}
	f := formDistribution
	if b.format > 1 {
		f = form(b.byte())
	}
	if raw := b.text(distributionBytesMax); f == formBitmap {
		sum.body = &bitmapValue{pages: &s.summaries.bins}
		if len(raw) > 0 {
			b.corrupt("key %d: a bitmap out of its place", key)
		}
	} else if f == formDistribution {
		if rest, err := sum.dist.Decode(raw); err != nil || len(rest) > 0 {
			b.corrupt("key %d: a distribution that does not decode", key)
		}
	} else if decoded, ok := decodeBodyWithin(f, raw, bodyBytesOver(s.limits.BodyBytes)-s.bodyBytes); ok {
		sum.body = decoded
	} else {
		b.corrupt("key %d: a summary of form %d that does not decode", key, f)
	}
	if space >= uint64(len(s.namespaces)) {
		b.corrupt("key %d: namespace %d", key, space)
	}
	if b.err != nil {
		return
	}
	ns := s.namespaces[space]
	tag := tagOf(text, ns.seed)
	if _, known := s.keys.find(tag, ns.space, text); known || len(text) == 0 || sum.era-ns.eraBase >= uint32(len(ns.eras)) {
		b.corrupt("key %d: empty, a name that another has, or of no era", key)
		return
	}
	params := &ns.eras[sum.era-ns.eraBase].params
	if !sum.sound(ns, s.now) {
		b.corrupt("key %d: a summary that its namespace cannot have", key)
		return
	}
	if sum.late(params) {
		b.corrupt("key %d: it dies before its visit", key)
		return
	}
	if sum.body != nil {
		if s.bodyBytes += sum.body.Held(); s.bodyBytes > bodyBytesOver(s.limits.BodyBytes) {
			b.corrupt("key %d: with it the summaries take %d bytes, more than there can be", key, s.bodyBytes)
			return
		}
	}
	s.keys.adopt(key, tag, ns.space, text, s.epoch)
	s.put(key, &sum)
	ns.eras[sum.era-ns.eraBase].keys++
	ns.keys++
	if sum.due != sketch.MaxTick {
		s.visits(&sum).set(key)
	}
	sum.dist.Each(func(bin uint32) {
		if !s.bins.names.alive(bin) {
			b.corrupt("key %d: bin %d does not exist", key, bin)
			return
		}
		s.bins.retain(bin, s.epoch)
	})
}

// late reports whether the next visit of a restored key is later than it can be,
// which is about its death. That of a body is known to some half-lives only: see
// due-is-never-late.
func (sum *summary) late(p *sketch.Params) bool {
	if sum.body == nil {
		return vanished(p, &sum.dist, min(sum.due, clockMax)-1)
	}
	death := sum.body.death(lifeline(p) * 0x1p-8)
	if death == 0 { // nothing is left of it, by chance, before its visit
		return sum.due == sketch.MaxTick
	}
	return min(sum.due, clockMax) > death
}

// bodyBytesOver is more than all bodies of a shard can hold under a limit: what
// they hold, and what one event makes of them.
func bodyBytesOver(limit int) int { return limit + limit/8 + 2*sketch.BloomBytesMax }

// readPruned reads when the key was last looked through for faded bins.
// Formats before 3 knew it to the microsecond.
func (sum *summary) readPruned(b *blockReader) {
	if b.format < 3 {
		b.tick()
		sum.pruneAt = 1 << bits.Len32(min(max(sum.pruneAt, pruneMin), pruneMost)-1)
		return
	}
	pruned := b.uvarint()
	if pruned > math.MaxUint16 || sum.pruneAt < pruneMin || sum.pruneAt > pruneMost || sum.pruneAt&(sum.pruneAt-1) != 0 {
		b.corrupt("looked for faded bins in moment %d, and again at %d bins", pruned, sum.pruneAt)
	}
	sum.pruned = uint16(pruned)
}

func (s *State) readExpiries(b *blockReader) {
	last := uint64(0)
	for first := true; ; first = false {
		distance := b.uvarint()
		if distance == 0 || b.err != nil {
			return
		}
		key, t := last+distance-1, b.tick()
		if key < last || key == last && !first || key >= uint64(s.keys.names.slots) || !s.keys.names.alive(uint32(key)) ||
			t == 0 || t > clockMax || s.summaries.records.at(uint32(key)).due() > t {
			b.corrupt("key %d: it cannot expire at %d", key, t)
			return
		}
		s.expiries.set(uint32(key), t, s.epoch)
		last = key
	}
}

func (s *State) readBitmaps(b *blockReader) {
	var t bitmapEditor
	last := uint64(0)
	for first := true; ; first = false {
		distance := b.uvarint()
		if distance == 0 || b.err != nil {
			break
		}
		key := last + distance - 1
		if key < last || key == last && !first || key >= uint64(s.keys.names.slots) || !s.keys.names.alive(uint32(key)) || s.summaries.records.at(uint32(key)).form() != recordBitmap {
			b.corrupt("key %d: it holds no bitmap", key)
			return
		}
		sum := s.own(uint32(key))
		t.begin(&s.summaries.bins, s.epoch, bitmapHead{})
		readBitmap(b, &t, key)
		sum.bitmap().head = t.head
		s.put(uint32(key), &sum)
		last = key
	}
	for key := range s.keys.names.all {
		if r := s.summaries.records.at(key); r.form() == recordBitmap && r.where() == 0 {
			b.corrupt("key %d: a bitmap without ids", key)
		}
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

// sound reports whether what a restored key holds may have been written in its namespace by now.
func (sum *summary) sound(ns *namespace, now sketch.Tick) bool {
	if sum.body != nil {
		return sum.body.last() <= now && sum.body.suits(ns.seed)
	}
	return sum.dist.Last() <= now && sum.dist.Suits(&ns.eras[sum.era-ns.eraBase].params, ns.until(sum.era, now), ns.signed)
}

func (s *State) readSession(b *blockReader, slot uint32) {
	w := session{id: b.uvarint(), top: b.uvarint(), low: b.uvarint(), used: b.tick(), due: b.tick(), epoch: s.epoch}
	w.readRing(b)
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		o := oddity{b.uvarint(), readMore(b)}
		w.odd = append(w.odd, o)
		w.oddBytes += len(o.more)
	}
	if _, known := s.sessionSlots[w.id]; known || w.id == 0 || w.id > s.lastSession || w.used > s.now || w.due-s.limits.SessionExpiry > w.used {
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
	s.sessionVisits.set(slot, w.due)
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

// consistent reports whether recall can answer for every sequence of the
// window: the ring reaches back to its floor, and has more to say of those
// sequences, and of no others, that odd has.
func (w *session) consistent(window uint64) bool {
	if w.low > w.top || uint64(len(w.ring)) < min(w.top, window) {
		return false
	}
	odd := make(map[uint64]bool, len(w.odd))
	for _, o := range w.odd {
		odd[o.sequence] = o.more != ""
	}
	found := 0
	for sequence, left := w.top, w.top-w.floor(window); left > 0; sequence, left = sequence-1, left-1 {
		v := w.ring[sequence&uint64(len(w.ring)-1)]
		if v == oddBit || v&oddBit != 0 && !odd[sequence] {
			return false
		}
		if v&oddBit != 0 {
			found++
		}
	}
	return found == len(w.odd)
}

// memoBytesMax bounds what one result says: every increment of an entry
// refused, and a message.
const memoBytesMax = 1 << 20

func readMore(b *blockReader) string {
	more := b.text(memoBytesMax)
	if !wellFormedMemo(more) {
		b.corrupt("a result that does not decode")
	}
	return string(more)
}

func (s *State) readSource(b *blockReader, slot uint32) {
	src := source{name: string(b.text(proto.SourceNameLenMax)), epoch: b.uvarint(), token: b.fixed(), last: b.uvarint()}
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
	if _, known := s.sourceSlots[src.name]; known || src.name == "" || len(src.refused) > s.limits.SourceRefusals {
		b.corrupt("source %q: a name that it cannot have", src.name)
	}
	if src.epoch == 0 || src.epoch > s.lastEpoch {
		b.corrupt("source %q: epoch %d of %d", src.name, src.epoch, s.lastEpoch)
	}
	if b.err != nil {
		return
	}
	*s.sources.edit(slot, s.epoch) = src
	s.sourceSlots[src.name] = slot
}

func (s *State) readAnswered(b *blockReader, slot uint32) {
	a := answered{
		key:  idempotencyKey{issuedAt: int64(b.tick()), hi: b.fixed(), lo: b.fixed()},
		memo: memo{applied: b.uint32(), more: readMore(b)},
	}
	if _, known := s.keySlots[a.key]; known {
		b.corrupt("an idempotency key twice")
	}
	if b.err != nil {
		return
	}
	*s.answered.edit(slot, s.epoch) = a
	s.answeredBytes += len(a.memo.more)
	s.keySlots[a.key] = slot
	s.keyVisits.set(slot, sketch.Tick(a.key.issuedAt))
}

func readRoster[T any](b *blockReader, r *roster[T], epoch uint32, item func(i uint32)) {
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
		slot := r.restore(uint32(link), epoch)
		if link == 0 {
			item(slot)
		}
	}
	r.free = uint32(free)
	if b.err == nil && !r.chained() {
		b.corrupt("free slots are not a chain")
	}
}

// restore appends a slot: in use if link is 0, else free with the next free one
// as link - 1.
func (r *roster[T]) restore(link, epoch uint32) uint32 {
	i := r.slots
	r.slots++
	r.items.reach(i, epoch)
	r.links.reach(i, epoch)
	if link == 0 {
		r.live++
	}
	*r.links.edit(i, epoch) = link - 1 // inUse, if link is 0
	return i
}

// chained reports whether the chain of free slots visits each of them once.
func (r *roster[T]) chained() bool {
	left := r.slots - r.live
	for next := r.free; next != 0; left-- {
		if left == 0 || r.alive(next-1) {
			return false
		}
		next = *r.links.at(next - 1)
	}
	return left == 0
}
