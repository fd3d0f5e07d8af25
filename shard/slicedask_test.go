package shard

import (
	"fmt"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// BenchmarkSlicedQuestion is what one of many shards does of a question about 30 bitmaps of some slices.
func BenchmarkSlicedQuestion(b *testing.B) {
	s := defined(b, &ebbv1.Namespace{Name: "people", Version: 1, BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE})
	or := &ebbv1.BitmapExprs{}
	for day := range uint64(30) {
		name := proto.PartName(day+1, fmt.Appendf(nil, "day/%02d", day))
		c := edits(rangeOf(string(name), setOp, day*1000, 400_000))
		c.Namespace = "people"
		c.GetBits().UntilUs = 1 << 60
		applyOne(b, s, c)
		or.Of = append(or.Of, keyExpr(string(name)))
	}
	q := &ebbv1.ShardQuestion{Shard: 1, Question: &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: or}}, Select: &ebbv1.BitmapQuestion_Count{Count: true},
	}}}}
	if n := s.Ask(q, 0).GetAnswer().GetBitmap().GetCount(); n == 0 {
		b.Fatal(s.Ask(q, 0))
	}
	b.ReportAllocs()
	for b.Loop() {
		if s.Cost(q) > 0 {
			s.Ask(q, 0)
		}
	}
}
