package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

const (
	// sweepEvery is how often shards with parts of bitmaps to sweep are looked at; a counter shows which shards have
	// none.
	sweepEvery = 5 * time.Second
	// sweepTimeout is how long one sweep may take: the next one continues with the rest.
	sweepTimeout = 30 * time.Second
	// sweepAtOnce is how many bitmaps one sweep takes from a shard.
	sweepAtOnce = 1000
)

// sweeper removes, from all shards, the parts of bitmaps that are gone, if their home is a shard that this node leads:
// see cluster.Router.Sweep.
type sweeper struct {
	replicas func() []*replica
	sweep    func(ctx context.Context, home uint32, list []shard.Orphan) error
	keeper   *timekeeper
	logger   *slog.Logger
	every    time.Duration
	atOnce   int // bitmaps that one sweep takes from a shard
}

func (s *sweeper) run(ctx context.Context) {
	watch(ctx, s.every, func() {
		for _, r := range s.replicas() {
			s.look(ctx, r)
		}
	})
}

// look sweeps the bitmaps that are due by the shard's own clock, which shows which writes may still come. That clock
// may be behind, since it may not have advanced for a while; look then proposes a tick.
func (s *sweeper) look(ctx context.Context, r *replica) {
	if r.state.orphans.Load() == 0 {
		return
	}
	if _, leads := r.leading(); !leads {
		return
	}
	list, behind := r.state.toSweep(sketch.Tick(s.keeper.nowUS()), s.atOnce)
	if behind {
		_ = r.proposer.tick() // if it fails, the next look makes another
		return
	}
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	if err := s.sweep(ctx, r.group, list); err != nil && ctx.Err() == nil {
		s.logger.Warn("parts of bitmaps are not swept yet", "shard", r.group, "bitmaps", len(list), "err", err)
	}
}

// toSweep returns at most atOnce bitmaps whose parts are to be swept by the shard's clock. behind reports that there
// are none only because that clock is behind.
func (m *shardMachine) toSweep(now sketch.Tick, atOnce int) (list []shard.Orphan, behind bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	list = m.state.Orphans(m.state.Now(), atOnce)
	return list, len(list) == 0 && len(m.state.Orphans(now, 1)) > 0
}
