package wal_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/wal"
)

const (
	dir     = "/data/wal"
	endName = "/data/log.end"
)

type raftLog = raft.Log

// open opens a log with small segments on a disk in memory.
func open(t testing.TB, disk fs.FS, change ...func(*wal.Config)) *wal.Log {
	t.Helper()
	cfg := wal.Config{
		FS: disk, Dir: dir, SegmentBytes: 8 << 10, TailBytes: 4 << 10,
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	}
	for _, f := range change {
		f(&cfg)
	}
	l, err := wal.Open(cfg)
	must(t, err)
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func entry(index, term uint64, size int) *raft.Log {
	return &raft.Log{
		Index: index, Term: term, Type: raft.LogCommand,
		Data:       bytes.Repeat([]byte{byte(index), byte(term)}, size/2),
		AppendedAt: time.Unix(int64(index), 5),
	}
}

func TestStoreGetReopen(t *testing.T) {
	disk := fs.NewMem()
	l := open(t, disk)
	for round := range 3 {
		for id := range uint32(3) {
			g := l.Group(id)
			from := uint64(round*50 + 1)
			for i := from; i < from+50; i++ {
				must(t, g.StoreLogs([]*raft.Log{entry(i, uint64(round+1), 200)}))
			}
			must(t, g.SetUint64([]byte("CurrentTerm"), uint64(round+1)))
			must(t, g.SetUint64([]byte("LastVoteTerm"), uint64(round+1)))
			must(t, g.Set([]byte("LastVoteCand"), fmt.Appendf(nil, "node-%d/7", id)))
			must(t, g.Set([]byte("other"), fmt.Appendf(nil, "%d", round)))
		}
		must(t, l.Close())
		l = open(t, disk)
		for id := range uint32(3) {
			g := l.Group(id)
			for i := uint64(1); i <= uint64(round+1)*50; i++ {
				var e raft.Log
				must(t, g.GetLog(i, &e))
				if want := entry(i, (i-1)/50+1, 200); !same(&e, want) {
					t.Fatalf("entry %d: %+v", i, e)
				}
			}
			if last, _ := g.LastIndex(); last != uint64(round+1)*50 {
				t.Fatal(last)
			}
			if v, err := g.Get([]byte("LastVoteCand")); err != nil || string(v) != fmt.Sprintf("node-%d/7", id) {
				t.Fatal(string(v), err)
			}
			if n, err := g.GetUint64([]byte("LastVoteTerm")); err != nil || n != uint64(round+1) {
				t.Fatal(n, err)
			}
			if v, err := g.Get([]byte("other")); err != nil || string(v) != fmt.Sprint(round) {
				t.Fatal(string(v), err)
			}
		}
	}
	if s := l.Stats(); s.Segments < 5 || len(s.Pins) == 0 {
		t.Fatalf("%+v", s)
	}
	for id := range uint32(3) {
		must(t, l.Group(id).DeleteRange(1, 150))
	}
	if s := l.Stats(); s.Segments > 2 {
		t.Fatalf("nothing was freed: %+v", s)
	}
	must(t, l.Close())
}
