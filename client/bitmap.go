package client

import (
	"context"
	"iter"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// BitmapExpr is a set of 64-bit ids, made of bitmaps:
//
//	client.AllOf(client.AnyOf(client.Bits("play/2011-11-01"), client.Bits("play/2011-11-02")), client.Bits("premium"))
type BitmapExpr struct{ wire *ebbv1.BitmapExpr }

// Bits are the ids in the bitmap of a key: none if there is no such key.
func Bits(key string) BitmapExpr {
	return BitmapExpr{&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}}
}

// BitRange is all ids from first to last, 4,294,967,296 of them at most.
func BitRange(first, last uint64) BitmapExpr {
	return BitmapExpr{&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{First: first, Last: last}}}}
}

// AnyOf is the union: the ids in any of the sets.
func AnyOf(of ...BitmapExpr) BitmapExpr {
	return BitmapExpr{&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: exprs(of)}}}
}

// AllOf is the intersection: the ids in all of the sets.
func AllOf(of ...BitmapExpr) BitmapExpr {
	return BitmapExpr{&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: exprs(of)}}}
}

// OddOf is the ids in an odd number of the sets; for two sets that is the symmetric difference.
func OddOf(of ...BitmapExpr) BitmapExpr {
	return BitmapExpr{&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Xor{Xor: exprs(of)}}}
}

// AtLeast is the ids in at least so many of the sets.
func AtLeast(times int, of ...BitmapExpr) BitmapExpr {
	return BitmapExpr{&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AtLeast{AtLeast: &ebbv1.BitmapAtLeast{Times: clampCount(times), Of: exprs(of).GetOf()}}}}
}

// Without is the ids in x and in none of the others.
func (x BitmapExpr) Without(others ...BitmapExpr) BitmapExpr {
	return BitmapExpr{&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: exprs(append([]BitmapExpr{x}, others...))}}}
}

func exprs(of []BitmapExpr) *ebbv1.BitmapExprs {
	out := &ebbv1.BitmapExprs{}
	for _, x := range of {
		out.Of = append(out.Of, x.wire)
	}
	return out
}

// Bitmap is a set of ids that can be asked about. Answers are exact.
type Bitmap struct {
	client *Client
	ns     string
	expr   BitmapExpr
	within *ebbv1.BitRange
	opts   []AskOption
}

// Bitmap returns the set of ids that an expression over bitmaps of a namespace describes. It sends no request yet.
func (c *Client) Bitmap(ns string, expr BitmapExpr, opts ...AskOption) Bitmap {
	return Bitmap{client: c, ns: ns, expr: expr, opts: opts}
}

// Between is the ids of the bitmap from first to last, any number of them.
func (b Bitmap) Between(first, last uint64) Bitmap {
	b.within = &ebbv1.BitRange{First: first, Last: last}
	return b
}

// BitCount is how many ids there are.
type BitCount struct {
	Count    uint64
	AsOf     time.Time
	Coverage Coverage
}

// Count asks how many ids there are.
func (b Bitmap) Count(ctx context.Context) (BitCount, error) {
	_, n, err := b.ask(ctx, &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Count{Count: true}})
	return n, err
}

// Rank asks how many ids are below id.
func (b Bitmap) Rank(ctx context.Context, id uint64) (BitCount, error) {
	_, n, err := b.ask(ctx, &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Rank{Rank: id}})
	return n, err
}

// At asks for the id at a rank: the id that has so many smaller ids. ok is false if there are not as many.
func (b Bitmap) At(ctx context.Context, position uint64) (id uint64, ok bool, err error) {
	w, _, err := b.ask(ctx, &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Position{Position: position}})
	if err != nil || len(w.GetIds()) == 0 {
		return 0, false, err
	}
	return w.GetIds()[0], true, nil
}

// Ends asks for the smallest id, the largest id, and the number of ids. There are no ends when Count is 0.
func (b Bitmap) Ends(ctx context.Context) (first, last uint64, n BitCount, err error) {
	w, n, err := b.ask(ctx, &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Ends{Ends: true}})
	if err != nil || len(w.GetIds()) < 2 {
		return 0, 0, n, err
	}
	return w.GetIds()[0], w.GetIds()[1], n, nil
}

// Contains asks which of up to 10,000 ids are in the bitmap. The answers are in the order of ids.
func (b Bitmap) Contains(ctx context.Context, ids ...uint64) ([]bool, error) {
	w, _, err := b.ask(ctx, &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Contains{Contains: &ebbv1.BitmapIds{Ids: ids}}})
	return w.GetContains(), err
}

// BitPage is some ids in ascending order.
type BitPage struct {
	IDs      []uint64
	Names    []string // strings of the ids, in a namespace with a dictionary; "" where there is none
	More     bool     // there are more, from Next on
	Next     uint64   // 0 if there are none
	AsOf     time.Time
	Coverage Coverage
}

// Page asks for up to limit ids, beginning at from: 1,000 if limit is 0, 100,000 at most.
func (b Bitmap) Page(ctx context.Context, from uint64, limit int) (BitPage, error) {
	return b.page(ctx, &ebbv1.BitmapPage{From: from, Limit: clampCount(limit)})
}

func (b Bitmap) page(ctx context.Context, page *ebbv1.BitmapPage) (BitPage, error) {
	w, n, err := b.ask(ctx, &ebbv1.BitmapQuestion{Select: &ebbv1.BitmapQuestion_Ids{Ids: page}})
	out := BitPage{IDs: w.GetIds(), More: w.GetMore(), Next: w.GetNext(), AsOf: n.AsOf, Coverage: n.Coverage}
	for _, name := range w.GetNames() {
		out.Names = append(out.Names, string(name))
	}
	return out, err
}

// bitsPerPage is how many ids IDs asks for at a time.
const bitsPerPage = 50_000

// IDs lists the ids in ascending order:
//
//	for id, err := range c.Bitmap("default", client.Bits("premium")).IDs(ctx) { ... }
//
// It asks for one page at a time, and each page is a separate question. An id that is in the bitmap all the time comes
// once. The list ends after an error.
func (b Bitmap) IDs(ctx context.Context) iter.Seq2[uint64, error] {
	return func(yield func(uint64, error) bool) {
		for from, more := uint64(0), true; more; {
			page, err := b.page(ctx, &ebbv1.BitmapPage{From: from, Limit: uint32(b.client.cfg.limits.IDsPage), Bare: true})
			if err != nil {
				yield(0, err)
				return
			}
			for _, id := range page.IDs {
				if !yield(id, nil) {
					return
				}
			}
			from, more = page.Next, page.More
		}
	}
}

func (b Bitmap) ask(ctx context.Context, q *ebbv1.BitmapQuestion) (*ebbv1.BitmapAnswer, BitCount, error) {
	q.Expr, q.Range = b.expr.wire, b.within
	question := &ebbv1.Question{Namespace: b.ns, Ask: &ebbv1.Question_Bitmap{Bitmap: q}}
	a, err := b.client.askOne(ctx, "bitmap", keyOf(question), question, b.opts)
	if err != nil {
		return nil, BitCount{}, err
	}
	w := a.GetBitmap()
	return w, BitCount{Count: w.GetCount(), AsOf: timeOf(w.GetAsOfUs()), Coverage: coverageOf(a.GetCoverage())}, nil
}

// Not is all ids of the namespace's universe that are not in x: see Namespace.Universe.
func (x BitmapExpr) Not() BitmapExpr {
	return BitmapExpr{&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Not{Not: &ebbv1.BitmapNot{Of: x.wire}}}}
}
