package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

const (
	// muteAfter is how long a sync may stall before this node's leaders stop their heartbeats: Raft would keep the
	// lease of a leader that cannot write (hashicorp/raft #503).
	muteAfter = 2 * time.Second
	// fatalAfter is how long a sync may stall before the node ends.
	fatalAfter = 20 * time.Second
	// stallAfter is how long a follower that answers may make no progress before
	// its leader is restarted in place (hashicorp/raft #612).
	stallAfter = 30 * time.Second
	// refuseAfter is how long a leader may refuse every proposal because of a transfer that is not under way
	// (hashicorp/raft #696).
	refuseAfter = 5 * time.Second
	// restartMax is how long a restart in place may take: it waits for a snapshot that Raft is writing, and reads the
	// log. restartAgain is the time within which another fault shows that the restart did not help.
	restartMax   = 30 * time.Second
	restartAgain = time.Minute
	// watchEvery is how often the watchdogs look.
	watchEvery = 250 * time.Millisecond
	// stoodAfter is the longest time between two looks: if it takes longer, the process stood still.
	stoodAfter = 4 * watchEvery
)

// awake measures how long a process has run. While the process or its machine is stopped, time passes, but nothing that
// the process waits for is to blame.
type awake struct {
	last time.Time
}

// step is called every watchEvery. It returns how long the process has run since the last call, stoodAfter at most.
func (a *awake) step() time.Duration {
	now := time.Now()
	ran := now.Sub(a.last)
	a.last = now
	return min(ran, stoodAfter)
}

// diskWatch watches for syncs that stall. No error is returned while the write may still succeed, so a leader without a
// disk can only fall silent.
type diskWatch struct {
	oldest func() time.Duration // how long the oldest sync has been waiting
	mute   func(on bool)        // keeps this node from leading, or allows it again
	fatal  func(error)
	logger *slog.Logger

	awake  awake
	waited time.Duration // how long the oldest sync has been waiting while the process ran, at most
	muted  bool
}

// look is called every watchEvery.
func (w *diskWatch) look() {
	w.waited = min(w.oldest(), w.waited+w.awake.step())
	waited := w.waited
	if hung := waited > muteAfter; hung != w.muted {
		w.muted = hung
		w.mute(hung)
		if hung {
			w.logger.Error("disk stalled: this node stops leading", "waited", waited.Round(time.Millisecond))
		} else {
			w.logger.Info("disk no longer stalled")
		}
	}
	if waited > fatalAfter {
		w.fatal(proto.ErrDisk.Errorf("a sync of the log has been waiting for %v: the limit is %v", waited.Round(time.Second), fatalAfter))
	}
}

// groupWatch restarts a group in place when its leader is stuck, and ends the node when that does not help.
type groupWatch struct {
	members func() []*member
	fatal   func(error)
	logger  *slog.Logger

	wg        sync.WaitGroup
	awake     awake
	ran       time.Duration // how long the process has run
	behind    map[follower]stall
	restarted map[*member]*restart // the last one of each
}

// restart is one restart in place.
type restart struct {
	at    time.Time
	since time.Duration // by groupWatch.ran
	why   string
	over  atomic.Bool
}

// follower is one follower of a group led here.
type follower struct {
	member *member
	id     raft.ServerID
}

// stall is the state of a follower that lacks entries: since when, and how far its log has come.
type stall struct {
	since time.Duration // by groupWatch.ran
	match uint64
	term  uint64
}

func newGroupWatch(members func() []*member, fatal func(error), logger *slog.Logger) *groupWatch {
	return &groupWatch{
		members: members, fatal: fatal, logger: logger,
		behind: make(map[follower]stall), restarted: make(map[*member]*restart),
	}
}

// look is called every watchEvery by one goroutine.
func (w *groupWatch) look() {
	now := time.Now()
	w.ran += w.awake.step()
	maps.DeleteFunc(w.behind, func(f follower, _ stall) bool { return f.member.over() })
	maps.DeleteFunc(w.restarted, func(m *member, _ *restart) bool { return m.over() })
	for m, r := range w.restarted {
		if !r.over.Load() && w.ran-r.since > restartMax {
			w.fatal(proto.ErrInternal.Errorf("group %d: %s, and its restart in place hangs", m.group, r.why))
		}
	}
	for _, m := range w.members() {
		if _, leads := m.leading(); !leads {
			m.refused.note(nil) // refusals from before it led do not count
		}
		if m.refused.lasting() {
			w.restart(m, "every proposal is refused for a transfer that no node is making")
		} else if id, stuck := w.stuck(m, now); stuck {
			w.restart(m, fmt.Sprintf("replica %s answers and makes no progress", id))
		}
	}
}

// stuck returns a follower that has answered all the time, and has made no progress for stallAfter.
func (w *groupWatch) stuck(m *member, now time.Time) (raft.ServerID, bool) {
	term, leads := m.leading()
	if !leads {
		return "", false
	}
	i := m.now.Load()
	last := i.raft.LastIndex()
	for _, s := range m.configuration().Servers {
		if s.ID == serverID(m.replica) {
			continue
		}
		f, p := follower{m, s.ID}, i.link.progressOf(s.ID, term)
		was, known := w.behind[f]
		switch heard := now.Sub(p.lastContact) < m.timeout; {
		case p.match >= last || !heard || p.install:
			delete(w.behind, f)
		case !known || was.match != p.match || was.term != term:
			w.behind[f] = stall{since: w.ran, match: p.match, term: term}
		case w.ran-was.since > stallAfter:
			delete(w.behind, f)
			return s.ID, true
		}
	}
	return "", false
}

// restart restarts a member in place, on a goroutine of its own since it may
// hang just as the member does.
func (w *groupWatch) restart(m *member, why string) {
	now := time.Now()
	if last, ok := w.restarted[m]; ok && now.Sub(last.at) < restartAgain {
		if now.Sub(last.at) > restartMax {
			w.fatal(proto.ErrInternal.Errorf("group %d: %s, also after a restart in place", m.group, why))
		}
		return
	}
	w.logger.Error("group is restarted in place", "group", m.group, "why", why)
	r := &restart{at: now, since: w.ran, why: why}
	w.restarted[m] = r
	w.wg.Go(func() {
		defer r.over.Store(true)
		if err := m.restart(); err != nil && !errors.Is(err, raft.ErrRaftShutdown) { // its replica moves away
			w.fatal(fmt.Errorf("restart in place: %w", err))
		}
		m.refused.note(nil)
	})
}

// watch calls all look functions at the given interval, until ctx ends.
func watch(ctx context.Context, every time.Duration, look ...func()) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, l := range look {
			l()
		}
	}
}

// refusals records since when a leader has refused all proposals because of a transfer of leadership.
type refusals struct {
	after time.Duration // how long refusals must continue to be lasting

	mu          sync.Mutex // guards what follows
	first, last time.Time  // of refusals without any success in between
}

// note records the outcome of a proposal.
func (r *refusals) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		r.first = time.Time{}
		return
	}
	r.last = time.Now()
	if r.first.IsZero() {
		r.first = r.last
	}
}

// lasting reports whether refusals have continued for longer than after.
func (r *refusals) lasting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.first.IsZero() && r.last.Sub(r.first) > r.after
}
