package shard

import (
	"bytes"
	"io"
	"testing"

	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// fataler is what a test and a property have in common.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// audit checks what must hold of a state at any time, however it came about.
func audit(t fataler, s *State) {
	t.Helper()
	auditBins(t, s)
	auditKeys(t, s)
	auditBinTable(t, &s.bins)
	auditKeyIndex(t, &s.keys)
	auditSummaries(t, s)
	auditDictPartitions(t, s)
	auditUsage(t, s)
	auditVisits(t, s.cleanups)
	for _, v := range s.eventCleanups {
		auditVisits(t, v)
	}
	auditHeap(t, &s.sessionExpiries)
	auditHeap(t, &s.answerExpiries)
	for id, slot := range s.sessionSlots {
		if !s.sessions.alive(slot) || s.sessions.at(slot).id != id || !s.sessionExpiries.holds(slot) {
			t.Fatalf("session %d: slot %d", id, slot)
		}
	}
	if n := len(s.sessionSlots); n != int(s.sessions.live) || n != s.sessionExpiries.len() || n > s.limits.Sessions {
		t.Fatalf("%d sessions, %d slots, %d cleanups", n, s.sessions.live, s.sessionExpiries.len())
	}
	if n := len(s.sourceSlots); n != int(s.sources.live) || n > 2*s.limits.Sources {
		t.Fatalf("%d sources, %d slots", n, s.sources.live)
	}
	if n := len(s.keySlots); n != int(s.answered.live) || n != s.answerExpiries.len() || n > s.limits.IdempotencyKeys {
		t.Fatalf("%d idempotency keys, %d slots, %d cleanups", n, s.answered.live, s.answerExpiries.len())
	}
	auditSlotTable(t, &s.sessions, func(w *session) bool { return w.id == 0 && w.ring == nil && w.extras == nil })
	auditSlotTable(t, &s.sources, func(w *source) bool { return w.name == "" && w.refused == nil })
	auditSlotTable(t, &s.answered, func(w *answered) bool { return *w == answered{} })
	auditSlotTable(t, &s.orphans, func(r *orphan) bool { return *r == orphan{} })
	if n := len(s.orphanSlots); n != int(s.orphans.live) {
		t.Fatalf("%d orphans, %d slots", n, s.orphans.live)
	}
}

// auditBins recounts the references of bins.
func auditBins(t fataler, s *State) {
	t.Helper()
	refs := map[uint32]uint32{}
	for key := range s.summaries.keys.all {
		sum := s.stored(key)
		sum.dist.Each(func(bin uint32) { refs[bin]++ })
	}
	for bin, n := range s.bins.names.all {
		if n.use != refs[bin] || n.use == 0 {
			t.Fatalf("bin %d (%q) has %d references, of which %d can be found", bin, s.bins.bytesOf(bin), n.use, refs[bin])
		}
		delete(refs, bin)
	}
	if len(refs) > 0 {
		t.Fatalf("bins in use that do not exist: %v", refs)
	}
}

func auditKeys(t fataler, s *State) {
	t.Helper()
	keys := make([]uint32, len(s.namespaces))
	eras := map[[2]uint32]uint32{}
	scheduled, held := 0, 0
	for key := range s.summaries.keys.all {
		sum := s.stored(key)
		ns := s.namespaces[sum.space]
		keys[sum.space]++
		if sum.body != nil {
			held += s.held(sum.body)
		}
		eras[[2]uint32{uint32(sum.space), sum.era}]++
		if found, ok := s.findKey(ns, s.keys.bytesOf(key)); !ok || found != key {
			t.Fatalf("key %q is not found", s.keys.bytesOf(key))
		}
		if sum.due != sketch.MaxTick {
			scheduled++
			if _, ok := s.cleanupsOf(&sum).find(key); !ok {
				t.Fatalf("key %q: its cleanup is not where it should be", s.keys.bytesOf(key))
			}
		}
		if at := s.expiries.at(key); at != 0 && sum.due > at {
			t.Fatalf("key %q expires at %d, before it is due", s.keys.bytesOf(key), at)
		}
		params := &ns.eras[sum.era-ns.eraBase].params
		kept := params.OrderFree && ns.definition.GetVersion() > 1 // another floor may have kept it before
		if sum.body == nil && !kept && vanished(params, &sum.dist, min(sum.due, clockMax)-1) {
			t.Fatalf("key %q died before it is due", s.keys.bytesOf(key))
		}
	}
	for leaf := range s.expiries.leaves {
		for i := uint32(leaf) * leafLen; i < uint32(leaf+1)*leafLen; i++ {
			if s.expiries.at(i) != 0 && !s.summaries.keys.alive(i) {
				t.Fatalf("slot %d without a key expires", i)
			}
		}
	}
	n := s.cleanups.n
	for i, ns := range s.namespaces {
		n += s.eventCleanups[i].n
		if ns.keys != keys[i] {
			t.Fatalf("namespace %d has %d keys, not %d", i, keys[i], ns.keys)
		}
		for j := range ns.eras {
			if ns.eras[j].keys != eras[[2]uint32{uint32(i), ns.eraBase + uint32(j)}] {
				t.Fatalf("namespace %d: keys of era %d", i, j)
			}
		}
		if len(ns.eras) > 1 && ns.eras[0].keys == 0 {
			t.Fatalf("namespace %d remembers an era without keys", i)
		}
	}
	if int(n) != scheduled {
		t.Fatalf("%d cleanups for %d keys", n, scheduled)
	}
	if held != s.bodyBytes {
		t.Fatalf("bodies hold %d bytes, and the state says %d", held, s.bodyBytes)
	}
}

// auditSummaries looks for blocks that are lost, or belong to two keys, and for
// records of keys that are not there.
func auditSummaries(t fataler, s *State) {
	t.Helper()
	blocks := map[blockRef]bool{}
	boxes := 0
	for key := range s.summaries.keys.slots {
		if !s.summaries.keys.alive(key) {
			continue
		}
		block := s.summaries.keys.block(key)
		if block == 0 || blocks[block] {
			t.Fatalf("key %d: block %#x is none, or that of another", key, block)
		}
		blocks[block] = true
		switch r := s.summaries.record(key); r.form() {
		case recordBody:
			boxes++
		case recordBitmap:
			auditBitmap(t, &s.summaries.bins, r.bitmap(), blocks)
		}
	}
	if boxes != int(s.summaries.boxes)-len(s.summaries.freeBoxes) {
		t.Fatalf("%d bodies, %d places of which %d are free", boxes, s.summaries.boxes, len(s.summaries.freeBoxes))
	}
	auditSlab(t, &s.summaries.bins, blocks)
}

// auditBitmap looks at the directory and the containers of a bitmap, and notes its blocks.
func auditBitmap(t fataler, b *slab, head bitmapHead, blocks map[blockRef]bool) {
	t.Helper()
	if head.ids == 0 || (head.root == 0) != (head.leaves == 0) {
		t.Fatalf("an empty bitmap has a key: %+v", head)
	}
	b.eachBlock(head, func(ref blockRef) bool {
		if ref == 0 || blocks[ref] {
			t.Fatalf("block %#x of a bitmap is none, or that of another", ref)
		}
		blocks[ref] = true
		return true
	})
	if head.isSmall() {
		if err := bitmap.ValidateSmall(head.small()); err != nil {
			t.Fatalf("%v", err)
		}
		return
	}
	next, all := uint64(0), uint64(0)
	for leaf := range int(head.leaves) {
		r := entryAt(b.at(head.root), leaf)
		words, ids := b.at(r.ref()), uint64(0)
		if r.count() > leafSlices || r.slice() != entryAt(words, 0).slice() {
			t.Fatalf("leaf %d has %d slices from %d on, and says %d", leaf, r.count(), entryAt(words, 0).slice(), r.slice())
		}
		for i := range r.count() {
			e := entryAt(words, i)
			var room [1]uint64
			c := b.container(e, &room)
			if err := bitmap.Validate(c); err != nil || e.slice() < next || e.inline() != (c.Count <= inlineMax) {
				t.Fatalf("slice %d of leaf %d, not before %d: %v, inline %t with %d ids", e.slice(), leaf, next, err, e.inline(), c.Count)
			}
			next = e.slice() + 1
			ids += uint64(c.Count)
		}
		if ids != r.ids() {
			t.Fatalf("leaf %d has %d ids, and says %d", leaf, ids, r.ids())
		}
		all += ids
	}
	if all != head.ids {
		t.Fatalf("a bitmap has %d ids, and says %d", all, head.ids)
	}
}

func auditSlab(t fataler, b *slab, blocks map[blockRef]bool) {
	t.Helper()
	used := make([]int, len(b.runs))
	for ref := range blocks {
		used[ref>>8]++
	}
	listed := map[uint32]int{}
	for class, next := range b.lists {
		before := uint32(0)
		for next != 0 {
			u := &b.usage[next-1]
			if int(u.class) != class || u.prev != before {
				t.Fatalf("run %d stands in the list of class %d: %+v", next-1, class, u)
			}
			listed[next-1]++
			before, next = next, u.next
		}
	}
	taken, full := 0, 0
	for number := range b.runs {
		u := &b.usage[number]
		if int(u.used) != used[number] || (u.used == 0) != (b.runs[number].words == nil) {
			t.Fatalf("run %d holds %d blocks: %+v", number, used[number], u)
		}
		if u.used > 0 && (listed[uint32(number)] != 0) != u.hasRoom() {
			t.Fatalf("run %d is lost: %+v", number, u)
		}
		taken += len(b.runs[number].words)
		full += int(u.used) * int(b.runs[number].size)
		free := 0
		for at := u.free; at != 0; at = uint8(b.at(blockRef(number<<8 | int(at)))[0]) {
			if free++; blocks[blockRef(number<<8|int(at))] {
				t.Fatalf("block %d of run %d is free and used", at, number)
			}
		}
		if free+int(u.used) != int(u.top) {
			t.Fatalf("run %d: %d free of %+v", number, free, u)
		}
	}
	if b.taken != taken || b.used != full {
		t.Fatalf("%d words taken and %d used, not %d and %d", taken, full, b.taken, b.used)
	}
}

func auditVisits(t fataler, v *cleanupQueue) {
	t.Helper()
	for i := range v.n {
		here := v.keys.at(i)
		if i > 0 && here.before(v.keys.at((i-1)/2)) {
			t.Fatalf("cleanups out of order at %d", i)
		}
		if v.of.keys.cleanupAt(here.key) != i+1 || v.of.record(here.key).due() != here.at {
			t.Fatalf("the cleanup queue has lost key %d, or when it is due", here.key)
		}
	}
}

// auditDictPartitions looks each string up under its own number, and each partition under its namespace.
func auditDictPartitions(t fataler, s *State) {
	t.Helper()
	for i := range s.dictPartitions {
		l := &s.dictPartitions[i]
		ns := s.namespaces[l.space]
		for number := range l.count {
			name := l.append(nil, number)
			if id, ok := s.idOf(ns, name); !ok || id != ns.idOf(l.part, number) || ns.partitionOf(name) != l.part {
				t.Fatalf("string %q, number %d of part %d: id %d, %v", name, number, l.part, id, ok)
			}
		}
		if l.index.used != l.count || l.count == 0 {
			t.Fatalf("part %d: %d strings, %d in the index", l.part, l.count, l.index.used)
		}
	}
}

func auditBinTable(t fataler, d *binTable) {
	t.Helper()
	places := map[uint32]place{}
	for id, n := range d.names.all {
		places[id] = n.place
	}
	auditNames(t, &d.bytes, &d.index, places)
	auditSlotTable(t, &d.names, func(n *name) bool { return *n == name{} })
}

func auditKeyIndex(t fataler, k *keyIndex) {
	t.Helper()
	keys := &k.of.keys
	if k.index.used != keys.live {
		t.Fatalf("the index holds %d of %d keys", k.index.used, keys.live)
	}
	if !freeListComplete(keys) {
		t.Fatalf("free keys are not a chain")
	}
}

// auditNames looks for names that share a place, and for places and index slots without a name.
func auditNames(t fataler, a *arena, x *index, names map[uint32]place) {
	t.Helper()
	taken := map[place]bool{}
	counts := make([]uint16, a.pages.len())
	for id, at := range names {
		if taken[at] {
			t.Fatalf("two names at %v", at)
		}
		taken[at] = true
		page := at / pageCells
		counts[page]++
		length := len(a.bytes(at))
		if c := a.classes[page]; c.cells != cells(length) {
			t.Fatalf("name %d of %d bytes lies in a page for %d cells", id, length, c.cells)
		}
	}
	for page, used := range counts {
		if c := a.classes[page]; c.used != used || (used == 0) != (c.cells == 0) {
			t.Fatalf("page %d holds %d names: %+v", page, used, c)
		}
	}
	if int(x.used) != len(names) {
		t.Fatalf("the index holds %d of %d names", x.used, len(names))
	}
}

func auditSlotTable[T any](t fataler, r *slotTable[T], zero func(*T) bool) {
	t.Helper()
	if !freeListComplete(r) {
		t.Fatalf("free slots are not a chain")
	}
	for i := range r.slots {
		if !r.alive(i) && !zero(r.at(i)) {
			t.Fatalf("free slot %d is not zero: %+v", i, *r.at(i))
		}
	}
}

func auditHeap(t fataler, h *heap) {
	t.Helper()
	for i, d := range h.items {
		if i > 0 && d.before(h.items[(i-1)/2]) {
			t.Fatalf("heap out of order at %d", i)
		}
		if (*h.places)[d.slot] != uint32(i+1) {
			t.Fatalf("heap has lost slot %d", d.slot)
		}
	}
}

// snapshot returns what WriteTo writes.
func snapshot(t fataler, f interface {
	WriteTo(w io.Writer) (int64, error)
},
) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := f.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("wrote %d of %d bytes: %v", n, b.Len(), err)
	}
	return b.Bytes()
}

// reopen is the state after a restart from a snapshot.
func reopen(t fataler, s *State) *State {
	t.Helper()
	back, err := RestoreUnder(s.limits, s.id, &wiping{}, bytes.NewReader(snapshot(t, s)))
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	return back
}

var _ fataler = (*testing.T)(nil)

func (h *heap) len() int { return len(h.items) }

func (h *heap) holds(slot uint32) bool {
	p := *h.places
	if uint32(len(p)) <= slot || p[slot] == 0 {
		return false
	}
	i := int(p[slot]) - 1
	return i < len(h.items) && h.items[i].slot == slot
}
