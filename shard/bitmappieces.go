package shard

import (
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// pieceCost is how many words a piece of a question reads at least: 2 MiB, which takes some tenths of a millisecond.
const pieceCost = 1 << 18

// Pieces cuts a question about bitmaps that takes long into up to n pieces, each about a range of ids, to be answered
// at the same time. JoinPieces makes one answer from their answers. Pieces returns nil for a question that cannot be
// cut, or is not worth it.
func (f *frame) Pieces(q *ebbv1.ShardQuestion, n int) []*ebbv1.ShardQuestion {
	_, counts := q.GetQuestion().GetBitmap().GetSelect().(*ebbv1.BitmapQuestion_Count)
	if table := q.GetQuestion().GetBitmapCohort(); n < 2 || !counts && table == nil {
		return nil
	}
	n = min(n, f.bitmapWork(q.GetQuestion()).cost()/pieceCost)
	if n < 2 {
		return nil
	}
	in := spanOf(proto.BitmapRange(q.GetQuestion()))
	var pieces []*ebbv1.ShardQuestion
	for _, cut := range f.cuts(q.GetQuestion(), n) {
		if first := cut << sliceBits; first > in.first && first <= in.last {
			pieces = append(pieces, piece(q, in.first, first-1))
			in.first = first
		}
	}
	return append(pieces, piece(q, in.first, in.last))
}

// cuts are n-1 slices that divide the largest bitmap of an expression evenly.
func (f *frame) cuts(q *ebbv1.Question, n int) (slices []uint64) {
	ns := f.lookup([]byte(q.GetNamespace()))
	if ns == nil {
		return nil
	}
	var largest bitmapHead
	for _, name := range proto.ExprKeys(proto.BitmapExprs(q)...) {
		if key, ok := f.findKey(ns, name); ok {
			if r := f.summaries.record(key); r.form() == recordBitmap && r.bitmap().leaves > largest.leaves {
				largest = r.bitmap()
			}
		}
	}
	if largest.leaves == 0 {
		return nil
	}
	b, all := &f.summaries.bins, 0
	for leaf := range int(largest.leaves) {
		all += entryAt(b.at(largest.root), leaf).count()
	}
	seen := 0
	for leaf := range int(largest.leaves) {
		r := entryAt(b.at(largest.root), leaf)
		for at := (len(slices) + 1) * all / n; len(slices) < n-1 && at < seen+r.count(); at = (len(slices) + 1) * all / n {
			slices = append(slices, entryAt(b.at(r.ref()), at-seen).slice())
		}
		seen += r.count()
	}
	return slices
}

func piece(q *ebbv1.ShardQuestion, first, last uint64) *ebbv1.ShardQuestion {
	out := pb.CloneOf(q)
	in := &ebbv1.BitRange{First: first, Last: last}
	if table := out.GetQuestion().GetBitmapCohort(); table != nil {
		table.Range = in
	} else {
		out.GetQuestion().GetBitmap().Range = in
	}
	return out
}

// JoinPieces adds up the answers to the pieces of a question.
func JoinPieces(answers []*ebbv1.ShardAnswer) *ebbv1.ShardAnswer {
	for _, a := range answers {
		if a.GetError() != nil {
			return a
		}
	}
	joined := answers[0]
	for _, a := range answers[1:] {
		if b := joined.GetAnswer().GetBitmap(); b != nil {
			b.Count += a.GetAnswer().GetBitmap().GetCount()
		}
		for i, row := range joined.GetAnswer().GetCohort().GetRows() {
			other := a.GetAnswer().GetCohort().GetRows()[i]
			row.Count += other.GetCount()
			for j, n := range other.GetAgain() {
				row.Again[j] += n
			}
		}
	}
	return joined
}
