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

// world is a trial under way. All but the counting is of one goroutine.
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
	rng        *rand.Rand // of the fault at hand
	members    []int      // of the cluster
	down       map[int]bool
	witness    int // a node whose process is never ended; -1 for none
	verdict    *swarm.Verdict
	healed     map[string][]time.Duration
	samples    []Sample
	sampled    time.Duration
	trends     []Trend
	keys       int
	lost       int // keys that have lost something, and those that count too much, of all comparisons
	twice      int
	reads      int
	cpu        time.Duration // of all nodes, at the end
	quietRates []float64     // increments acknowledged a second, in each time between faults
	stale      int           // answers of readers that contradict what was known

	last     atomic.Pointer[swarm.Line] // of the story, for goroutines that are no part of it
	counting sync.WaitGroup
	stop     func()
}

func (w *world) now() time.Duration { return time.Since(w.began) }

func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)+1))
}

// tell says what happens, in the story and to Progress.
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

// hold evaluates an invariant of what the run waits for and asks for. An interrupted run has waited for nothing to its
// end: what does not hold then is not evaluated.
func (w *world) hold(name string, ok bool, format string, args ...any) bool {
	if !ok && w.over() {
		return false
	}
	return w.found(name, ok, format, args...)
}

// found counts an evaluation of an invariant, and takes down that it does not hold.
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

// amid says what happened last.
func (w *world) amid() string {
	if l := w.last.Load(); l != nil {
		return fmt.Sprintf("%q was the last that had happened (%.1fs)", l.Text, l.At.Seconds())
	}
	return "nothing had been broken"
}

// collectReads takes over what readers have found since it was called last.
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

// pass samples what processes hold, and lets time pass.
func (w *world) pass(ctx context.Context, d time.Duration) {
	end := time.NewTimer(d)
	defer end.Stop()
	w.sample(ctx)
	select {
	case <-ctx.Done():
	case <-end.C:
	}
}

// sample asks all nodes that answer what they hold, if it is time to.
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

// until waits for something for so long, and reports whether it came.
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

// heal starts the nodes that do not run, and waits until all are ready and the load is acknowledged.
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
	enough := int64(2 * loadWorkers * w.load.batch) // more than was under way
	served := w.until(ctx, healedMax, func(context.Context) bool { return w.load.Acked() >= before+enough })
	if ctx.Err() != nil {
		return 0, false
	}
	ok = w.hold("healed-writes", served, "%d increments were acknowledged in the %v after all nodes were ready", w.load.Acked()-before, healedMax)
	w.sample(ctx)
	return w.now() - began, ok
}

// start launches a node. What it says if it ends at once, its log has.
func (w *world) start(i int) {
	if err := w.f.Launch(i); err != nil {
		w.hold("restarts", false, "%v", err)
	}
}

// collapses checks that no process ended without an excuse.
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

// first is at most five of many.
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

// progress says in a line how far it is.
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

// leader is the node that leads a shard of the seed's choice, as far as any node says; some member otherwise.
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

// victim is a leader half of the time, some member otherwise.
func (w *world) victim(ctx context.Context) int {
	if w.rng.IntN(2) == 0 {
		return w.leader(ctx)
	}
	return w.members[w.rng.IntN(len(w.members))]
}

// killableVictim is a victim whose process may be ended.
func (w *world) killableVictim(ctx context.Context) int {
	i := w.victim(ctx)
	for i == w.witness {
		i = w.members[w.rng.IntN(len(w.members))]
	}
	return i
}

// others are all members but one.
func (w *world) others(one int) []int {
	return slices.DeleteFunc(slices.Clone(w.members), func(i int) bool { return i == one })
}
