package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/chaos/mutants"
)

// Each edit finds what it replaces in the release that it is for; any other is refused by name.
func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	err := write(dir)
	if runtime.Version() != release {
		if err == nil || !strings.Contains(err.Error(), release) {
			t.Fatalf("an overlay for %s with %s: %v", release, runtime.Version(), err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "overlay.json"))
	if err != nil {
		t.Fatal(err)
	}
	var o struct{ Replace map[string]string }
	if err := json.Unmarshal(b, &o); err != nil || len(o.Replace) != len(edits) {
		t.Fatalf("%d files are replaced, and there are edits of %d: %v", len(o.Replace), len(edits), err)
	}
	for from, to := range o.Replace {
		was, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		is, err := os.ReadFile(to)
		if err != nil || bytes.Equal(was, is) {
			t.Errorf("%s is as it was: %v", from, err)
		}
	}
}

// What is not there, or is there twice, is no place for an edit.
func TestEditsMustFit(t *testing.T) {
	e := edit{file: "f.go", changes: []change{{"a", "b"}}}
	for _, text := range []string{"", "a a"} {
		if _, err := e.apply(text); err == nil || !strings.Contains(err.Error(), "f.go") {
			t.Errorf("an edit of %q: %v", text, err)
		}
	}
	if got, err := e.apply("xay"); err != nil || got != "xby" {
		t.Errorf("%q, %v", got, err)
	}
}

// replayer is the build that EBB_REPLAY names.
func replayer(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("EBB_REPLAY")
	if binary == "" {
		t.Skip("EBB_REPLAY names no build that replays: make replay-check")
	}
	return binary
}

// tell runs seeds, and returns the stories of all, and whether one of them failed.
func tell(t *testing.T, binary string, args ...string) (stories string, failed bool) {
	t.Helper()
	var out, story bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"chaos", "sim", "--parallel", "1", "--story", "--no-shrink"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &story
	failed = cmd.Run() != nil
	if !strings.Contains(out.String(), "replaying:") {
		t.Fatalf("this is no build that replays: %s", out.String())
	}
	var lines []string
	for line := range strings.Lines(story.String()) {
		if !strings.Contains(line, "seeds/s") { // how far it is depends on the machine
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, ""), failed
}

// same sees that two stories are the same to the byte.
func same(t *testing.T, once, again string) {
	t.Helper()
	if again == once {
		return
	}
	a, b := strings.Split(once, "\n"), strings.Split(again, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Fatalf("line %d was\n%s\nand is\n%s", i+1, a[i], b[i])
		}
	}
	t.Fatalf("%d lines, and then %d", len(a), len(b))
}

const traced = "trace of all that was sent: "

// Two runs of a seed print the same words and have sent the same, if EBB_REPLAY names a build that replays: `make
// replay-check`.
func TestReplays(t *testing.T) {
	binary := replayer(t)
	once, _ := tell(t, binary, "--seeds", "1-4") // a seed that fails must fail again
	if n := strings.Count(once, traced); n != 4 {
		t.Fatalf("%d traces of 4 seeds:\n%s", n, once)
	}
	again, _ := tell(t, binary, "--seeds", "1-4")
	same(t, once, again)
}

// The same holds for seeds that fail. Each planted bug that the swarm must notice fails with some seed; that seed fails
// twice more, in the same words.
func TestReplaysWhatFails(t *testing.T) {
	replayer(t)
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root, err := mutants.Root(wd)
	if err != nil {
		t.Fatal(err)
	}
	all, err := mutants.All()
	if err != nil {
		t.Fatal(err)
	}
	only, err := regexp.Compile(os.Getenv("EBB_MUTANTS")) // empty for all
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.Checker.Package != "" || m.Checker.Seeds == 0 || !only.MatchString(m.Name) {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			binary := plant(t, root, m)
			seed, invariant := firstFailure(t, binary, m.Checker)
			of := []string{"--seeds", fmt.Sprint(seed), "--families", m.Checker.Families}
			once, failed := tell(t, binary, of...)
			if !failed || strings.Count(once, traced) != 1 || !strings.Contains(once, invariant+": ") {
				t.Fatalf("seed %d broke %s, and run again does not (failed: %v):\n%s", seed, invariant, failed, once)
			}
			again, failed := tell(t, binary, of...)
			if !failed {
				t.Fatalf("seed %d fails no more", seed)
			}
			same(t, once, again)
			_, trace, _ := strings.Cut(once, traced)
			t.Logf("seed %d breaks %s, twice in %d lines, trace %s", seed, invariant, strings.Count(once, "\n"), strings.TrimSpace(trace))
		})
	}
}

// plant builds a binary that replays and has a planted bug: as `make ebb-replay` does, with both overlays in one.
func plant(t *testing.T, root string, m mutants.Mutant) (binary string) {
	t.Helper()
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	var overlay struct{ Replace map[string]string }
	if err := json.Unmarshal(text, &overlay); err != nil {
		t.Fatal(err)
	}
	sources, err := m.Sources(root)
	if err != nil {
		t.Fatal(err)
	}
	for file, source := range sources {
		to := filepath.Join(dir, "planted_"+strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(to, source, 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, file)] = to
	}
	if text, err = json.Marshal(overlay); err == nil {
		err = os.WriteFile(list, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "ebb-replay")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "grpcnotrace,nethttpomithttp2", "-trimpath", "-overlay", list,
		"-ldflags", "-s -w -X github.com/ebbdb/ebb/chaos/swarm.replays=yes", "-o", binary, "./cmd/ebb")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOEXPERIMENT=norandomizedheapbase64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

// firstFailure is the first seed of a checker's that fails, and the invariant that it breaks.
func firstFailure(t *testing.T, binary string, c mutants.Checker) (seed uint64, invariant string) {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), binary, "chaos", "sim", "--seeds", fmt.Sprintf("1-%d", c.Seeds), "--first", "--no-shrink", "--json", "--families", c.Families).Output() // it is to fail
	var report struct {
		First *struct {
			Seed      uint64 `json:"seed"`
			Invariant string `json:"invariant"`
		} `json:"first_failure"`
	}
	if err := json.Unmarshal(out, &report); err != nil || report.First == nil {
		t.Fatalf("%d seeds do not show it: %v", c.Seeds, err)
	}
	return report.First.Seed, report.First.Invariant
}
