package shard

import (
	"cmp"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// bitmapNames finds bitmaps for expressions.
type bitmapNames struct {
	of  func(key []byte) (bitmap.Cursor, error)
	own func(all bitmap.Cursor, shards uint32) bitmap.Cursor // the part of all in this shard; nil outside of a shard
	// united returns unions that replace some of the arguments of a union, and the other arguments; nil if there are
	// none.
	united func(of []*ebbv1.BitmapExpr) (unions []bitmap.Cursor, rest []*ebbv1.BitmapExpr)
}

// bitmapExpr is an expression to be evaluated slice by slice.
type bitmapExpr struct {
	root    bitmap.Expr
	terms   []bitmap.Cursor // its leaves
	program *bitmap.Program
	walker  *bitmap.Walker
	in      bitmap.Inputs // of the present slice
	scratch bitmap.Scratch
}

// compileBitmap prepares an expression. A key that is named twice is one term.
func compileBitmap(x *ebbv1.BitmapExpr, named bitmapNames) (*bitmapExpr, error) {
	b := &bitmapExpr{terms: make([]bitmap.Cursor, 0, termsExpected)}
	known := make(map[string]int, termsExpected)
	var build func(x *ebbv1.BitmapExpr) (bitmap.Expr, error)
	add := func(t bitmap.Cursor) bitmap.Expr {
		b.terms = append(b.terms, t)
		return bitmap.Expr{Leaf: len(b.terms) - 1}
	}
	list := func(op bitmap.Logic, of []*ebbv1.BitmapExpr) (bitmap.Expr, error) {
		n := bitmap.Expr{Op: op}
		if op == bitmap.Or && named.united != nil {
			var unions []bitmap.Cursor
			unions, of = named.united(of)
			for _, t := range unions {
				n.Args = append(n.Args, add(t))
			}
		}
		n.Args = slices.Grow(n.Args, len(of))
		for _, x := range of {
			sub, err := build(x)
			if err != nil {
				return n, err
			}
			n.Args = append(n.Args, sub)
		}
		if len(n.Args) == 1 && op != bitmap.AtLeast {
			return n.Args[0], nil
		}
		return n, nil
	}
	build = func(x *ebbv1.BitmapExpr) (bitmap.Expr, error) {
		switch e := x.GetExpr().(type) {
		case *ebbv1.BitmapExpr_Key:
			if i, ok := known[string(e.Key)]; ok {
				return bitmap.Expr{Leaf: i}, nil
			}
			t, err := named.of(e.Key)
			if err != nil {
				return bitmap.Expr{}, err
			}
			known[string(e.Key)] = len(b.terms)
			return add(t), nil
		case *ebbv1.BitmapExpr_Range, *ebbv1.BitmapExpr_Containers:
			c, err := givenIDs(x)
			if err != nil {
				return bitmap.Expr{}, err
			}
			return add(c), nil
		case *ebbv1.BitmapExpr_Own:
			c, err := givenIDs(e.Own.GetOf())
			if err != nil || named.own == nil || e.Own.GetShards() == 0 {
				return bitmap.Expr{}, cmp.Or[error](err, proto.ErrBadRequest.Errorf("own: only a shard has ids of its own"))
			}
			return add(named.own(c, e.Own.GetShards())), nil
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
			n.T = int(e.AtLeast.GetTimes())
			return n, err
		}
		return bitmap.Expr{}, proto.ErrBadRequest.Errorf("an expression about bitmaps without terms")
	}
	var err error
	if b.root, err = build(x); err != nil {
		return nil, err
	}
	if b.program, err = bitmap.Compile(b.root, len(b.terms)); err != nil {
		return nil, proto.ErrBadRequest.Errorf("%v", err)
	}
	b.walker = b.program.NewWalker(b.terms, nil)
	return b, nil
}

// givenIDs returns the ids that an expression holds itself.
func givenIDs(x *ebbv1.BitmapExpr) (bitmap.Cursor, error) {
	if r := x.GetRange(); r != nil {
		return bitmap.NewRangeCursor(r.GetFirst(), r.GetLast()), nil
	}
	d, err := decodeContainers(x.GetContainers())
	if err != nil {
		return nil, err
	}
	return bitmap.NewDirectoryCursor(d), nil
}

// seek moves to the first slice, from this one on, in which there may be ids, and returns it.
func (b *bitmapExpr) seek(slice uint64) (at uint64, ok bool) {
	at, b.in, ok = b.walker.Seek(slice)
	return at, ok
}

// countRange is how many ids there are in the present slice, from lo to hi.
func (b *bitmapExpr) countRange(lo, hi uint16) int {
	return b.program.CountRange(&b.scratch, b.in, lo, hi)
}

// container is the value of the expression in the present slice. It is valid until the next slice is evaluated.
func (b *bitmapExpr) container() bitmap.Container {
	return b.program.Eval(&b.scratch, b.in)
}
