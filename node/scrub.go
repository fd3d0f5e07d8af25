package node

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/time/rate"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// DefaultScrubEvery is Config.ScrubEvery when it is 0.
	DefaultScrubEvery = 24 * time.Hour
	// scrubRate is how many bytes of snapshots and log are read again in a second, scrubBurst how many at once.
	scrubRate  = 8 << 20
	scrubBurst = 256 << 10
)

// scrubMetrics counts what was read again.
type scrubMetrics struct {
	passes, bytes, damages atomic.Uint64
}

// verifiable is a store of snapshots that can be read again.
type verifiable interface {
	Verify(wait func(bytes int) error) error
}

// scrubber reads the snapshots and the log on this node's disk again, slowly. So damage is found while others, and the
// state in memory, can replace what is damaged.
type scrubber struct {
	every   time.Duration
	log     *wal.Log
	members func() []*member
	unsound func(segment uint32) // called with the newest segment of the log that is damaged
	count   *scrubMetrics
	logger  *slog.Logger
	limiter *rate.Limiter
}

// run reads everything at the interval every until ctx ends. It begins with the pause, since the node has read
// everything when it started.
func (s *scrubber) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.every):
		}
		s.pass(ctx)
	}
}

// pass reads everything once.
func (s *scrubber) pass(ctx context.Context) {
	start, before := time.Now(), s.count.bytes.Load()
	for _, m := range s.members() {
		store, ok := m.snaps.(verifiable)
		if !ok {
			continue
		}
		switch err := store.Verify(func(bytes int) error { return s.waitFor(ctx, m, bytes) }); {
		case ctx.Err() != nil:
			return
		case m.over():
			// Its replica has moved away, and what it had is being deleted.
		case errors.Is(err, proto.ErrCorrupt):
			s.count.damages.Add(1)
			s.logger.Error("a snapshot is damaged: another is taken", "group", m.group, "err", err)
		case err != nil:
			s.logger.Warn("a snapshot cannot be read again", "group", m.group, "err", err)
		}
	}
	segment, what, err := s.log.Verify(func(bytes int) error { return s.wait(ctx, bytes) })
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.logger.Warn("the log cannot be read again", "err", err)
	}
	if segment != 0 {
		s.count.damages.Add(1)
		s.logger.Error("the log is damaged: snapshots are taken of all groups that need the segment, and it is removed", "err", what)
		s.unsound(segment)
	}
	s.count.passes.Add(1)
	s.logger.Debug("read again what is on disk", "bytes", s.count.bytes.Load()-before, "took", time.Since(start))
}

// waitFor is wait, until the member is stopped for good.
func (s *scrubber) waitFor(ctx context.Context, m *member, bytes int) error {
	if m.over() {
		return raft.ErrRaftShutdown
	}
	return s.wait(ctx, bytes)
}

// wait returns when so many bytes more may be read.
func (s *scrubber) wait(ctx context.Context, bytes int) error {
	for left := bytes; left > 0; left -= scrubBurst {
		if err := s.limiter.WaitN(ctx, min(left, scrubBurst)); err != nil {
			return err
		}
	}
	s.count.bytes.Add(uint64(bytes))
	return nil
}

// stir commits an entry in a group that changes nothing: Raft takes no snapshot if nothing was applied since it
// started. On a follower of the control group it does nothing: the snapshot waits for the next change.
func (n *Node) stir(ctx context.Context, m *member) {
	ctx, cancel := context.WithTimeout(ctx, surveyMax)
	defer cancel()
	g := n.groups.Load()
	var err error
	switch leader := m.leader(); {
	case m.group == cluster.ControlShard && leader == n.cfg.Name:
		err = g.control.settle()
	case m.group == cluster.ControlShard || leader == "":
		return
	case leader == n.cfg.Name && g.byShard[m.group] != nil:
		err = g.byShard[m.group].settle()
	default:
		_, err = n.readIndex(ctx, leader, &ebbv1.ReadIndexRequest{Shards: []uint32{m.group}, Applied: []uint64{0}})
	}
	if err != nil {
		n.logger.Debug("no entry to take a snapshot of", "group", m.group, "err", err)
	}
}
