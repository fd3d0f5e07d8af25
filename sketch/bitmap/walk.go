package bitmap

import "slices"

// Cursor goes through the slices of a bitmap.
type Cursor interface {
	// Seek goes to the first slice that is not below this one; often, but not always, one further on than it is. ok is
	// false if there is none.
	Seek(slice uint64) (at uint64, ok bool)
	// Container is that of the slice that Seek went to. It stays until the next Seek.
	Container() Container
}

// SliceMax is the highest slice that ids have.
const SliceMax = 1<<48 - 1

// Directory is a whole bitmap as whoever keeps it can tell: containers, none of them empty, in the order of their
// slices.
type Directory interface {
	Len() int
	Slice(i int) uint64
	Lows(i int) int // how many lows container i has, without a look at it
	Container(i int) Container
}

// DirectoryCursor is the cursor of a directory.
type DirectoryCursor struct {
	d  Directory
	at int
}

// NewDirectoryCursor is at the first slice of a directory.
func NewDirectoryCursor(d Directory) *DirectoryCursor { return &DirectoryCursor{d: d} }

// Seek looks ahead in steps that double: it costs little for a slice that is near, and no more than twice a binary
// search.
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

// Container is that of the slice that Seek went to.
func (c *DirectoryCursor) Container() Container { return c.d.Container(c.at) }

// RangeCursor is the cursor of all ids from one to another: a universe.
type RangeCursor struct {
	lo, hi, at uint64
	word       [1]uint64
}

// NewRangeCursor is at the first slice of the ids from lo to hi, both included; of none where lo is above hi.
func NewRangeCursor(lo, hi uint64) *RangeCursor { return &RangeCursor{lo: lo, hi: hi, at: lo >> 16} }

// Seek takes the slice itself, if it is one of the range's.
func (c *RangeCursor) Seek(slice uint64) (at uint64, ok bool) {
	c.at = max(c.lo>>16, slice)
	return c.at, c.lo <= c.hi && c.at <= c.hi>>16
}

// Container is that of the slice that Seek went to.
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

// none is a slice above all there are.
const none = SliceMax + 1

// Walker goes through the slices in which a program may have lows.
type Walker struct {
	p       *Program
	cursors []Cursor   // of the leaves, and of the universe
	nodes   []leafNode // that are leaves
	at      []uint64   // by node: which slice a leaf has next, none before this one that matters to the node above
	from    uint64     // what was asked for last
	last    uint64     // no slice behind it is looked for
	nexts   []uint64   // a stack
	leaves  []Container
}

// leafNode is a node of a program that is a leaf, and which.
type leafNode struct{ node, leaf int }

// NewWalker goes through whole bitmaps. Cursors are those of the leaves, and of the universe, which may be nil when the
// program asks for none.
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

// Until ends the walk with a slice: an intersection does not look behind it for one that it may have.
func (w *Walker) Until(slice uint64) { w.last = slice }

// rewind forgets what the cursors are known to have next.
func (w *Walker) rewind(slice uint64) {
	for _, n := range w.nodes {
		w.at[n.node] = w.seek(n.leaf, slice)
	}
}

// Seek goes to the first slice from this one on in which the program may have lows, and answers what to evaluate it on,
// until the next Seek. ok is false if there is none. A slice that an intersection has in some of its arguments only is
// passed over by their cursors alone. It may go back, which costs a look at each bitmap.
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

// gather takes the containers of a slice. A bitmap that is known to go on behind it is not asked.
func (w *Walker) gather(slice uint64) Inputs {
	clear(w.leaves)
	for _, n := range w.nodes {
		if w.at[n.node] < slice {
			w.at[n.node] = w.seek(n.leaf, slice)
		}
		if w.at[n.node] == slice && w.leaves[n.leaf].Count == 0 {
			w.seek(n.leaf, slice) // another node may have sent it elsewhere
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

// next is the first slice from this one on in which a node may have lows.
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
		next := w.at[arg] // of a leaf, often; it is 0 of others
		if next < slice || next == 0 {
			next = w.next(arg, slice)
		}
		least = min(least, next)
	}
	return least
}

// meet is where all arguments may have some.
func (w *Walker) meet(n *node, slice uint64) uint64 {
	for i := 0; i < len(n.args) && slice <= w.last; i++ {
		if next := w.next(n.args[i], slice); next > slice {
			slice, i = next, -1
		}
	}
	return slice
}

// meetSome is where as many arguments as it takes may have some: no slice before the one that so many have reached.
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
