package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
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

// Two runs of a seed are told in the same words and have sent the same, if EBB_REPLAY names a build that replays: `make replay-check`.
func TestReplays(t *testing.T) {
	binary := os.Getenv("EBB_REPLAY")
	if binary == "" {
		t.Skip("EBB_REPLAY names no build that replays: make replay-check")
	}
	tell := func() string {
		var out, story bytes.Buffer
		cmd := exec.CommandContext(t.Context(), binary, "chaos", "sim", "--seeds", "1-4", "--parallel", "1", "--story", "--no-shrink")
		cmd.Stdout, cmd.Stderr = &out, &story
		if err := cmd.Run(); err != nil {
			t.Logf("%v: %s", err, out.String()) // a seed that fails must fail again
		}
		if !strings.Contains(out.String(), "replaying:") {
			t.Fatalf("this is no build that replays: %s", out.String())
		}
		var lines []string
		for line := range strings.Lines(story.String()) {
			if !strings.Contains(line, "seeds/s") { // how far it is depends on the machine
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	once := tell()
	if n := strings.Count(once, "trace of all that was sent: "); n != 4 {
		t.Fatalf("%d traces of 4 seeds:\n%s", n, once)
	}
	if again := tell(); again != once {
		a, b := strings.Split(once, "\n"), strings.Split(again, "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("line %d was\n%s\nand is\n%s", i+1, a[i], b[i])
			}
		}
		t.Fatalf("%d lines, and then %d", len(a), len(b))
	}
}
