package shard

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// A shard names the keys of any question that are not there or have faded completely, whole or in parts.
func TestMissingPositions(t *testing.T) {
	now := int64(1_700_000_000 * second)
	def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_HALF_LIFE, HalfLifeUs: 20 * second}
	s := definedAt(t, def, now)
	batch := &ebbv1.Increments{}
	for key, kind := range map[string]ebbv1.Kind{
		"d": ebbv1.Kind_KIND_DISTRIBUTION, "s": ebbv1.Kind_KIND_SET,
		"v": ebbv1.Kind_KIND_DISTINCT,
	} {
		batch.Increments = append(batch.Increments,
			&ebbv1.Increment{Key: []byte(key), Bin: []byte("x"), TimeUs: now, Kind: kind})
	}
	c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
	s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)
	top := &ebbv1.DistributionQuestion_Top{Top: 1}
	for i, q := range []struct {
		ask     *ebbv1.Question
		missing []uint32
	}{
		{&ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: named("d"), Select: top,
		}}}, nil},
		{&ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: named("no"), Select: top,
		}}}, []uint32{0}},
		{&ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: named("no"), Patterns: named("*"), Select: top,
		}}}, []uint32{0}},
		{&ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: named("no", "d", "na"), Select: top,
		}}}, []uint32{0, 2}},
		{
			&ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: &ebbv1.SummaryQuestion{Keys: named("v", "no")}}},
			[]uint32{1},
		},
		{overlapAsked("s", "no"), []uint32{1}},
		{graphAsked(&ebbv1.GraphQuestion{}, "no", "s"), []uint32{0}},
		{&ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
			Expr:   &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte("no")}},
			Select: &ebbv1.BitmapQuestion_Count{Count: true},
		}}}, []uint32{0}},
	} {
		for _, partial := range []bool{false, true} {
			a := s.Ask(&ebbv1.ShardQuestion{Question: q.ask, Partial: partial && q.ask.GetBitmap() == nil},
				sketch.Tick(now))
			if a.GetError() != nil || !slices.Equal(a.GetMissing(), q.missing) {
				t.Errorf("question %d: missing %v, want %v (%v)", i, a.GetMissing(), q.missing, a.GetError())
			}
		}
	}
	later := &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: named("d"), Select: top, AsOfUs: now + 3600*second,
	}}}
	if a := s.Ask(&ebbv1.ShardQuestion{Question: later}, sketch.Tick(now)); !slices.Equal(a.GetMissing(), []uint32{0}) {
		t.Errorf("what has faded: missing %v", a.GetMissing())
	}
}

// What sets are made of is evaluated alike by one shard and by two.
func TestSetExprAcrossShards(t *testing.T) {
	now := int64(1_700_000_000 * second)
	def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
	whole, a, b := definedAt(t, def, now), definedAt(t, def, now), definedAt(t, def, now)
	for i := range 3000 {
		key := []string{"a1", "a2", "b1"}[i%3]
		c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
			Increments: []*ebbv1.Increment{
				{Key: []byte(key), Bin: fmt.Append(nil, (i*7919)%2000), TimeUs: now, Kind: ebbv1.Kind_KIND_SET},
			},
		}}}
		shards := []*State{whole, a}
		if key[0] == 'b' {
			shards[1] = b
		}
		for _, s := range shards {
			s.Apply(s.Applied()+1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)
		}
	}
	x := func(key string) *ebbv1.BitmapExpr {
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}
	}
	of := func(exprs ...*ebbv1.BitmapExpr) *ebbv1.BitmapExprs { return &ebbv1.BitmapExprs{Of: exprs} }
	q := &ebbv1.Question{Ask: &ebbv1.Question_Overlap{Overlap: &ebbv1.OverlapQuestion{Of: []*ebbv1.BitmapExpr{
		{Expr: &ebbv1.BitmapExpr_Or{Or: of(x("a1"), x("b1"))}},
		{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: of(x("a2"), x("b1"))}},
		x("a1"),
	}}}}
	if err := proto.CheckQuestion(q); err != nil {
		t.Fatal(err)
	}
	one := whole.Ask(&ebbv1.ShardQuestion{Question: q}, sketch.Tick(now))
	two, err := Merge(q, []*ebbv1.ShardAnswer{
		partOf(t, a, overlapAsked("a1", "a2"), now),
		partOf(t, b, overlapAsked("b1"), now),
	})
	if err != nil || fmt.Sprint(one.GetAnswer().GetOverlap()) != fmt.Sprint(two.GetOverlap()) ||
		len(two.GetOverlap().GetSets()) != 3 {
		t.Errorf("%v\n%v\n%v", err, one, two)
	}
}
