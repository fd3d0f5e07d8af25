package proto_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What a template may say of sizes, and what it says when it may not.
func TestCheckSizes(t *testing.T) {
	for _, c := range []struct {
		name  string
		sizes map[string]float64
		says  string // "": taken
	}{
		{"the defaults", nil, ""},
		{"a fine countmin", map[string]float64{"countmin.epsilon": 0.0001, "countmin.delta": 1e-9}, ""},
		{"one that is too fine", map[string]float64{"countmin.epsilon": 0.00001, "countmin.delta": 1e-9}, "take 5708409 cells: the limit is 1048576"},
		{"a small morris", map[string]float64{"morris.bits": 8}, ""},
		{"bits between", map[string]float64{"morris.bits": 12}, "it must be 8 or 16"},
		{"too small a base", map[string]float64{"morris.base": 1e-9}, "size morris.base of 1e-09: it must be from 0.0001 to 1"},
	} {
		ns := proto.DefaultNamespaceSettings()
		ns.Name = "n"
		for name, v := range c.sizes {
			if err := proto.SetSize(ns.Sizes, name, v); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		err := proto.CheckNamespace(ns)
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, proto.ErrBadNamespace) || !strings.Contains(err.Message, c.says)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// Every size has a range, from which neither a definition nor a flag may stray, and no number is mistaken for another.
func TestEachSizeHasARange(t *testing.T) {
	names := proto.SizeNames()
	if len(names) != 13 {
		t.Errorf("%d sizes: %v", len(names), names)
	}
	for _, name := range names {
		for _, v := range []float64{-1, 1e12, math.Inf(1), math.NaN()} {
			if err := proto.SetSize(new(ebbv1.Sizes), name, v); !errors.Is(err, proto.ErrBadNamespace) {
				t.Errorf("%s = %v: %v", name, v, err)
			}
		}
	}
	for _, v := range []float64{0.5, 3, 17} {
		if err := proto.SetSize(new(ebbv1.Sizes), "distinct.precision", v); err == nil {
			t.Errorf("precision %v is taken", v)
		}
	}
	if err := proto.SetSize(new(ebbv1.Sizes), "distinct.depth", 3); err == nil || !strings.Contains(err.Message, "distinct.precision") {
		t.Errorf("an unknown size: %v", err)
	}
	for _, zero := range []*ebbv1.Sizes{nil, {}} {
		if err := proto.CheckSizes(zero); err == nil {
			t.Error("sizes of zero are taken")
		}
	}
}

// A change names what changes; the rest stays, and neither message is touched.
func TestSizesAreFilled(t *testing.T) {
	base := proto.DefaultNamespaceSettings()
	ns := proto.FillNamespace(&ebbv1.Namespace{Name: "n", Sizes: &ebbv1.Sizes{TopkItems: 7}}, base)
	if got := ns.GetSizes(); got.GetTopkItems() != 7 || got.GetSetMembers() != 1024 || ns.GetKind() != ebbv1.Kind_KIND_DISTRIBUTION {
		t.Errorf("filled: %v", ns)
	}
	if base.GetSizes().GetTopkItems() != 100 {
		t.Errorf("the base became %v", base)
	}
	ns = proto.FillNamespace(&ebbv1.Namespace{Kind: ebbv1.Kind_KIND_TOPK}, ns)
	if ns.GetKind() != ebbv1.Kind_KIND_TOPK || ns.GetSizes().GetTopkItems() != 7 {
		t.Errorf("filled again: %v", ns)
	}
}

// A window is from a second to a century, none, or nothing that a namespace of distributions only would have.
func TestCheckWindow(t *testing.T) {
	for _, c := range []struct {
		us    int64
		decay ebbv1.Decay
		says  string // "": taken
	}{
		{0, ebbv1.Decay_DECAY_LINEAR, ""},
		{1e6, ebbv1.Decay_DECAY_NONE, ""},
		{3600e6, ebbv1.Decay_DECAY_HALF_LIFE, ""},
		{proto.HalfLifeMaxUS, ebbv1.Decay_DECAY_HALF_LIFE, ""},
		{1, ebbv1.Decay_DECAY_NONE, "it must be from 1 s to 100 years, or 0 for none"},
		{-3600e6, ebbv1.Decay_DECAY_NONE, "window of -3600 s"},
		{proto.HalfLifeMaxUS + 1, ebbv1.Decay_DECAY_NONE, "100 years"},
		{3600e6, ebbv1.Decay_DECAY_LINEAR, "linear decay holds distributions only"},
	} {
		ns := proto.DefaultNamespaceSettings()
		ns.Name, ns.WindowUs, ns.Decay = "n", &c.us, c.decay
		err := proto.CheckNamespace(ns)
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, proto.ErrBadNamespace) || !strings.Contains(err.Message, c.says)) {
			t.Errorf("%d us under %v: %v, want %q", c.us, c.decay, err, c.says)
		}
	}
}
