package shard

import (
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// CachedUnion is the union of the bitmaps of a span, in memory of its own. It does not change when the bitmaps do: the
// UnionCache detects that it is out of date.
type CachedUnion struct {
	windowID
	versions   []BitmapVersion
	containers containers
	chunks     [][]uint64 // in which they lie
	used       int        // words of the last one
}

const (
	unionPages = 16  // of a chunk
	unionSlot  = 56  // bytes of a looseSlice
	unionTerm  = 16  // bytes of a BitmapVersion
	unionHead  = 512 // bytes of the rest: itself, the name of its family, and where the UnionCache has it
)

// Bytes is how much memory it takes.
func (u *CachedUnion) Bytes() int {
	return 8*unionPages*PageWords*len(u.chunks) + unionSlot*cap(u.containers) + unionTerm*len(u.versions) + unionHead
}

// add copies a container.
func (u *CachedUnion) add(mem Memory, slice uint64, c bitmap.Container) {
	n := len(c.Words)
	if len(u.chunks) == 0 || u.used+n > unionPages*PageWords {
		u.chunks, u.used = append(u.chunks, mem.Run(unionPages)), 0
	}
	words := u.chunks[len(u.chunks)-1][u.used : u.used+n : u.used+n]
	u.used += n
	copy(words, c.Words)
	c.Words = words
	u.containers = append(u.containers, looseSlice{slice, c})
}

// free gives back the memory. Holders of that memory, see Memory.Hold, can still read it.
func (u *CachedUnion) free(mem Memory) {
	for _, chunk := range u.chunks {
		mem.FreeRun(chunk)
	}
}

// PlannedUnion is a union to be made, of some periods of a window, with the help of existing unions.
type PlannedUnion struct {
	Window *Window
	Span
	Of  []*CachedUnion
	Max int // the largest number of bytes that it may take
}

// BuildUnion makes a union of bitmaps as of at, the time of the window's question. It returns nil if the union would
// take more than d.Max bytes.
func (v *View) BuildUnion(d *PlannedUnion, at sketch.Tick, mem Memory) *CachedUnion {
	w, from := d.Window, d.First-d.Window.First
	ns := v.lookup([]byte(w.Namespace))
	u := &CachedUnion{windowID: windowID{w.Family, d.Span}, versions: slices.Clone(w.versionsOf(d.Span))}
	or := &ebbv1.BitmapExprs{}
	for _, key := range w.keys[from : from+int64(d.Len)] {
		or.Of = append(or.Of, &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: key}})
	}
	at = v.evaluation(ns, 0, at)
	named := v.bitmapsOf(w.Namespace, ns, at)
	named.united = (&periods{f: &v.frame, ns: ns, at: at, unions: map[windowID][]*CachedUnion{u.windowID: d.Of}}).united
	x, err := compileBitmap(&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: or}}, named)
	if err != nil {
		return nil
	}
	x.eachSlice(idSpan{0, 1<<64 - 1}, func(slice uint64, _, _ uint16) bool {
		if c := x.container(); c.Count > 0 {
			u.add(mem, slice, c)
		}
		return u.Bytes() <= d.Max
	})
	if u.Bytes() > d.Max {
		u.free(mem)
		return nil
	}
	return u
}
