package proto

import (
	"encoding/binary"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Limits of bitmaps.
const (
	// BitEditsMax is the most edits in one command, and BitIDsMax the most ids that they name in total.
	BitEditsMax = BatchOpsMax
	BitIDsMax   = 64 << 10
	// BitChangesMax is the most changes in one request.
	BitChangesMax = 1_000
	// BitRangeMax is the most ids that the ranges of one command cover in total.
	BitRangeMax = 1 << 27
	// BitTermsMax is the most bitmaps and ranges that an expression names, and BitDepthMax the deepest nesting.
	BitTermsMax = 10_000
	BitDepthMax = 64
	// BitTermRangeMax is the most ids that a range in an expression covers.
	BitTermRangeMax = 1 << 32
	// BitPageMax is the most ids that one answer lists, and BitPageDefault the number when a question has no limit.
	BitPageMax     = 100_000
	BitPageDefault = 1_000
	// BitContainsMax is the most ids that a question looks for.
	BitContainsMax = 10_000
	// BitPartBytesMax is the largest part that a question may ask for, in bytes.
	BitPartBytesMax = 1 << 20
	// BitmapBytesMax is the largest size of a bitmap in one shard, in bytes, computed as if its ids formed no runs.
	BitmapBytesMax = 4 << 30
	// BitSliceBits is the number of lower bits of an id, which are its position in its slice.
	BitSliceBits = 16
	// BitSliceMax is the last slice.
	BitSliceMax = 1<<(64-BitSliceBits) - 1
)

// Field numbers of ebbv1.BitEdits, BitEdit and BitRange. A test holds them to the descriptors.
const (
	FieldCommandBits   = 16
	FieldCommandStore  = 17
	FieldCommandHome   = 20
	FieldBitEditsEdits = 1
	FieldBitEditsUntil = 2
	FieldBitEditKey    = 1
	FieldBitEditOp     = 2
	FieldBitEditIDs    = 3
	FieldBitEditRange  = 4
	FieldBitEditOffset = 5
	FieldBitEditFresh  = 6
	FieldBitEditNamed  = 7
	FieldBitRangeFirst = 1
	FieldBitRangeLast  = 2
)

// BitEditWire is an ebbv1.BitEdit parsed without allocation: Key and IDs point into the parsed bytes.
type BitEditWire struct {
	Key         []byte
	Op          ebbv1.BitOp
	IDs         []byte
	Ranged      bool
	First, Last uint64
	Offset      uint64
	Fresh       bool
	Named       bool
}

// Parse reads one serialised BitEdit and reports whether it is well formed. Unknown fields are skipped.
func (e *BitEditWire) Parse(raw []byte) bool {
	*e = BitEditWire{}
	return WalkFields(raw, func(num protowire.Number, v uint64, b []byte) bool {
		switch num {
		case FieldBitEditKey:
			e.Key = b
		case FieldBitEditOp:
			e.Op = ebbv1.BitOp(min(v, 1<<16))
		case FieldBitEditIDs:
			e.IDs = b
		case FieldBitEditOffset:
			e.Offset = v
		case FieldBitEditFresh:
			e.Fresh = v != 0
		case FieldBitEditNamed:
			e.Named = v != 0
		case FieldBitEditRange:
			e.Ranged = true
			return WalkFields(b, func(num protowire.Number, v uint64, _ []byte) bool {
				switch num {
				case FieldBitRangeFirst:
					e.First = v
				case FieldBitRangeLast:
					e.Last = v
				}
				return true
			})
		}
		return true
	})
}

// BitEdits visits the edits of a serialised BitEdits message in order, until visit returns false. It reports whether
// the message is well formed and all edits were visited.
func BitEdits(raw []byte, visit func(e *BitEditWire) bool) bool {
	var e BitEditWire
	return WalkFields(raw, func(num protowire.Number, _ uint64, b []byte) bool {
		return num != FieldBitEditsEdits || e.Parse(b) && visit(&e)
	})
}

// BitEditsUntil is the until_us of a serialised BitEdits message.
func BitEditsUntil(raw []byte) (until int64) {
	WalkFields(raw, func(num protowire.Number, v uint64, _ []byte) bool {
		if num == FieldBitEditsUntil {
			until = int64(v)
		}
		return true
	})
	return until
}

// AppendBitIDs appends ids, which must ascend strictly, in the encoding of BitEdit.
func AppendBitIDs(b []byte, ids []uint64) []byte {
	if len(ids) == 0 {
		return b
	}
	b = binary.AppendUvarint(b, ids[0])
	for i, id := range ids[1:] {
		b = binary.AppendUvarint(b, id-ids[i]-1)
	}
	return b
}

// DecodeBitIDs appends the ids encoded in raw to ids. It returns false if raw is malformed or has more than limit ids.
func DecodeBitIDs(ids []uint64, raw []byte, limit int) ([]uint64, bool) {
	for first, last := true, uint64(0); len(raw) > 0; first = false {
		var gap uint64
		if raw[0] < 0x80 {
			gap, raw = uint64(raw[0]), raw[1:]
		} else {
			v, n := binary.Uvarint(raw)
			if n <= 0 {
				return ids, false
			}
			gap, raw = v, raw[n:]
		}
		id := gap
		if !first {
			if id = last + gap + 1; id <= last {
				return ids, false
			}
		}
		if limit--; limit < 0 {
			return ids, false
		}
		last = id
		ids = append(ids, id)
	}
	return ids, true
}

// Check checks everything about an edit that does not depend on state, except its ids.
func (e *BitEditWire) Check() *Error {
	switch {
	case checkKeyLen(len(e.Key)) != nil:
		return checkKeyLen(len(e.Key))
	case e.Op < ebbv1.BitOp_BIT_OP_SET || e.Op > ebbv1.BitOp_BIT_OP_FLIP:
		return ErrBadRequest.Errorf("op %d of key %q: it is set, clear or flip", e.Op, e.Key)
	case e.Ranged && len(e.IDs) > 0:
		return ErrBadRequest.Errorf("key %q: ids and range: only one of them may be given", e.Key)
	case !e.Ranged && len(e.IDs) == 0:
		return ErrBadRequest.Errorf("key %q: no ids: an edit names ids, or a range of them", e.Key)
	case e.Ranged:
		return checkRange(e.First, e.Last, BitRangeMax)
	}
	return nil
}

func checkRange(first, last, limit uint64) *Error {
	switch {
	case first > last:
		return ErrBadRequest.Errorf("range %d to %d is upside down: first is not above last", first, last)
	case last-first >= limit:
		return ErrBatchTooLarge.Errorf("range %d to %d has %d ids or more: the limit is %d", first, last, last-first, limit).WithHint("cut it into several")
	}
	return nil
}

// Span is the number of ids in the range of an edit; 0 without a range.
func (e *BitEditWire) Span() uint64 {
	if !e.Ranged {
		return 0
	}
	return e.Last - e.First + 1
}

var editsShape = shapeOf(&ebbv1.BitEdits{})

// checkBitEdits checks a serialised BitEdits message from a client.
func checkBitEdits(raw []byte) *Error {
	if !editsShape.fits(raw) {
		return errMalformed("batch of edits")
	}
	var err *Error
	count, ids, span := 0, 0, uint64(0)
	var scratch []uint64
	ok := BitEdits(raw, func(e *BitEditWire) bool {
		if err = e.Check(); err == nil {
			var sound bool
			if scratch, sound = DecodeBitIDs(scratch[:0], e.IDs, BitIDsMax); !sound {
				err = ErrBadRequest.Errorf("key %q: its ids do not ascend as varints of distances less 1, or there are more than %d", e.Key, BitIDsMax)
			}
		}
		if err != nil {
			err.Message = fmt.Sprintf("edit %d: %s", count, err.Message)
			return false
		}
		count, ids, span = count+1, ids+len(scratch), span+e.Span()
		return true
	})
	switch {
	case err != nil:
		return err
	case !ok:
		return errMalformed("batch of edits")
	}
	return checkBitTotals(count, BitEditsMax, ids, span)
}

func checkBitTotals(edits, most, ids int, span uint64) *Error {
	switch {
	case edits == 0:
		return ErrBadRequest.Errorf("no changes: a batch has 1 to %d", most)
	case edits > most:
		return ErrBatchTooLarge.Errorf("batch of %d changes: the limit is %d", edits, most)
	case ids > BitIDsMax:
		return ErrBatchTooLarge.Errorf("batch of %d ids: the limit is %d", ids, BitIDsMax).WithHint("send them in several, or write with a BitWriter or ebb bits load, which do")
	case span > BitRangeMax:
		return ErrBatchTooLarge.Errorf("ranges of %d ids together: the limit is %d", span, BitRangeMax).WithHint("send them in several")
	}
	return nil
}

// UnpackBits returns the request with packed ids decoded. It returns ErrBadRequest if they are malformed.
func UnpackBits(req *ebbv1.BitsRequest) (*ebbv1.BitsRequest, *Error) {
	if !slices.ContainsFunc(req.GetChanges(), func(c *ebbv1.BitChange) bool { return len(c.GetPacked()) > 0 }) {
		return req, nil
	}
	out := &ebbv1.BitsRequest{
		Namespace: req.GetNamespace(), IdempotencyKey: req.GetIdempotencyKey(), Together: req.GetTogether(),
	}
	for i, c := range req.GetChanges() {
		if raw := c.GetPacked(); len(raw) > 0 {
			ids, ok := DecodeBitIDs(make([]uint64, 0, min(len(raw), BitIDsMax)), raw, BitIDsMax)
			if !ok || len(c.GetIds())+len(c.GetNames()) > 0 {
				return nil, ErrBadRequest.Errorf("change %d: packed: its ids do not ascend as varints of distances less 1, there are more than %d, or they are not all there is", i, BitIDsMax)
			}
			c = &ebbv1.BitChange{Key: c.GetKey(), Op: c.GetOp(), Ids: ids, Range: c.GetRange()}
		}
		out.Changes = append(out.Changes, c)
	}
	return out, nil
}

// ascending returns the ids sorted, without duplicates: the argument itself if it is so already.
func ascending(ids []uint64) []uint64 {
	for i := range ids[:max(len(ids), 1)-1] {
		if ids[i] >= ids[i+1] {
			ids = slices.Clone(ids)
			slices.Sort(ids)
			return slices.Compact(ids)
		}
	}
	return ids
}

// CheckBits checks everything about the request that does not depend on state.
func CheckBits(req *ebbv1.BitsRequest) *Error {
	if req.GetNamespace() != "" {
		if err := CheckNamespaceName(req.GetNamespace()); err != nil {
			return err
		}
	}
	if id := req.GetIdempotencyKey(); id != nil && id.GetIssuedAtUs() <= 0 {
		return ErrBadTime.Errorf("idempotency key issued at %d µs: it must be after 1970-01-01", id.GetIssuedAtUs())
	}
	ids, span := 0, uint64(0)
	var names [][]byte
	for i, c := range req.GetChanges() {
		e := BitEditWire{Key: c.GetKey(), Op: c.GetOp()}
		if r := c.GetRange(); r != nil {
			e.Ranged, e.First, e.Last = true, r.GetFirst(), r.GetLast()
		}
		if len(c.GetIds())+len(c.GetNames())+len(c.GetPacked()) > 0 {
			e.IDs = []byte{0}
		}
		err := e.Check()
		if err == nil && len(c.GetIds()) > 0 && len(c.GetNames()) > 0 {
			err = ErrBadRequest.Errorf("key %q: ids and names: only one of them may be given", e.Key)
		}
		if err != nil {
			err.Message = fmt.Sprintf("change %d: %s", i, err.Message)
			return err
		}
		ids, span = ids+len(c.GetIds()), span+e.Span()
		names = append(names, c.GetNames()...)
	}
	if err := checkNames(names); err != nil {
		return err
	}
	return checkBitTotals(len(req.GetChanges()), BitChangesMax, ids, span)
}

// EditOf returns a change as an edit for the wire. If the change names strings, its ids must be those of the strings.
// It sorts a copy of the ids.
func EditOf(c *ebbv1.BitChange) *ebbv1.BitEdit {
	e := &ebbv1.BitEdit{Key: c.GetKey(), Op: c.GetOp(), Range: c.GetRange(), Named: len(c.GetNames()) > 0}
	if ids := c.GetIds(); len(ids) > 0 {
		e.Ids = AppendBitIDs(nil, ascending(ids))
	}
	return e
}

func checkBitmapQuestion(q *ebbv1.BitmapQuestion) *Error {
	terms := 0
	if err := checkBitmapExpr(q.GetExpr(), 1, &terms); err != nil {
		return err
	}
	if len(ExprKeys(q.GetExpr())) == 0 {
		return ErrBadRequest.Errorf("the expression is made of ranges only: it names a bitmap at least")
	}
	if err := checkIDRange(q.GetRange()); err != nil {
		return err
	}
	switch s := q.GetSelect().(type) {
	case *ebbv1.BitmapQuestion_Ids:
		if s.Ids.GetLimit() > BitPageMax {
			return ErrBadCount.Errorf("limit %d: an answer lists 1 to %d ids", s.Ids.GetLimit(), BitPageMax)
		}
	case *ebbv1.BitmapQuestion_Contains:
		switch n, names := len(s.Contains.GetIds()), len(s.Contains.GetNames()); {
		case n > 0 && names > 0:
			return ErrBadRequest.Errorf("contains: ids or names: only one of them may be given")
		case n+names == 0 || n > BitContainsMax:
			return ErrBadCount.Errorf("%d ids: a question looks for 1 to %d", n, BitContainsMax)
		}
		return checkNames(s.Contains.GetNames())
	case *ebbv1.BitmapQuestion_Part:
		if s.Part.GetFrom() > s.Part.GetTo() || s.Part.GetTo() > BitSliceMax || s.Part.GetBytes() > BitPartBytesMax {
			return ErrBadRequest.Errorf("slices %d to %d in %d bytes: they are upside down, or out of bounds", s.Part.GetFrom(), s.Part.GetTo(), s.Part.GetBytes())
		}
	case nil:
		return ErrBadRequest.Errorf("a question about a bitmap asks for one of count, ids, contains, rank, position or ends")
	}
	return nil
}

// ErrTooManyTerms refuses an expression with more than BitTermsMax terms.
func ErrTooManyTerms() *Error {
	return ErrBadCount.Errorf("the expression has more than %d terms: bitmaps, periods of ranges, and periods that "+
		"roll-ups are made of", BitTermsMax).
		WithHint("split the range, or store parts of it under keys and ask about these: ebb query 'store a = play/2001 .. 2010', then 'count(a | play/2011 .. 2020)'")
}

func checkBitmapExpr(x *ebbv1.BitmapExpr, depth int, terms *int) *Error {
	if depth > BitDepthMax {
		return ErrBadRequest.Errorf("the expression is more than %d deep", BitDepthMax)
	}
	switch e := x.GetExpr().(type) {
	case *ebbv1.BitmapExpr_Key, *ebbv1.BitmapExpr_Range, *ebbv1.BitmapExpr_Containers:
		if *terms++; *terms > BitTermsMax {
			return ErrTooManyTerms()
		}
		if x.GetContainers() != nil {
			return nil // they are checked when they are read
		}
		if r := x.GetRange(); r != nil {
			return checkRange(r.GetFirst(), r.GetLast(), BitTermRangeMax)
		}
		return CheckKey(x.GetKey())
	case *ebbv1.BitmapExpr_Own:
		if of := e.Own.GetOf(); of.GetRange() == nil && of.GetContainers() == nil || e.Own.GetShards() == 0 || e.Own.GetShards() > ShardsMax {
			return ErrBadRequest.Errorf("own: it is of a range or of containers, in 1 to %d shards", ShardsMax)
		}
		return checkBitmapExpr(e.Own.GetOf(), depth+1, terms)
	case *ebbv1.BitmapExpr_AtLeast:
		if t, n := e.AtLeast.GetTimes(), len(e.AtLeast.GetOf()); t < 1 || int(t) > n {
			return ErrBadCount.Errorf("at least %d of %d: it must be from 1 to their number", t, n)
		}
	case nil:
		return ErrBadRequest.Errorf("an expression about bitmaps is a key, a range, or one of or, and, and_not, xor, not, at_least")
	}
	list := ExprTerms(x)
	if len(list) == 0 {
		return ErrBadRequest.Errorf("an expression about bitmaps without terms")
	}
	for _, term := range list {
		if err := checkBitmapExpr(term, depth+1, terms); err != nil {
			return err
		}
	}
	return nil
}

// ExprTerms are the direct terms of an expression. The terms of a `not` are its argument and then the universe, if it
// has one.
func ExprTerms(x *ebbv1.BitmapExpr) []*ebbv1.BitmapExpr {
	switch e := x.GetExpr().(type) {
	case *ebbv1.BitmapExpr_Or:
		return e.Or.GetOf()
	case *ebbv1.BitmapExpr_And:
		return e.And.GetOf()
	case *ebbv1.BitmapExpr_AndNot:
		return e.AndNot.GetOf()
	case *ebbv1.BitmapExpr_Xor:
		return e.Xor.GetOf()
	case *ebbv1.BitmapExpr_AtLeast:
		return e.AtLeast.GetOf()
	case *ebbv1.BitmapExpr_Not:
		if e.Not.GetUniverse() == nil {
			return []*ebbv1.BitmapExpr{e.Not.GetOf()}
		}
		return []*ebbv1.BitmapExpr{e.Not.GetOf(), e.Not.GetUniverse()}
	}
	return nil
}

// ExprKeys are the keys that expressions name, each once, in the order of their first occurrence.
func ExprKeys(exprs ...*ebbv1.BitmapExpr) [][]byte {
	var keys [][]byte
	seen := map[string]bool{}
	var visit func(x *ebbv1.BitmapExpr)
	visit = func(x *ebbv1.BitmapExpr) {
		if k, ok := x.GetExpr().(*ebbv1.BitmapExpr_Key); ok && !seen[string(k.Key)] {
			seen[string(k.Key)] = true
			keys = append(keys, k.Key)
		}
		for _, term := range ExprTerms(x) {
			visit(term)
		}
	}
	for _, x := range exprs {
		visit(x)
	}
	return keys
}
