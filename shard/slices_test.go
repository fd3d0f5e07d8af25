package shard

import (
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// To a shard the home of a bitmap that is placed by slice and its parts are keys; it refuses what is neither, lists
// homes only, and keeps the settings in a snapshot.
func TestBitmapsBySlice(t *testing.T) {
	s := defined(t, &ebbv1.Namespace{
		Name: "people", Version: 1, BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE, Universe: []byte("all"),
		Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{ebbv1.Period_PERIOD_MONTH, ebbv1.Period_PERIOD_DAY}},
	})
	apply := func(c *ebbv1.Command) *ebbv1.CommandResult {
		t.Helper()
		c.Namespace = "people"
		return applyOne(t, s, c)
	}
	fresh := bitsOf("a", setOp, 5)
	fresh.Fresh = true
	again := bitsOf("a", setOp, 6)
	again.Fresh = true
	part := string(proto.PartName(5, []byte("a")))
	batch := edits(fresh, again, bitsOf(part, setOp, 1, 2), bitsOf("a", setOp, 7), bitsOf("b", clearOp, 7))
	batch.GetBits().UntilUs = 1 << 60
	r := apply(batch)
	if r.GetChanged() != 3 || len(r.GetRefused()) != 2 || r.GetRefused()[0].GetError().GetCode() != ebbv1.Code_CODE_WRONG_SHARD {
		t.Fatalf("result %v: a key is made once, and only parts are edited", r)
	}
	ids := func(s *State, key string) []uint64 {
		q := &ebbv1.BitmapQuestion{
			Expr:   &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}},
			Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{}},
		}
		a := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_Bitmap{Bitmap: q}}}, 0)
		return a.GetAnswer().GetBitmap().GetIds()
	}
	if got := ids(s, "a"); !slices.Equal(got, []uint64{5}) {
		t.Errorf("the home holds %v", got)
	}
	for name, c := range map[string]*ebbv1.Command{
		"increments": increments("a", "us"),
		"a rename":   {Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("b"), What: &ebbv1.PutKey_From{From: []byte("a")}}}},
	} {
		if r := apply(c); r.GetError().GetCode() != ebbv1.Code_CODE_WRONG_KIND {
			t.Errorf("%s: %v", name, r)
		}
	}
	back := reopen(t, s)
	audit(t, back)
	if def := back.lookup([]byte("people")).definition; !proto.BySlice(def) || string(def.GetUniverse()) != "all" || len(def.GetRollups().GetUnits()) != 2 {
		t.Errorf("settings came back as %v", def)
	}
	if got := ids(back, part); !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("the part holds %v", got)
	}
	list := back.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{}}}}, 0).GetAnswer().GetKeys()
	if list.GetMatched() != 1 || string(list.GetKeys()[0].GetKey()) != "a" || list.GetKeys()[0].GetTotal() != nil {
		t.Errorf("keys %v", list)
	}
	count := back.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}}, 0)
	if n := count.GetAnswer().GetCountKeys().GetKeys(); n != 1 {
		t.Errorf("%d keys", n)
	}
}
