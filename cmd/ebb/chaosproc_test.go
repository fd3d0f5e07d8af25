package main

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
)

// broken runs a trial of a few faults, in which everything must hold, and returns what came of it.
func broken(t *testing.T, cycles int, families ...string) *proc.Report {
	t.Helper()
	return brokenFor(t, 0, cycles, families...)
}

// brokenFor is broken by faults that last no longer than so long.
func brokenFor(t *testing.T, most time.Duration, cycles int, families ...string) *proc.Report {
	t.Helper()
	if testing.Short() {
		t.Skip("breaks real processes")
	}
	if _, skipped, err := proc.Choose(families); err != nil || len(skipped) > 0 {
		t.Skipf("not on this machine: %v, %v", err, skipped)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	trial := proc.Trial{
		Binary: binary(t), Dir: t.TempDir(), Seed: 1, Nodes: 3, Shards: 4, Families: families, Rate: 400, Cycles: cycles, HoldMax: most,
		Progress: func(line string) { t.Log(line) },
	}
	r, err := trial.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range r.Verdict.Breaches {
		t.Errorf("%v", b)
	}
	if r.Interrupted {
		t.Error("it took too long")
	}
	if r.Ledger.Acknowledged == 0 || r.Ledger.Open != 0 || r.Keys == 0 {
		t.Errorf("ledger %+v over %d keys: nothing was tried", r.Ledger, r.Keys)
	}
	for _, name := range []string{"acked-kept", "counted-once", "replicas-equal", "restarts", "healed-writes", "read-fresh"} {
		if r.Verdict.Checks[name] == 0 {
			t.Errorf("%s was not looked at", name)
		}
	}
	return r
}

// All processes are killed at once, and nothing that was acknowledged is lost: a short form of `ebb chaos proc --cycles
// 100 --faults kill-all`.
func TestKillAll(t *testing.T) {
	if r := broken(t, 2, "kill-all"); r.Verdict.Faults["kill-all"] != 2 {
		t.Errorf("faults %v", r.Verdict.Faults)
	}
}

// All machines lose power at once: a short form of `ebb chaos proc --cycles 100 --faults power-all`.
func TestPowerAll(t *testing.T) {
	if r := broken(t, 2, "power-all"); r.Verdict.Faults["power-all"] != 2 {
		t.Errorf("faults %v", r.Verdict.Faults)
	}
}

// One fault of each kind that needs no network and no disk of its own, of those that this machine can have. What it
// cannot, and why, is in the log. Without EBB_FAULTS, in `go test ./...`, two of them: all take two minutes.
func TestFaultsOfProcesses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are stopped on Linux alone")
	}
	_, skipped, err := proc.Choose(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range skipped {
		t.Logf("left out: %s: %s", s.Family, s.Why)
	}
	var families []string
	for _, f := range proc.Families {
		if f.Bare() && f.Can() == nil {
			families = append(families, f.Name)
		}
	}
	checks := []string{"read-fresh", "read-monotone", "read-possible", "damage-seen", "no-collapse"}
	if os.Getenv("EBB_FAULTS") == "" {
		families = []string{"pause", "flipped-bit"}
	} else {
		checks = append(checks, "members-as-asked")
		if slices.Contains(families, "file-error") {
			checks = append(checks, "fail-stop")
		}
	}
	r := brokenFor(t, 2*time.Second, len(families), families...)
	for _, name := range families {
		if r.Verdict.Faults[name] != 1 {
			t.Errorf("%s: %d times", name, r.Verdict.Faults[name])
		}
	}
	for _, name := range checks {
		if r.Verdict.Checks[name] == 0 {
			t.Errorf("%s was not looked at", name)
		}
	}
	for _, of := range r.Reads {
		if of.Answered == 0 {
			t.Errorf("no read was answered %s: %s", of.Manner, of.Why)
		}
	}
}

// One fault of each kind that is over in a moment.
func TestFaultsOfNetworkAndDisk(t *testing.T) {
	families := []string{"cut", "one-way", "slow-disk", "disk-error", "certificates"}
	r := broken(t, len(families), families...)
	for _, name := range families {
		if r.Verdict.Faults[name] != 1 {
			t.Errorf("%s: %d times", name, r.Verdict.Faults[name])
		}
	}
	if r.Verdict.Checks["fail-stop"] == 0 {
		t.Error("nobody looked whether the process whose disk failed ended")
	}
	var page bytes.Buffer
	if err := procPage(r).HTML(&page); err != nil || !bytes.Contains(page.Bytes(), []byte("disk-error")) {
		t.Errorf("a page of %d bytes: %v", page.Len(), err)
	}
}

// The majority acknowledges after its leader was cut off: a short form of `ebb chaos failover`, which also judges how
// soon.
func TestFailoverOfACutLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("cuts real processes off")
	}
	if err := proc.CanCut(); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	o := proc.Failover{Binary: binary(t), Dir: t.TempDir(), Trials: 3, Nodes: 3, Shards: 3, Progress: func(line string) { t.Log(line) }}
	r, err := o.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r.Trials != 3 || r.Counted != float64(r.Written) || r.P50 < r.Election/4 || r.P50 > r.Max {
		t.Errorf("%+v", r)
	}
}

// How long writes take while the disk of one node is slow is measured with EBB_SLOW=1, and told: the goal is a p99 of
// twice that without, as soon as the node has handed over what it led.
func TestWritesWithASlowNode(t *testing.T) {
	if os.Getenv("EBB_SLOW") == "" {
		t.Skip("EBB_SLOW=1 measures for a minute")
	}
	if err := proc.CanLose(); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	o := proc.SlowNode{Binary: binary(t), Dir: t.TempDir(), Nodes: 3, Shards: 6, Part: 300 * time.Millisecond, Each: 20 * time.Second}
	r, err := o.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("shards that others lead: without %v; with %v: %.2f times the p99", r.Without, r.With, r.With.P99.Seconds()/r.Without.P99.Seconds())
	t.Logf("shards that it led: without %v; until it had handed them over, for %v, %v; then %v: %.2f times the p99",
		r.WithoutOnIts, r.HandedOver.Round(100*time.Millisecond), r.Becoming, r.WithOnIts, r.WithOnIts.P99.Seconds()/r.WithoutOnIts.P99.Seconds())
	if r.Without.Writes == 0 || r.With.Writes == 0 || r.WithoutOnIts.Writes == 0 {
		t.Errorf("%+v: nothing was measured", r)
	}
	// A write that waits for the slow disk takes 300 ms of each half second. A third of that is no noise of a busy
	// machine, and far from what it was.
	for which, l := range map[string][2]proc.Latency{"others led": {r.Without, r.With}, "it led": {r.WithoutOnIts, r.WithOnIts}} {
		if most := max(2*l[0].P99, o.Part/3); l[1].P99 > most {
			t.Errorf("shards that %s: a p99 of %v with a slow disk, want %v at most", which, l[1].P99, most)
		}
	}
}
