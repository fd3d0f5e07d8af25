package mutants

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Result is what became of a mutant.
type Result struct {
	Mutant string        `json:"mutant"`
	Caught bool          `json:"caught"`
	By     string        `json:"by,omitempty"`    // the first test that failed, or "panic" or "hung" and the tests that ran
	Seeds  string        `json:"seeds,omitempty"` // the first seed that shows it, of tests that try seeds
	Said   string        `json:"said,omitempty"`  // the first thing that test said
	Took   time.Duration `json:"took_ns"`         // of the run, without building
}

// Runner tries mutants on a module's source with the go command.
type Runner struct {
	Root  string        // of the module
	Limit time.Duration // for one run; a test that hangs for as long has noticed
}

// Root returns the root of the module that holds dir.
func Root(dir string) (string, error) {
	for at := dir; ; at = filepath.Dir(at) {
		if text, err := os.ReadFile(filepath.Join(at, "go.mod")); err == nil && bytes.HasPrefix(text, []byte("module github.com/ebbdb/ebb\n")) {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("neither %s nor a directory above it holds the source of github.com/ebbdb/ebb, which mutants are planted in: run this in a clone", dir)
		}
	}
}

// Sound runs a checker on the source as it is, which must pass: else it would catch anything.
func (r *Runner) Sound(ctx context.Context, c Checker) error {
	res, err := r.try(ctx, c, "")
	if err == nil && res.Caught {
		return fmt.Errorf("%s -run '%s' fails without a mutant: %s: %s", c.Package, c.Run, res.By, res.Said)
	}
	return err
}

// Try plants a mutant and runs its checker. The error says why it could not be tried, such as that it does not build.
func (r *Runner) Try(ctx context.Context, m *Mutant) (Result, error) {
	dir, err := os.MkdirTemp("", "ebb-mutant-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what is left lies in the system's directory for such
	overlay, err := m.overlay(r.Root, dir)
	if err != nil {
		return Result{}, err
	}
	res, err := r.try(ctx, m.Checker, overlay)
	res.Mutant = m.Name
	return res, err
}

func (r *Runner) try(ctx context.Context, c Checker, overlay string) (res Result, err error) {
	dir, err := os.MkdirTemp("", "ebb-checker-")
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what is left lies in the system's directory for such
	binary := filepath.Join(dir, "checker.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "-overlay", overlay, c.Package)
	build.Dir = r.Root
	if out, err := build.CombinedOutput(); err != nil {
		return res, fmt.Errorf("build: %w: %s", err, out)
	}
	run := exec.CommandContext(ctx, binary, "-test.run", "^("+strings.TrimSuffix(c.Run, "$")+")$", "-test.failfast", "-test.v", "-test.timeout", r.Limit.String())
	run.Dir = filepath.Join(r.Root, c.Package)
	run.Env = append(os.Environ(), strings.Fields(c.Env)...)
	began := time.Now()
	out, err := run.CombinedOutput()
	res.Took = time.Since(began)
	if ctx.Err() != nil {
		return res, ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case err == nil && !bytes.Contains(out, []byte("--- PASS")):
		return res, fmt.Errorf("%s has no test that matches '%s'", c.Package, c.Run)
	case err == nil:
		return res, nil
	case !errors.As(err, &exit):
		return res, err
	}
	res.Caught = true
	res.By, res.Said, res.Seeds = read(out)
	return res, nil
}

var (
	failed  = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	said    = regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: (.*)$`)
	seed    = regexp.MustCompile(`seed (\d+)`)
	hung    = regexp.MustCompile(`(?m)^panic: test timed out`)
	paniced = regexp.MustCompile(`(?m)^panic: (.*)$`)
	running = regexp.MustCompile(`(?m)^=== (?:RUN|CONT)\s+(\S+)`)
)

// read finds in a failed run who noticed, what it said, and with which seed.
func read(out []byte) (by, what, with string) {
	text := string(out)
	if m := seed.FindAllStringSubmatch(text, -1); m != nil {
		with = m[len(m)-1][1]
	}
	last := ""
	if m := running.FindAllStringSubmatch(text, -1); m != nil {
		last = m[len(m)-1][1]
	}
	switch {
	case hung.MatchString(text):
		return last, "it hangs", with
	case paniced.MatchString(text):
		return last, "panic: " + paniced.FindStringSubmatch(text)[1], with
	}
	if m := failed.FindStringSubmatch(text); m != nil {
		by = m[1]
	}
	if m := said.FindAllStringSubmatch(text, -1); m != nil {
		what = m[0][1]
		for _, line := range m { // what a test logs before it fails is no verdict
			if strings.Contains(line[1], "seed") || strings.Contains(line[1], "want") {
				what = line[1]
				break
			}
		}
	}
	return by, what, with
}
