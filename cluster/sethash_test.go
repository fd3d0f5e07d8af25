package cluster

import (
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The hash of sets is chosen when a namespace is made, from the version on that knows it, and stays.
func TestControlKeepsTheHashOfSets(t *testing.T) {
	s := bornCluster(t)
	murmur3, xxh3 := ebbv1.SetHash_SET_HASH_MURMUR3.Enum(), ebbv1.SetHash_SET_HASH_XXH3.Enum()
	if ns := s.apply(setCommand(true, &ebbv1.Namespace{Name: "old", SetHash: murmur3})).GetNamespace(); ns.SetHash != nil {
		t.Errorf("before it is known: %v", ns)
	}
	if e := s.apply(raiseCommand(proto.VersionSetHash, s.c.Table().Epoch())).GetError(); e != nil {
		t.Fatal(e)
	}
	if ns := s.apply(setCommand(true, &ebbv1.Namespace{Name: "x", SetHash: xxh3})).GetNamespace(); ns.SetHash != nil {
		t.Errorf("the default is %v", ns)
	}
	ns := s.apply(setCommand(true, &ebbv1.Namespace{Name: "m", SetHash: murmur3})).GetNamespace()
	if !proto.ByMurmur3(ns) {
		t.Fatalf("created as %v", ns)
	}
	ns = s.apply(setCommand(false, &ebbv1.Namespace{Name: "m", BinsMax: 7})).GetNamespace()
	if !proto.ByMurmur3(ns) || ns.GetBinsMax() != 7 {
		t.Errorf("changed to %v", ns)
	}
	for name, h := range map[string]*ebbv1.SetHash{"m": xxh3, "x": murmur3, "old": murmur3} {
		e := s.apply(setCommand(false, &ebbv1.Namespace{Name: name, SetHash: h})).GetError()
		if e.GetCode() != ebbv1.Code_CODE_BAD_NAMESPACE {
			t.Errorf("%s: another hash: %v", name, e)
		}
	}
	reborn(t, s.c)
}
