package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// A member starts only with the log that it had when its snapshot was taken. Without that log, it would vote a second
// time in terms in which it has voted. It would also lack the entries after the snapshot that it has acknowledged.
func TestIntact(t *testing.T) {
	disk := fs.NewMem()
	seated := func(dir string, f func(m *member, g *wal.Group)) {
		t.Helper()
		log, err := wal.Open(wal.Config{FS: disk, Dir: dir, Fatal: func(err error) { t.Error(err) }})
		must(t, err)
		g := log.Group(1)
		snaps, err := snap.Open(snap.Config{FS: disk, Dir: "/data/snap/1", OnBoundary: g.SetBoundary})
		must(t, err)
		f(&member{memberConfig: memberConfig{group: 1, wal: g, snaps: snaps}}, g)
		must(t, log.Close())
	}
	lost := func(what string, m *member) {
		t.Helper()
		err := m.intact()
		if !errors.Is(err, proto.ErrCorrupt) || !strings.Contains(err.Error(), "group 1") || proto.AsError(err).Hint == "" {
			t.Errorf("%s: %v, want CORRUPT with a hint", what, err)
		}
	}
	seated("/data/wal", func(m *member, g *wal.Group) {
		lost("nothing at all", m)
		must(t, g.SetUint64([]byte("CurrentTerm"), 1))
		for i := uint64(1); i <= 200; i++ {
			must(t, g.StoreLog(&raft.Log{Index: i, Term: 3, Data: []byte("x")}))
		}
		must(t, m.intact()) // as a founder is, before any snapshot
		must(t, g.SetUint64([]byte("CurrentTerm"), 9))
		must(t, g.SetUint64([]byte("LastVoteTerm"), 9))
		must(t, g.Set([]byte("LastVoteCand"), []byte("ebb-1/4")))
		sink, err := m.snaps.Create(raft.SnapshotVersionMax, 100, 3, raft.Configuration{}, 1, nil)
		must(t, err)
		_, err = sink.Write([]byte("state"))
		must(t, err)
		must(t, sink.Close())
		must(t, m.intact())
	})
	seated("/data/wal", func(m *member, _ *wal.Group) { must(t, m.intact()) })
	seated("/data/another", func(m *member, g *wal.Group) {
		lost("the snapshot alone", m)
		must(t, g.SetUint64([]byte("CurrentTerm"), 2))
		lost("a log of a term before the snapshot's", m)
		must(t, g.SetUint64([]byte("CurrentTerm"), 3))
		must(t, m.intact()) // a replica that installed the snapshot and never voted
	})
}
