package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
)

// A node that was removed ends, with a code of its own, which tells supervisors not to start it again; so it does if it
// is started all the same. Told to wait, it lives, is not ready and says why, and ends when it is asked to.
func TestRemovedNodeIsNotStartedForEver(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f, err := proc.Start(ctx, proc.Options{Binary: binary(t), Dir: t.TempDir(), Nodes: 1, Args: []string{"--shards", "4"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	gone, err := f.Join()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	mustEbb(ctx, t, f, "cluster", "remove", f.Name(gone), "--wait")
	for f.Runs(gone) {
		if time.Sleep(100 * time.Millisecond); ctx.Err() != nil {
			t.Fatalf("it goes on:\n%s", f.LogTail(gone))
		}
	}
	says(t, f.LogTail(gone), "node "+f.Name(gone)+" was removed from cluster", "try:  to let it join again")

	again := []string{"--node", f.Name(gone), "--data-dir", f.DataDir(gone), "--grpc", f.GRPC(gone), "--gossip", f.Gossip(gone), "--join", f.Gossip(0)}
	said, code := serveUntilItEnds(ctx, t, again...)
	says(t, said, "was removed from cluster")
	if code != exitRemoved {
		t.Errorf("exit code %d, want %d", code, exitRemoved)
	}

	var log strings.Builder
	waits := exec.CommandContext(ctx, binary(t), append([]string{"serve", "--http", "-", "--admin", f.Admin(gone), "--when-removed", "wait"}, again...)...)
	waits.Stderr = &log
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	probe := func(what string) string {
		out, _ := exec.CommandContext(ctx, binary(t), "probe", what, "--admin", f.Admin(gone)).CombinedOutput()
		return string(out)
	}
	for !strings.Contains(probe("ready"), "was removed from cluster") {
		if time.Sleep(100 * time.Millisecond); ctx.Err() != nil {
			t.Fatalf("it says %q", probe("ready"))
		}
	}
	if alive := probe("live"); !strings.Contains(alive, "alive") {
		t.Errorf("it does not live: %s", alive)
	}
	if err := waits.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := waits.Wait(); err != nil {
		t.Errorf("asked to end, it ends with %v", err)
	}
	says(t, log.String(), "this process does nothing any more")
}
