package swarm

import (
	"context"
	"fmt"
	"time"

	"github.com/ebbdb/ebb/cluster"
)

// observeEvery is the time between two observations of the nodes.
const observeEvery = 250 * time.Millisecond

// line adds a sentence to the story.
func (w *world) line(kind LineKind, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.verdict.Story = append(w.verdict.Story, Line{w.now(), kind, fmt.Sprintf(format, args...)})
}

func (w *world) tell(format string, args ...any) { w.line(LineNote, format, args...) }

// span begins a span of a fault.
func (w *world) span(fault string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.verdict.Spans = append(w.verdict.Spans, Span{Fault: fault, From: w.now()})
}

// mended ends all spans.
func (w *world) mended() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.verdict.Spans {
		if s := &w.verdict.Spans[i]; s.To == 0 {
			s.To = w.now()
		}
	}
}

// second returns the counts of the current second. w.mu is held.
func (w *world) second() *Second {
	at := int(w.now() / time.Second)
	for len(w.verdict.Seconds) <= at {
		w.verdict.Seconds = append(w.verdict.Seconds, Second{})
	}
	return &w.verdict.Seconds[at]
}

// done counts the outcome of a command.
func (w *world) done(o outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o {
	case acked:
		w.verdict.Tally.Acked++
		w.second().Acked++
	case unknown:
		w.verdict.Tally.Unknown++
	default:
		w.verdict.Tally.Failed++
	}
}

// read counts whether a read was answered.
func (w *world) read(answered bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !answered {
		w.verdict.Tally.Unread++
		return
	}
	w.verdict.Tally.Reads++
	w.second().Reads++
}

// observe checks the nodes until ctx ends: which of them lead, their clocks, how far they have applied, and which of
// them died.
func (w *world) observe(ctx context.Context) {
	alive := map[int]bool{}
	for ctx.Err() == nil {
		for i := range w.c.Nodes() {
			n := w.c.Node(i)
			if alive[i] && n == nil {
				w.line(LineNode, "%s is dead", w.c.Name(i))
			}
			if alive[i] = n != nil; n == nil {
				continue
			}
			leaps := n.MembershipLeaps()
			w.hold("one-server-a-change", leaps == 0,
				"%s has seen %d configurations that differ by more from the one before", w.c.Name(i), leaps)
			life := w.c.Lives(i)
			for _, r := range n.Status().GetReplicas() {
				if r.GetShard() == cluster.ControlShard {
					continue
				}
				w.clockOf(i, life, r.GetShard(), r.GetReplica(), r.GetNowUs())
				w.mu.Lock()
				w.applied[r.GetShard()] = max(w.applied[r.GetShard()], r.GetAppliedIndex())
				w.mu.Unlock()
				if r.GetRole() == "leader" {
					w.reign(w.c.Name(i), r.GetShard(), r.GetTerm())
				}
			}
		}
		time.Sleep(observeEvery)
	}
}

// clockOf records the clock of a replica, and checks that it has not gone back.
func (w *world) clockOf(i, life int, shard uint32, replica uint64, now int64) {
	of := [3]uint64{uint64(i)<<32 | uint64(life), uint64(shard), replica}
	w.mu.Lock()
	before, known := w.clocks[of]
	w.clocks[of] = now
	w.mu.Unlock()
	if known {
		w.hold("clock-forward", now >= before, "the clock of shard %d at %s went back by %v", shard, w.c.Name(i), time.Duration(before-now)*time.Microsecond)
	}
}

// appliedOf returns an index of a shard that some replica has applied. Every entry that is proposed from now on has a
// higher index.
func (w *world) appliedOf(shard uint32) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.applied[shard]
}

// reign records which node leads a shard in a term, and checks that it is the only leader of that term.
func (w *world) reign(name string, shard uint32, term uint64) {
	w.mu.Lock()
	of := [2]uint64{uint64(shard), term}
	other, known := w.leaders[of]
	w.leaders[of] = name
	now := w.now()
	if r := w.reigns[shard]; r == nil || r.Term < term || r.Node == name {
		if r == nil || r.Node != name || r.Term != term {
			w.verdict.Reigns = append(w.verdict.Reigns, Reign{Shard: shard, Node: name, Term: term, From: now})
			w.verdict.Story = append(w.verdict.Story, Line{now, LineLeader, fmt.Sprintf("%s leads shard %d in term %d", name, shard, term)})
			w.reigns[shard] = &Reign{Node: name, Term: term}
		}
		for k := len(w.verdict.Reigns) - 1; k >= 0; k-- {
			if r := &w.verdict.Reigns[k]; r.Shard == shard && r.Term == term {
				r.To = now
				break
			}
		}
	}
	w.mu.Unlock()
	w.hold("one-leader", !known || other == name, "%s and %s both led shard %d in term %d", other, name, shard, term)
}

// compare checks that replicas which have applied the same entries are equal.
func (w *world) compare() {
	sums := map[[2]uint64]uint64{}
	whose := map[[2]uint64]int{}
	for i := range w.c.Nodes() {
		n := w.c.Node(i)
		if n == nil {
			continue
		}
		for shard := uint32(1); shard <= w.plan.Shards; shard++ {
			index, sum, ok := n.Checksum(shard)
			if !ok {
				continue
			}
			at := [2]uint64{uint64(shard), index}
			if other, known := sums[at]; known {
				w.hold("no-divergence", other == sum, "after entry %d of shard %d, %s has %x and %s has %x", index, shard, w.c.Name(whose[at]), other, w.c.Name(i), sum)
			}
			sums[at], whose[at] = sum, i
		}
	}
}
