package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

func TestTrailing(t *testing.T) {
	for _, c := range []struct {
		first, last uint64
		bytes, keep int64
		want        uint64
	}{
		{0, 0, 0, 1 << 20, 0},            // an empty log
		{1, 1000, 4 << 20, 1 << 20, 250}, // a quarter
		{1, 1000, 1 << 10, 1 << 20, 1000},
		{500, 999, 64 << 20, 1 << 20, 7},
		{1, 1000, 4 << 20, 0, 0},
	} {
		if got := trailing(c.first, c.last, c.bytes, c.keep); got != c.want {
			t.Errorf("of entries %d to %d, %d bytes, %d entries are kept for %d bytes, want %d", c.first, c.last, c.bytes, got, c.keep, c.want)
		}
	}
}

// shelf is some groups of one member each, over one log with small segments.
type shelf struct {
	t       *testing.T
	disk    *fs.Mem
	log     *wal.Log
	members []*member
	events  *events
	mum     bool // leaders begin their terms without an entry of their own
}

func (s *shelf) open(groups int) {
	s.t.Helper()
	var err error
	s.log, err = wal.Open(wal.Config{FS: s.disk, Dir: "/wal", SegmentBytes: 64 << 10, Fatal: func(err error) { s.t.Error(err) }})
	if err != nil {
		s.t.Fatal(err)
	}
	s.events, s.members = newEvents(), nil
	for i := range groups {
		group := uint32(i + 1)
		g, hurt := s.log.Group(group), new(atomic.Bool)
		snaps, err := snap.Open(snap.Config{FS: s.disk, Dir: fmt.Sprintf("/snap/%d", group), OnBoundary: g.SetBoundary, OnDamage: func() { hurt.Store(true) }})
		if err != nil {
			s.t.Fatal(err)
		}
		address := transport.Address("n0", uint64(group))
		_, in := raft.NewInmemTransport(address)
		_, self := raft.NewInmemTransport("")
		self.Connect(address, in)
		w := &wire{InmemTransport: in, self: self}
		m := newMember(memberConfig{
			group: group, replica: uint64(group), node: "n0", timeout: time.Second, machine: new(tally), wal: g, snaps: snaps, hurt: hurt,
			carrier: func() carrier { return w }, events: s.events, stall: newDiskStall(),
			logger: newRaftLogger(slog.New(slog.DiscardHandler), newRepeats(), group),
			seen:   func(string, uint64) {}, led: func(uint64) {},
		})
		if !s.mum {
			m.led = func(uint64) { m.propose([]byte("tick")) }
		}
		if err := m.bootstrap(raft.Configuration{Servers: []raft.Server{{ID: serverID(uint64(group)), Address: address}}}); err != nil {
			s.t.Fatal(err)
		}
		if err := m.start(); err != nil {
			s.t.Fatal(err)
		}
		m.campaign()
		s.members = append(s.members, m)
	}
	time.Sleep(5 * time.Second)
}

func (s *shelf) close() {
	s.t.Helper()
	for _, m := range s.members {
		m.stop()
	}
	s.events.close()
	if err := s.log.Close(); err != nil {
		s.t.Error(err)
	}
	time.Sleep(time.Minute)
}

// fill writes so many bytes to a group.
func (s *shelf) fill(i, bytes int) {
	s.t.Helper()
	for range bytes / 4096 {
		if err := s.members[i].propose(make([]byte, 4096)).Error(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// snapshots runs a snapshotter for a while.
func (s *shelf) snapshots(limits snapshotLimits) *snapshotMetrics {
	count := new(snapshotMetrics)
	sn := newSnapshotter(s.log, func() []*member { return s.members }, slog.New(slog.DiscardHandler), count)
	sn.limits = limits
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	sn.run(ctx)
	return count
}

// unreadable is a log whose disk cannot be read.
type unreadable struct{ groupLog }

func (unreadable) GetLog(uint64, *raft.Log) error { runtime.Goexit(); return nil }

// A log that ends the goroutine that reads it does not end the one that starts a group on it.
func TestStartOnALogThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(1)
		defer s.close()
		m := newMember(s.members[0].memberConfig)
		s.members[0].stop()
		m.wal = unreadable{m.wal}
		if err := m.start(); !errors.Is(err, proto.ErrDisk) || !strings.Contains(err.Error(), "group 1: its log could not be read") {
			t.Errorf("it starts: %v", err)
		}
	})
}

// damaged is a log with one damaged entry.
type damaged struct {
	groupLog
	at uint64
}

func (d damaged) GetLog(index uint64, to *raft.Log) error {
	if index == d.at {
		return proto.ErrCorrupt.Errorf("entry %d is damaged", index)
	}
	return d.groupLog.GetLog(index, to)
}

// A group is not restarted in place if its log has a damaged entry that Raft would read: it would panic. The node ends
// with that code instead.
func TestRestartOnADamagedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(1)
		defer s.close()
		s.fill(0, 40<<10)
		m := s.members[0]
		m.wal = damaged{m.wal, 5}
		w := newGroupWatch(nil, nil, slog.New(slog.DiscardHandler))
		var ends error
		w.fatal = func(err error) { ends = err }
		w.restart(m, "it is stuck")
		w.wg.Wait()
		if !errors.Is(ends, proto.ErrCorrupt) || !strings.Contains(ends.Error(), "group 1: entry 5 is damaged") {
			t.Errorf("the node ends: %v", ends)
		}
	})
}

// hung is a log that cannot be read until it is closed.
type hung struct {
	groupLog
	until chan struct{}
}

func (h hung) GetLog(index uint64, to *raft.Log) error {
	<-h.until
	return h.groupLog.GetLog(index, to)
}

// A restart in place that hangs ends the node after a while. Time for which the process stood still does not count.
func TestRestartThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(1)
		defer s.close()
		s.fill(0, 40<<10)
		m := s.members[0]
		until := make(chan struct{})
		m.wal = hung{m.wal, until}
		var ends error
		w := newGroupWatch(func() []*member { return nil }, func(err error) { ends = err }, slog.New(slog.DiscardHandler))
		look := func(d time.Duration) {
			for range d / watchEvery {
				time.Sleep(watchEvery)
				w.look()
			}
		}
		look(time.Second)
		w.restart(m, "it is stuck")
		look(time.Second)
		time.Sleep(10 * restartMax)
		look(restartMax - time.Second - stoodAfter)
		if ends != nil {
			t.Errorf("the node ends: %v", ends)
		}
		look(time.Second)
		if !errors.Is(ends, proto.ErrInternal) || !strings.Contains(ends.Error(), "its restart in place hangs") {
			t.Errorf("the node ends: %v", ends)
		}
		close(until)
		w.wg.Wait()
		ends = nil
		look(2 * restartMax)
		if ends != nil {
			t.Errorf("the node ends after it is over: %v", ends)
		}
	})
}

// A log that has grown long enough is cut behind a snapshot, and only that one.
func TestLongLogsAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(3)
		defer s.close()
		s.fill(0, 300<<10)
		s.fill(1, 50<<10)
		count := s.snapshots(snapshotLimits{min: 200 << 10, log: 10 << 20, trailing: 20 << 10})
		if n := count.snapshots.Load(); n != 1 {
			t.Errorf("%d snapshots, want 1", n)
		}
		if bytes := s.members[0].wal.Bytes(); bytes > 30<<10 {
			t.Errorf("the long log still has %d bytes", bytes)
		}
		if bytes := s.members[1].wal.Bytes(); bytes < 48<<10 {
			t.Errorf("the short log was cut to %d bytes", bytes)
		}
	})
}

// When all logs together are too long, the longest is cut though it is short.
func TestManyShortLogsAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(3)
		defer s.close()
		for i := range 3 {
			s.fill(i, (100+50*i)<<10)
		}
		s.snapshots(snapshotLimits{min: 1 << 20, log: 400 << 10, trailing: 0})
		if long, short := s.members[2].wal.Bytes(), s.members[0].wal.Bytes(); long > 10<<10 || short < 98<<10 {
			t.Errorf("the longest has %d bytes, the shortest %d; want the longest cut", long, short)
		}
	})
}

// Raft takes no snapshot of a group that has been idle since it started, and so
// does not cut its log either; then we do.
func TestIdleLogIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(1)
		s.fill(0, 20<<10)
		if _, err := s.members[0].snapshot(1 << 20); err != nil {
			t.Fatal(err)
		}
		s.close()
		s.mum = true
		s.open(1)
		defer s.close()
		m := s.members[0]
		if err := m.now.Load().raft.Snapshot().Error(); !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			t.Errorf("snapshot of an idle group: %v; then this is no longer needed", err)
		}
		before := m.wal.Bytes()
		if _, err := m.snapshot(0); err != nil || m.wal.Bytes() > before/4 {
			t.Errorf("%v, %d bytes of %d are left", err, m.wal.Bytes(), before)
		}
	})
}

// A log is not cut to nothing behind a snapshot that has not been read: here of an idle group, whose newest has rotted
// since it was written, and then of one whose new snapshot names a chunk in the file of the one before, which has
// rotted. Then another is taken of what is in memory, and the log is cut behind that.
func TestLogIsNotCutBehindADamagedSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(1)
		s.fill(0, 20<<10)
		if _, err := s.members[0].snapshot(1 << 20); err != nil {
			t.Fatal(err)
		}
		s.close()
		s.mum = true
		s.open(1)
		sn := newSnapshotter(s.log, func() []*member { return s.members }, slog.New(slog.DiscardHandler), new(snapshotMetrics))
		sn.stir = func(m *member) { _ = m.propose([]byte("tick")).Error() }
		kept := func(what string) {
			t.Helper()
			m := s.members[0]
			first, err := m.wal.FirstIndex()
			must(t, err)
			files, err := s.disk.ReadDir("/snap/1")
			must(t, err)
			for _, f := range files {
				if strings.HasSuffix(f.Name, ".snap") { // the oldest, which has the chunk that all name
					s.rots("/snap/1/"+f.Name, 20)
					break
				}
			}
			before := m.wal.Bytes()
			sn.take(m, 0)
			if now, err := m.wal.FirstIndex(); err != nil || now != first || m.wal.Bytes() < before || !m.hurt.Load() {
				t.Errorf("%s: the log of %d bytes from entry %d on has %d from %d on (%v), the damage is known: %v", what, before, first, m.wal.Bytes(), now, err, m.hurt.Load())
			}
			time.Sleep(snapshotRetry)
			if next, keep := sn.next(); next != m {
				t.Fatalf("%s: no other snapshot is due", what)
			} else {
				sn.take(m, keep)
			}
			if _, err := m.snapshot(0); err != nil || m.wal.Bytes() > before/4 {
				t.Errorf("%s: behind the next snapshot %d bytes of %d are left: %v", what, m.wal.Bytes(), before, err)
			}
		}
		kept("idle")
		s.fill(0, 20<<10)
		kept("shared")
		s.close()
		s.open(1)
		if err := s.members[0].intact(); err != nil {
			t.Error(err)
		}
		s.close()
	})
}

// A group whose snapshot is damaged keeps that in mind when it is chosen because it pins old segments, and is idle:
// then its log is cut and no snapshot is taken, so that another is due as soon as something has come.
func TestDamageIsRememberedBesidePinning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(1)
		s.fill(0, 20<<10)
		if _, err := s.members[0].snapshot(1 << 20); err != nil {
			t.Fatal(err)
		}
		s.close()
		s.mum = true
		s.open(1)
		defer s.close()
		m, count := s.members[0], new(snapshotMetrics)
		sn := newSnapshotter(s.log, func() []*member { return s.members }, slog.New(slog.DiscardHandler), count)
		stirred := 0
		sn.stir = func(*member) { stirred++ }
		m.hurt.Store(true)
		sn.take(m, 0)
		if !m.hurt.Load() || stirred != 1 || count.snapshots.Load() != 0 {
			t.Errorf("the damage is remembered: %v, an entry was asked for %d times, %d snapshots were taken", m.hurt.Load(), stirred, count.snapshots.Load())
		}
		s.fill(0, 4<<10)
		sn.take(m, 0)
		if m.hurt.Load() || count.snapshots.Load() != 1 {
			t.Errorf("another was taken: %v; the damage is remembered still: %v", count.snapshots.Load() == 1, m.hurt.Load())
		}
	})
}

// A group that is idle does not keep the segments of all others.
func TestIdleGroupLetsSegmentsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{t: t, disk: fs.NewMem()}
		s.open(2)
		s.fill(0, 20<<10)
		if _, err := s.members[0].snapshot(1 << 20); err != nil { // keeps the entries, too
			t.Fatal(err)
		}
		s.close()
		s.open(2)
		defer s.close()
		first := s.log.Stats().Oldest
		s.fill(1, 2<<20)
		s.snapshots(snapshotLimits{min: 200 << 10, log: 600 << 10, trailing: 0})
		if stats := s.log.Stats(); stats.Oldest == first || stats.Bytes > 1<<20 {
			t.Errorf("the log begins with segment %d as before and has %d bytes; pinned by %+v", stats.Oldest, stats.Bytes, stats.Pins)
		}
	})
}
