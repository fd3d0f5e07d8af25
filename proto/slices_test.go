package proto_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Where a slice lies is part of the wire contract: these numbers never change.
func TestSliceShardOfGolden(t *testing.T) {
	for _, c := range []struct {
		namespace string
		slice     uint64
		shards    uint32
		want      uint32
	}{
		{"default", 0, 1, 1},
		{"default", 0, 64, 5},
		{"default", 1, 64, 41},
		{"people", 1, 64, 15},
		{"people", proto.BitSliceMax, 64, 48},
		{"people", 2047, 1024, 693},
	} {
		if got := proto.SliceShardOf(c.namespace, c.slice, c.shards); got != c.want {
			t.Errorf("SliceShardOf(%q, %d, %d) = %d, want %d", c.namespace, c.slice, c.shards, got, c.want)
		}
	}
}

// The pieces of a change are its ids, each in the shard of its slice, whether they are named or a range.
func TestEditPieces(t *testing.T) {
	ids := []uint64{7, 70_000, 7, 1 << 40, 1<<64 - 1, 65_535, 65_536}
	var got []uint64
	last := uint32(0)
	for _, p := range proto.EditPieces("people", &ebbv1.BitChange{Ids: ids}, 16) {
		if p.Shard <= last || !slices.IsSorted(p.IDs) {
			t.Errorf("piece %v after shard %d", p, last)
		}
		last = p.Shard
		for _, id := range p.IDs {
			if proto.SliceShardOf("people", id>>16, 16) != p.Shard {
				t.Errorf("id %d in shard %d", id, p.Shard)
			}
		}
		got = append(got, p.IDs...)
	}
	if slices.Sort(got); !slices.Equal(got, []uint64{7, 65_535, 65_536, 70_000, 1 << 40, 1<<64 - 1}) {
		t.Errorf("ids %v", got)
	}
	covered := map[uint64]uint64{} // from first to last
	for _, p := range proto.EditPieces("people", &ebbv1.BitChange{Range: &ebbv1.BitRange{First: 65_000, Last: 262_143}}, 16) {
		for _, r := range p.Ranges {
			covered[r.GetFirst()] = r.GetLast()
		}
	}
	at := uint64(65_000)
	for len(covered) > 0 && covered[at] >= at {
		next := covered[at] + 1
		delete(covered, at)
		at = next
	}
	if at != 262_144 {
		t.Errorf("the range ends before %d, with %v left", at, covered)
	}
}

func TestPartNames(t *testing.T) {
	name := proto.PartName(5, []byte("k"))
	if !proto.IsPartName(name) || proto.IsPartName([]byte("k")) || string(name) != "\x00\x00\x00\x00\x00\x00\x00\x00\x05k" {
		t.Errorf("name %q", name)
	}
	for _, bad := range []string{"", "\x00", "\x00k", strings.Repeat("k", proto.PartKeyLenMax+1)} {
		if err := proto.CheckSliceKey([]byte(bad)); !errors.Is(err, proto.ErrBadKey) {
			t.Errorf("key %q: %v", bad, err)
		}
	}
	if err := proto.CheckSliceKey([]byte(strings.Repeat("k", proto.PartKeyLenMax))); err != nil {
		t.Error(err)
	}
}

// A not without a universe means that of its namespace; one that there is not is named.
func TestUniverse(t *testing.T) {
	key := func(k string) *ebbv1.BitmapExpr {
		return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(k)}}
	}
	not := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Not{Not: &ebbv1.BitmapNot{Of: key("a")}}}
	x := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_And{And: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{key("b"), not}}}}
	if _, err := proto.WithUniverse(x, &ebbv1.Namespace{Name: "people"}); !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Hint, "ebb namespace set people --universe") {
		t.Errorf("error %v", err)
	}
	got, err := proto.WithUniverse(x, &ebbv1.Namespace{Name: "people", Universe: []byte("all")})
	if err != nil || string(got.GetAnd().GetOf()[1].GetNot().GetUniverse().GetKey()) != "all" || not.GetNot().GetUniverse() != nil {
		t.Errorf("%v, %v; and the question itself is %v", got, err, x)
	}
	own := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Not{Not: &ebbv1.BitmapNot{Of: key("a"), Universe: key("mine")}}}
	if got, err := proto.WithUniverse(own, &ebbv1.Namespace{Universe: []byte("all")}); err != nil || got != own {
		t.Errorf("%v, %v", got, err)
	}
}

func TestBitmapSettings(t *testing.T) {
	slice := ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE
	for name, c := range map[string]struct {
		ns   *ebbv1.Namespace
		want error
	}{
		"by slice":             {&ebbv1.Namespace{BitmapPlacement: slice, Universe: []byte("all")}, nil},
		"unknown":              {&ebbv1.Namespace{BitmapPlacement: 3}, proto.ErrBadNamespace},
		"linear":               {&ebbv1.Namespace{BitmapPlacement: slice, Decay: ebbv1.Decay_DECAY_LINEAR}, proto.ErrBadNamespace},
		"two half-lives":       {&ebbv1.Namespace{BitmapPlacement: slice, SlowHalfLifeUs: new(int64(86_400_000_000))}, proto.ErrBadNamespace},
		"universe too long":    {&ebbv1.Namespace{Universe: make([]byte, proto.KeyLenMax+1)}, proto.ErrBadNamespace},
		"roll-ups":             {&ebbv1.Namespace{Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{ebbv1.Period_PERIOD_MONTH, ebbv1.Period_PERIOD_DAY}}}, nil},
		"no roll-ups":          {&ebbv1.Namespace{Rollups: &ebbv1.Rollups{}}, nil},
		"a roll-up of hours":   {&ebbv1.Namespace{Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{1}}}, proto.ErrBadNamespace},
		"a roll-up twice":      {&ebbv1.Namespace{Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{ebbv1.Period_PERIOD_DAY, ebbv1.Period_PERIOD_DAY}}}, proto.ErrBadNamespace},
		"universe like a part": {&ebbv1.Namespace{BitmapPlacement: slice, Universe: []byte("\x00all")}, proto.ErrBadKey},
	} {
		c.ns.Name = "people"
		err := proto.CheckNamespace(proto.FillNamespace(c.ns, proto.DefaultNamespaceSettings()))
		if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// What is packed is what was to be changed; what does not unpack is refused, and so is a change that says its ids
// twice.
func TestPackedBits(t *testing.T) {
	ids := []uint64{1, 2, 70_000, 1 << 40, 1<<64 - 1}
	req := &ebbv1.BitsRequest{Namespace: "people", Changes: []*ebbv1.BitChange{
		{Key: []byte("a"), Op: ebbv1.BitOp_BIT_OP_FLIP, Packed: proto.AppendBitIDs(nil, ids)},
		{Key: []byte("b"), Op: ebbv1.BitOp_BIT_OP_SET, Range: &ebbv1.BitRange{First: 1, Last: 9}},
	}}
	if err := proto.CheckBits(req); err != nil {
		t.Fatal(err)
	}
	got, err := proto.UnpackBits(req)
	if err != nil || got.GetNamespace() != "people" || !slices.Equal(got.GetChanges()[0].GetIds(), ids) || got.GetChanges()[0].GetOp() != ebbv1.BitOp_BIT_OP_FLIP || got.GetChanges()[1] != req.GetChanges()[1] {
		t.Fatalf("%v, %v", got, err)
	}
	many := make([]byte, proto.BitIDsMax+1) // ids that follow each other
	for name, c := range map[string]*ebbv1.BitChange{
		"cut":          {Packed: []byte{0x80}},
		"too many":     {Packed: many},
		"past the end": {Packed: proto.AppendBitIDs(proto.AppendBitIDs(nil, []uint64{1<<64 - 1}), []uint64{0})},
		"ids too":      {Packed: []byte{1}, Ids: []uint64{1}},
		"names too":    {Packed: []byte{1}, Names: [][]byte{[]byte("x")}},
	} {
		if got, err := proto.UnpackBits(&ebbv1.BitsRequest{Changes: []*ebbv1.BitChange{c}}); !err.Is(proto.ErrBadRequest) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := proto.UnpackBits(&ebbv1.BitsRequest{Changes: []*ebbv1.BitChange{{Packed: many[1:]}}}); err != nil {
		t.Errorf("as many as there may be: %v", err)
	}
}
