package shard

import (
	"cmp"
	"encoding/binary"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

// soleKey returns the key of an expression that is only a key; nil otherwise.
func soleKey(x *ebbv1.BitmapExpr) []byte { return x.GetKey() }

// askBitmap answers a question about bitmaps: about an expression, groups or a cohort table.
func (f *frame) askBitmap(q *ebbv1.ShardQuestion, at sketch.Tick) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	at = f.evaluation(ns, 0, at)
	if err := f.bitmapWork(q.Question).check(bitmapCostMax, "the question"); err != nil {
		return f.unanswered(err)
	}
	named := f.bitmapsOf(q.Question.GetNamespace(), ns, at)
	if part := q.Question.GetBitmap().GetPart(); part != nil {
		expr, err := compileBitmap(q.Question.GetBitmap().GetExpr(), named)
		if err != nil {
			return f.unanswered(proto.AsError(err))
		}
		return f.answerPart(expr.appendPart(part, uint64(at), f.partBytes(q.Question)), at)
	}
	answer, err := evaluateBitmaps(q.Question, named)
	if err != nil {
		return f.unanswered(proto.AsError(err))
	}
	evaluatedAt(answer, at)
	return &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Answer{Answer: answer}, AsOfUs: int64(at)}
}

// evaluateBitmaps answers any question about bitmaps, except for parts.
func evaluateBitmaps(q *ebbv1.Question, named bitmapNames) (*ebbv1.Answer, error) {
	switch ask := q.GetAsk().(type) {
	case *ebbv1.Question_BitmapGroups:
		out, err := countGroups(ask.BitmapGroups, named)
		if err != nil {
			return nil, err
		}
		if n := pb.Size(out); n > answerBytesMax {
			return nil, proto.ErrResponseTooLarge.Errorf("%d counts: they do not fit an answer", len(out.Groups)).WithHint("ask for the top n")
		}
		return &ebbv1.Answer{Value: &ebbv1.Answer_Groups{Groups: out}}, nil
	case *ebbv1.Question_BitmapCohort:
		out, err := countCohort(ask.BitmapCohort, named)
		if err != nil {
			return nil, err
		}
		return &ebbv1.Answer{Value: &ebbv1.Answer_Cohort{Cohort: out}}, nil
	}
	ask := q.GetBitmap()
	expr, err := compileBitmap(ask.GetExpr(), named)
	if err != nil {
		return nil, err
	}
	out := expr.answer(ask)
	if n := 10 * len(out.Ids); n > answerBytesMax {
		return nil, proto.ErrResponseTooLarge.Errorf("%d ids: they do not fit an answer", len(out.Ids)).WithHint("ask for fewer at a time")
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Bitmap{Bitmap: out}}, nil
}

// evaluatedAt sets the as-of time of an answer about bitmaps.
func evaluatedAt(a *ebbv1.Answer, at sketch.Tick) {
	switch v := a.GetValue().(type) {
	case *ebbv1.Answer_Bitmap:
		v.Bitmap.AsOfUs = int64(at)
	case *ebbv1.Answer_Groups:
		v.Groups.AsOfUs = int64(at)
	case *ebbv1.Answer_Cohort:
		v.Cohort.AsOfUs = int64(at)
	}
}

// bitmapsOf finds bitmaps of a namespace as of a time. ns is nil if the shard does not know the namespace.
func (f *frame) bitmapsOf(name string, ns *namespace, at sketch.Tick) bitmapNames {
	find := func(key []byte) (bitmap.Cursor, error) {
		c, err := f.bitmapOf(ns, key, at)
		if err != nil {
			return nil, err
		}
		return c, nil
	}
	own := func(all bitmap.Cursor, shards uint32) bitmap.Cursor {
		return &ownSlices{Cursor: all, namespace: name, shard: uint32(f.id), shards: shards}
	}
	names := bitmapNames{of: find, own: own}
	if len(f.unions) > 0 {
		names.united = (&periods{f: f, ns: ns, at: at, unions: f.unions}).united
	}
	return names
}

// bitmapOf returns the bitmap of a key; an empty one if the key does not exist.
func (f *frame) bitmapOf(ns *namespace, name []byte, at sketch.Tick) (*bitmapCursor, *proto.Error) {
	c := f.summaries.bins.cursor(bitmapHead{})
	if ns == nil {
		return &c, nil
	}
	key, ok := f.findKey(ns, name)
	if !ok || !f.alive(ns, key, at) {
		return &c, nil
	}
	if kind := f.kind(key); kind != ebbv1.Kind_KIND_BITMAP {
		return nil, otherKind(name, kind, ebbv1.Kind_KIND_BITMAP)
	}
	c = f.summaries.bins.cursor(f.summaries.record(key).bitmap())
	return &c, nil
}

// idSpan is the range of ids that a question is about, first to last.
type idSpan struct{ first, last uint64 }

func spanOf(r *ebbv1.BitRange) idSpan {
	if r == nil {
		return idSpan{0, 1<<64 - 1}
	}
	return idSpan{r.GetFirst(), r.GetLast()}
}

// lows returns the first and the last low of a slice that are in the span.
func (s idSpan) lows(slice uint64) (lo, hi uint16) {
	hi = bitmap.SliceLen - 1
	if slice == s.first>>sliceBits {
		lo = uint16(s.first)
	}
	if slice == s.last>>sliceBits {
		hi = uint16(s.last)
	}
	return lo, hi
}

// below returns the part of the span that is below an id; false if there is none.
func (s idSpan) below(id uint64) (idSpan, bool) {
	if id <= s.first {
		return idSpan{}, false
	}
	return idSpan{s.first, min(s.last, id-1)}, true
}

// answer evaluates the expression.
func (b *bitmapExpr) answer(q *ebbv1.BitmapQuestion) *ebbv1.BitmapAnswer {
	out, in := &ebbv1.BitmapAnswer{}, spanOf(q.GetRange())
	switch s := q.GetSelect().(type) {
	case *ebbv1.BitmapQuestion_Ids:
		b.page(out, in, s.Ids)
	case *ebbv1.BitmapQuestion_Contains:
		out.Contains = b.contains(in, s.Contains.GetIds())
	case *ebbv1.BitmapQuestion_Rank:
		if below, ok := in.below(s.Rank); ok {
			out.Count = b.total(below)
		}
	case *ebbv1.BitmapQuestion_Position:
		b.position(out, in, s.Position)
	case *ebbv1.BitmapQuestion_Ends:
		b.ends(out, in)
	default:
		out.Count = b.total(in)
	}
	return out
}

// sole returns the stored bitmap, if the expression is only a stored bitmap.
func (b *bitmapExpr) sole() (*bitmapCursor, bool) {
	if b.root.Op != bitmap.Leaf {
		return nil, false
	}
	c, ok := b.terms[b.root.Leaf].(*bitmapCursor)
	return c, ok
}

// total is how many ids there are in a span.
func (b *bitmapExpr) total(in idSpan) (n uint64) {
	if c, ok := b.sole(); ok {
		return c.upTo(in.last) - c.below(in.first)
	}
	b.eachSlice(in, func(slice uint64, lo, hi uint16) bool {
		n += uint64(b.countRange(lo, hi))
		return true
	})
	return n
}

// eachSlice visits the slices of a span in which there may be ids, with the lows that are in the span, until visit
// returns false.
func (b *bitmapExpr) eachSlice(in idSpan, visit func(slice uint64, lo, hi uint16) bool) {
	b.walker.Until(in.last >> sliceBits)
	for slice, ok := b.seek(in.first >> sliceBits); ok; slice, ok = b.seek(slice + 1) {
		if lo, hi := in.lows(slice); !visit(slice, lo, hi) {
			return
		}
	}
}

func (b *bitmapExpr) page(out *ebbv1.BitmapAnswer, in idSpan, p *ebbv1.BitmapPage) {
	in.first = max(in.first, p.GetFrom())
	if in.first > in.last {
		return
	}
	limit := int(cmp.Or(p.GetLimit(), proto.BitPageDefault))
	b.eachSlice(in, func(slice uint64, lo, hi uint16) bool {
		return b.container().Each(lo, func(low uint16) bool {
			switch id := slice<<sliceBits | uint64(low); {
			case low > hi:
				return true // the last slice has nothing more that counts
			case len(out.Ids) == limit:
				out.More, out.Next = true, id
				return false
			default:
				out.Ids = append(out.Ids, id)
				return true
			}
		})
	})
}

// contains looks for ids, in the order of their slices.
func (b *bitmapExpr) contains(in idSpan, ids []uint64) []bool {
	order := make([]int, len(ids))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(ids[x], ids[y]) })
	out := make([]bool, len(ids))
	var c bitmap.Container
	last, known := uint64(0), false
	for _, i := range order {
		id := ids[i]
		if id < in.first || id > in.last {
			continue
		}
		if slice := id >> sliceBits; !known || slice != last {
			last, known, c = slice, true, bitmap.Container{}
			b.walker.Until(slice)
			if _, ok := b.seek(slice); ok {
				c = b.container()
			}
		}
		out[i] = c.Contains(uint16(id))
	}
	return out
}

// position finds the id with position ids below it.
func (b *bitmapExpr) position(out *ebbv1.BitmapAnswer, in idSpan, position uint64) {
	if c, ok := b.sole(); ok {
		before := c.below(in.first)
		if position >= c.head.ids-before {
			return
		}
		if id, _ := c.selectID(before + position); id <= in.last {
			out.Ids = []uint64{id}
		}
		return
	}
	b.eachSlice(in, func(slice uint64, lo, hi uint16) bool {
		n := uint64(b.countRange(lo, hi))
		if position >= n {
			position -= n
			return true
		}
		c := b.container()
		low, _ := c.Select(int(position) + c.Rank(lo))
		out.Ids = []uint64{slice<<sliceBits | uint64(low)}
		return false
	})
}

// ends counts the ids, and finds the smallest and the largest.
func (b *bitmapExpr) ends(out *ebbv1.BitmapAnswer, in idSpan) {
	if c, ok := b.sole(); ok {
		before, upTo := c.below(in.first), c.upTo(in.last)
		if out.Count = upTo - before; out.Count > 0 {
			first, _ := c.selectID(before)
			last, _ := c.selectID(upTo - 1)
			out.Ids = []uint64{first, last}
		}
		return
	}
	b.eachSlice(in, func(slice uint64, lo, hi uint16) bool {
		c := b.container()
		n := c.CountRange(lo, hi)
		if n == 0 {
			return true
		}
		before := c.Rank(lo)
		first, _ := c.Select(before)
		last, _ := c.Select(before + n - 1)
		if out.Count == 0 {
			out.Ids = []uint64{slice<<sliceBits | uint64(first), 0}
		}
		out.Count += uint64(n)
		out.Ids[1] = slice<<sliceBits | uint64(last)
		return true
	})
}

// below is how many ids of a stored bitmap are below this one, wherever the cursor is.
func (c *bitmapCursor) below(id uint64) uint64 {
	if c.head.leaves == 0 {
		return uint64(c.small.Rank(id))
	}
	look := c.pages.cursor(c.head)
	slice, ok := look.Seek(id >> sliceBits)
	switch {
	case !ok:
		return c.head.ids
	case slice > id>>sliceBits:
		return look.before()
	}
	return look.before() + uint64(look.Container().Rank(uint16(id)))
}

// upTo is how many ids are not above this one.
func (c *bitmapCursor) upTo(id uint64) uint64 {
	if id == 1<<64-1 {
		return c.head.ids
	}
	return c.below(id + 1)
}

// selectID returns the id with position ids below it.
func (c *bitmapCursor) selectID(position uint64) (id uint64, ok bool) {
	if position >= c.head.ids {
		return 0, false
	}
	if c.head.leaves == 0 {
		return c.small.Select(position)
	}
	root := c.pages.at(c.head.root)
	for leaf := range int(c.head.leaves) {
		r := entryAt(root, leaf)
		if position >= r.ids() {
			position -= r.ids()
			continue
		}
		words := c.pages.at(r.ref())
		for i := range r.count() {
			e := entryAt(words, i)
			if position >= uint64(e.count()) {
				position -= uint64(e.count())
				continue
			}
			var room [1]uint64
			low, ok := c.pages.container(e, &room).Select(int(position))
			return e.slice()<<sliceBits | uint64(low), ok
		}
	}
	return 0, false
}

// partBitmap is a part of the answer to a BitmapQuestion: the ids of some slices, as in bodybitmap.go.
//
//	bitmap   'b'  uvarint(at) uvarint(1 + the last slice that it covers) uvarint(bytes of all of the question at most)
//	              { slice } 0
const partBitmap = 'b'

// appendPart writes the containers of as many slices as there is room for, at least one.
func (b *bitmapExpr) appendPart(p *ebbv1.BitmapPart, at, bytes uint64) []byte {
	var body []byte
	next, end := p.GetFrom(), p.GetTo()
	in := idSpan{p.GetFrom() << sliceBits, p.GetTo()<<sliceBits | (bitmap.SliceLen - 1)}
	b.eachSlice(in, func(slice uint64, _, _ uint16) bool {
		c := b.container()
		if len(body) > 0 && len(body)+containerSize(c) > int(p.GetBytes()) {
			end = slice - 1
			return false
		}
		if c.Count > 0 {
			body = appendContainer(body, slice-next, c)
			next = slice + 1
		}
		return true
	})
	out := binary.AppendUvarint([]byte{partBitmap}, at)
	out = binary.AppendUvarint(out, 1+end)
	out = binary.AppendUvarint(out, bytes)
	return append(append(out, body...), 0)
}
