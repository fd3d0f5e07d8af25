package cluster

import (
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func restoreCommand(all ...*ebbv1.Namespace) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_RestoreNamespaces{RestoreNamespaces: &ebbv1.RestoreNamespacesRequest{Namespaces: all}}}
}

func ofBackup(name string, version, seed uint64) *ebbv1.Namespace {
	ns := proto.DefaultNamespaceSettings()
	ns.Name, ns.Version, ns.HashSeed = name, version, seed
	return ns
}

// Namespaces of a backup take the place of those of their names, with their seeds, and have versions that no shard has:
// neither of the backup nor of this cluster.
func TestControlRestoresNamespaces(t *testing.T) {
	s := bornCluster(t)
	s.apply(setCommand(true, &ebbv1.Namespace{Name: "own"}))
	words := ofBackup("words", 7, 11)
	words.Dictionary = &ebbv1.Dictionary{Parts: 64} // of a cluster of other shards
	command := restoreCommand(ofBackup("default", 3, 5), words)
	if result := s.apply(command); result.GetError() != nil {
		t.Fatal(result)
	}
	table := s.c.Table()
	for name, want := range map[string]*ebbv1.Namespace{"default": ofBackup("default", 4, 5), "words": pb.CloneOf(words)} {
		if name == "words" {
			want.Version = 8
		}
		if got := table.Namespace(name); !pb.Equal(got, want) {
			t.Errorf("%v, not %v", got, want)
		}
	}
	if table.Namespace("own") == nil {
		t.Error("a namespace that the backup has not is gone")
	}
	if s.apply(command); s.c.Table() != table {
		t.Error("the second time changed something")
	}
	// Changes go on from where they may have been.
	want := ofBackup("words", 0, 0)
	for i := range proto.HalfLifeChangesMax {
		want.HalfLifeUs = int64(i+2) * 1e9
		if e := s.apply(setCommand(false, want)).GetError(); e != nil {
			if i < proto.HalfLifeChangesMax-8 {
				t.Errorf("change %d is refused: %v", i, e)
			}
			return
		}
	}
	t.Error("a namespace of a backup may change more often than others")
}

func TestControlRefusesNamespacesThatCannotBe(t *testing.T) {
	s := bornCluster(t)
	table := s.c.Table()
	for name, bad := range map[string]*ebbv1.Namespace{
		"no name":       ofBackup("", 1, 1),
		"no version":    ofBackup("a", 0, 1),
		"last version":  ofBackup("a", 1<<63, 1),
		"no seed":       ofBackup("a", 1, 0),
		"no half-life":  {Name: "a", Version: 1, HashSeed: 1},
		"not even born": nil,
	} {
		if bad == nil {
			s = testControl{t, NewControl()}
			table, bad = s.c.Table(), ofBackup("a", 1, 1)
		}
		if result := s.apply(restoreCommand(ofBackup("good", 1, 1), bad)); result.GetError() == nil || s.c.Table() != table {
			t.Errorf("%s: %v", name, result)
		}
		s = bornCluster(t)
		table = s.c.Table()
	}
}
