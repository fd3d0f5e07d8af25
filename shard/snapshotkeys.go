package shard

import (
	"math"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/sketch"
)

// keyLoader reads the keys of a snapshot. What a key holds is read directly into its block. The index, the uses of bins
// and the order of cleanups are built at the end. Each of them is built for all keys in one pass, in the order in which
// it lies in memory: for each key it is another place in memory.
type keyLoader struct {
	s     *State
	b     *blockReader
	slots []uint64 // of the index
	uses  []uint32 // by bin
	name  []byte   // of the present key
	sum   summary  // that it holds
	later []uint32 // keys whose bitmaps have a section of their own
}

func newKeyLoader(s *State, b *blockReader) *keyLoader {
	return &keyLoader{s: s, b: b, uses: make([]uint32, s.bins.names.slots)}
}

// read reads a key from a snapshot.
func (l *keyLoader) read(key uint32) {
	b, sum := l.b, &l.sum
	space := b.uvarint()
	l.name = append(l.name[:0], b.text(proto.KeyLenMax)...)
	*sum = summary{era: b.uint32(), due: b.tick(), onEvent: b.bool(), pruneAt: b.uint32(), space: uint16(space)}
	if sum.due > clockMax {
		sum.due = sketch.MaxTick // no clock comes that far, and records store it so
	}
	sum.readPruned(b)
	f, raw := form(b.byte()), b.text(distributionBytesMax)
	if b.err != nil {
		return
	}
	if space >= uint64(len(l.s.namespaces)) {
		b.corrupt("key %d: namespace %d", key, space)
		return
	}
	ns := l.s.namespaces[space]
	if len(l.name) == 0 || sum.era-ns.eraBase >= uint32(len(ns.eras)) {
		b.corrupt("key %d: empty, or of no era", key)
		return
	}
	switch f {
	case formBitmap:
		l.bitmap(key, raw)
	case formDistribution:
		l.distribution(key, ns, raw)
	default:
		l.body(key, ns, f, raw)
	}
	if b.err != nil {
		return
	}
	e := &ns.eras[sum.era-ns.eraBase]
	e.keys++
	ns.keys++
	if sum.due != sketch.MaxTick {
		l.s.cleanupsOf(sum).add(key, sum.due)
	}
	l.slots = append(l.slots, slotOf(tagOf(l.name, ns.seed), key))
}

func (l *keyLoader) distribution(key uint32, ns *namespace, raw []byte) {
	var h sketch.Header
	raw, err := h.Decode(raw)
	if err != nil {
		l.b.corrupt("key %d: a distribution that does not decode", key)
		return
	}
	words := 0
	if h.Bins > 0 {
		words = h.WordsFor(roomFor(h.Bins))
	}
	s, sum := l.s, &l.sum
	r, room := s.summaries.begin(key, sum.space, l.name, headWords, words, s.epoch)
	if rest, err := sum.dist.DecodeBins(&h, raw, room); err != nil || len(rest) > 0 {
		l.b.corrupt("key %d: a distribution that does not decode", key)
		return
	}
	if l.check(key, ns) {
		r.storeDistribution(sum)
		s.summaries.holder(sum.space).bins += sum.dist.Len()
		sum.dist.Each(func(bin uint32) {
			if bin >= uint32(len(l.uses)) {
				l.b.corrupt("key %d: bin %d does not exist", key, bin)
				return
			}
			l.uses[bin]++
		})
	}
}

func (l *keyLoader) body(key uint32, ns *namespace, f form, raw []byte) {
	s, sum := l.s, &l.sum
	most := bodyBytesOver(s.limits.BodyBytes)
	body, ok := decodeBodyWithin(f, raw, most-s.bodyBytes)
	if !ok {
		l.b.corrupt("key %d: a summary of form %d that does not decode", key, f)
		return
	}
	sum.body = body
	if !l.check(key, ns) {
		return
	}
	if s.holdBody(sum.space, s.held(body)); s.bodyBytes > most {
		l.b.corrupt("key %d: with it the summaries take %d bytes, more than there can be", key, s.bodyBytes)
		return
	}
	r, _ := s.summaries.begin(key, sum.space, l.name, headBody, 0, s.epoch)
	r.storeBody(sum, s.summaries.box(body, s.epoch))
}

// bitmap makes a key that holds a bitmap. A large bitmap comes later, in a section of its own.
func (l *keyLoader) bitmap(key uint32, raw []byte) {
	s, sum := l.s, &l.sum
	var room [idsWithKey]uint64
	head, ok := decodeIDs(&room, raw)
	if !ok {
		l.b.corrupt("key %d: a bitmap that does not decode", key)
		return
	}
	if head.ids == 0 {
		l.later = append(l.later, key)
	}
	words, n := bitmapHeadWords(sum.due), len(head.words)
	r, into := s.summaries.begin(key, sum.space, l.name, words, n+n/16, s.epoch)
	if copy(into, head.words); n > 0 {
		clear(into[n:])
	}
	r.storeBitmap(sum, &head, s.applying)
}

// check checks what a key holds against its namespace.
func (l *keyLoader) check(key uint32, ns *namespace) bool {
	if !l.sum.valid(ns, l.s.now) {
		l.b.corrupt("key %d: a summary that its namespace cannot have", key)
		return false
	}
	p := &ns.eras[l.sum.era-ns.eraBase].params
	if l.sum.late(p, p.OrderFree && ns.definition.GetVersion() > 1) {
		l.b.corrupt("key %d: it dies before its visit", key)
		return false
	}
	return true
}

// end builds what depends on all keys.
func (l *keyLoader) end() {
	s, b := l.s, l.b
	if b.err != nil {
		return
	}
	for bin, n := range l.uses {
		if n == 0 {
			continue
		}
		if !s.bins.names.alive(uint32(bin)) {
			b.corrupt("bin %d of %d keys does not exist", bin, n)
			return
		}
		s.bins.names.edit(uint32(bin), s.epoch).use = n
	}
	var one []byte
	twice := s.keys.index.fill(l.slots, s.epoch, func(key, other uint32) bool {
		one = s.keys.appendName(one[:0], key)
		return s.keys.is(other, s.keys.space(key), one)
	})
	if twice {
		b.corrupt("two keys have one name")
		return
	}
	s.cleanups.order()
	for _, v := range s.eventCleanups {
		v.order()
	}
}

// readPruned reads when the key was last searched for faded bins.
func (sum *summary) readPruned(b *blockReader) {
	pruned := b.uvarint()
	if pruned > math.MaxUint16 || sum.pruneAt < pruneMin || sum.pruneAt > pruneMost || sum.pruneAt&(sum.pruneAt-1) != 0 {
		b.corrupt("looked for faded bins in moment %d, and again at %d bins", pruned, sum.pruneAt)
	}
	sum.pruned = uint16(pruned)
}
