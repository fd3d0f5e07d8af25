package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// deletable waits until namespaces can be deleted.
func deletable(t *testing.T, c *client.Client) {
	t.Helper()
	for {
		table, err := c.Table(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if table.GetVersion() >= proto.VersionDeletion {
			return
		}
		time.Sleep(time.Second)
	}
}

// filled creates a namespace with a key in each shard.
func filled(t *testing.T, c *client.Client, name string) {
	t.Helper()
	if _, err := c.CreateNamespace(t.Context(), client.Namespace{Name: name, Decay: client.DecayNone}); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if err := c.Increment(t.Context(), name, client.One(fmt.Sprint("k", i), "x")); err != nil {
			t.Fatal(err)
		}
	}
}

func remove(t *testing.T, c *client.Client, name string, grace time.Duration) {
	t.Helper()
	if _, err := c.DeleteNamespace(t.Context(), name, grace); err != nil {
		t.Fatal(err)
	}
}

// purged waits until a deleted namespace is gone.
func purged(t *testing.T, c *client.Client, name string) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Second) {
		live, deleted, err := c.AllNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		there := false
		for _, ns := range append(live, deleted...) {
			there = there || ns.Name == name
		}
		if !there {
			return
		}
		if time.Since(start) > waitMax {
			t.Fatalf("namespace %s is not purged", name)
		}
	}
}

func total(t *testing.T, c *client.Client, name, key string) float64 {
	t.Helper()
	d, err := c.Distribution(t.Context(), name, key)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, b := range d.Bins {
		sum += b.Count
	}
	return sum
}

// aged makes a backup as old as it will be after some time.
func aged(t *testing.T, m *Manifest, by time.Duration) {
	t.Helper()
	all, err := m.namespaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range all {
		if d := ns.GetDeletion(); d != nil {
			d.DeletedUs -= by.Microseconds()
			d.PurgeUs -= by.Microseconds()
		}
	}
	m.Namespaces = nil
	if err := m.setNamespaces(all); err != nil {
		t.Fatal(err)
	}
}

// A backup with a deleted namespace has the second format, which names it. Restored a long time later, and restored
// again from a backup of that, it can be undeleted for as long as when it was deleted, or purged.
func TestDeletedNamespacesAreRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := directory(t.TempDir())
		_, c := newCluster(t, 1, 2)
		deletable(t, c)
		if m, _ := take(t, c, store); m.Format != formatFirst {
			t.Errorf("without deletions it has format %d, which older builds cannot read", m.Format)
		}
		filled(t, c, "grace")
		remove(t, c, "grace", 24*time.Hour)
		m, _ := take(t, c, store)
		for generation := range 3 {
			back, err := Load(t.Context(), store, m.ID)
			if err != nil {
				t.Fatal(err)
			}
			gone := back.Deleted()
			if back.Format != formatDeletion || len(gone) != 1 || gone[0].GetName() != "grace" {
				t.Fatalf("generation %d has format %d and the deleted namespaces %v", generation, back.Format, gone)
			}
			if err := Verify(t.Context(), store, back, nil); err != nil {
				t.Fatal(err)
			}
			aged(t, back, 3*366*24*time.Hour) // the cluster that was backed up runs on, and purges
			shards := uint32(len(back.Shards))
			if generation == 1 { // by way of other shards
				shards++
				moved := directory(t.TempDir())
				if back, err = Rehash(t.Context(), store, back, shards, false, moved); err != nil {
					t.Fatal(err)
				}
				store = moved
			}
			_, to := newCluster(t, 1, shards)
			deletable(t, to)
			if _, err := Restore(t.Context(), to, store, back, nil); err != nil {
				t.Fatalf("generation %d: %v", generation, err)
			}
			if _, err := to.Distribution(t.Context(), "grace", "k7"); !errors.Is(err, client.ErrNamespaceNotFound) {
				t.Errorf("generation %d: it answers with %v", generation, err)
			}
			deleted, err := to.DeletedNamespaces(t.Context())
			if err != nil || len(deleted) != 1 {
				t.Fatalf("generation %d: %v, %v", generation, deleted, err)
			}
			if left := time.Until(deleted[0].Deletion.Purge); left < 23*time.Hour || left > 25*time.Hour {
				t.Errorf("generation %d can be undeleted for %v", generation, left)
			}
			time.Sleep(5 * time.Second) // shards learn of it
			if generation == 2 {
				remove(t, to, "grace", 0)
				purged(t, to, "grace")
				return
			}
			store = directory(t.TempDir())
			m, _ = take(t, to, store)
			if _, err := to.UndeleteNamespace(t.Context(), "grace"); err != nil {
				t.Fatal(err)
			}
			if n := total(t, to, "grace", "k7"); n != 1 {
				t.Errorf("generation %d, undeleted, counts %v", generation, n)
			}
		}
	})
}

// brief is a cluster in which a namespace is created before the first shard is backed up, and purged after the last.
type brief struct {
	*client.Client
	t      *testing.T
	tables int
}

func (b *brief) Table(ctx context.Context) (*ebbv1.Table, error) {
	if b.tables++; b.tables == 2 {
		remove(b.t, b.Client, "brief", 0)
		purged(b.t, b.Client, "brief")
	}
	table, err := b.Client.Table(ctx)
	if b.tables == 1 {
		filled(b.t, b.Client, "brief")
	}
	return table, err
}

// Shards of a backup may have a namespace that was created after it began and purged before it ended: the table of
// neither moment has it. It is restored as one that is being purged, so that none of its keys come back.
func TestBackupDuringTheWholeLifeOfANamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := directory(t.TempDir())
		_, c := newCluster(t, 1, 2)
		deletable(t, c)
		m, _ := take(t, &brief{Client: c, t: t}, store)
		if gone := m.Deleted(); len(gone) != 1 || gone[0].GetName() != "brief" || !gone[0].GetDeletion().GetPurging() {
			t.Errorf("the backup says that %v are deleted", gone)
		}
		for _, shards := range []uint32{2, 3} {
			from, m := store, m
			if shards != 2 {
				moved := directory(t.TempDir())
				made, err := Rehash(t.Context(), store, m, shards, false, moved)
				if err != nil {
					t.Fatal(err)
				}
				from, m = moved, made
			}
			cluster, to := newCluster(t, 1, shards)
			deletable(t, to)
			if _, err := Restore(t.Context(), to, from, m, nil); err != nil {
				t.Fatal(err)
			}
			purged(t, to, "brief")
			if _, err := to.CreateNamespace(t.Context(), client.Namespace{Name: "brief", Decay: client.DecayNone}); err != nil {
				t.Fatal(err)
			}
			for i := range 40 {
				if n := total(t, to, "brief", fmt.Sprint("k", i)); n != 0 {
					t.Fatalf("in %d shards, a new namespace of that name counts %v", shards, n)
				}
			}
			checkReplicas(t, cluster)
		}
	})
}

func TestManifestOfDeletions(t *testing.T) {
	named := func(name string, version, seed uint64, d *ebbv1.NamespaceDeletion) *ebbv1.Namespace {
		ns := proto.DefaultNamespaceSettings()
		ns.Name, ns.Version, ns.HashSeed, ns.Deletion = name, version, seed, d
		return ns
	}
	table := func(dropped uint64, list ...*ebbv1.Namespace) *ebbv1.Table {
		return &ebbv1.Table{DroppedVersion: dropped, Namespaces: list}
	}
	purging := &ebbv1.NamespaceDeletion{DeletedUs: 5, PurgeUs: 9, Purging: true}
	for _, x := range []struct {
		name          string
		before, after *ebbv1.Table
		held          []*ebbv1.Namespace
		format        int
		versions      map[string]uint64 // of those that are being purged
		err           error
	}{
		{
			name: "nothing is deleted", before: table(0, named("a", 1, 7, nil)), after: table(0, named("a", 2, 7, nil)),
			format: formatFirst,
		},
		{
			name: "one is deleted", before: table(0, named("a", 1, 7, nil)), after: table(0, named("a", 2, 7, purging)),
			format: formatDeletion, versions: map[string]uint64{"a": 2},
		},
		{
			name: "one was purged long ago", before: table(4), after: table(4, named("a", 5, 7, nil)), format: formatDeletion,
		},
		{
			name: "one is purged in between", before: table(0, named("a", 1, 7, nil)), after: table(3), format: formatDeletion,
			versions: map[string]uint64{"a": 3},
		},
		{
			name: "one is created and purged in between", before: table(0), after: table(3), format: formatDeletion,
			held:     []*ebbv1.Namespace{named("a", 1, 7, nil), named("a", 2, 7, purging)},
			versions: map[string]uint64{"a": 3},
		},
		{
			name: "one is purged and created anew", before: table(0, named("a", 1, 7, nil)),
			after: table(3, named("a", 4, 8, nil)), err: proto.ErrTooStale,
		},
		{
			name: "one is created, purged and created anew", before: table(0), after: table(3, named("a", 4, 8, nil)),
			held: []*ebbv1.Namespace{named("a", 1, 7, nil)}, err: proto.ErrTooStale,
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			m := sample(t)
			m.Format, m.Namespaces = formatFirst, nil
			err := m.setTable(x.before, x.after, x.held)
			if x.err != nil {
				if !errors.Is(err, x.err) {
					t.Errorf("%v, not %v", err, x.err)
				}
				return
			}
			if err != nil || m.Format != x.format || m.DroppedVersion != x.after.GetDroppedVersion() {
				t.Fatalf("format %d, version %d was dropped: %v", m.Format, m.DroppedVersion, err)
			}
			raw, err := m.encode()
			if err != nil {
				t.Fatal(err)
			}
			back, err := decode(m.ID, raw)
			if err != nil {
				t.Fatal(err)
			}
			if older := bytes.Contains(raw, []byte("dropped_version")); older != (x.after.GetDroppedVersion() > 0) {
				t.Errorf("written as %s", raw)
			}
			gone := back.Deleted()
			if len(gone) != len(x.versions) {
				t.Errorf("deleted are %v", gone)
			}
			for _, ns := range gone {
				if ns.GetVersion() != x.versions[ns.GetName()] || !ns.GetDeletion().GetPurging() {
					t.Errorf("deleted is %v", ns)
				}
			}
		})
	}
}
