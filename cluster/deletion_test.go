package cluster

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

func deleteCommand(name string, now, grace int64) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_DeleteNamespace{
		DeleteNamespace: &ebbv1.DeleteNamespace{Name: name, NowUs: now, GraceUs: grace},
	}}
}

func undeleteCommand(name string) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_UndeleteNamespace{
		UndeleteNamespace: &ebbv1.UndeleteNamespaceRequest{Name: name},
	}}
}

func purgeCommand(name string, version uint64) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_BeginPurge{BeginPurge: &ebbv1.BeginPurge{Name: name, Version: version}}}
}

func purgedCommand(shard uint32, name string, version uint64) *ebbv1.ControlCommand {
	return &ebbv1.ControlCommand{Body: &ebbv1.ControlCommand_NamespacesPurged{NamespacesPurged: &ebbv1.NamespacesPurged{
		Shard: shard, Namespaces: []*ebbv1.NamespacesPurged_Purged{{Name: name, Version: version}},
	}}}
}

// deletable is a cluster with a namespace a, of version 1, in which namespaces can be deleted.
func deletable(t *testing.T) testControl {
	s := bornCluster(t)
	s.apply(raiseCommand(proto.VersionDeletion, s.c.Table().Epoch()))
	if e := s.apply(setCommand(true, &ebbv1.Namespace{Name: "a"})).GetError(); e != nil {
		t.Fatal(e)
	}
	return s
}

func TestControlDeletesNamespaces(t *testing.T) {
	set := setCommand(false, &ebbv1.Namespace{Name: "a", HalfLifeUs: 5e9})
	create := setCommand(true, &ebbv1.Namespace{Name: "a"})
	for _, c := range []struct {
		name     string
		commands []*ebbv1.ControlCommand
		refused  string // what the last one is refused with; empty if it is not
		version  uint64 // of a after that
		state    string // live, grace, purging
	}{
		{"in grace", []*ebbv1.ControlCommand{deleteCommand("a", 100, 50)}, "", 2, "grace"},
		{"at once", []*ebbv1.ControlCommand{deleteCommand("a", 100, 0)}, "", 2, "purging"},
		{"twice", []*ebbv1.ControlCommand{deleteCommand("a", 100, 50), deleteCommand("a", 120, 70)}, "", 2, "grace"},
		{"twice, then at once", []*ebbv1.ControlCommand{deleteCommand("a", 100, 50), deleteCommand("a", 120, 0)}, "", 3, "purging"},
		{"at once, then in grace", []*ebbv1.ControlCommand{deleteCommand("a", 100, 0), deleteCommand("a", 120, 9)}, "", 2, "purging"},
		{"undeleted", []*ebbv1.ControlCommand{deleteCommand("a", 100, 50), undeleteCommand("a")}, "", 3, "live"},
		{"undeleted, never deleted", []*ebbv1.ControlCommand{undeleteCommand("a")}, "", 1, "live"},
		{"undeleted too late", []*ebbv1.ControlCommand{deleteCommand("a", 100, 0), undeleteCommand("a")}, "being purged", 2, "purging"},
		{"purge begins", []*ebbv1.ControlCommand{deleteCommand("a", 100, 50), purgeCommand("a", 2)}, "", 3, "purging"},
		{"purge begins twice", []*ebbv1.ControlCommand{deleteCommand("a", 100, 50), purgeCommand("a", 2), purgeCommand("a", 2)}, "", 3, "purging"},
		{"purge of a live one", []*ebbv1.ControlCommand{purgeCommand("a", 1)}, "", 1, "live"},
		{"purge of one that was undeleted", []*ebbv1.ControlCommand{deleteCommand("a", 100, 50), undeleteCommand("a"), purgeCommand("a", 2)}, "", 3, "live"},
		{"purge of one that was deleted again", []*ebbv1.ControlCommand{
			deleteCommand("a", 100, 50), undeleteCommand("a"), deleteCommand("a", 200, 50), purgeCommand("a", 2),
		}, "", 4, "grace"},
		{"changed", []*ebbv1.ControlCommand{deleteCommand("a", 100, 50), set}, "can be undeleted until", 2, "grace"},
		{"created", []*ebbv1.ControlCommand{deleteCommand("a", 100, 50), create}, "can be undeleted until", 2, "grace"},
		{"created while it is purged", []*ebbv1.ControlCommand{deleteCommand("a", 100, 0), create}, "being purged", 2, "purging"},
		{"by its settings", []*ebbv1.ControlCommand{setCommand(false, &ebbv1.Namespace{Name: "a", Deletion: &ebbv1.NamespaceDeletion{}})}, "settings do not delete", 1, "live"},
		{"default", []*ebbv1.ControlCommand{deleteCommand("default", 100, 50)}, "cannot be deleted", 1, "live"},
		{"unknown", []*ebbv1.ControlCommand{deleteCommand("b", 100, 50)}, "does not exist", 1, "live"},
		{"undeleted, unknown", []*ebbv1.ControlCommand{undeleteCommand("b")}, "does not exist", 1, "live"},
		{"negative grace", []*ebbv1.ControlCommand{deleteCommand("a", 100, -1)}, "grace of", 1, "live"},
		{"long grace", []*ebbv1.ControlCommand{deleteCommand("a", 100, proto.GraceMaxUS+1)}, "grace of", 1, "live"},
		{"purged by a shard, while live", []*ebbv1.ControlCommand{purgedCommand(1, "a", 1)}, "", 1, "live"},
		{"purged by no shard", []*ebbv1.ControlCommand{deleteCommand("a", 100, 0), purgedCommand(9, "a", 2)}, "no shard 9", 2, "purging"},
		{"a restore over it", []*ebbv1.ControlCommand{deleteCommand("a", 100, 0), restoreCommand(ofBackup("a", 7, 3))}, "being purged", 2, "purging"},
		{"a restore of default, deleted", []*ebbv1.ControlCommand{restoreCommand(func() *ebbv1.Namespace {
			ns := ofBackup("default", 7, 3)
			ns.Deletion = &ebbv1.NamespaceDeletion{}
			return ns
		}())}, "cannot be deleted", 1, "live"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := deletable(t)
			var result *ebbv1.ControlResult
			for _, command := range c.commands {
				result = s.apply(command)
			}
			if e := result.GetError(); (e == nil) != (c.refused == "") || !strings.Contains(e.GetMessage(), c.refused) {
				t.Errorf("the last is answered with %v, not with %q", e, c.refused)
			}
			table := s.c.Table()
			ns := table.Defined("a")
			state := "live"
			switch d := ns.GetDeletion(); {
			case d.GetPurging():
				state = "purging"
			case d != nil:
				state = "grace"
			}
			if state != c.state || ns.GetVersion() != c.version {
				t.Errorf("it is %s at version %d, not %s at %d", state, ns.GetVersion(), c.state, c.version)
			}
			if alive := state == "live"; (table.Namespace("a") != nil) != alive || slices.Contains(table.Namespaces(), ns) != alive ||
				(table.Deleted("a") != nil) == alive || slices.Contains(table.DeletedNamespaces(), ns) == alive {
				t.Errorf("the table takes a %s namespace for another", state)
			}
			if again := reborn(t, s.c); !bytes.Equal(snapshot(t, again), snapshot(t, s.c)) {
				t.Error("its snapshot says something else")
			}
		})
	}
}

func TestControlDeletesNothingBeforeItsVersion(t *testing.T) {
	grace := ofBackup("grace", 5, 11)
	grace.Deletion = &ebbv1.NamespaceDeletion{DeletedUs: 100, PurgeUs: 150}
	s := bornCluster(t)
	s.apply(setCommand(true, &ebbv1.Namespace{Name: "a"}))
	for _, command := range []*ebbv1.ControlCommand{deleteCommand("a", 100, 50), undeleteCommand("a"), restoreCommand(grace)} {
		if e := s.apply(command).GetError(); e.GetCode() != ebbv1.Code_CODE_STARTING {
			t.Errorf("it is answered with %v", e)
		}
	}
}

// A namespace leaves the table when all shards have purged it under its last version. One of its name then begins above
// that, with another hash seed.
func TestControlForgetsPurgedNamespaces(t *testing.T) {
	s := deletable(t)
	before := s.c.Table().Namespace("a")
	s.apply(setCommand(true, &ebbv1.Namespace{Name: "b"}))
	s.apply(deleteCommand("a", 100, 50))
	s.apply(purgeCommand("a", 2))
	for shard := uint32(1); shard <= 8; shard++ {
		s.apply(purgedCommand(shard, "a", 2)) // under its version before
		if s.c.Table().Deleted("a") == nil {
			t.Fatalf("it is gone when %d of 8 shards have purged it", shard-1)
		}
		s.apply(purgedCommand(shard, "a", 3))
		s.apply(purgedCommand(shard, "a", 3)) // again
		view := s.c.Freeze()
		s.c = reborn(t, s.c) // in the middle, from a snapshot
		var was bytes.Buffer
		if _, err := view.WriteTo(&was); err != nil || !bytes.Equal(was.Bytes(), snapshot(t, s.c)) {
			t.Fatalf("after shard %d: a view is not what was restored, or %v", shard, err)
		}
	}
	table := s.c.Table()
	if table.Defined("a") != nil || table.Namespace("b") == nil || table.DroppedVersion() != 3 {
		t.Fatalf("after all have purged it: %v, and version %d was dropped", table.AllNamespaces(), table.DroppedVersion())
	}
	if e := s.apply(deleteCommand("a", 100, 0)).GetError(); e.GetCode() != ebbv1.Code_CODE_NAMESPACE_NOT_FOUND {
		t.Errorf("deleting it again is answered with %v", e)
	}
	anew := s.apply(setCommand(true, &ebbv1.Namespace{Name: "a"})).GetNamespace()
	if anew.GetVersion() != 4 || anew.GetHashSeed() == before.GetHashSeed() || anew.GetDeletion() != nil {
		t.Errorf("it begins anew as %v; before it was %v", anew, before)
	}
}

// A backup holds deleted namespaces. Restored, they are deleted, and can be undeleted for as long as they could when
// they were.
func TestControlRestoresDeletedNamespaces(t *testing.T) {
	s := deletable(t)
	grace, purging := ofBackup("grace", 5, 11), ofBackup("purging", 6, 12)
	grace.Deletion = &ebbv1.NamespaceDeletion{DeletedUs: 100, PurgeUs: 150}
	purging.Deletion = &ebbv1.NamespaceDeletion{DeletedUs: 100, PurgeUs: 150, Purging: true}
	command := restoreCommand(grace, purging)
	restore := command.GetRestoreNamespaces()
	restore.DroppedVersion, restore.NowUs = 9, 1000
	if e := s.apply(command).GetError(); e != nil {
		t.Fatal(e)
	}
	table := s.c.Table()
	if d := table.Deleted("grace").GetDeletion(); d.GetPurgeUs() != 1050 || d.GetPurging() {
		t.Errorf("one in grace is restored as %v", d)
	}
	if d := table.Deleted("purging").GetDeletion(); !d.GetPurging() || table.Deleted("purging").GetVersion() <= 6 {
		t.Errorf("one that was purged is restored as %v", table.Deleted("purging"))
	}
	if table.DroppedVersion() != 9 {
		t.Errorf("version %d was dropped", table.DroppedVersion())
	}
	restore.NowUs = 2000
	if s.apply(command); s.c.Table() != table || len(table.Unrestored(restore.GetNamespaces())) != 0 {
		t.Error("the second time changed something")
	}
	if e := s.apply(undeleteCommand("grace")).GetError(); e != nil {
		t.Error(e)
	}
	if ns := s.apply(setCommand(true, &ebbv1.Namespace{Name: "new"})).GetNamespace(); ns.GetVersion() <= 9 {
		t.Errorf("a new namespace begins at version %d, where shards may remember one of version 9", ns.GetVersion())
	}
}

// What was restored can be backed up and restored again, whatever its version.
func TestControlRestoresWhatItHasRestored(t *testing.T) {
	ns := ofBackup("a", 1<<62, 11)
	for range 3 {
		s := deletable(t)
		if e := s.apply(restoreCommand(ns)).GetError(); e != nil {
			t.Fatal(e)
		}
		ns = pb.CloneOf(s.c.Table().Namespace("a"))
	}
}

// gone deletes a namespace and has all shards purge it.
func (e *fakeCluster) gone(name string) {
	e.t.Helper()
	change := func(c *ebbv1.ControlCommand) {
		e.index++
		if err := proto.FromWire(e.control.Apply(e.index+1, encode(e.t, c)).GetError()); err != nil {
			e.t.Fatal(err)
		}
		e.table = e.control.Table()
	}
	if e.table.Version() < proto.VersionDeletion {
		change(raiseCommand(proto.VersionDeletion, e.table.Epoch()))
	}
	change(deleteCommand(name, e.stamp, 0))
	ns := e.table.Deleted(name)
	purge := &ebbv1.PurgeNamespace{Version: ns.GetVersion()}
	for number := range e.states {
		for _, c := range []*ebbv1.Command{
			{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: shard.BehaviourDeletion}}},
			{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}},
			{Namespace: name, Body: &ebbv1.Command_PurgeNamespace{PurgeNamespace: purge}},
		} {
			raw, err := pb.Marshal(c)
			if err != nil {
				e.t.Fatal(err)
			}
			if r := e.enter(number, raw); r.GetError() != nil {
				e.t.Fatal(r)
			}
		}
		change(purgedCommand(number, name, ns.GetVersion()))
	}
	if e.table.Defined(name) != nil {
		e.t.Fatalf("namespace %s is not purged", name)
	}
}

// A node remembers which ids strings have. What it remembers of a namespace that was purged is not of another one of
// that name: its writes would set ids that are, or become, those of other strings.
func TestIDsOfAPurgedNamespaceAreForgotten(t *testing.T) {
	for what, seed := range map[string]uint64{"another hash seed": 0, "the same hash seed": 77} {
		t.Run(what, func(t *testing.T) {
			e := newFakeCluster(t, 3)
			people := &ebbv1.Namespace{Name: "people", Dictionary: &ebbv1.Dictionary{}, HashSeed: seed}
			e.create(people)
			r, c := e.router("ebb-0"), e.coordinator("ebb-0")
			r.ask = c // one memory, as in a node
			write := func(name string) {
				t.Helper()
				req := &ebbv1.BitsRequest{Namespace: "people", Changes: []*ebbv1.BitChange{namesChange("a", 1, name)}}
				if _, err := r.Bits(t.Context(), req); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 20 {
				write(fmt.Sprint("before-", i))
			}
			write("alice")
			e.gone("people")
			e.create(people)
			if a := e.names(c, []string{"alice"}, nil); a.Found[0] {
				t.Error("a string of the purged namespace has an id")
			}
			write("alice")
			b := e.about(e.coordinator("ebb-1"), listIDs("people", keyTerm("a"))).GetBitmap() // which remembers nothing
			if got := texts(b.GetNames()); !slices.Equal(got, []string{"alice"}) {
				t.Errorf("the bitmap holds %q", got)
			}
		})
	}
}

// A replica that has not heard that a namespace was purged and made anew knows no strings of the new one.
func TestReplicasThatLagBehindAPurgeKnowNoStrings(t *testing.T) {
	e := newFakeCluster(t, 3)
	e.named(0)
	r := e.router("ebb-0")
	for i := range 20 {
		change := namesChange("a", 1, fmt.Sprint("before-", i))
		req := &ebbv1.BitsRequest{Namespace: "people", Changes: []*ebbv1.BitChange{change}}
		if _, err := r.Bits(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	table := e.table
	for number, s := range e.states {
		ask := func(seed uint64) (found int) {
			q := &ebbv1.NamesQuestion{HashSeed: seed}
			for i := range 20 {
				q.Names = append(q.Names, fmt.Appendf(nil, "before-%d", i))
			}
			a := s.Ask(&ebbv1.ShardQuestion{Shard: number, Question: &ebbv1.Question{
				Namespace: "people", Ask: &ebbv1.Question_Names{Names: q},
			}}, sketch.Tick(e.stamp)).GetAnswer().GetNames()
			for _, f := range a.GetFound() {
				if f {
					found++
				}
			}
			return found
		}
		seed := table.Namespace("people").GetHashSeed()
		if of, any, other := ask(seed), ask(0), ask(seed+1); of == 0 || of != any || other != 0 {
			t.Errorf("shard %d finds %d strings of this namespace, %d of any, %d of another one", number, of, any, other)
		}
	}
}
