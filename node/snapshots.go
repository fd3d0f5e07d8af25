package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/wal"
)

const (
	// snapshotBytesMin is the least size of a group's log, in bytes, at which the group is snapshotted. If its last
	// snapshot is larger than that, the log may grow to that size. So no more is written for snapshots than for the
	// log.
	snapshotBytesMin = 4 << 20
	// logBytesMax bounds the log of all groups, in bytes, and so how much a restart replays: above it the longest log
	// is cut first.
	logBytesMax = 256 << 20
	// trailingBytes is how much log is kept behind a snapshot, so that a follower that was away for a moment needs no
	// snapshot.
	trailingBytes = 1 << 20
	// snapshotsAtOnce is how many snapshots are taken at a time, over all groups of the node.
	snapshotsAtOnce = 2
	// snapshotEvery is how often the sizes of the logs are checked.
	snapshotEvery = time.Second
	// snapshotRetry is how long a group rests after its snapshot failed.
	snapshotRetry = 10 * time.Second
	// shortRest is how long a group rests while the disk is full, as a multiple of the time that its last snapshot
	// took. After that it is snapshotted as soon as its log has any entry, so that deletes free disk space.
	shortRest = 20
)

// snapshotLimits are the limits of a node's snapshots; tests have smaller ones.
type snapshotLimits struct {
	min, log, trailing int64         // bytes
	every              time.Duration // between two checks; snapshotEvery if 0
	atOnce             int           // snapshotsAtOnce if 0
}

func defaultSnapshotLimits() snapshotLimits {
	return snapshotLimits{min: snapshotBytesMin, log: logBytesMax, trailing: trailingBytes}
}

// snapshots returns the limits of a node's snapshots.
func (l *Limits) snapshots() snapshotLimits {
	return snapshotLimits{
		min: snapshotBytesMin, log: l.LogBytes, trailing: l.TrailingBytes,
		every: l.SnapshotEvery, atOnce: l.SnapshotsAtOnce,
	}
}

// least sets min, and lowers trailing to at most a quarter of it.
func (l *snapshotLimits) least(bytes int64) {
	l.min, l.trailing = bytes, min(l.trailing, bytes/4)
}

// snapshotter decides which groups to snapshot, by the bytes of their logs: Raft itself counts entries.
type snapshotter struct {
	log     *wal.Log
	members func() []*member // all groups
	logger  *slog.Logger
	count   *snapshotMetrics
	limits  snapshotLimits
	short   func() bool     // reports that the disk is full: logs are cut as far as possible; nil: it never is
	stir    func(m *member) // commits an entry that changes nothing; nil: not done
	unsound atomic.Uint32   // the newest segment of the log that is known to be damaged

	mu   sync.Mutex // guards what follows
	busy map[*member]bool
	rest map[*member]time.Time // a group rests until this time
}

func newSnapshotter(log *wal.Log, members func() []*member, logger *slog.Logger, count *snapshotMetrics) *snapshotter {
	return &snapshotter{log: log, members: members, logger: logger, count: count, limits: defaultSnapshotLimits(), busy: make(map[*member]bool), rest: make(map[*member]time.Time)}
}

// run takes snapshots until ctx ends, and then waits for those in progress.
func (s *snapshotter) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ticker := time.NewTicker(cmp.Or(s.limits.every, snapshotEvery))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for {
			m, keep := s.next()
			if m == nil {
				break
			}
			wg.Go(func() { s.take(m, keep) })
		}
	}
}

// next returns a group to snapshot now, which it marks busy, and how many bytes of log to keep behind the snapshot. It
// returns nil if none is due or enough are in progress.
func (s *snapshotter) next() (*member, int64) {
	stats := s.log.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.busy) >= cmp.Or(s.limits.atOnce, snapshotsAtOnce) {
		return nil, 0
	}
	var longest *member
	var most, total int64
	maps.DeleteFunc(s.rest, func(_ *member, until time.Time) bool { return !time.Now().Before(until) })
	for _, m := range s.members() {
		if s.busy[m] {
			continue // its log is about to be cut
		}
		if m.hurt != nil && m.hurt.Load() && !time.Now().Before(s.rest[m]) {
			s.busy[m] = true
			return m, s.limits.trailing
		}
		bytes := m.wal.Bytes()
		total += bytes
		if bytes > most && !time.Now().Before(s.rest[m]) {
			longest, most = m, bytes
		}
	}
	due, keep := longest, s.limits.trailing
	if s.short != nil && s.short() {
		keep = 0
		if m := s.pins(stats); m != nil { // frees a file of the log, as the longest may not
			due = m
		}
	} else if longest == nil || most < max(s.limits.min, longest.snapshotBytes()) && total < s.limits.log {
		due, keep = s.pinning(stats), 0
	}
	if due != nil {
		s.busy[due] = true
	}
	return due, keep
}

// nextBytes returns how many bytes the next snapshots may need: as many as are taken at once, of the largest groups.
func (s *snapshotter) nextBytes() int64 {
	var all []int64
	for _, m := range s.members() {
		all = append(all, m.snapshotBytes()+m.wal.Bytes())
	}
	slices.Sort(all)
	sum := int64(0)
	for _, bytes := range all[max(0, len(all)-cmp.Or(s.limits.atOnce, snapshotsAtOnce)):] {
		sum += bytes
	}
	return sum
}

// pinning returns the group that keeps the oldest segment of the log. It returns nil unless the log has many more
// segments than its entries need, or that segment may be damaged. s.mu is held.
func (s *snapshotter) pinning(stats wal.Stats) *member {
	damaged := len(stats.Pins) > 0 && stats.Oldest <= s.unsound.Load()
	if len(stats.Pins) == 0 || !damaged && (stats.Bytes < s.limits.log/2 || stats.Bytes < 4*stats.LiveBytes) {
		return nil
	}
	return s.pins(wal.Stats{Pins: stats.Pins[:1]})
}

// pins returns a group that keeps the oldest segment of the log, and is neither busy nor resting. s.mu is held.
func (s *snapshotter) pins(stats wal.Stats) *member {
	for _, pin := range stats.Pins {
		for _, m := range s.members() {
			if m.group == pin.Group && !s.busy[m] && !time.Now().Before(s.rest[m]) {
				return m
			}
		}
	}
	return nil
}

// take takes a snapshot of one group.
func (s *snapshotter) take(m *member, keep int64) {
	start, before := time.Now(), m.wal.Bytes()
	hurt := m.hurt != nil && m.hurt.Swap(false)
	taken, err := m.snapshot(keep)
	if hurt && !taken {
		m.hurt.Store(true)
	}
	if nothing := !taken && (err == nil || errors.Is(err, raft.ErrNothingNewToSnapshot)); s.stir != nil && (hurt && nothing || keep == 0 && m.wal.Bytes() > before/2) {
		s.stir(m) // for the next try
	}
	s.mu.Lock()
	delete(s.busy, m)
	switch {
	case err != nil || m.wal.Bytes() > before/2:
		s.rest[m] = time.Now().Add(snapshotRetry)
	case s.short != nil && s.short():
		s.rest[m] = time.Now().Add(max(snapshotEvery, shortRest*time.Since(start)))
	}
	s.mu.Unlock()
	switch {
	case taken && err == nil:
		s.count.taken(time.Since(start), m.snapshotBytes())
		s.logger.Debug("snapshot taken", "group", m.group, "bytes", m.snapshotBytes(), "log_bytes_before", before, "log_bytes", m.wal.Bytes(), "took", time.Since(start))
	case err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown):
		s.logger.Warn("snapshot failed", "group", m.group, "err", err)
	}
}

// snapshot takes a snapshot now, and cuts the log behind it except for about keep bytes. It reports whether there is a
// new snapshot. With keep = 0 it cuts the log behind the newest snapshot, even if nothing came since.
//
// With keep = 0 the log keeps no entries for an older snapshot or a follower to continue from. There may also be
// nothing to take another snapshot from. Raft does not verify what it has written, so in this case Raft cuts nothing,
// and shed cuts the log.
func (m *member) snapshot(keep int64) (taken bool, err error) {
	i := m.now.Load()
	if keep == 0 {
		defer func() { err = errors.Join(err, leave(i, 0)) }() // for snapshots that are installed
		err = leave(i, math.MaxUint64)
	} else {
		err = m.trail(i, keep)
	}
	if err != nil {
		return false, err
	}
	err = withShutdown(i.raft.Snapshot(), i.life).Error()
	nothing := errors.Is(err, raft.ErrNothingNewToSnapshot)
	if keep != 0 || err != nil && !nothing {
		return err == nil, err
	}
	return !nothing, m.shed(i.life)
}

// shed deletes the log that the newest snapshot covers. It first reads the whole snapshot, since only the log could
// replace it. Raft cuts the log only after a new snapshot, which it refuses for a group that has been idle since its
// start. Such a group must not keep the log segments of all others.
func (m *member) shed(life <-chan struct{}) error {
	newest, err := m.newest()
	if err != nil || newest == nil {
		return err
	}
	first, err := m.wal.FirstIndex()
	if err != nil || first == 0 || first > newest.Index {
		return err
	}
	if store, ok := m.snaps.(verifiable); ok {
		err := store.Verify(func(int) error {
			select {
			case <-life:
				return raft.ErrRaftShutdown
			default:
				return nil
			}
		})
		if err != nil {
			return fmt.Errorf("the log is kept: %w", err)
		}
	}
	if read, err := m.newest(); err != nil || read == nil || read.ID != newest.ID {
		return err // a newer snapshot, which was not read
	}
	return m.wal.DeleteRange(first, newest.Index)
}

// newest returns the newest snapshot; nil if there is none.
func (m *member) newest() (*raft.SnapshotMeta, error) {
	snapshots, err := m.snaps.List()
	if err != nil || len(snapshots) == 0 {
		return nil, err
	}
	return snapshots[0], nil
}

// trail tells Raft how many entries to keep behind the snapshot: about as many
// as fit into keep bytes.
func (m *member) trail(i *incarnation, keep int64) error {
	first, err := m.wal.FirstIndex()
	if err != nil {
		return err
	}
	last, err := m.wal.LastIndex()
	if err != nil {
		return err
	}
	return leave(i, trailing(first, last, m.wal.Bytes(), keep))
}

// leave tells Raft how many entries to keep behind a snapshot.
func leave(i *incarnation, entries uint64) error {
	return i.reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = entries })
}

// trailing returns how many of the entries first to last fit into about keep bytes, if all of them have bytes bytes.
func trailing(first, last uint64, bytes, keep int64) uint64 {
	if first == 0 || last < first || bytes <= 0 {
		return 0
	}
	entries := last - first + 1
	return min(entries, uint64(float64(entries)*float64(keep)/float64(bytes)))
}

// snapshotBytes is the size of the newest snapshot; 0 if there is none.
func (m *member) snapshotBytes() int64 {
	newest, err := m.newest()
	if err != nil || newest == nil {
		return 0
	}
	return newest.Size
}
