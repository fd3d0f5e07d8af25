package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// olderBinary builds the command as it was at a commit, from the history that this repository has.
func olderBinary(t *testing.T, commit string) string {
	t.Helper()
	dir := t.TempDir()
	sources, binary := filepath.Join(dir, "sources"), filepath.Join(dir, "ebb")
	root := filepath.Join("..", "..")
	if out, err := exec.Command("git", "-C", root, "rev-parse", "--verify", "--quiet", commit+"^{commit}").CombinedOutput(); err != nil {
		t.Skipf("there is no commit %s here: a copy without history, or a shallow one (%v) %s", commit, err, out)
	}
	if err := os.Mkdir(sources, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "git -C " + root + " archive " + commit + " | tar -x -C " + sources
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/ebb") // trimmed, so that what is in Go's cache is used
	build.Dir = sources
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build of %s: %v\n%s", commit, err, out)
	}
	return binary
}

// storageOf asks a binary which storage versions it knows. One that does not say knows only the first.
func storageOf(t *testing.T, binary string) proto.Versions {
	t.Helper()
	out, err := exec.Command(binary, "version", "--json").Output()
	var said versionJSON
	if err != nil || json.Unmarshal(out, &said) != nil {
		t.Fatalf("ebb version --json: %v: %s", err, out)
	}
	return proto.ReportedVersions(said.Oldest, said.Storage)
}

// upgrade is a fleet that runs under load while its nodes change between two builds.
type upgrade struct {
	t            *testing.T
	ctx          context.Context
	f            *proc.Fleet
	older, newer string
}

// to ends node i in good order, and starts it as another build.
func (u *upgrade) to(i int, binary string) {
	u.t.Helper()
	u.f.Interrupt(i)
	u.f.Use(i, binary)
	u.launch(i)
}

func (u *upgrade) launch(i int) {
	u.t.Helper()
	if err := u.f.Launch(i); err != nil {
		u.t.Fatal(err)
	}
	if err := u.f.WaitReady(u.ctx); err != nil {
		u.t.Fatal(err)
	}
}

// status is what the cluster says of its storage version.
func (u *upgrade) status() statusJSON {
	u.t.Helper()
	var said statusJSON
	if err := json.Unmarshal(mustEbb(u.ctx, u.t, u.f, "status", "--json"), &said); err != nil {
		u.t.Fatal(err)
	}
	return said
}

// until waits for what must come.
func (u *upgrade) until(what string, so func() bool) {
	u.t.Helper()
	start := time.Now()
	for !so() {
		if u.ctx.Err() != nil {
			u.t.Fatalf("%s: not in %v", what, time.Since(start))
		}
		pauseOr(u.ctx, u.t, 100*time.Millisecond)
	}
	u.t.Logf("%s, after %v", what, time.Since(start).Round(100*time.Millisecond))
}

// sum adds a metric of some nodes up.
func (u *upgrade) sum(name string, nodes ...int) (sum float64) {
	u.t.Helper()
	for _, i := range nodes {
		v, err := u.f.Metric(u.ctx, i, name)
		if err != nil {
			u.t.Fatal(err)
		}
		sum += v
	}
	return sum
}

// snapshots writes until these nodes, which run one build, have all taken one.
func (u *upgrade) snapshots(c *client.Client, build string, nodes ...int) {
	u.t.Helper()
	const snapshots = "ebb_node_snapshots_total"
	before := make(map[int]float64)
	for _, i := range nodes {
		before[i] = u.sum(snapshots, i)
	}
	fillDisks(u.ctx, u.t, c, 48) // a shard takes one after 4 MiB, and there are 8
	u.until("snapshots by "+build, func() bool {
		return !slices.ContainsFunc(nodes, func(i int) bool { return u.sum(snapshots, i) == before[i] })
	})
}

// replaced takes node i's disk away, and lets another build send it everything: the nodes that remain.
func (u *upgrade) replaced(c *client.Client, i int, what string) {
	u.t.Helper()
	const sent = "ebb_node_snapshot_install_sent_bytes_total"
	others := slices.DeleteFunc([]int{0, 1, 2}, func(n int) bool { return n == i })
	replica, before := memberOf(u.ctx, u.t, c, u.f, i), u.sum(sent, others...)
	u.f.Kill(i)
	if err := u.f.Wipe(i); err != nil {
		u.t.Fatal(err)
	}
	if err := u.f.Launch(i); err != nil {
		u.t.Fatal(err)
	}
	u.until("other replicas on "+u.f.Name(i), func() bool { return memberOf(u.ctx, u.t, c, u.f, i) != replica })
	members(u.ctx, u.t, c, u.f, 3, 0, 1, 2)
	if err := u.f.WaitReady(u.ctx); err != nil {
		u.t.Fatal(err)
	}
	if now := u.sum(sent, others...); now <= before {
		u.t.Errorf("%s: no snapshot was sent", what)
	} else {
		u.t.Logf("%s: %.1f MB of snapshots", what, (now-before)/1e6)
	}
}

// TestRollingUpgrade rolls three processes under load from the build of the commit in EBB_UPGRADE to the present one.
// It rolls two of them, one back and forth, and then the last. Each build starts from snapshots of the other and gets
// some from it. Replicas are audited during the upgrade. If the present build knows a newer storage version, that is in
// force once the last node has it, and no sooner. Then the older build is refused; else it still runs. Nothing is lost,
// nothing counts twice, and all replicas are equal.
func TestRollingUpgrade(t *testing.T) {
	commit := os.Getenv("EBB_UPGRADE")
	if commit == "" {
		t.Skip("builds an older commit: make upgrade, or set EBB_UPGRADE to a commit, such as HEAD~1")
	}
	u := &upgrade{t: t, older: olderBinary(t, commit), newer: binary(t)} // which takes minutes on a busy machine
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	u.ctx = ctx
	was, is := storageOf(t, u.older), storageOf(t, u.newer)
	if !is.Know(was.Newest) {
		t.Fatalf("the present build knows storage versions %d to %d, and that of %s writes %d: there is no way from one to the other", is.Oldest, is.Newest, commit, was.Newest)
	}
	u.start(u.older)
	f := u.f
	u.inForce(was.Newest) // an older build raises a newborn cluster after some seconds
	start := time.Now()
	mustEbb(ctx, t, f, "namespace", "create", "ledger", "--decay", "none")
	mustEbb(ctx, t, f, "bits", "set", "members", "1", "5", "70000")
	w := startWriteLoad(ctx, t, f, 2, 8, 20*time.Millisecond)

	u.snapshots(w.client, commit, 0, 1, 2)
	u.to(0, u.newer)
	u.replaced(w.client, 0, "from "+commit+" to the present build")
	u.to(1, u.newer)
	u.snapshots(w.client, "the present build", 0, 1)
	u.to(0, u.older)
	u.to(0, u.newer)
	u.replaced(w.client, 2, "from the present build to "+commit)
	u.until("an audit of replicas of both", func() bool { return u.sum("ebb_node_audits_total", 0, 1, 2) > 0 })
	for _, name := range []string{"ebb_node_replicas_diverged_total", "ebb_node_audits_undecided_total", "ebb_node_replicas_quarantined"} {
		if n := u.sum(name, 0, 1, 2); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
	if got := u.status().Storage; got != was.Newest {
		t.Errorf("storage version %d is in force while a node runs %s, want %d", got, commit, was.Newest)
	}
	u.to(2, u.newer)
	u.inForce(is.Newest)
	if is.Newest > was.Newest {
		u.refused(0, commit, is.Newest)
	} else {
		u.to(0, u.older)
	}
	u.to(0, u.newer)
	w.stop(ctx)
	if got := strings.TrimSpace(string(mustEbb(ctx, t, f, "bits", "count", "members", "-o", "tsv"))); !strings.HasPrefix(got, "3") {
		t.Errorf("the bitmap counts %q, want 3", got)
	}
	mustVerify(ctx, t, f)
	t.Logf("from %s (storage version %d) to the present build (%d) and once back in %v", commit, was.Newest, is.Newest, time.Since(start).Round(100*time.Millisecond))
}

// inForce waits until the cluster has this storage version.
func (u *upgrade) inForce(version uint32) {
	u.t.Helper()
	for u.status().Storage != version {
		pauseOr(u.ctx, u.t, 100*time.Millisecond)
	}
}

// refused starts node i as the older build, which must end by itself and name the version in force.
func (u *upgrade) refused(i int, commit string, version uint32) {
	u.t.Helper()
	u.f.Interrupt(i)
	u.f.Use(i, u.older)
	if err := u.f.Launch(i); err != nil {
		u.t.Fatal(err)
	}
	ended(u.ctx, u.t, u.f, i)
	says(u.t, u.f.LogTail(i), u.f.DataDir(i), "EBB-4004", "try:")
	u.t.Logf("%s says of storage version %d:\n%s", commit, version, u.f.LogTail(i)[max(0, len(u.f.LogTail(i))-400):])
}
