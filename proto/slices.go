package proto

import (
	"encoding/binary"
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// In a namespace whose bitmaps are placed by slice, a bitmap is stored as several keys. The key with the bitmap's own
// name is in its home, the shard of its key, and holds one id: the number of the bitmap (its generation), drawn at
// random when the bitmap was made. The ids of the bitmap are stored under the name of its part, each in the shard of
// its slice (see SliceShardOf):
//
//	home        key                    { number }
//	a slice's   0 number (8) key       the ids of the bitmap whose slices are there
//
// number is big endian. So one entry in the log of the home makes a bitmap, removes it, or gives it other ids.

// PartKeyLenMax is the longest key of a bitmap in a namespace with placement by slice: the names of its parts must be
// keys, too.
const PartKeyLenMax = KeyLenMax - partHead

const partHead = 9

// BySlice says whether the bitmaps of a namespace are placed by slice.
func BySlice(ns *ebbv1.Namespace) bool {
	return ns.GetBitmapPlacement() == ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE
}

// PartName is the name of the parts of a bitmap. The number 0 is never used.
func PartName(number uint64, key []byte) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 1, partHead+len(key)), number)
	return append(b, key...)
}

// IsPartName says whether a name is the name of a part, not of another key.
func IsPartName(name []byte) bool { return len(name) > partHead && name[0] == 0 }

// PartOf splits the name of a part into its number and key. For any other key it returns 0 and the key itself.
func PartOf(name []byte) (number uint64, key []byte) {
	if !IsPartName(name) {
		return 0, name
	}
	return binary.BigEndian.Uint64(name[1:]), name[partHead:]
}

const (
	// SliceLeaseUS is how long an operation under a number may take, by the clock of the caller and by the clocks of
	// the shards.
	SliceLeaseUS = 30_000_000
	// SliceSweepUS is the time, by the clocks of the shards, after which the parts of a number that no home names are
	// removed. By then no operation begun before is still running, as long as clocks differ by less than SliceSweepUS
	// minus SliceLeaseUS.
	SliceSweepUS = 120_000_000
	// OrphansMax is the most numbers that a shard may have to sweep; at the limit it accepts no more bitmaps to store.
	OrphansMax = 1 << 20
	// HomeSweptMax is how many swept numbers one command may report.
	HomeSweptMax = 1_000
)

func checkHomeCommand(raw []byte) *Error {
	var c ebbv1.HomeCommand
	if err := Decode(raw, &c); err != nil {
		return err
	}
	return CheckHome(&c)
}

// CheckHome checks everything about the command that does not depend on state.
func CheckHome(c *ebbv1.HomeCommand) *Error {
	var n *ebbv1.HomeNumber
	switch what := c.GetWhat().(type) {
	case *ebbv1.HomeCommand_Reserve:
		n = what.Reserve
	case *ebbv1.HomeCommand_Put:
		n = what.Put.GetNumber()
	case *ebbv1.HomeCommand_Swept:
		if k := len(what.Swept.GetNumbers()); k == 0 || k > HomeSweptMax {
			return ErrBadCount.Errorf("%d numbers: a command says of 1 to %d that they are swept", k, HomeSweptMax)
		}
		return nil
	}
	if n.GetNumber() == 0 {
		return ErrBadRequest.Errorf("a command about the number of a bitmap that names none")
	}
	return CheckSliceKey(n.GetKey())
}

// homeGrows says whether a command about numbers of bitmaps makes the home shard larger: a reserved number is stored,
// and a put may make a key.
func homeGrows(body []byte) bool {
	var c ebbv1.HomeCommand
	return Decode(body, &c) == nil && (c.GetReserve() != nil || c.GetPut().GetCount() > 0)
}

// CheckSliceKey refuses keys that no bitmap in a namespace with placement by slice may have.
func CheckSliceKey(key []byte) *Error {
	switch {
	case len(key) > PartKeyLenMax:
		return ErrBadKey.Errorf("key of %d bytes: the limit is %d where bitmaps are placed by slice", len(key), PartKeyLenMax)
	case len(key) > 0 && key[0] == 0:
		return ErrBadKey.Errorf("key %q begins with a zero byte: where bitmaps are placed by slice, parts of them do", key)
	}
	return CheckKey(key)
}

// EditPieces splits a change into edits by the shard of their slices, ordered by shard. The pieces have no key.
func EditPieces(namespace string, c *ebbv1.BitChange, shards uint32) []EditPiece {
	by := map[uint32]*EditPiece{}
	at := func(slice uint64) *EditPiece {
		shard := SliceShardOf(namespace, slice, shards)
		if by[shard] == nil {
			by[shard] = &EditPiece{Shard: shard, Named: len(c.GetNames()) > 0}
		}
		return by[shard]
	}
	if r := c.GetRange(); r != nil {
		for slice := r.GetFirst() >> BitSliceBits; slice <= r.GetLast()>>BitSliceBits; slice++ {
			p := at(slice)
			p.Ranges = append(p.Ranges, &ebbv1.BitRange{First: max(r.GetFirst(), slice<<BitSliceBits), Last: min(r.GetLast(), slice<<BitSliceBits|(1<<BitSliceBits-1))})
		}
	}
	for ids := ascending(c.GetIds()); len(ids) > 0; {
		slice, n := ids[0]>>BitSliceBits, 1
		for n < len(ids) && ids[n]>>BitSliceBits == slice {
			n++
		}
		p := at(slice)
		if p.IDs == nil {
			p.IDs = ids[:n:n]
		} else {
			p.IDs = append(p.IDs, ids[:n]...)
		}
		ids = ids[n:]
	}
	out := make([]EditPiece, 0, len(by))
	for _, p := range by {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b EditPiece) int { return int(a.Shard) - int(b.Shard) })
	return out
}

// EditPiece is the part of a change for one shard: ascending ids, or ranges.
type EditPiece struct {
	Shard  uint32
	Named  bool // the ids stand for strings
	IDs    []uint64
	Ranges []*ebbv1.BitRange
}

// Edits are the edits of the piece, for a bitmap with this name.
func (p *EditPiece) Edits(name []byte, op ebbv1.BitOp) *ebbv1.BitEdits {
	out := &ebbv1.BitEdits{}
	if len(p.IDs) > 0 {
		out.Edits = append(out.Edits, &ebbv1.BitEdit{Key: name, Op: op, Ids: AppendBitIDs(nil, p.IDs), Named: p.Named})
	}
	for _, r := range p.Ranges {
		out.Edits = append(out.Edits, &ebbv1.BitEdit{Key: name, Op: op, Range: r})
	}
	return out
}

// checkBitmapSettings checks the settings of a definition about bitmaps.
func checkBitmapSettings(ns *ebbv1.Namespace) *Error {
	if u := ns.GetUniverse(); len(u) > 0 {
		if err := CheckKey(u); err != nil {
			return ErrBadNamespace.Errorf("universe: %s", err.Message)
		}
	}
	for i, unit := range ns.GetRollups().GetUnits() {
		switch name := PeriodName(unit); {
		case name == "":
			return ErrBadNamespace.Errorf("rollups: unit %d is unknown: day, week, month, quarter or year", unit)
		case slices.Contains(ns.GetRollups().GetUnits()[:i], unit):
			return ErrBadNamespace.Errorf("rollups: %s is named twice", name)
		}
	}
	if !BySlice(ns) {
		return nil
	}
	switch {
	case ns.GetDecay() == ebbv1.Decay_DECAY_LINEAR:
		return ErrBadNamespace.Errorf("bitmap placement slice: a namespace under linear decay holds distributions only")
	case ns.GetSlowHalfLifeUs() != 0:
		return ErrBadNamespace.Errorf("bitmap placement slice: such a namespace holds bitmaps only, which have no half-lives to compare")
	}
	if u := ns.GetUniverse(); len(u) > 0 {
		return CheckSliceKey(u)
	}
	return nil
}

// PeriodName is the name of a unit of roll-ups; "" for an unknown unit.
func PeriodName(unit ebbv1.Period) string {
	return map[ebbv1.Period]string{
		ebbv1.Period_PERIOD_DAY: "day", ebbv1.Period_PERIOD_WEEK: "week", ebbv1.Period_PERIOD_MONTH: "month",
		ebbv1.Period_PERIOD_QUARTER: "quarter", ebbv1.Period_PERIOD_YEAR: "year",
	}[unit]
}

// WithUniverse returns the expression with the universe of the namespace in each `not` that has no universe of its own.
// It returns x itself when there is nothing to change. It returns ErrBadRequest if the namespace has no universe.
func WithUniverse(x *ebbv1.BitmapExpr, ns *ebbv1.Namespace) (*ebbv1.BitmapExpr, *Error) {
	if !lacksUniverse(x) {
		return x, nil
	}
	if len(ns.GetUniverse()) == 0 {
		return nil, ErrBadRequest.Errorf("not without a universe: namespace %s has none", ns.GetName()).
			WithHint("name a bitmap of all ids: ebb namespace set " + ns.GetName() + " --universe KEY, or say what to leave them out of: a - b")
	}
	return RewriteExpr(x, func(x *ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
		if n := x.GetNot(); n != nil && n.GetUniverse() == nil {
			return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Not{Not: &ebbv1.BitmapNot{Of: n.GetOf(), Universe: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: ns.GetUniverse()}}}}}
		}
		return x
	}), nil
}

func lacksUniverse(x *ebbv1.BitmapExpr) bool {
	if n := x.GetNot(); n != nil && n.GetUniverse() == nil {
		return true
	}
	return slices.ContainsFunc(ExprTerms(x), lacksUniverse)
}

// RewriteExpr copies an expression. It replaces each part by the result of rewrite, inner parts first.
func RewriteExpr(x *ebbv1.BitmapExpr, rewrite func(*ebbv1.BitmapExpr) *ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	list := func(of []*ebbv1.BitmapExpr) []*ebbv1.BitmapExpr {
		out := make([]*ebbv1.BitmapExpr, len(of))
		for i := range of {
			out[i] = RewriteExpr(of[i], rewrite)
		}
		return out
	}
	out := &ebbv1.BitmapExpr{Expr: x.GetExpr()}
	switch e := x.GetExpr().(type) {
	case *ebbv1.BitmapExpr_Or:
		out.Expr = &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: list(e.Or.GetOf())}}
	case *ebbv1.BitmapExpr_And:
		out.Expr = &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: list(e.And.GetOf())}}
	case *ebbv1.BitmapExpr_AndNot:
		out.Expr = &ebbv1.BitmapExpr_AndNot{AndNot: &ebbv1.BitmapExprs{Of: list(e.AndNot.GetOf())}}
	case *ebbv1.BitmapExpr_Xor:
		out.Expr = &ebbv1.BitmapExpr_Xor{Xor: &ebbv1.BitmapExprs{Of: list(e.Xor.GetOf())}}
	case *ebbv1.BitmapExpr_AtLeast:
		out.Expr = &ebbv1.BitmapExpr_AtLeast{AtLeast: &ebbv1.BitmapAtLeast{Times: e.AtLeast.GetTimes(), Of: list(e.AtLeast.GetOf())}}
	case *ebbv1.BitmapExpr_Not:
		not := &ebbv1.BitmapNot{Of: RewriteExpr(e.Not.GetOf(), rewrite)}
		if e.Not.GetUniverse() != nil {
			not.Universe = RewriteExpr(e.Not.GetUniverse(), rewrite)
		}
		out.Expr = &ebbv1.BitmapExpr_Not{Not: not}
	}
	return rewrite(out)
}
