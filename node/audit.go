package node

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

const (
	// auditParts is the number of parts of a shard, and auditEvery is how often one part is compared: all of a shard in
	// a quarter of an hour.
	auditParts = 15
	auditEvery = time.Minute
	// auditPace is how often a node looks for a shard that is due.
	auditPace = 250 * time.Millisecond
	// auditMax is how long replicas may take to reach an entry and to compute a checksum.
	auditMax = 20 * time.Second
	// auditPoll is how often a voter is asked for its checksum.
	auditPoll = 50 * time.Millisecond
	// auditAskMax is how long one answer may take. auditSilence is how long a voter that does not answer is asked:
	// after that it counts as absent.
	auditAskMax  = time.Second
	auditSilence = 2 * time.Second
	// auditsAtOnce is how many checksums a node computes at a time. Further ones are not computed, and not compared.
	auditsAtOnce = 2
)

// auditMetrics count what audits found.
type auditMetrics struct {
	audits, diverged, undecided, repairs atomic.Uint64
	repairing                            atomic.Int64
}

// audits computes the checksums that the logs of shards ask for, and remembers the last one of each shard.
type audits struct {
	slots chan struct{}
	wg    sync.WaitGroup

	mu    sync.Mutex // guards found
	found map[shard.ID]finding
}

// finding is the checksum of a replica at an entry of the log. pending: it is not computed yet; skipped: it will not be
// computed.
type finding struct {
	index, sum       uint64
	pending, skipped bool
}

func newAudits(atOnce int) *audits {
	return &audits{slots: make(chan struct{}, atOnce), found: make(map[shard.ID]finding)}
}

// begin starts to compute a checksum of the current state. It does not wait: it skips the audit if too many others are
// in progress.
func (a *audits) begin(id shard.ID, audit shard.Audit, freeze func() *shard.View) {
	select {
	case a.slots <- struct{}{}:
	default:
		a.note(id, finding{index: audit.Index, skipped: true})
		return
	}
	a.note(id, finding{index: audit.Index, pending: true})
	view := freeze()
	a.wg.Go(func() {
		defer func() { <-a.slots }()
		defer view.Release()
		a.note(id, finding{index: audit.Index, sum: view.PartChecksum(audit)})
	})
}

// note records a finding, unless there is one of a later entry.
func (a *audits) note(id shard.ID, f finding) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f.index >= a.found[id].index {
		a.found[id] = f
	}
}

// at returns the checksum that a replica computed at an entry, if it is known. absent reports that the replica has
// applied the entry and will compute no checksum.
func (a *audits) at(id shard.ID, index, applied uint64) (sum uint64, known, absent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.found[id]
	if f.index != index {
		return 0, false, applied >= index
	}
	return f.sum, !f.pending && !f.skipped, f.skipped
}

// verdict returns the nodes whose checksum differs from the one of a majority of the voters, sorted. It returns
// undecided if checksums differ and no majority agrees.
func verdict(sums map[string]uint64, voters int) (minority []string, undecided bool) {
	votes := make(map[uint64]int)
	for _, sum := range sums {
		votes[sum]++
	}
	for _, node := range slices.Sorted(maps.Keys(sums)) {
		if 2*votes[sums[node]] > voters {
			for _, other := range slices.Sorted(maps.Keys(sums)) {
				if sums[other] != sums[node] {
					minority = append(minority, other)
				}
			}
			return minority, false
		}
	}
	return nil, len(votes) > 1
}

// auditor compares the replicas of the shards that this node leads, part by part. It asks a replica that differs from
// the majority to repair itself. If that is this node's own replica, another has to lead first.
type auditor struct {
	node     string
	replicas func() []*replica
	found    *audits
	ask      func(ctx context.Context, node string, req *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error)
	repair   func(ctx context.Context, node string, req *ebbv1.RepairRequest) error
	count    *auditMetrics
	logger   *slog.Logger
	every    time.Duration // between two audits of a shard; auditEvery if 0

	rounds map[uint32]*auditRound // by shard
}

// auditRound is the progress of the audits of a shard.
type auditRound struct {
	last    time.Time
	part    uint32 // the next one
	applied uint64 // the entry of the last audit
	clean   int    // audits in a row at which all voters agreed, with nothing but audits between them: after all parts there is nothing to compare
}

// over records an audit at an entry. idle reports that the shard had no entry since the last audit; alike reports that
// all voters agreed.
func (r *auditRound) over(index uint64, idle, alike bool) {
	r.applied, r.part = index, (r.part+1)%auditParts
	switch {
	case !alike:
		r.clean = 0
	case idle:
		r.clean++
	default:
		r.clean = 1
	}
}

// compared reports whether all parts agreed and the shard is still at this entry, so that there is nothing to compare.
func (r *auditRound) compared(index uint64) bool { return r.clean >= auditParts && r.applied == index }

// run audits shards that are due, until ctx ends.
func (a *auditor) run(ctx context.Context) {
	a.rounds = make(map[uint32]*auditRound)
	watch(ctx, auditPace, func() {
		if r := a.due(time.Now()); r != nil {
			a.audit(ctx, r)
		}
	})
}

// due returns the shard whose last audit is longest ago, of those whose next audit is due; nil if there is none.
func (a *auditor) due(now time.Time) (due *replica) {
	every := cmp.Or(a.every, auditEvery)
	for _, r := range a.replicas() {
		if _, leads := r.leading(); !leads || r.quarantined.Load() {
			delete(a.rounds, r.group)
			continue
		}
		round := a.rounds[r.group]
		if round == nil {
			// Do not audit at once, nor all shards of a new leader at the same time.
			early := time.Duration(r.group%60) * every / 60
			a.rounds[r.group] = &auditRound{last: now.Add(-early)}
			continue
		}
		if now.Sub(round.last) < every {
			continue
		}
		if round.compared(r.state.index()) {
			round.last = now
			continue
		}
		if due == nil || round.last.Before(a.rounds[due.group].last) {
			due = r
		}
	}
	return due
}

// audit compares the next part of a shard.
func (a *auditor) audit(ctx context.Context, r *replica) {
	round := a.rounds[r.group]
	round.last = time.Now()
	if voters, _ := r.voters(); len(voters) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, auditMax)
	defer cancel()
	idle := round.applied == r.state.index()
	part := round.part
	future := r.proposer.audit(part, auditParts)
	if future.Error() != nil {
		return
	}
	_, nodes := r.voters()
	sums := a.gather(ctx, r, nodes, future.Index())
	a.count.audits.Add(1)
	minority, undecided := verdict(sums, len(nodes))
	round.over(future.Index(), idle, len(sums) == len(nodes) && !undecided && len(minority) == 0)
	if undecided {
		a.count.undecided.Add(1)
		a.logger.Error("replicas of a shard differ, and no majority agrees: none is repaired", "shard", r.group, "index", future.Index(), "checksums", sums)
	}
	for _, node := range minority {
		a.diverged(ctx, r, node, future.Index(), sums)
	}
}

// gather asks all voters for their checksums, and returns those that arrive before ctx ends. A voter that does not
// answer, or has computed nothing, is absent: gather does not wait for it.
func (a *auditor) gather(ctx context.Context, r *replica, voters []string, index uint64) map[string]uint64 {
	sums := make(map[string]uint64)
	var mu sync.Mutex // guards sums
	var asking sync.WaitGroup
	for _, node := range voters {
		asking.Go(func() {
			if sum, ok := a.voterChecksum(ctx, r, node, index); ok {
				mu.Lock()
				defer mu.Unlock()
				sums[node] = sum
			}
		})
	}
	asking.Wait()
	return sums
}

// voterChecksum asks one voter until it returns its checksum, reports that it has none, or has not answered for
// auditSilence.
func (a *auditor) voterChecksum(ctx context.Context, r *replica, node string, index uint64) (sum uint64, known bool) {
	var silent time.Time
	_ = await(ctx, auditPoll, func() bool {
		if node == a.node {
			var absent bool
			sum, known, absent = a.found.at(shard.ID(r.group), index, r.state.index())
			return known || absent
		}
		asked := time.Now()
		ask, cancel := context.WithTimeout(ctx, auditAskMax)
		resp, err := a.ask(ask, node, &ebbv1.AuditedRequest{Shard: r.group, Index: index, Format: shard.AuditFormat})
		cancel()
		if err == nil {
			silent = time.Time{}
			sum, known = resp.GetChecksum(), resp.GetKnown()
			return known || resp.GetAbsent()
		}
		if silent.IsZero() {
			silent = asked
		}
		return time.Since(silent) >= auditSilence
	})
	return sum, known
}

// diverged makes one replica repair itself. If the replica leads, it first hands the shard over.
func (a *auditor) diverged(ctx context.Context, r *replica, node string, index uint64, sums map[string]uint64) {
	a.count.diverged.Add(1)
	a.logger.Error("a replica differs from the majority of its shard", "shard", r.group, "replica_on", node, "index", index, "checksums", sums)
	if node == a.node {
		right := func(other string) bool { sum, ok := sums[other]; return ok && sum != sums[node] }
		if heir, ok := r.heir("", right); ok {
			_ = r.handOver(heir) // if it fails, the repair tries it again
		}
	}
	if err := a.repair(ctx, node, &ebbv1.RepairRequest{Shard: r.group, Index: index}); err != nil {
		a.logger.Error("a replica that differs could not be told", "shard", r.group, "replica_on", node, "err", err)
	}
}
