package proto

import (
	"encoding/binary"
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// In a namespace whose bitmaps are placed by slice a bitmap is several keys of shards. Its own name stands in its home,
// the shard of its key, and holds one id: its number, drawn at random when it was made. Its ids lie under the name of
// their part, each in the shard of its slice (see SliceShardOf):
//
//	home        key                    { number }
//	a slice's   0 number (8) key       the ids of the bitmap whose slices are there
//
// number is big endian. So a bitmap is made, forgotten or given other ids by one entry in the log of its home.

// PartKeyLenMax is how long the key of a bitmap may be in a namespace of slices: the names of its parts are keys as
// well.
const PartKeyLenMax = KeyLenMax - partHead

const partHead = 9

// BySlice says whether the bitmaps of a namespace are placed by slice.
func BySlice(ns *ebbv1.Namespace) bool {
	return ns.GetBitmapPlacement() == ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE
}

// PartName is the name of the parts of a bitmap. No bitmap has the number 0.
func PartName(number uint64, key []byte) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 1, partHead+len(key)), number)
	return append(b, key...)
}

// IsPartName tells the name of a part from that of a key.
func IsPartName(name []byte) bool { return len(name) > partHead && name[0] == 0 }

// PartOf takes the name of a part apart. Any other key is itself, under the number 0.
func PartOf(name []byte) (number uint64, key []byte) {
	if !IsPartName(name) {
		return 0, name
	}
	return binary.BigEndian.Uint64(name[1:]), name[partHead:]
}

const (
	// SliceLeaseUS is how long whatever is done under a number may take, by the clock of who does it and those of the
	// shards.
	SliceLeaseUS = 30_000_000
	// SliceSweepUS is after how long, by the clocks of the shards, the parts under a number are forgotten that no home
	// names any more. Nothing that was begun before is under way then, as long as clocks differ by less than what it is
	// longer than a lease.
	SliceSweepUS = 120_000_000
	// OrphansMax is how many numbers a shard has to sweep at most before it takes no more for bitmaps to be stored.
	OrphansMax = 1 << 20
	// HomeSweptMax is how many numbers one command says are swept.
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

// homeGrows says whether a command about numbers of bitmaps makes the shard of their homes larger: a number that is
// reserved is remembered, and one that is put may make a key.
func homeGrows(body []byte) bool {
	var c ebbv1.HomeCommand
	return Decode(body, &c) == nil && (c.GetReserve() != nil || c.GetPut().GetCount() > 0)
}

// CheckSliceKey refuses keys that no bitmap of a namespace of slices may have.
func CheckSliceKey(key []byte) *Error {
	switch {
	case len(key) > PartKeyLenMax:
		return ErrBadKey.Errorf("key of %d bytes: the limit is %d where bitmaps are placed by slice", len(key), PartKeyLenMax)
	case len(key) > 0 && key[0] == 0:
		return ErrBadKey.Errorf("key %q begins with a zero byte: where bitmaps are placed by slice, parts of them do", key)
	}
	return CheckKey(key)
}

// EditPieces cuts a change into edits by the shard of their slices, in the order of the shards. They carry no key.
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

// EditPiece is what a shard gets of a change: ids, which ascend, or ranges.
type EditPiece struct {
	Shard  uint32
	Named  bool // the ids are those of strings
	IDs    []uint64
	Ranges []*ebbv1.BitRange
}

// Edits are those of the piece, of a bitmap by this name.
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

// checkBitmapSettings checks what a definition says about bitmaps.
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

// PeriodName is what people call a unit of roll-ups; empty if there is no such unit.
func PeriodName(unit ebbv1.Period) string {
	return map[ebbv1.Period]string{
		ebbv1.Period_PERIOD_DAY: "day", ebbv1.Period_PERIOD_WEEK: "week", ebbv1.Period_PERIOD_MONTH: "month",
		ebbv1.Period_PERIOD_QUARTER: "quarter", ebbv1.Period_PERIOD_YEAR: "year",
	}[unit]
}

// WithUniverse puts the universe of a namespace into each not of an expression that has none. It returns the expression
// itself when there is nothing to put.
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

// RewriteExpr copies an expression. It replaces each part by what rewrite makes of it, the inner ones first.
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
