package shard

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// bodies are commands of every kind there is, empty ones and some that do something.
func bodies() []*ebbv1.Command {
	all := seedCommands()
	kinds := (&ebbv1.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	for i := range kinds.Len() {
		c := &ebbv1.Command{}
		m := c.ProtoReflect()
		m.Set(kinds.Get(i), m.NewField(kinds.Get(i)))
		all = append(all, c)
	}
	home := bitsOf("all", setOp, 77)
	home.Fresh = true
	return append(all,
		edits(bitsOf("bits/small", setOp, 3, 1<<63), rangeOf("bits/large", clearOp, 1, 1<<20)), edits(home), reserved("next", 78), naming("history", 1, "b", "mallory"),
		&ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("clicks/link"), []byte("bits/large")}}}},
		&ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Keys: [][]byte{[]byte("clicks/link")}, Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: 5 * second}}}},
	)
}

// still is a state that changes nothing but its index when nothing is asked of it.
func still(t testing.TB) *State {
	s := furnished(t)
	for before := uint64(0); before != s.Checksum(); {
		before = s.Checksum()
		index := s.applied
		for range 8 {
			s.Apply(s.applied+1, entryOf(0), nil)
		}
		s.applied = index
	}
	return s
}

// FuzzReplicas: of a command of any bytes two replicas make the same, though one has a view that shares all it has.
// What the view says stays. A command that is refused as a whole leaves everything as it was.
func FuzzReplicas(f *testing.F) {
	for _, c := range bodies() {
		for _, namespace := range []string{c.Namespace, "history", "people"} {
			c.Namespace = namespace
			raw, err := pb.Marshal(c)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(int64(0), raw)
		}
	}
	base := string(snapshot(f, still(f)))
	f.Fuzz(func(t *testing.T, stamp int64, raw []byte) {
		one, other := restored(t, base), restored(t, base)
		before := one.Checksum()
		view := other.Freeze()
		defer view.Release()
		entry := entryOf(stamp, raw)
		var did, didToo []*ebbv1.CommandResult
		said := panicOf(func() { did = one.Apply(one.applied+1, entry, nil) })
		saidToo := panicOf(func() { didToo = other.Apply(other.applied+1, entry, nil) })
		if said != saidToo || said != "" && !strings.HasSuffix(said, "upgrade") {
			t.Fatalf("panics %q, %q", said, saidToo)
		}
		if said != "" {
			return
		}
		if diff := cmp.Diff(did, didToo, protocmp.Transform()); diff != "" || len(did) != 1 {
			t.Fatalf("two replicas answer differently: %s", diff)
		}
		if one.Checksum() != other.Checksum() {
			t.Fatal("two replicas differ")
		}
		if view.Checksum() != before {
			t.Fatal("what a view says has changed")
		}
		if did[0].GetError() == nil || stamp > 0 {
			return
		}
		if c, ok := parseCommand(raw); ok && c.identity != anonymous {
			return // that it was refused is remembered
		}
		one.applied--
		if one.Checksum() != before {
			t.Fatalf("refused with %v, and something has changed", did[0].GetError())
		}
	})
}

func restored(t *testing.T, base string) *State {
	t.Helper()
	s, err := Restore(1, &wiping{}, strings.NewReader(base))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
