package proc

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/chaos/swarm"
	"github.com/ebbdb/ebb/client"
)

// world is the state of a running trial. Only one goroutine uses it, except for the goroutines that count has started.
type world struct {
	t          *Trial
	over       func() bool // whether the run is interrupted
	began      time.Time
	testbed    *Testbed
	certs      *certificates // nil: no TLS
	f          *Fleet
	admin      *client.Client
	doors      *doors
	load       *Load
	readers    *readers
	rng        *rand.Rand // for the current fault
	members    []int      // of the cluster
	down       map[int]bool
	witness    int // a node whose process is never ended; -1 for none
	verdict    *swarm.Verdict
	healed     map[string][]time.Duration
	samples    []Sample
	sampled    time.Duration
	trends     []Trend
	keys       int
	lost       int // keys that have lost increments, over all audits; twice: keys that count too much
	twice      int
	reads      int
	cpu        time.Duration // CPU time of all nodes, measured at the end
	quietRates []float64     // acknowledged increments a second, one value for each pause between faults
	stale      int           // answers of readers that contradict what was known

	last     atomic.Pointer[swarm.Line] // the last line of the story, for the goroutines that read keys
	counting sync.WaitGroup
	stop     func()
}

func (w *world) now() time.Duration { return time.Since(w.began) }

func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)+1))
}

// tell adds a note to the story and passes it to Progress.
func (w *world) tell(format string, args ...any) {
	w.line(swarm.LineNote, format, args...)
}

func (w *world) line(kind swarm.LineKind, format string, args ...any) {
	l := swarm.Line{At: w.now(), Kind: kind, Text: fmt.Sprintf(format, args...)}
	w.verdict.Story = append(w.verdict.Story, l)
	w.last.Store(&l)
	if w.t.Progress != nil {
		w.t.Progress(fmt.Sprintf("%8.1fs  %s", l.At.Seconds(), l.Text))
	}
}

// hold evaluates an invariant whose result depends on waits or requests. An interruption ends these early, so hold does
// not count a failure of an interrupted run.
func (w *world) hold(name string, ok bool, format string, args ...any) bool {
	if !ok && w.over() {
		return false
	}
	return w.found(name, ok, format, args...)
}

// found counts an evaluation of an invariant, and records a breach if the invariant does not hold.
func (w *world) found(name string, ok bool, format string, args ...any) bool {
	if !slices.ContainsFunc(Invariants, func(i swarm.Invariant) bool { return i.Name == name }) {
		panic("no invariant is called " + name)
	}
	w.verdict.Checks[name]++
	if !ok {
		b := swarm.Breach{Invariant: name, At: w.now(), What: fmt.Sprintf(format, args...)}
		w.verdict.Breaches = append(w.verdict.Breaches, b)
		w.line(swarm.LineBreach, "%s: %s", name, b.What)
	}
	return ok
}

// amid describes the last event of the story.
func (w *world) amid() string {
	if l := w.last.Load(); l != nil {
		return fmt.Sprintf("%q was the last that had happened (%.1fs)", l.Text, l.At.Seconds())
	}
	return "nothing had been broken"
}

// collectReads adds to the verdict what the readers have found since its last call.
func (w *world) collectReads() {
	checked, wrong := w.readers.take()
	for _, i := range readInvariants {
		w.verdict.Checks[i.Name] += checked
	}
	for n, o := range wrong {
		if n == staleMax {
			break
		}
		w.verdict.Breaches = append(w.verdict.Breaches, swarm.Breach{Invariant: o.invariant, At: o.at, What: o.what})
		w.line(swarm.LineBreach, "%s: %s", o.invariant, o.what)
	}
	w.stale += len(wrong)
}

// count records what is acknowledged in each second, and which nodes lead, until stopCounting.
func (w *world) count() {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	var seconds []swarm.Second
	var leaders reigns
	w.counting.Go(func() { w.watchLeaders(ctx, &leaders) })
	w.counting.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		before, read := int64(0), 0
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now, answered := w.load.Acked(), 0
			for _, of := range w.readers.sums() {
				answered += of.Answered
			}
			seconds = append(seconds, swarm.Second{Acked: int(now - before), Reads: answered - read})
			before, read = now, answered
		}
	})
	w.stop = func() {
		cancel()
		w.counting.Wait()
		w.verdict.Seconds, w.verdict.Reigns = seconds, leaders.all
	}
}

func (w *world) stopCounting() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// pass samples the resources of the processes, and returns after d or when ctx ends.
func (w *world) pass(ctx context.Context, d time.Duration) {
	end := time.NewTimer(d)
	defer end.Stop()
	w.sample(ctx)
	select {
	case <-ctx.Done():
	case <-end.C:
	}
}

// sample records the resources of all nodes that answer, unless the last sample is too recent.
func (w *world) sample(ctx context.Context) {
	every := max(time.Second, w.t.For/samples)
	if w.now()-w.sampled < every {
		return
	}
	w.sampled = w.now()
	for _, i := range w.members {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		if s, err := w.f.Sample(ctx, i); err == nil {
			s.At = w.now()
			w.samples = append(w.samples, s)
		}
		cancel()
	}
}

// until polls so until it returns true, limit has passed or ctx ends. It reports whether so returned true.
func (w *world) until(ctx context.Context, limit time.Duration, so func(context.Context) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so(ctx) {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// heal starts the nodes that a fault has ended. It waits until all nodes are ready and the load is acknowledged again.
func (w *world) heal(ctx context.Context) (took time.Duration, ok bool) {
	began := w.now()
	excused := maps.Clone(w.down)
	clear(w.down)
	for _, i := range w.members {
		if !w.f.Runs(i) && excused[i] {
			excused[i] = false
			w.start(i)
		}
	}
	for _, i := range w.members {
		ready := w.until(ctx, readyMax, func(ctx context.Context) bool {
			if !w.f.Runs(i) && excused[i] { // a node that failed with its disk may end only now
				excused[i] = false
				w.start(i)
			}
			return !w.f.Runs(i) || w.f.Ready(ctx, i)
		})
		if ctx.Err() != nil {
			return 0, false
		}
		if !w.hold("restarts", ready && w.f.Runs(i), "%s is not ready %v after all was mended; the end of its log:\n%s", w.f.Name(i), (w.now() - began).Round(time.Second), w.f.LogTail(i)) {
			return 0, false
		}
	}
	before := w.load.Acked()
	enough := int64(2 * loadWorkers * w.load.batch) // more than can have been in flight
	served := w.until(ctx, healedMax, func(context.Context) bool { return w.load.Acked() >= before+enough })
	if ctx.Err() != nil {
		return 0, false
	}
	ok = w.hold("healed-writes", served, "%d increments were acknowledged in the %v after all nodes were ready", w.load.Acked()-before, healedMax)
	w.sample(ctx)
	return w.now() - began, ok
}

// start launches a node. If the node ends at once, its log says why.
func (w *world) start(i int) {
	if err := w.f.Launch(i); err != nil {
		w.hold("restarts", false, "%v", err)
	}
}

// collapses checks that no process has ended, except those that a fault may end.
func (w *world) collapses() {
	for _, i := range w.members {
		if !w.down[i] {
			w.hold("no-collapse", w.f.Runs(i), "%s has ended; the end of its log:\n%s", w.f.Name(i), w.f.LogTail(i))
		}
	}
}

// audit compares all keys with the ledger.
func (w *world) audit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, auditMax)
	defer cancel()
	keys, lost, twice, err := w.load.Audit(ctx)
	if !w.hold("readable", err == nil, "%v", err) {
		return nil
	}
	w.keys = keys
	w.reads += keys
	w.lost, w.twice = w.lost+len(lost), w.twice+len(twice)
	w.found("acked-kept", len(lost) == 0, "%d of %d keys have lost something: %v", len(lost), keys, first(lost))
	w.found("counted-once", len(twice) == 0, "%d of %d keys count too much: %v", len(twice), keys, first(twice))
	return nil
}

// first returns at most the first five elements.
func first(all []string) []string { return all[:min(5, len(all))] }

// compareReplicas compares the checksums of all replicas.
func (w *world) compareReplicas(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, auditMax)
	defer cancel()
	checks, err := w.admin.Verify(ctx, nil)
	if !w.hold("replicas-equal", err == nil, "%v", err) {
		return
	}
	for _, c := range checks {
		err := c.Err()
		w.hold("replicas-equal", err == nil && len(c.Replicas) == min(3, len(w.members)), "shard %d: %d replicas were compared: %v", c.Shard, len(c.Replicas), err)
	}
}

// progress returns a line about how far the trial is.
func (w *world) progress(number int) string {
	of := ""
	if w.t.Cycles > 0 {
		of = fmt.Sprintf(" of %d", w.t.Cycles)
	}
	sum := w.load.Ledger.Totals()
	faults := "faults"
	if number == 1 && of == "" || w.t.Cycles == 1 {
		faults = "fault"
	}
	return fmt.Sprintf("%d%s %s, %d increments acknowledged, %d unknown, %d refused, %d breaches", number, of, faults, sum.Acknowledged, sum.Unknown, sum.Refused, len(w.verdict.Breaches))
}

// leader returns a node that reports that it leads a shard, which rng chooses. If there is none, it returns a random
// member.
func (w *world) leader(ctx context.Context) int {
	shard := 1 + uint32(w.rng.IntN(int(w.t.Shards)))
	other := w.members[w.rng.IntN(len(w.members))]
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	status, err := w.admin.Status(ctx)
	if err != nil {
		return other
	}
	for _, n := range status.GetNodes() {
		for _, r := range n.GetReplicas() {
			if r.GetShard() == shard && r.GetRole() == "leader" {
				for _, i := range w.members {
					if w.f.Name(i) == n.GetNode().GetName() {
						return i
					}
				}
			}
		}
	}
	return other
}

// victim returns a leader in half of the cases, and a random member otherwise.
func (w *world) victim(ctx context.Context) int {
	if w.rng.IntN(2) == 0 {
		return w.leader(ctx)
	}
	return w.members[w.rng.IntN(len(w.members))]
}

// killableVictim returns a victim whose process may be ended.
func (w *world) killableVictim(ctx context.Context) int {
	i := w.victim(ctx)
	for i == w.witness {
		i = w.members[w.rng.IntN(len(w.members))]
	}
	return i
}

// others returns all members but one.
func (w *world) others(one int) []int {
	return slices.DeleteFunc(slices.Clone(w.members), func(i int) bool { return i == one })
}
