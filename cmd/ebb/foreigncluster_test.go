package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
)

// serveUntilItEnds runs `ebb serve` where it cannot go on, and returns what it
// said and its exit code.
func serveUntilItEnds(ctx context.Context, t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), append([]string{"serve", "--http", "-", "--admin", "-"}, args...)...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("ebb serve %s goes on:\n%s", strings.Join(args, " "), out)
	}
	if err == nil {
		t.Fatalf("ebb serve %s ended well:\n%s", strings.Join(args, " "), out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// says fails unless all the words are in what was said.
func says(t *testing.T, said string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("%q is missing in:\n%s", w, said)
		}
	}
}

// joinList is where a node of another cluster would join a fleet.
func joinList(f *proc.Fleet) string {
	var at []string
	for i := range f.Nodes() {
		at = append(at, f.Gossip(i))
	}
	return strings.Join(at, ",")
}

// Nodes that come to the wrong place, or to a place that is taken, end with an
// error that names both; the cluster they came to does not notice. All have the
// same secret: without one, a node does not end on another's word.
func TestForeignNodesAreRejected(t *testing.T) {
	if testing.Short() {
		t.Skip("runs six real processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	secret := filepath.Join(t.TempDir(), "cluster.secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("s", 40)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dirs := [2]string{t.TempDir(), t.TempDir()}
	var fleets [2]*proc.Fleet
	for i := range fleets {
		f, err := proc.Start(ctx, proc.Options{Binary: binary(t), Dir: dirs[i], Args: []string{"--shards", "4", "--cluster-secret-file", secret}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		fleets[i] = f
	}
	here, there := fleets[0], fleets[1]

	t.Run("the data of another cluster", func(t *testing.T) {
		there.Interrupt(0)
		here.Interrupt(0)
		said, code := serveUntilItEnds(
			ctx, t, "--node", "ebb-0", "--data-dir", filepath.Join(dirs[1], "ebb-0"),
			"--grpc", here.GRPC(0), "--gossip", here.Gossip(0), "--join", joinList(here), "--bootstrap-expect", "3",
			"--cluster-secret-file", secret,
		)
		says(t, said, "data directory "+dirs[1], "cluster", "EBB-4003", "try:")
		if code != exitFailed {
			t.Errorf("exit code %d", code)
		}
		stillServing(ctx, t, here)
		if err := here.Launch(0); err != nil {
			t.Fatal(err)
		}
		if err := here.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("the data of a smaller cluster", func(t *testing.T) {
		one, err := proc.Start(ctx, proc.Options{Binary: binary(t), Dir: t.TempDir(), Nodes: 1, Args: []string{"--shards", "4"}})
		if err != nil {
			t.Fatal(err)
		}
		one.Interrupt(0)
		said, _ := serveUntilItEnds(
			ctx, t, "--node", "ebb-0", "--data-dir", one.DataDir(0),
			"--grpc", "127.0.0.1:0", "--gossip", "127.0.0.1:0", "--join", joinList(here), "--bootstrap-expect", "3",
			"--cluster-secret-file", secret,
		)
		says(t, said, one.DataDir(0), "born with 1 node", "expects 3")
	})
	t.Run("two nodes with one name", func(t *testing.T) {
		said, code := serveUntilItEnds(
			ctx, t, "--node", "ebb-1", "--data-dir", filepath.Join(t.TempDir(), "data"), "--shards", "4",
			"--grpc", "127.0.0.1:0", "--gossip", "127.0.0.1:0", "--join", joinList(here), "--bootstrap-expect", "3",
			"--cluster-secret-file", secret,
		)
		// it finds out by gossip that another lives, or first from the table that there was one
		if !strings.Contains(said, "node ebb-1 runs twice: at "+here.Gossip(1)) && !strings.Contains(said, "node ebb-1 is known to cluster") {
			t.Errorf("it said:\n%s", said)
		}
		if code != exitFailed {
			t.Errorf("exit code %d", code)
		}
		stillServing(ctx, t, here)
	})
}

// stillServing fails if one of the running nodes has ended or refuses writes.
func stillServing(ctx context.Context, t *testing.T, f *proc.Fleet) {
	t.Helper()
	mustEbb(ctx, t, f, "incr", "still", "serving")
	for i := range f.Nodes() {
		raw, err := os.ReadFile(f.LogFile(i))
		if err != nil || strings.Contains(string(raw), "cannot go on") {
			t.Errorf("%s ended: %v\n%s", f.Name(i), err, f.LogTail(i))
		}
	}
}
