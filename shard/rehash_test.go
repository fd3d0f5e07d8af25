package shard

import (
	"bytes"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What is made for other shards is a valid state, the same each time, and every key that lives is in exactly the shard
// it belongs to.
func TestRehashedStatesAreValid(t *testing.T) {
	old := furnished(t)
	var namespaces []*ebbv1.Namespace
	for _, ns := range old.namespaces {
		if !ns.isSlow {
			namespaces = append(namespaces, ns.definition)
		}
	}
	for _, shards := range []uint32{1, 2, 7} {
		found := map[string]ID{}
		orphans := uint32(0)
		for id := ID(1); id <= ID(shards); id++ {
			s, err := Rehash(id, shards, &wiping{}, []*State{old, New(2, Heap{})}, namespaces)
			if err != nil {
				t.Fatal(err)
			}
			audit(t, s)
			again, err := Rehash(id, shards, &wiping{}, []*State{old, New(2, Heap{})}, namespaces)
			if err != nil || !bytes.Equal(snapshot(t, s), snapshot(t, again)) {
				t.Fatalf("made again, it is another: %v", err)
			}
			for key := range s.summaries.keys.all {
				space := s.namespaces[s.summary(key).space]
				if space.isSlow {
					continue // a slow key begins anew
				}
				ns := space.definition.Name
				name := s.keys.bytesOf(key)
				if proto.ShardOf(ns, name, shards) != uint32(id) || found[ns+"/"+string(name)] != 0 {
					t.Errorf("key %q of %s is in shard %d of %d, and in %d", name, ns, id, shards, found[ns+"/"+string(name)])
				}
				found[ns+"/"+string(name)] = id
			}
			orphans += s.orphans.live
			if s.now != old.now || s.lastSession < old.lastSession || s.sessions.live+s.sources.live+s.answered.live != 0 {
				t.Errorf("shard %d: clock %d, sessions up to %d", id, s.now, s.lastSession)
			}
			reopen(t, s)
			use(t, s)
			audit(t, s)
		}
		for key := range old.summaries.keys.all {
			ns := old.namespaces[old.summary(key).space]
			if name := string(old.keys.bytesOf(key)); !ns.isSlow && old.alive(ns, key, ns.clock(old.now)) && found[ns.definition.Name+"/"+name] == 0 {
				t.Errorf("key %q of %s is in none of %d shards", name, ns.definition.Name, shards)
			}
		}
		if orphans != old.orphans.live {
			t.Errorf("%d orphans of %d", orphans, old.orphans.live)
		}
	}
	if _, err := Rehash(1, 1, Heap{}, []*State{old}, namespaces[:1]); err == nil {
		t.Error("keys of a namespace that is not there")
	}
}

// A key that is larger than its namespace would let it become by now comes along as it is.
func TestRehashedKeysMayBeLarge(t *testing.T) {
	def := &ebbv1.Namespace{
		Name: "default", Version: 1, HalfLifeUs: 3600 * second, BinsMax: 10, Sizes: &ebbv1.Sizes{LinearCapacity: 20_000_000, BloomCapacity: 4_000_000},
	}
	old := definedAt(t, def, beginning)
	applyOne(t, old, increments("distribution", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"))
	for _, kind := range []ebbv1.Kind{ebbv1.Kind_KIND_LINEAR, ebbv1.Kind_KIND_BLOOM} {
		c := increments(proto.KindName(kind), "a")
		c.GetIncrements().Increments[0].Kind = kind
		applyOne(t, old, c)
	}
	smaller := &ebbv1.Namespace{
		Name: "default", Version: 2, HalfLifeUs: 3600 * second, BinsMax: 5, Sizes: &ebbv1.Sizes{LinearCapacity: 1, BloomCapacity: 1},
	}
	if r := applyOne(t, old, &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: smaller}}); r.Error != nil || old.Keys() != 3 {
		t.Fatal(r, old.Keys())
	}
	s, err := Rehash(1, 1, &wiping{}, []*State{old}, []*ebbv1.Namespace{old.lookup(nil).definition})
	if err != nil {
		t.Fatal(err)
	}
	audit(t, s)
	if s.Keys() != old.Keys() || s.bodyBytes != old.bodyBytes {
		t.Errorf("%d keys of %d, with bodies of %d bytes of %d", s.Keys(), old.Keys(), s.bodyBytes, old.bodyBytes)
	}
	for key := range old.summaries.keys.all {
		name := old.keys.bytesOf(key)
		if _, was := old.export(old.lookup(nil), key); s.checksum(s.lookup(nil), mustFind(t, s, name)) != was {
			t.Errorf("key %q holds something else", name)
		}
	}
	reopen(t, s)
}

func mustFind(t *testing.T, s *State, name []byte) uint32 {
	t.Helper()
	key, ok := s.findKey(s.lookup(nil), name)
	if !ok {
		t.Fatalf("key %q is gone", name)
	}
	return key
}
