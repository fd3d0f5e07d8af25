package swarm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A run that was interrupted continues where it was, and parts add up to the whole.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	run := func(file string, first, last uint64) *Report {
		t.Helper()
		kept, err := OpenKept(filepath.Join(dir, file), "b1")
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Close()
		r, err := (&Campaign{Fleet: fleet(t, "odd", time.Minute), First: first, Last: last, Workers: 2, NoShrink: true, Kept: kept}).Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := run("a", 1, 3); r.Sum.Seeds != 3 || r.Before != 0 || len(r.Failures) != 1 {
		t.Errorf("first: %+v", r)
	}
	run("b", 4, 6)
	a, _ := os.ReadFile(filepath.Join(dir, "a"))
	b, _ := os.ReadFile(filepath.Join(dir, "b"))
	// the last line was not written wholly
	if err := os.WriteFile(filepath.Join(dir, "sum"), append(append(a, b...), `{"build":"b1","plan":{"se`...), 0o600); err != nil {
		t.Fatal(err)
	}
	r := run("sum", 2, 8)
	if r.Sum.Seeds != 7 || r.Before != 5 || len(r.Failures) != 4 || r.FirstFailure.Seed != 2 || r.Sum.Virtual != 3*time.Second {
		t.Errorf("in all: %d seeds, %d before, %d failures, %v", r.Sum.Seeds, r.Before, len(r.Failures), r.Sum.Virtual)
	}
	if !strings.Contains(r.FirstFailure.Verdict.Tell(), "a node panics") {
		t.Errorf("what failed has lost its story: %s", r.FirstFailure.Verdict.Tell())
	}
	if r := run("sum", 1, 8); r.Sum.Seeds != 8 || r.Before != 8 || len(r.Failures) != 4 || r.SeedsPerSecond() != 0 {
		t.Errorf("once more: %d seeds, %d before, %d failures", r.Sum.Seeds, r.Before, len(r.Failures))
	}
}

// What another build, or another choice of faults, has run does not count, nor does what is no verdict.
func TestKeptOfOthers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kept")
	kept, err := OpenKept(file, "b1")
	if err != nil {
		t.Fatal(err)
	}
	c := &Campaign{Fleet: fleet(t, "odd", time.Minute), First: 1, Last: 1, Workers: 1, Kept: kept}
	if _, err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKept(file, "b2"); err == nil || !strings.Contains(err.Error(), "seed 1 was run by build b1") {
		t.Errorf("another build: %v", err)
	}
	if c.Kept, err = OpenKept(file, "b1"); err != nil {
		t.Fatal(err)
	}
	defer c.Kept.Close()
	c.Families = []string{"power-all"}
	if _, err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "keeps another plan of seed 1") {
		t.Errorf("other families: %v", err)
	}
	if err := os.WriteFile(file, []byte("seed 1 held\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKept(file, "b1"); err == nil || !strings.Contains(err.Error(), "kept:1 is no seed's verdict") {
		t.Errorf("no verdict: %v", err)
	}
}
