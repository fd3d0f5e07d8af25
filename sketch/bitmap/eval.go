package bitmap

import (
	"math/bits"

	"github.com/ebbdb/ebb/internal/kernel"
)

// Scratch is the memory of evaluations. It grows to the need of a program: 8 KiB for each level of an expression that
// its leaves alone do not answer. The next evaluation reuses it and then allocates nothing. The zero Scratch is ready.
// Only one evaluation at a time may use it.
type Scratch struct {
	free   []*kernel.Block
	list   []*kernel.Block // a stack of dense leaves to combine
	result [DenseWords / 2]uint64
}

// Inputs are the arguments of a program for one slice: the containers of its bitmaps, where absent ones are zero
// Containers, and the universe, which only Not and Universe use.
type Inputs struct {
	Leaves   []Container
	Universe Container
}

// Count is the number of lows of the program's result in a slice. It does not build the result.
func (p *Program) Count(s *Scratch, in Inputs) int {
	e := evaluation{p: p, s: s, in: in}
	return e.count(p.root)
}

// CountRange is Count for the lows from lo to hi, both included.
func (p *Program) CountRange(s *Scratch, in Inputs, lo, hi uint16) int {
	if lo == 0 && hi == SliceLen-1 {
		return p.Count(s, in)
	}
	e := evaluation{p: p, s: s, in: in}
	v := e.eval(p.root)
	s.give(v)
	if v.block != nil {
		return countRange(v.block, lo, hi)
	}
	return v.CountRange(lo, hi)
}

// Eval is the program's result in a slice. Its words are in the scratch and valid until the next use of that, or are
// the words of a leaf.
func (p *Program) Eval(s *Scratch, in Inputs) Container {
	e := evaluation{p: p, s: s, in: in}
	v := e.eval(p.root)
	s.give(v)
	return s.settle(v)
}

// CountEach adds to counts[i] the number of lows that by[i] has in common with the program's result: one row of a
// cohort table, or the groups of a count by group.
func (p *Program) CountEach(s *Scratch, in Inputs, by []Container, counts []uint64) {
	e := evaluation{p: p, s: s, in: in}
	v := e.eval(p.root)
	for i, c := range by {
		counts[i] += uint64(andCount(v, value{Container: c}))
	}
	s.give(v)
}

// evaluation is the evaluation of a program on a slice.
type evaluation struct {
	p  *Program
	s  *Scratch
	in Inputs
}

// leaf is the container of a leaf.
func (e *evaluation) leaf(n *node) Container {
	if n.leaf == e.p.leaves {
		return e.in.Universe
	}
	return e.in.Leaves[n.leaf]
}

// leaves are the leaves among args that are not empty.
func (e *evaluation) leaves(args []int) func(yield func(c Container) bool) {
	return func(yield func(c Container) bool) {
		for _, arg := range args {
			if n := &e.p.nodes[arg]; n.op == Leaf {
				if c := e.leaf(n); c.Count > 0 && !yield(c) {
					return
				}
			}
		}
	}
}

// inner are the arguments that are not leaves.
func (e *evaluation) inner(args []int) func(yield func(at int) bool) {
	return func(yield func(at int) bool) {
		for _, arg := range args {
			if e.p.nodes[arg].op != Leaf && !yield(arg) {
				return
			}
		}
	}
}

// eval is the value of a node.
func (e *evaluation) eval(at int) value {
	n := &e.p.nodes[at]
	switch n.op {
	case Leaf:
		return value{Container: e.leaf(n)}
	case Or:
		v, _ := e.or(n, 0)
		return v
	case Xor:
		return e.xor(n)
	case AtLeast:
		return e.atLeast(n)
	}
	v, last, out := e.and(n)
	return e.s.restrict(v, last, out)
}

// count is the number of lows of a node. The last union or intersection is only counted, not written.
func (e *evaluation) count(at int) int {
	n := &e.p.nodes[at]
	var v value
	c := 0
	switch n.op {
	case Or:
		var rest []*kernel.Block
		switch v, rest = e.or(n, 2); len(rest) {
		case 2:
			c = kernel.OrCount3(v.dense(), rest[0], rest[1])
		case 1:
			c = kernel.OrCount(v.dense(), rest[0])
		default:
			c = v.count()
		}
	case And:
		var last value
		var out bool
		v, last, out = e.and(n)
		if c = andCount(v, last); out {
			c = v.count() - c
		}
		e.s.give(last)
	default:
		v = e.eval(at)
		c = v.count()
	}
	e.s.give(v)
	return c
}

// or unites the arguments of a node: first evaluated arguments, then leaves that are not dense, then dense leaves. Up
// to left dense leaves are not united but returned in rest, if there is another value for the caller to unite them
// with. rest is valid until the next evaluation.
func (e *evaluation) or(n *node, left int) (v value, rest []*kernel.Block) {
	s, from := e.s, len(e.s.list)
	defer func() { s.list = s.list[:from] }()
	var single Container // the last leaf
	some, sparse := 0, 0
	for c := range e.leaves(n.args) {
		single = c
		some++
		switch {
		case c.Full():
			return fullValue(), nil
		case c.Form == Dense:
			s.list = append(s.list, c.block())
		default:
			sparse++
		}
	}
	for arg := range e.inner(n.args) {
		if v = s.unite(v, e.eval(arg)); v.full() {
			return v, nil
		}
	}
	if some == 1 && v.empty() {
		return value{Container: single}, nil
	}
	if sparse > 0 {
		block := s.own(v)
		for c := range e.leaves(n.args) {
			if c.Form != Dense {
				Unite(block, c)
			}
		}
		v = loose(block)
	}
	list := s.list[from:]
	least := 0
	if v.empty() {
		least = 1
	}
	done := max(min(least, len(list)), len(list)-left)
	list, rest = list[:done], list[done:]
	if v.empty() && done == 1 && len(rest) > 0 {
		return value{Container: Container{Form: Dense, Words: list[0][:]}}, rest // counted in place
	}
	if v.empty() && len(list) > 0 {
		v = loose(s.take())
		if kernel.Union(v.block, list) {
			s.give(v)
			return fullValue(), nil
		}
	} else if len(list) > 0 || len(rest) > 0 {
		v = loose(s.own(v))
		if kernel.Or(v.block, list) {
			s.give(v)
			return fullValue(), nil
		}
	}
	return v, rest
}

// probeMax is the most lows of an array that are looked up in an expression one by one, instead of evaluating that.
// Such lookups touch fewer cache lines than a container has.
const probeMax = 32

// and intersects the arguments of a node, and removes the arguments in out, except the last step, which it returns. If
// a leaf is an array, only its lows are looked up in the others.
func (e *evaluation) and(n *node) (v, last value, out bool) {
	least := fullValue().Container
	for _, arg := range n.args {
		if a := &e.p.nodes[arg]; a.op == Leaf {
			c := e.leaf(a)
			if c.Count == 0 {
				return value{}, value{}, false
			}
			if c.Form == Array && c.Count < least.Count {
				least = c
			}
		}
	}
	for c := range e.leaves(n.out) {
		if c.Full() {
			return value{}, value{}, false
		}
	}
	w := restriction{s: e.s, v: value{Container: least}, last: fullValue(), from: len(e.s.list)}
	if least.Form == Array {
		e.restrictByLeaves(&w, n, least)
		e.restrictByInner(&w, n.args, false)
	} else {
		e.restrictByInner(&w, n.args, false)
		e.restrictByLeaves(&w, n, least)
	}
	e.restrictByInner(&w, n.out, true)
	w.flush()
	return w.v, w.last, w.out
}

// restrictByLeaves restricts by all leaves of a node, except the array least, which is the start value. It begins with
// the intersecting leaves that are not dense.
func (e *evaluation) restrictByLeaves(w *restriction, n *node, least Container) {
	for _, dense := range []bool{false, true} {
		for c := range e.leaves(n.args) {
			if (c.Form == Dense) == dense && &c.Words[0] != &least.Words[0] {
				w.by(value{Container: c}, false)
			}
		}
	}
	for c := range e.leaves(n.out) {
		w.by(value{Container: c}, true)
	}
}

// restrictByInner restricts by the arguments that are not leaves.
func (e *evaluation) restrictByInner(w *restriction, args []int, out bool) {
	for arg := range e.inner(args) {
		w.settle()
		switch {
		case w.v.empty():
			return
		case w.v.block == nil && w.v.Form == Array && w.v.Count <= probeMax:
			w.v = w.s.filter(w.v, func(low uint16) bool { return e.probe(arg, low) != out })
		default:
			w.by(e.eval(arg), out)
		}
	}
}

// restriction is an intersection whose last step is always pending, so that the caller may count the result without
// writing it. Before that step, several steps of one kind by blocks may be pending, to be done together.
type restriction struct {
	s       *Scratch
	v, last value
	out     bool // whether last, and the blocks on the list, are removed
	from    int  // the first of the blocks on the scratch's list
}

// by adds a pending step.
func (w *restriction) by(v value, out bool) {
	if w.out == out && w.v.dense() != nil && w.last.mem == nil && w.last.dense() != nil {
		w.s.list = append(w.s.list, w.last.dense())
	} else {
		w.settle()
	}
	w.last, w.out = v, out
}

// settle does all pending steps.
func (w *restriction) settle() {
	w.flush()
	w.v = w.s.restrict(w.v, w.last, w.out)
	w.last, w.out = fullValue(), false
}

// flush does the pending steps by blocks.
func (w *restriction) flush() {
	list := w.s.list[w.from:]
	if len(list) == 0 {
		return
	}
	w.s.list = w.s.list[:w.from]
	block, empty := w.s.own(w.v), false
	if w.out {
		empty = kernel.AndNot(block, list)
	} else {
		empty = kernel.And(block, list)
	}
	w.v = loose(block)
	if empty {
		w.s.give(w.v)
		w.v = value{}
	}
}

// probe says whether low is in a node's value, without evaluating it.
func (e *evaluation) probe(at int, low uint16) bool {
	n := &e.p.nodes[at]
	if n.op == Leaf {
		return e.leaf(n).Contains(low)
	}
	in := 0
	for i, arg := range n.args {
		if e.probe(arg, low) {
			if in++; n.op == Or || n.op == AtLeast && in == n.t {
				return true
			}
		} else if n.op == And {
			return false
		} else if n.op == AtLeast && in+len(n.args)-1-i < n.t {
			return false
		}
	}
	if n.op != And {
		return n.op == Xor && in%2 == 1
	}
	for _, arg := range n.out {
		if e.probe(arg, low) {
			return false
		}
	}
	return true
}

func (e *evaluation) xor(n *node) value {
	s := e.s
	var v value
	for arg := range e.inner(n.args) {
		v = s.flip(v, e.eval(arg))
	}
	for c := range e.leaves(n.args) {
		v = s.flip(v, value{Container: c})
	}
	return v
}

// atLeast counts, for each low, the arguments that have it, in bit planes of blocks: first the dense leaves, eight at a
// time, then the other arguments, written as blocks, also eight at a time.
func (e *evaluation) atLeast(n *node) value {
	s, t, from := e.s, n.t, len(e.s.list)
	defer func() { s.list = s.list[:from] }()
	some := 0
	for c := range e.leaves(n.args) {
		if c.Full() {
			t--
			continue
		}
		some++
		if c.Form == Dense {
			s.list = append(s.list, c.block())
		}
	}
	for range e.inner(n.args) {
		some++
	}
	switch {
	case t <= 0:
		return fullValue()
	case some < t:
		return value{}
	}
	var room [maxPlanes]*kernel.Block
	k := keeper{s: s, planes: room[:0], from: len(s.list)}
	for range max(4, bits.Len(uint(some))) {
		plane := s.take()
		clear(plane[:])
		k.planes = append(k.planes, plane)
	}
	k.planes.Add(s.list[from:])
	for c := range e.leaves(n.args) {
		if c.Form != Dense && !c.Full() {
			k.add(value{Container: c})
		}
	}
	for arg := range e.inner(n.args) {
		k.add(e.eval(arg))
	}
	k.flush()
	result := s.take()
	k.planes.AtLeast(result, uint(t))
	s.free = append(s.free, k.planes...)
	return loose(result)
}

// maxPlanes is the number of bits needed to count to MaxTerms.
const maxPlanes = 17

// keeper counts values; it collects up to eight of them before it adds them to the planes.
type keeper struct {
	s      *Scratch
	planes kernel.Counters
	from   int // the first of its blocks on the scratch's list
}

func (k *keeper) add(v value) {
	if v.empty() {
		return
	}
	k.s.list = append(k.s.list, k.s.own(v))
	if len(k.s.list)-k.from == 8 {
		k.flush()
	}
}

func (k *keeper) flush() {
	blocks := k.s.list[k.from:]
	k.planes.Add(blocks)
	k.s.free = append(k.s.free, blocks...)
	k.s.list = k.s.list[:k.from]
}
