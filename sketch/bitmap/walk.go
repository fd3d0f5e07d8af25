package bitmap

import "slices"

// Cursor iterates over the slices of a bitmap.
type Cursor interface {
	// Seek moves to the first slice that is at least slice, usually not far from the present one. ok is false if there
	// is none.
	Seek(slice uint64) (at uint64, ok bool)
	// Container is the container of the slice that Seek moved to. It is valid until the next Seek.
	Container() Container
}

// SliceMax is the highest slice of an id.
const SliceMax = 1<<48 - 1

// Directory is a whole bitmap in the caller's memory: containers, none of them empty, in the order of their slices.
type Directory interface {
	Len() int
	Slice(i int) uint64
	Lows(i int) int // the number of lows of container i, without reading the container
	Container(i int) Container
}

// DirectoryCursor is the Cursor of a Directory.
type DirectoryCursor struct {
	d  Directory
	at int
}

// NewDirectoryCursor returns a cursor at the first slice of a directory.
func NewDirectoryCursor(d Directory) *DirectoryCursor { return &DirectoryCursor{d: d} }

// Seek searches forward in steps that double: it is cheap for a near slice, and takes at most twice a binary search.
func (c *DirectoryCursor) Seek(slice uint64) (at uint64, ok bool) {
	n, from := c.d.Len(), c.at
	if from == n || c.d.Slice(from) > slice {
		from = 0
		if c.at > 0 && c.d.Slice(c.at-1) < slice {
			from = c.at
		}
	}
	to := from
	for step := 1; to < n && c.d.Slice(to) < slice; step *= 2 {
		from, to = to+1, min(to+step, n)
	}
	for from < to {
		if mid := int(uint(from+to) / 2); c.d.Slice(mid) < slice {
			from = mid + 1
		} else {
			to = mid
		}
	}
	if c.at = from; from == n {
		return 0, false
	}
	return c.d.Slice(from), true
}

// Container is the container of the slice that Seek moved to.
func (c *DirectoryCursor) Container() Container { return c.d.Container(c.at) }

// RangeCursor is the Cursor of all ids in a range: a universe.
type RangeCursor struct {
	lo, hi, at uint64
	word       [1]uint64
}

// NewRangeCursor returns a cursor at the first slice of the ids from lo to hi, both included; an empty one if lo is
// above hi.
func NewRangeCursor(lo, hi uint64) *RangeCursor { return &RangeCursor{lo: lo, hi: hi, at: lo >> 16} }

// Seek moves to slice, or to the first slice of the range if that is higher.
func (c *RangeCursor) Seek(slice uint64) (at uint64, ok bool) {
	c.at = max(c.lo>>16, slice)
	return c.at, c.lo <= c.hi && c.at <= c.hi>>16
}

// Container is the container of the slice that Seek moved to.
func (c *RangeCursor) Container() Container {
	first, last := uint16(0), uint16(SliceLen-1)
	if c.at == c.lo>>16 {
		first = uint16(c.lo)
	}
	if c.at == c.hi>>16 {
		last = uint16(c.hi)
	}
	return RangeContainer(c.word[:], first, last)
}

// none is a slice above all slices.
const none = SliceMax + 1

// Walker iterates over the slices in which a program may have lows.
type Walker struct {
	p       *Program
	cursors []Cursor   // of the leaves, then of the universe
	nodes   []leafNode // the nodes that are leaves
	at      []uint64   // by node: the next slice of a leaf; its parent needs no earlier one
	from    uint64     // the slice of the last Seek
	last    uint64     // no later slice is searched
	nexts   []uint64   // a stack
	leaves  []Container
}

// leafNode is a node that is a leaf, and the number of the leaf.
type leafNode struct{ node, leaf int }

// NewWalker iterates over whole bitmaps. cursors are the cursors of the leaves. universe is the cursor of the universe;
// it may be nil if the program does not use it.
func (p *Program) NewWalker(cursors []Cursor, universe Cursor) *Walker {
	if universe == nil {
		universe = NewRangeCursor(1, 0)
	}
	w := &Walker{
		p: p, cursors: append(slices.Clone(cursors[:p.leaves]), universe), at: make([]uint64, len(p.nodes)), last: SliceMax, leaves: make([]Container, p.leaves+1), nodes: make([]leafNode, 0, len(p.nodes)),
	}
	for i, n := range p.nodes {
		if n.op == Leaf {
			w.nodes = append(w.nodes, leafNode{i, n.leaf})
		}
	}
	w.rewind(0)
	return w
}

// Until sets the last slice of the walk, so that an intersection does not search for a common slice after it.
func (w *Walker) Until(slice uint64) { w.last = slice }

// rewind seeks all cursors again.
func (w *Walker) rewind(slice uint64) {
	for _, n := range w.nodes {
		w.at[n.node] = w.seek(n.leaf, slice)
	}
}

// Seek moves to the first slice from slice on in which the program may have lows. It returns the inputs for an
// evaluation there, valid until the next Seek. ok is false if there is none. A slice that only some arguments of an
// intersection have costs only moves of their cursors. Seek may go back, which costs a seek in each bitmap.
func (w *Walker) Seek(slice uint64) (at uint64, in Inputs, ok bool) {
	if slice < w.from {
		w.rewind(slice)
	}
	w.from = slice
	if slice > w.last {
		return 0, in, false
	}
	if at = w.next(w.p.root, slice); at > w.last {
		return 0, in, false
	}
	return at, w.gather(at), true
}

// gather collects the containers of a slice. It does not ask a cursor that is known to be after the slice.
func (w *Walker) gather(slice uint64) Inputs {
	clear(w.leaves)
	for _, n := range w.nodes {
		if w.at[n.node] < slice {
			w.at[n.node] = w.seek(n.leaf, slice)
		}
		if w.at[n.node] == slice && w.leaves[n.leaf].Count == 0 {
			w.seek(n.leaf, slice) // another node may have moved the cursor
			w.leaves[n.leaf] = w.cursors[n.leaf].Container()
		}
	}
	return Inputs{Leaves: w.leaves[:w.p.leaves], Universe: w.leaves[w.p.leaves]}
}

func (w *Walker) seek(i int, slice uint64) uint64 {
	if at, ok := w.cursors[i].Seek(slice); ok {
		return at
	}
	return none
}

// next is the first slice from slice on in which a node may have lows.
func (w *Walker) next(at int, slice uint64) uint64 {
	n := &w.p.nodes[at]
	switch n.op {
	case Leaf:
		if w.at[at] < slice {
			w.at[at] = w.seek(n.leaf, slice)
		}
		return w.at[at]
	case And:
		return w.meet(n, slice)
	case AtLeast:
		return w.meetSome(n, slice)
	}
	least := uint64(none)
	for _, arg := range n.args {
		next := w.at[arg] // often the slice of a leaf; 0 for other nodes
		if next < slice || next == 0 {
			next = w.next(arg, slice)
		}
		least = min(least, next)
	}
	return least
}

// meet is the first slice from slice on in which all arguments may have lows.
func (w *Walker) meet(n *node, slice uint64) uint64 {
	for i := 0; i < len(n.args) && slice <= w.last; i++ {
		if next := w.next(n.args[i], slice); next > slice {
			slice, i = next, -1
		}
	}
	return slice
}

// meetSome is the first slice from slice on in which at least t arguments may have lows.
func (w *Walker) meetSome(n *node, slice uint64) uint64 {
	from := len(w.nexts)
	defer func() { w.nexts = w.nexts[:from] }()
	for {
		for _, arg := range n.args {
			w.nexts = append(w.nexts, w.next(arg, slice))
		}
		list := w.nexts[from:]
		slices.Sort(list)
		w.nexts = w.nexts[:from]
		next := list[n.t-1]
		if next == slice || next > w.last {
			return next
		}
		slice = next
	}
}
