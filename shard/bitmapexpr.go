package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// bitmapTerm is one bitmap that an expression names, slice by slice. It goes forward only.
type bitmapTerm interface {
	// seek goes to the first slice that is not below this one, and answers which that is.
	seek(slice uint64) (at uint64, ok bool)
	// container is the one at which the term is, until it goes on.
	container() bitmap.Container
}

// bitmapExpr is an expression to be evaluated slice by slice: from the lowest slice to the highest.
type bitmapExpr struct {
	root  bitmapNode
	terms []bitmapTerm
	// leaves are the containers of the present slice, by term; the zero Container where there is none.
	leaves  []bitmap.Container
	at      []uint64 // the slice at which each term is; noSlice behind its last
	program *bitmap.Program
	scratch bitmap.Scratch
}

// noSlice is above all slices.
const noSlice = sliceMax + 1

type bitmapNode struct {
	op    bitmap.Logic // Leaf, Or, And, AndNot, Xor or AtLeast
	term  int          // of a leaf
	times int          // of AtLeast
	of    []bitmapNode
}

// expr is the node for bitmap.Compile.
func (n *bitmapNode) expr() bitmap.Expr {
	out := bitmap.Expr{Op: n.op, Leaf: n.term, T: n.times}
	for i := range n.of {
		out.Args = append(out.Args, n.of[i].expr())
	}
	return out
}

// compileBitmap makes an expression ready. named finds the bitmap of a key; one that is named twice is one term.
func compileBitmap(x *ebbv1.BitmapExpr, named func(key []byte) (bitmapTerm, error)) (*bitmapExpr, error) {
	b := &bitmapExpr{}
	known := map[string]int{}
	var build func(x *ebbv1.BitmapExpr) (bitmapNode, error)
	list := func(op bitmap.Logic, of []*ebbv1.BitmapExpr) (bitmapNode, error) {
		n := bitmapNode{op: op}
		for _, x := range of {
			sub, err := build(x)
			if err != nil {
				return n, err
			}
			n.of = append(n.of, sub)
		}
		if len(n.of) == 1 && op != bitmap.AtLeast {
			return n.of[0], nil
		}
		return n, nil
	}
	add := func(t bitmapTerm) bitmapNode {
		b.terms = append(b.terms, t)
		return bitmapNode{op: bitmap.Leaf, term: len(b.terms) - 1}
	}
	build = func(x *ebbv1.BitmapExpr) (bitmapNode, error) {
		switch e := x.GetExpr().(type) {
		case *ebbv1.BitmapExpr_Key:
			if i, ok := known[string(e.Key)]; ok {
				return bitmapNode{op: bitmap.Leaf, term: i}, nil
			}
			t, err := named(e.Key)
			if err != nil {
				return bitmapNode{}, err
			}
			known[string(e.Key)] = len(b.terms)
			return add(t), nil
		case *ebbv1.BitmapExpr_Range:
			return add(&rangeTerm{first: e.Range.GetFirst(), last: e.Range.GetLast()}), nil
		case *ebbv1.BitmapExpr_Or:
			return list(bitmap.Or, e.Or.GetOf())
		case *ebbv1.BitmapExpr_And:
			return list(bitmap.And, e.And.GetOf())
		case *ebbv1.BitmapExpr_AndNot:
			return list(bitmap.AndNot, e.AndNot.GetOf())
		case *ebbv1.BitmapExpr_Xor:
			return list(bitmap.Xor, e.Xor.GetOf())
		case *ebbv1.BitmapExpr_Not:
			return list(bitmap.AndNot, []*ebbv1.BitmapExpr{e.Not.GetUniverse(), e.Not.GetOf()})
		case *ebbv1.BitmapExpr_AtLeast:
			n, err := list(bitmap.AtLeast, e.AtLeast.GetOf())
			n.times = int(e.AtLeast.GetTimes())
			return n, err
		}
		return bitmapNode{}, proto.ErrBadRequest.Errorf("an expression about bitmaps without terms")
	}
	var err error
	if b.root, err = build(x); err != nil {
		return nil, err
	}
	b.leaves, b.at = make([]bitmap.Container, len(b.terms)), make([]uint64, len(b.terms))
	if b.program, err = bitmap.Compile(b.root.expr(), len(b.terms)); err != nil {
		return nil, proto.ErrBadRequest.Errorf("%v", err)
	}
	return b, nil
}

// seek goes to the first slice from this one on in which there may be ids, and answers which that is.
func (b *bitmapExpr) seek(slice uint64) (at uint64, ok bool) {
	if slice > sliceMax {
		return 0, false
	}
	at = b.candidate(&b.root, slice)
	if at == noSlice {
		return 0, false
	}
	for i := range b.terms {
		b.leaves[i] = bitmap.Container{}
		if b.reach(i, at) == at {
			b.leaves[i] = b.terms[i].container()
		}
	}
	return at, true
}

// reach is the first slice of a term that is not below this one.
func (b *bitmapExpr) reach(term int, slice uint64) uint64 {
	if at := b.at[term]; at == noSlice || at > slice {
		return at
	}
	at, ok := b.terms[term].seek(slice)
	if !ok {
		at = noSlice
	}
	b.at[term] = at
	return at
}

// candidate is the first slice that is not below this one in which a node may have ids.
func (b *bitmapExpr) candidate(n *bitmapNode, slice uint64) uint64 {
	switch n.op {
	case bitmap.Leaf:
		return b.reach(n.term, slice)
	case bitmap.AndNot:
		return b.candidate(&n.of[0], slice)
	case bitmap.And:
		for i := 0; i < len(n.of); i++ {
			at := b.candidate(&n.of[i], slice)
			if at == noSlice {
				return at
			}
			if at > slice {
				slice = at
				if i > 0 {
					i = -1 // the others have to come along
				}
			}
		}
		return slice
	}
	first := uint64(noSlice)
	for i := range n.of {
		first = min(first, b.candidate(&n.of[i], slice))
		if first == slice {
			break
		}
	}
	return first
}

// countRange is how many ids there are in the present slice, from lo to hi.
func (b *bitmapExpr) countRange(lo, hi uint16) int {
	return b.program.CountRange(&b.scratch, bitmap.Inputs{Leaves: b.leaves}, lo, hi)
}

// container is what the expression is in the present slice, until the next is evaluated.
func (b *bitmapExpr) container() bitmap.Container {
	return b.program.Eval(&b.scratch, bitmap.Inputs{Leaves: b.leaves})
}

// rangeTerm is all ids from first to last.
type rangeTerm struct {
	first, last uint64
	slice       uint64
	words       [1]uint64
}

func (r *rangeTerm) seek(slice uint64) (at uint64, ok bool) {
	r.slice = max(slice, r.first>>sliceBits)
	return r.slice, r.slice <= r.last>>sliceBits
}

func (r *rangeTerm) container() bitmap.Container {
	lo, hi := r.bounds(r.slice)
	return bitmap.RangeContainer(r.words[:], lo, hi)
}

// bounds are the first and the last low of a slice that are in the range.
func (r *rangeTerm) bounds(slice uint64) (lo, hi uint16) {
	hi = bitmap.SliceLen - 1
	if slice == r.first>>sliceBits {
		lo = uint16(r.first)
	}
	if slice == r.last>>sliceBits {
		hi = uint16(r.last)
	}
	return lo, hi
}
