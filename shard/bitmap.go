package shard

import (
	"sort"

	"github.com/ebbdb/ebb/sketch/bitmap"
)

// A small bitmap (bitmap.Small) lies in the room of its record. A larger one lies in blocks of the slab, and its record
// has the position of the root:
//
//	root        { leaf }            by slice; a block of its own, or a run when there are more than 512 leaves
//	  leaf      first slice (48) | slices less 1 (16)    block (32) | ids (32)
//	leaf        { slice }           by slice, 512 at most
//	  slice     slice (48) | ids less 1 (16)             block (32) | 30 unused | form (2)
//	                                                     three ids (48) | 14 unused | 0
//	container   see package bitmap; with up to three ids it has no block, and lies in its leaf
//
// An edit makes private the runs of the root, of one leaf and of one container: it copies each that a view shares.
type bitmapHead struct {
	root   blockRef // of a large one
	leaves uint32   // 0: it is small
	wide   bool     // of a small one: see bitmap.Small
	ids    uint64   // 0: it is empty
	words  []uint64 // where a small one lies: all of the room of its record, or, until it is put, memory elsewhere
}

// isSmall says whether all of a bitmap lies in its record.
func (h *bitmapHead) isSmall() bool { return h.ids != 0 && h.leaves == 0 }

// small returns a small bitmap, or an empty one.
func (h *bitmapHead) small() bitmap.Small {
	if !h.isSmall() {
		return bitmap.Small{}
	}
	return bitmap.ViewSmall(h.wide, uint32(h.ids), h.words)
}

const (
	leafSlices    = largeMax / 2 // slices of a leaf at most
	inlineMax     = 3            // ids of a container without a block at most
	sliceBits     = 16
	containerForm = 3
)

// slabEntry is one entry of a root or a leaf: two words of its block.
type slabEntry []uint64

func entryAt(words []uint64, i int) slabEntry { return slabEntry(words[2*i : 2*i+2 : 2*i+2]) }

// slice is the first slice of a leaf, or the slice of a container.
func (e slabEntry) slice() uint64 { return e[0] >> sliceBits }

// count is how many slices a leaf has, or how many ids a container.
func (e slabEntry) count() int { return int(e[0]&(1<<sliceBits-1)) + 1 }

func (e slabEntry) setCount(n int) { e[0] = e[0]>>sliceBits<<sliceBits | uint64(n-1) }

func (e slabEntry) ref() blockRef { return blockRef(e[1] >> 32) }

func (e slabEntry) setRef(ref blockRef) { e[1] = e[1]&(1<<32-1) | uint64(ref)<<32 }

// ids of a leaf.
func (e slabEntry) ids() uint64 { return e[1] & (1<<32 - 1) }

func (e slabEntry) form() bitmap.Form { return bitmap.Form(e[1] & containerForm) }

// inline says whether a container lies in the entry itself.
func (e slabEntry) inline() bool { return e.form() == 0 }

// container returns the container of an entry of a leaf. If it lies in the entry, its words are copied to room.
func (b *slab) container(e slabEntry, room *[1]uint64) bitmap.Container {
	if e.inline() {
		room[0] = e[1] >> sliceBits
		return bitmap.Container{Form: bitmap.Array, Count: uint32(e.count()), Words: room[:]}
	}
	return bitmap.View(e.form(), uint32(e.count()), b.at(e.ref()))
}

// findEntry is the position of the first of n entries whose slice is not below this one.
func findEntry(words []uint64, n int, slice uint64) int {
	return sort.Search(n, func(i int) bool { return words[2*i]>>sliceBits >= slice })
}

// bitmapEditor edits one bitmap. Its buffers are reused for the next one.
type bitmapEditor struct {
	pages   *slab
	epoch   uint32
	head    bitmapHead
	scratch [bitmap.ScratchWords]uint64
	kept    []uint64 // see setSmall
	ids     []uint64
	lows    []uint16
}

// begin begins to edit a bitmap.
func (t *bitmapEditor) begin(pages *slab, epoch uint32, head bitmapHead) {
	t.pages, t.epoch, t.head = pages, epoch, head
}

// edit applies op to ids, which ascend, and returns how many it changed.
func (t *bitmapEditor) edit(op bitmap.Op, ids []uint64) (changed int) {
	if t.head.leaves == 0 {
		if changed, done := t.editSmall(op, ids); done {
			return changed
		}
		t.enlarge()
	}
	changed = t.editLarge(op, ids)
	t.shrink()
	return changed
}

// editSmall edits a bitmap that is small or empty. If the result would not be small any more, done is false, and the
// bitmap is as it was.
func (t *bitmapEditor) editSmall(op bitmap.Op, ids []uint64) (changed int, done bool) {
	if op != bitmap.Clear && len(ids) > 2*bitmap.SmallWords {
		return 0, false
	}
	s, was := t.head.small(), uint32(t.head.ids)
	changed, moved, ok := bitmap.EditSmallInPlace(t.scratch[:], &s, op, ids)
	switch {
	case !ok:
		return 0, false
	case changed == 0:
		return 0, true
	case s.Count == 0:
		t.head = bitmapHead{}
		return changed, true
	case moved:
		t.setSmall(s)
	default:
		t.head.wide, t.head.ids = s.Wide, uint64(s.Count)
	}
	if s.Leaves(was) {
		t.enlarge()
	}
	return changed, true
}

// setSmall keeps a small bitmap, whose words are in scratch, until it is put.
func (t *bitmapEditor) setSmall(s bitmap.Small) {
	t.kept = append(t.kept[:0], s.Words...)
	t.head = bitmapHead{wide: s.Wide, ids: uint64(s.Count), words: t.kept}
}

// enlarge makes containers of a small bitmap.
func (t *bitmapEditor) enlarge() {
	s := t.head.small()
	t.head = bitmapHead{}
	s.Containers(t.scratch[:], func(slice uint64, c bitmap.Container) bool {
		t.put(slice, c)
		return true
	})
}

// shrink makes a bitmap small if it has few enough ids.
func (t *bitmapEditor) shrink() {
	if t.head.ids > bitmap.SmallAgain || t.head.leaves == 0 {
		return
	}
	c := t.pages.cursor(t.head)
	next := uint64(0)
	s, ok := bitmap.FromContainers(t.scratch[:], func() (uint64, bitmap.Container, bool) {
		slice, ok := c.Seek(next)
		if !ok {
			return 0, bitmap.Container{}, false
		}
		next = slice + 1
		return slice, c.Container(), true
	})
	if ok {
		t.pages.dropBitmap(t.head, t.epoch)
		t.setSmall(s)
	}
}

func (t *bitmapEditor) editLarge(op bitmap.Op, ids []uint64) (changed int) {
	for len(ids) > 0 {
		slice := ids[0] >> sliceBits
		t.lows = t.lows[:0]
		n := 0
		for n < len(ids) && ids[n]>>sliceBits == slice {
			t.lows = append(t.lows, uint16(ids[n]))
			n++
		}
		lows := t.lows
		changed += t.editSlice(op, slice, func(c *bitmap.Container) (int, bool) {
			return bitmap.EditInPlace(t.scratch[:], c, op, lows)
		})
		ids = ids[n:]
	}
	return changed
}

// editRange applies op to all ids from first to last, and returns how many it changed.
func (t *bitmapEditor) editRange(op bitmap.Op, first, last uint64) (changed int) {
	if t.head.leaves == 0 {
		t.ids = t.ids[:0]
		switch {
		case op == bitmap.Clear && t.head.ids == 0:
			return 0
		case op == bitmap.Clear:
			t.head.small().Each(first, func(id uint64) bool {
				if id > last {
					return false
				}
				t.ids = append(t.ids, id)
				return true
			})
			return t.edit(op, t.ids)
		case last-first < bitmap.SmallWords:
			for i := range last - first + 1 {
				t.ids = append(t.ids, first+i)
			}
			return t.edit(op, t.ids)
		}
		t.enlarge()
	}
	changed = t.editLargeRange(op, first, last)
	t.shrink()
	return changed
}

func (t *bitmapEditor) editLargeRange(op bitmap.Op, first, last uint64) (changed int) {
	for slice := first >> sliceBits; ; slice++ {
		lo, hi := uint16(0), uint16(bitmap.SliceLen-1)
		if slice == first>>sliceBits {
			lo = uint16(first)
		}
		if slice == last>>sliceBits {
			hi = uint16(last)
		}
		changed += t.editSlice(op, slice, func(c *bitmap.Container) (int, bool) {
			return bitmap.EditRangeInPlace(t.scratch[:], c, op, lo, hi)
		})
		if slice == last>>sliceBits {
			return changed
		}
	}
}

// put adds a container for a slice that has none. It copies the words.
func (t *bitmapEditor) put(slice uint64, c bitmap.Container) {
	t.editSlice(bitmap.Set, slice, func(to *bitmap.Container) (int, bool) {
		*to = c
		return int(c.Count), true
	})
}

// editSlice edits one container. It passes the container to do in words that may be written, or the zero Container if
// there is none. do has the contract of bitmap.EditInPlace.
func (t *bitmapEditor) editSlice(op bitmap.Op, slice uint64, do func(c *bitmap.Container) (changed int, moved bool)) (changed int) {
	leaf, at, there := t.find(slice)
	if !there {
		if op == bitmap.Clear {
			return 0
		}
		var c bitmap.Container
		if changed, _ = do(&c); changed == 0 {
			return 0
		}
		leaf, at = t.insert(leaf, at, slice)
		t.settle(leaf, at, 0, c)
		return changed
	}
	e := entryAt(t.leafWords(leaf), at)
	was := e.count()
	var room [1]uint64
	var c bitmap.Container
	var had blockRef
	if e.inline() {
		c = t.pages.container(e, &room)
	} else {
		had = e.ref()
		c = bitmap.View(e.form(), uint32(was), t.pages.edit(had, t.epoch))
	}
	changed, moved := do(&c)
	switch {
	case changed == 0:
		return 0
	case c.Count == 0:
		t.drop(leaf, at, had, was)
		return changed
	case !moved && had != 0 && c.Count > inlineMax:
		t.counted(leaf, int(c.Count)-was)
		e = entryAt(t.leafWords(leaf), at)
		e.setCount(int(c.Count))
		e[1] = e[1]&^containerForm | uint64(c.Form)
		return changed
	}
	t.counted(leaf, -was)
	t.settle(leaf, at, had, c)
	return changed
}

// find returns where a slice is, or where it is to be inserted. leaf is -1 when there is no leaf.
func (t *bitmapEditor) find(slice uint64) (leaf, at int, there bool) {
	if t.head.root == 0 {
		return -1, 0, false
	}
	root := t.pages.at(t.head.root)
	leaf = max(0, sort.Search(int(t.head.leaves), func(i int) bool { return root[2*i]>>sliceBits > slice })-1)
	r := entryAt(root, leaf)
	words := t.pages.at(r.ref())
	at = findEntry(words, r.count(), slice)
	return leaf, at, at < r.count() && words[2*at]>>sliceBits == slice
}

func (t *bitmapEditor) root() []uint64 { return t.pages.edit(t.head.root, t.epoch) }

// leafWords are the words of a leaf, to be written.
func (t *bitmapEditor) leafWords(leaf int) []uint64 {
	return t.pages.edit(entryAt(t.pages.at(t.head.root), leaf).ref(), t.epoch)
}

// counted records that a leaf has so many more ids.
func (t *bitmapEditor) counted(leaf, more int) {
	entryAt(t.root(), leaf)[1] += uint64(more) // they do not leave their 32 bits: a leaf has 2^25 ids at most
	t.head.ids += uint64(more)
}

// settle writes a container, which is not empty, into an entry. Then it drops the entry's old block, which may hold the
// words of the container.
func (t *bitmapEditor) settle(leaf, at int, had blockRef, c bitmap.Container) {
	second := uint64(0)
	switch n := len(c.Words); {
	case c.Count <= inlineMax:
		second = c.Words[0] << sliceBits
	default:
		ref := t.pages.put(min(n+n/16, max(n, largeMax)), t.epoch)
		block := t.pages.at(ref)
		copy(block, c.Words)
		clear(block[n:])
		second = uint64(ref)<<32 | uint64(c.Form)
	}
	if had != 0 {
		t.pages.drop(had, t.epoch)
	}
	e := entryAt(t.leafWords(leaf), at)
	e.setCount(int(c.Count))
	e[1] = second
	t.counted(leaf, int(c.Count))
}

// insert makes an entry for a slice, and returns where it is. It splits a leaf that is full.
func (t *bitmapEditor) insert(leaf, at int, slice uint64) (int, int) {
	if leaf < 0 {
		t.head.root = t.pages.put(2, t.epoch)
		t.addLeaf(0, slice)
		return 0, 0
	}
	r := entryAt(t.root(), leaf)
	n := r.count()
	if n == leafSlices {
		switch {
		case at == n && leaf == int(t.head.leaves)-1: // ids that come in order fill leaf after leaf
			t.addLeaf(leaf+1, slice)
			return leaf + 1, 0
		default:
			t.split(leaf)
			if at > n/2 {
				leaf, at = leaf+1, at-n/2
			}
		}
		r = entryAt(t.root(), leaf)
		n = r.count()
	}
	words := t.leafWords(leaf)
	if 2*(n+1) > len(words) {
		words = t.regrow(r, n, n+1+n/8)
	}
	copy(words[2*at+2:2*n+2], words[2*at:2*n])
	words[2*at], words[2*at+1] = slice<<sliceBits, 0
	r.setCount(n + 1)
	if at == 0 {
		r[0] = slice<<sliceBits | r[0]&(1<<sliceBits-1)
	}
	return leaf, at
}

// regrow moves a leaf into a block with room for room slices, but for no more than a leaf may have.
func (t *bitmapEditor) regrow(r slabEntry, n, room int) []uint64 {
	had := r.ref()
	ref := t.pages.put(2*min(room, leafSlices), t.epoch)
	words := t.pages.at(ref)
	copy(words[:2*n], t.pages.at(had))
	t.pages.drop(had, t.epoch)
	r.setRef(ref)
	return words
}

// addLeaf puts a leaf of one slice into the root.
func (t *bitmapEditor) addLeaf(at int, slice uint64) {
	ref := t.pages.put(2, t.epoch)
	words := t.pages.at(ref)
	words[0], words[1] = slice<<sliceBits, 0
	t.addToRoot(at, slice<<sliceBits, uint64(ref)<<32)
}

func (t *bitmapEditor) addToRoot(at int, first, second uint64) {
	n := int(t.head.leaves)
	root := t.root()
	if 2*(n+1) > len(root) {
		had := t.head.root
		t.head.root = t.pages.put(2*(n+1+n/8), t.epoch)
		root = t.pages.at(t.head.root)
		copy(root, t.pages.at(had)[:2*n])
		t.pages.drop(had, t.epoch)
	}
	copy(root[2*at+2:2*n+2], root[2*at:2*n])
	root[2*at], root[2*at+1] = first, second
	t.head.leaves++
}

// split moves the upper half of a full leaf to a new leaf.
func (t *bitmapEditor) split(leaf int) {
	r := entryAt(t.root(), leaf)
	n := r.count()
	half := n / 2
	ref := t.pages.put(2*(n-half+half/8), t.epoch)
	words, from := t.pages.at(ref), t.leafWords(leaf)
	copy(words, from[2*half:2*n])
	ids := uint64(0)
	for i := range n - half {
		ids += uint64(entryAt(words, i).count())
	}
	r = entryAt(t.root(), leaf)
	r.setCount(half)
	r[1] -= ids
	t.addToRoot(leaf+1, words[0]>>sliceBits<<sliceBits|uint64(n-half-1), uint64(ref)<<32|ids)
}

// drop removes an entry with its block and its number of ids.
func (t *bitmapEditor) drop(leaf, at int, had blockRef, ids int) {
	if had != 0 {
		t.pages.drop(had, t.epoch)
	}
	t.counted(leaf, -ids)
	r := entryAt(t.root(), leaf)
	n := r.count()
	if n == 1 {
		t.pages.drop(r.ref(), t.epoch)
		t.dropFromRoot(leaf)
		return
	}
	words := t.leafWords(leaf)
	copy(words[2*at:2*n-2], words[2*at+2:2*n])
	r.setCount(n - 1)
	if at == 0 {
		r[0] = words[0]>>sliceBits<<sliceBits | uint64(n-2)
	}
	if 8*(n-1) < len(words) {
		t.regrow(r, n-1, n-1)
	}
}

func (t *bitmapEditor) dropFromRoot(leaf int) {
	n := int(t.head.leaves)
	if n == 1 {
		t.pages.drop(t.head.root, t.epoch)
		t.head = bitmapHead{}
		return
	}
	root := t.root()
	copy(root[2*leaf:2*n-2], root[2*leaf+2:2*n])
	t.head.leaves--
}

// dropBitmap gives back all blocks of a bitmap except its record.
func (b *slab) dropBitmap(head bitmapHead, epoch uint32) {
	if head.root != 0 {
		b.own(uint32(head.root>>8), epoch) // so that it stays where it is until all others are gone
	}
	b.eachBlock(head, func(ref blockRef) bool {
		b.drop(ref, epoch)
		return true
	})
}

// eachBlock visits the blocks of a bitmap except its record, until visit returns false. It visits a block before the
// block that refers to it.
func (b *slab) eachBlock(head bitmapHead, visit func(ref blockRef) bool) {
	for leaf := range int(head.leaves) {
		r := entryAt(b.at(head.root), leaf)
		for i := range r.count() {
			if e := entryAt(b.at(r.ref()), i); !e.inline() && !visit(e.ref()) {
				return
			}
		}
		if !visit(r.ref()) {
			return
		}
	}
	if head.root != 0 {
		visit(head.root)
	}
}

// bitmapCursor visits the slices of a bitmap in order.
type bitmapCursor struct {
	pages *slab
	head  bitmapHead
	leaf  int      // -1 before the first look
	words []uint64 // of the leaf
	n, at int      // how many slices it has, and the position among them
	room  [1]uint64
	small bitmap.Small
	wide  []uint64 // room for a container of a small bitmap
}

func (b *slab) cursor(head bitmapHead) bitmapCursor {
	c := bitmapCursor{pages: b, head: head, leaf: -1}
	c.small = head.small()
	return c
}

// Seek moves to the first slice that is not below this one, and returns it.
func (c *bitmapCursor) Seek(slice uint64) (at uint64, ok bool) {
	if slice > sliceMax {
		return 0, false
	}
	if c.head.leaves == 0 {
		c.at = c.small.Rank(slice << sliceBits)
		id, ok := c.small.Select(uint64(c.at))
		return id >> sliceBits, ok
	}
	if !c.inLeaf(slice) && !c.seekLeaf(slice) {
		return 0, false
	}
	switch {
	case c.at > 0 && c.words[2*c.at-2]>>sliceBits >= slice:
		c.at = findEntry(c.words, c.at, slice) // back
	case c.words[2*c.at]>>sliceBits >= slice:
	case c.at+1 < c.n && c.words[2*c.at+2]>>sliceBits >= slice:
		c.at++
	default:
		c.at += findEntry(c.words[2*c.at:], c.n-c.at, slice)
	}
	return c.words[2*c.at] >> sliceBits, true
}

// inLeaf says whether a search for a slice begins in the leaf at which the cursor is.
func (c *bitmapCursor) inLeaf(slice uint64) bool {
	if c.leaf < 0 || c.n == 0 || c.words[2*(c.n-1)]>>sliceBits < slice {
		return false
	}
	return c.leaf == 0 || c.words[0]>>sliceBits <= slice
}

// seekLeaf moves to the leaf with the first slice that is not below this one.
func (c *bitmapCursor) seekLeaf(slice uint64) bool {
	if c.head.root == 0 {
		return false
	}
	root, leaves := c.pages.at(c.head.root), int(c.head.leaves)
	leaf := max(0, sort.Search(leaves, func(i int) bool { return root[2*i]>>sliceBits > slice })-1)
	for ; leaf < leaves; leaf++ {
		r := entryAt(root, leaf)
		words := c.pages.at(r.ref())
		if words[2*(r.count()-1)]>>sliceBits >= slice {
			c.leaf, c.words, c.n, c.at = leaf, words, r.count(), 0
			return true
		}
	}
	c.leaf, c.n, c.at = leaves, 0, 0
	return false
}

// Container is the container at which the cursor is. It is valid until the cursor moves.
func (c *bitmapCursor) Container() bitmap.Container {
	if c.head.leaves > 0 {
		return c.pages.container(entryAt(c.words, c.at), &c.room)
	}
	if c.wide == nil {
		c.wide = make([]uint64, c.small.SmallScratch())
	}
	id, _ := c.small.Select(uint64(c.at))
	return c.small.Container(c.wide, id>>sliceBits)
}

// before is how many ids there are in the slices before the one at which the cursor is.
func (c *bitmapCursor) before() (n uint64) {
	if c.head.leaves == 0 {
		return uint64(c.at)
	}
	root := c.pages.at(c.head.root)
	for leaf := range min(c.leaf, int(c.head.leaves)) {
		n += entryAt(root, leaf).ids()
	}
	for i := range c.at {
		n += uint64(entryAt(c.words, i).count())
	}
	return n
}

// gatherBitmap moves blocks of a large bitmap out of sparse runs, budget words at most. The next round continues with
// the rest.
func (s *summaries) gatherBitmap(key, epoch uint32, budget int) {
	t := bitmapEditor{pages: &s.bins, epoch: epoch, head: s.record(key).bitmap()}
	move := func(had blockRef) (blockRef, bool) {
		if budget <= 0 {
			return had, false
		}
		ref, moved := s.bins.gather(had, epoch)
		if moved {
			budget -= int(s.bins.runs[ref>>8].size)
		}
		return ref, moved
	}
	// The leaf is looked up each time, since making a run private moves it.
	leafRef := func(leaf int) blockRef { return entryAt(s.bins.at(t.head.root), leaf).ref() }
	for leaf := range int(t.head.leaves) {
		if ref, moved := move(leafRef(leaf)); moved {
			entryAt(t.root(), leaf).setRef(ref)
		}
		for i := range entryAt(s.bins.at(t.head.root), leaf).count() {
			e := entryAt(s.bins.at(leafRef(leaf)), i)
			if e.inline() {
				continue
			}
			if ref, moved := move(e.ref()); moved {
				entryAt(t.leafWords(leaf), i).setRef(ref)
			}
		}
		if budget <= 0 {
			break
		}
	}
	if ref, moved := move(t.head.root); moved {
		s.edit(key, epoch).setRoot(ref)
	}
}
