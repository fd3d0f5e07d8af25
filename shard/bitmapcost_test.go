package shard

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch/bitmap"
)

func unionOf(of ...*ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: of}}}
}

// rangesOf are so many ranges that are as long as they may be, one after the other.
func rangesOf(n int) (of []*ebbv1.BitmapExpr) {
	for i := range uint64(n) {
		of = append(of, &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{First: i << 32, Last: i<<32 | (1<<32 - 1)}}})
	}
	return of
}

// What would take long is refused before it begins, though little of it would be read: many ranges, one bitmap named
// again and again, many bitmaps in many slices. What is usual is not.
func TestBitmapWork(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	for slice := range uint64(512) {
		var ids []uint64
		for low := uint64(0); low < 1<<16; low += 2 {
			ids = append(ids, slice<<16|low)
		}
		applyOne(t, s, edits(bitsOf("dense", setOp, ids...)))
	}
	var ids []uint64
	for slice := range uint64(1 << 15) {
		ids = append(ids, slice<<20)
	}
	applyOne(t, s, edits(bitsOf("sparse", setOp, ids...)))
	var small, days []*ebbv1.BitmapExpr
	for i := range uint64(5000) {
		key := fmt.Sprintf("small/%d", i)
		applyOne(t, s, edits(bitsOf(key, setOp, i*7919%(1<<32), i*104729%(1<<32))))
		small = append(small, keyExpr(key))
		days = append(days, keyExpr("dense"))
	}
	period := func(x *ebbv1.BitmapExpr, n int) (of []*ebbv1.BitmapCohortPeriod) {
		for range n {
			of = append(of, &ebbv1.BitmapCohortPeriod{Expr: x})
		}
		return of
	}
	count := func(x *ebbv1.BitmapExpr) *ebbv1.Question {
		return &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Count{Count: true}}}}
	}
	within := func(q *ebbv1.Question, last uint64) *ebbv1.Question {
		q.GetBitmap().Range = &ebbv1.BitRange{Last: last}
		return q
	}
	groups := func(x *ebbv1.BitmapExpr, keys ...[]byte) *ebbv1.Question {
		return &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: &ebbv1.BitmapGroupsQuestion{Expr: x, Keys: keys}}}
	}
	cohort := func(periods []*ebbv1.BitmapCohortPeriod) *ebbv1.Question {
		return &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_BitmapCohort{BitmapCohort: &ebbv1.BitmapCohortQuestion{Periods: periods}}}
	}
	for _, c := range []struct {
		name    string
		q       *ebbv1.Question
		refused bool
	}{
		{"one range", count(unionOf(append(rangesOf(1), keyExpr("dense"))...)), false},
		{"many ranges", count(unionOf(append(rangesOf(1000), keyExpr("dense"))...)), true},
		{"many ranges, few ids asked about", within(count(unionOf(append(rangesOf(1000), keyExpr("dense"))...)), 1<<20), false},
		{"many small bitmaps", count(unionOf(small...)), false},
		{"many small bitmaps and one of many slices", count(unionOf(append(small[:len(small):len(small)], unionOf(keyExpr("sparse"), rangesOf(2)[1]))...)), true},
		{"thirty days", count(unionOf(days[:30]...)), false},
		{"a bitmap named again and again", count(&ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Xor{Xor: &ebbv1.BitmapExprs{Of: append(days, days...)}}}), true},
		{"a table of weeks", cohort(period(keyExpr("dense"), 52)), false},
		{"a table of ranges", cohort(period(rangesOf(1)[0], 400)), true},
		{"groups of few", groups(keyExpr("dense"), []byte("sparse"), []byte("small/1")), false},
		{"groups of many slices", groups(unionOf(rangesOf(100)...), []byte("sparse")), true},
	} {
		a := s.Ask(&ebbv1.ShardQuestion{Question: c.q}, beginning)
		if refused := a.GetError().GetCode() == ebbv1.Code_CODE_QUERY_TOO_COSTLY; refused != c.refused || a.GetError() != nil && !refused {
			t.Errorf("%s: %v, of cost %d", c.name, a.GetError(), s.Cost(&ebbv1.ShardQuestion{Question: c.q}))
		}
		q := &ebbv1.ShardQuestion{Question: c.q}
		cost := s.Cost(q)
		if c.refused && cost <= bitmapCostMax {
			t.Errorf("%s: it costs %d", c.name, cost)
		}
		for _, limit := range []int{0, cost / 2, cost - 1, cost, cost + 1} {
			if more := s.CostsMore(q, limit); more != (cost > limit) {
				t.Errorf("%s costs %d, and more than %d: %v", c.name, cost, limit, more)
			}
		}
	}
	unknown := count(unionOf(append(rangesOf(8), keyExpr("dense"))...))
	unknown.Namespace = "nobody's"
	if pieces := s.Pieces(&ebbv1.ShardQuestion{Question: unknown}, 4); len(pieces) > 1 {
		t.Errorf("%d pieces of ranges in a namespace that is not there", len(pieces))
	}
	if res := applyOne(t, s, storing("k", unionOf(rangesOf(40)...))); res.GetError().GetCode() != ebbv1.Code_CODE_QUERY_TOO_COSTLY {
		t.Errorf("a command that takes long is applied: %v", res)
	}
	home := func(key []byte) uint32 { return 1 + uint32(key[0])%2 }
	if _, err := SpreadBitmaps(cohort(period(rangesOf(1)[0], 400)), home); err == nil || err.Code != ebbv1.Code_CODE_QUERY_TOO_COSTLY {
		t.Errorf("a table of ranges over no shard: %v", err)
	}
	g, err := SpreadBitmaps(count(unionOf(append(rangesOf(30), keyExpr("a"), keyExpr("b"))...)), home)
	if err != nil {
		t.Fatal(err)
	}
	_, refused := g.Answer(func(list []BitmapFetch) ([]*ebbv1.ShardAnswer, error) {
		var answers []*ebbv1.ShardAnswer
		for _, f := range list {
			b := []byte{partBitmap, 1}
			b = binary.AppendUvarint(b, f.Question.GetPart().GetTo()+1)
			b = append(binary.AppendUvarint(b, 255<<20), 0) // there is much, they say
			answers = append(answers, &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: b}})
		}
		return answers, nil
	})
	if e := proto.AsError(refused); e == nil || e.Code != ebbv1.Code_CODE_QUERY_TOO_COSTLY || !strings.Contains(e.Message, "32 bitmaps and ranges") {
		t.Errorf("ranges beside much of two shards: %v", refused)
	}
}

// What an expression holds for one shard alone costs what it does by itself, to a question and to a leader that is to
// store it. What is in a log is applied as ever.
func TestOwnCosts(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	applyOne(t, s, edits(bitsOf("k", setOp, 1, 2, 3)))
	own := func(x *ebbv1.BitmapExpr) *ebbv1.BitmapExpr {
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Own{Own: &ebbv1.BitmapOwn{Of: x, Shards: 1}}}
	}
	full := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{Last: 1<<32 - 2}}}
	held := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Containers{Containers: &ebbv1.BitmapContainers{Containers: []byte{1, 1<<2 | 1, 5, 0, 0}}}}
	of := func(x *ebbv1.BitmapExpr, n int) *ebbv1.BitmapExpr {
		return unionOf(append(slices.Repeat([]*ebbv1.BitmapExpr{x}, n), keyExpr("k"))...)
	}
	ask := func(x *ebbv1.BitmapExpr) *ebbv1.ShardQuestion {
		return &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "default", Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Count{Count: true}}}}}
	}
	storable := func(x *ebbv1.BitmapExpr) *proto.Error {
		raw, err := pb.Marshal(storing("stored", x))
		if err != nil {
			t.Fatal(err)
		}
		return s.Storable(raw)
	}
	for name, x := range map[string]*ebbv1.BitmapExpr{"a range": full, "containers": held} {
		if plain, as := s.Cost(ask(of(x, 9))), s.Cost(ask(of(own(x), 9))); plain != as {
			t.Errorf("%s: it costs %d, and %d as the shard's own", name, plain, as)
		}
	}
	for name, x := range map[string]*ebbv1.BitmapExpr{"ranges": full, "own ranges": own(full)} {
		if !s.CostsMore(ask(of(x, 9_999)), bitmapCostMax) || s.Ask(ask(of(x, 9_999)), beginning).GetError().GetCode() != ebbv1.Code_CODE_QUERY_TOO_COSTLY {
			t.Errorf("%s: a question that takes long is cheap", name)
		}
		if err := storable(of(x, 9_999)); err == nil || err.Code != ebbv1.Code_CODE_QUERY_TOO_COSTLY {
			t.Errorf("%s: a command that takes long is let into the log: %v", name, err)
		}
		if err := storable(of(x, 2)); err != nil {
			t.Errorf("%s: two are too many: %v", name, err)
		}
		if r := applyOne(t, s, storing(name, of(x, 150))); r.GetError() != nil || r.GetChanged() != 1<<32-1 {
			t.Errorf("%s: replicas of older builds apply what is in the log, and this one does not: %v", name, r)
		}
	}
	again := storing("stored", of(own(full), 150))
	again.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: int64(beginning), Hi: 1}}
	raw, err := pb.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}
	if s.Storable(raw) == nil {
		t.Error("a command that takes long is let into the log under an idempotency key")
	}
	applyOne(t, s, again)
	if err := s.Storable(raw); err != nil {
		t.Errorf("the repetition of what was applied: %v", err)
	}
}

// A position behind the last id finds nothing, also where ids before a range are left out: they are not added to it.
func TestPositionBehindTheEnd(t *testing.T) {
	for name, ids := range map[string][]uint64{"small": {1, 5, 9}, "large": nil} {
		s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
		if ids == nil {
			for id := uint64(0); id < 3*bitmap.SmallWords; id++ {
				ids = append(ids, id<<20)
			}
		}
		applyOne(t, s, edits(bitsOf("k", setOp, ids...)))
		for _, x := range []*ebbv1.BitmapExpr{keyExpr("k"), unionOf(keyExpr("k"), keyExpr("nothing"))} {
			for before := range uint64(3) {
				q := &ebbv1.BitmapQuestion{Expr: x, Range: &ebbv1.BitRange{First: ids[before], Last: 1<<64 - 1}}
				for _, position := range []uint64{1<<64 - 1, 1<<64 - 1 - before, 1<<63 + 1, uint64(len(ids)) - before} {
					q.Select = &ebbv1.BitmapQuestion_Position{Position: position}
					if got := askBits(t, &s.frame, q).GetIds(); len(got) > 0 {
						t.Errorf("%s: id %d has %d below it, from %d on", name, got[0], position, ids[before])
					}
				}
				q.Select = &ebbv1.BitmapQuestion_Position{Position: uint64(len(ids)) - before - 1}
				if got := askBits(t, &s.frame, q).GetIds(); len(got) != 1 || got[0] != ids[len(ids)-1] {
					t.Errorf("%s: the last from %d on is %v", name, ids[before], got)
				}
			}
		}
	}
}
