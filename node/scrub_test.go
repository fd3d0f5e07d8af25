package node

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
)

// scrub reads everything again, and lets snapshots be taken for a while for no other reason than damage.
func (s *shelf) scrub() *scrubMetrics {
	s.t.Helper()
	count := new(scrubMetrics)
	sn := newSnapshotter(s.log, func() []*member { return s.members }, slog.New(slog.DiscardHandler), new(snapshotMetrics))
	sn.limits = snapshotLimits{min: 1 << 50, log: 1 << 50, trailing: 1 << 20}
	sn.stir = func(m *member) { _ = m.propose([]byte("tick")).Error() }
	scrub := &scrubber{
		every: time.Hour, log: s.log, members: sn.members, unsound: sn.unsound.Store, count: count, logger: slog.New(slog.DiscardHandler),
		limiter: rate.NewLimiter(scrubRate, scrubBurst),
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Minute) // one pass
	defer cancel()
	done := make(chan struct{})
	go func() { scrub.run(ctx); close(done) }()
	sn.run(ctx)
	<-done
	if count.passes.Load() != 1 || count.bytes.Load() == 0 {
		s.t.Errorf("in 90 minutes %d passes, %d bytes", count.passes.Load(), count.bytes.Load())
	}
	return count
}

// newest is the file of a group's newest snapshot.
func (s *shelf) newest(i int) string {
	s.t.Helper()
	metas, err := s.members[i].snaps.List()
	if err != nil || len(metas) == 0 {
		s.t.Fatal(metas, err)
	}
	return filepath.Join(fmt.Sprintf("/snap/%d", i+1), metas[0].ID+".snap")
}

// rots flips a bit of a file.
func (s *shelf) rots(name string, offset int64) {
	s.t.Helper()
	if err := s.disk.FlipByte(name, offset, 3); err != nil {
		s.t.Fatal(err)
	}
}

// expect checks how much damage was found, and that none is left and the disk is one that a node starts from.
func (s *shelf) expect(what string, found uint64) {
	s.t.Helper()
	if n := s.scrub().damages.Load(); n != found {
		s.t.Errorf("%s: %d damages were found, want %d", what, n, found)
	}
	if n := s.scrub().damages.Load(); n != 0 {
		s.t.Errorf("%s: %d damages are found again", what, n)
	}
	s.close()
	s.open(2)
	for i, m := range s.members {
		if err := m.intact(); err != nil {
			s.t.Errorf("%s: after a start group %d: %v", what, i+1, err)
		}
	}
}

// What rots on a disk is found by reading it again while the node runs, and replaced from what is in memory: before a
// start needs it, which would have nothing else.
func TestWhatRotsIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(2)
		for i := range 2 {
			s.fill(i, 200<<10)
			if _, err := s.members[i].snapshot(0); err != nil { // the log does not reach back behind it
				t.Fatal(err)
			}
		}
		s.expect("all is well", 0)

		s.rots(s.newest(0), 20)
		s.expect("a chunk of a snapshot", 1)

		s.mum = true // nothing is applied from the start on, and Raft has nothing new
		s.close()
		s.open(2)
		s.rots(s.newest(1), 20)
		s.expect("that of an idle group", 1)
		s.mum = false

		s.fill(0, 300<<10)
		stats := s.log.Stats()
		if stats.Segments < 3 {
			t.Fatalf("%d segments", stats.Segments)
		}
		s.rots(fmt.Sprintf("/wal/%010d.wal", stats.Oldest+1), 30<<10)
		s.expect("a segment of the log", 1)
		if now := s.log.Stats().Oldest; now <= stats.Oldest+1 {
			t.Errorf("the log begins with segment %d, and %d is damaged", now, stats.Oldest+1)
		}
		s.close()
	})
}

// leaver is the snapshots of a replica that is deleted as soon as they are read.
type leaver struct {
	*snap.Store
	gone func()
}

func (l leaver) Verify(wait func(bytes int) error) error {
	l.gone()
	return l.Store.Verify(wait)
}

// What is deleted under the reader, since its replica has moved away, is no damage.
func TestWhatMovesAwayIsNotDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(1)
		defer s.close()
		m := s.members[0]
		for range 2 { // the second names a chunk in the file of the first
			s.fill(0, 20<<10)
			if _, err := m.snapshot(1 << 20); err != nil {
				t.Fatal(err)
			}
		}
		metas, err := m.snaps.List()
		must(t, err)
		if len(metas) != 2 {
			t.Fatalf("%d snapshots", len(metas))
		}
		m.snaps = leaver{m.snaps.(*snap.Store), func() {
			m.stop()
			must(t, s.disk.Remove("/snap/1/"+metas[1].ID+".snap"))
		}}
		count := new(scrubMetrics)
		scrub := &scrubber{
			log: s.log, members: func() []*member { return s.members }, unsound: func(uint32) {}, count: count, logger: slog.New(slog.DiscardHandler),
			limiter: rate.NewLimiter(scrubRate, scrubBurst),
		}
		scrub.pass(t.Context())
		if count.damages.Load() != 0 || count.passes.Load() != 1 {
			t.Errorf("%d damages in %d passes", count.damages.Load(), count.passes.Load())
		}
	})
}
