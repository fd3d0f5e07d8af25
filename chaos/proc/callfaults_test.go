package proc

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// heldFleet has one node, which is a command of the shell: what a fleet starts is given "serve" and more after it.
func heldFleet(t *testing.T, script string) *Fleet {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "command")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := &Fleet{opts: Options{Binary: binary, Dir: dir, Nodes: 1}}
	if err := f.place(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(f.DataDir(0), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := f.LaunchHeld(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.nodes[0].end(os.Kill) })
	return f
}

// ended waits for the end of the node, and returns what it has said.
func ended(t *testing.T, f *Fleet) string {
	t.Helper()
	select {
	case <-f.nodes[0].done:
	case <-time.After(time.Minute):
		t.Fatalf("it has not ended: %s", f.LogTail(0))
	}
	return f.LogTail(0)
}

// A process that is held does nothing until it is resumed.
func TestHeldDoesNothing(t *testing.T) {
	if canPause != nil {
		t.Skip(canPause)
	}
	f := heldFleet(t, `echo "$1 has begun"`)
	if text := f.LogTail(0); text != "" || !f.Runs(0) {
		t.Fatalf("it runs: %v, and says %q", f.Runs(0), text)
	}
	if err := f.Resume(0); err != nil {
		t.Fatal(err)
	}
	if text := ended(t, f); text != "serve has begun\n" {
		t.Errorf("it says %q", text)
	}
}

// Syncs of one file fail, those of another do not, also in processes that the traced one has become or started; and the
// tracer says that it was so.
func TestTracerFailsOneFile(t *testing.T) {
	if err := canStrace(); err != nil {
		t.Skip(err)
	}
	for _, c := range []struct {
		calls, errno string
		said         string
	}{{syncCalls, "EIO", "Input/output error"}, {writeCalls, "ENOSPC", "No space left on device"}} {
		f := heldFleet(t, `for name in good bad; do echo x | dd of="$5/$name" conv=fsync 2>&1; done`)
		for n, bad := range []string{"bad", "absent"} {
			if n > 0 {
				if err := f.LaunchHeld(0); err != nil {
					t.Fatal(err)
				}
			}
			before := f.logSize(0)
			p := f.nodes[0]
			tr, err := trace(p.machine, p.process(), filepath.Join(t.TempDir(), "trace"), "-P", filepath.Join(f.DataDir(0), bad), "-e", "trace="+c.calls, "-e", "inject="+c.calls+":error="+c.errno)
			if err != nil {
				t.Fatal(err)
			}
			if tr.hit() {
				t.Error("it has hit something before it began")
			}
			if err := f.Resume(0); err != nil {
				t.Fatal(err)
			}
			ended(t, f)
			if err := tr.stop(); err != nil {
				t.Fatal(err)
			}
			said, want := f.logFrom(0, before), n == 0
			if got := strings.Count(said, c.said) == 1 && strings.Contains(said, "/ebb-0/bad'"); got != want || tr.hit() != want {
				t.Errorf("%s of %s: hit %v; it says %s", c.calls, bad, tr.hit(), said)
			}
		}
	}
}

// A memory limit ends a process that wants more, hits shows that it did, and no cgroup is left. A process that is in
// the cgroup when the limit is lifted continues to run.
func TestMemoryLimit(t *testing.T) {
	if err := canShrink(); err != nil {
		t.Skip(err)
	}
	for _, hungry := range []bool{true, false} {
		g, err := newMemoryGroup("test")
		if err != nil {
			t.Fatal(err)
		}
		script := "sleep 60"
		if hungry {
			script = `x=$(head -c 100000000 /dev/zero | tr '\0' a); echo ${#x}`
		}
		f := heldFleet(t, script)
		_, err = g.shrink(16 << 20)
		if err := errors.Join(err, g.take(f.nodes[0].process().Pid), f.Resume(0)); err != nil {
			t.Fatal(errors.Join(err, g.remove()))
		}
		if hungry {
			if said := ended(t, f); strings.HasPrefix(said, "100000000") {
				t.Error("it had its memory")
			}
			if hits, err := g.hits(); hits == 0 || err != nil {
				t.Errorf("it was refused memory %d times: %v", hits, err)
			}
		}
		if err := g.remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(g.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", g.dir, err)
		}
		if f.Runs(0) == hungry {
			t.Errorf("hungry %v: it runs: %v", hungry, f.Runs(0))
		}
	}
}

// Where a process may limit the memory of another is read from where it is itself.
func TestPlaceForACgroup(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"memory/a/b", "user/session"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "user/session/cgroup.subtree_control"), []byte("\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := groupPlace(root, "0::/user/session\n"); err == nil {
		t.Error("a cgroup without the memory controller")
	}
	if err := os.WriteFile(filepath.Join(root, "user/cgroup.subtree_control"), []byte("cpu memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ own, parent, home, limit string }{
		{"5:devices:/\n4:memory:/a/b\n0::/\n", "memory/a/b", "memory/a/b", "memory.limit_in_bytes"},
		{"0::/user/session\n", "user", "user/session", "memory.max"},
		{"4:memory:/elsewhere\n0::/user/session\n", "user", "user/session", "memory.max"},
		{"3:cpu:/\n", "", "", ""},
	} {
		parent, home, layout, err := groupPlace(root, c.own)
		if c.parent == "" {
			if err == nil {
				t.Errorf("%q: %s", c.own, parent)
			}
			continue
		}
		if err != nil || parent != filepath.Join(root, c.parent) || home != filepath.Join(root, c.home) || layout.limit != c.limit {
			t.Errorf("%q: %s, %s, %s, %v", c.own, parent, home, layout.limit, err)
		}
	}
}

// Version 2 of cgroups counts among other events how often the limit was in the way.
func TestHitsOfVersion2(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]int64{"low 0\nhigh 7\nmax 12\noom 1\noom_kill 1\n": 12, "low 3\n": 0} {
		if err := os.WriteFile(filepath.Join(dir, "memory.events"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := cgroup2.hits(dir); got != want || err != nil {
			t.Errorf("%q: %d, %v", bytes.TrimSpace([]byte(text)), got, err)
		}
	}
}
