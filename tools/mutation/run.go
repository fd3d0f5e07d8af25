package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// helper is the package that selects a mutant. It is laid over helperDir, which does not exist in the module.
const (
	helper    = "ebbmutant"
	helperDir = "internal/ebbmutant"
)

//go:embed helper.go.txt
var helperText []byte

// Verdicts.
const (
	killed    = "killed"    // a test failed
	timeout   = "timeout"   // the tests took too long, which counts as noticed, too
	survived  = "survived"  // all tests passed
	unreached = "unreached" // no test runs it
)

// runner runs the tests of a package with a mutant.
type runner struct {
	pkg    *pkg
	short  bool
	seeds  string         // of the swarm, which runs in place of the tests
	only   *regexp.Regexp // tests; nil: all
	rapid  bool           // the tests use rapid
	dir    string         // for what is built, and the tests' temporary files
	binary string
	tests  []*test
	cpu    time.Duration // CPU time that the last run used
}

// test is a test of the package, which passes without a mutant.
type test struct {
	name    string
	took    time.Duration
	reached []byte // not 0 for each mutant that the test reaches, by number
}

func newRunner(p *pkg, short bool, seeds string) (*runner, error) {
	dir, err := os.MkdirTemp("", "ebb-mutation-")
	if err != nil {
		return nil, err
	}
	return &runner{pkg: p, short: short, seeds: seeds, dir: dir, binary: filepath.Join(dir, "tests")}, nil
}

func (r *runner) close() {
	if err := os.RemoveAll(r.dir); err != nil {
		log.Print(err)
	}
}

// build builds the tests with all mutants. A mutant that does not compile is left out, with all others on its line.
func (r *runner) build(ctx context.Context) error {
	for range 20 {
		out, err := r.compile(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || !r.leaveOut(out) {
			return fmt.Errorf("build: %w: %s", err, out)
		}
	}
	return errors.New("build: it does not compile without more and more mutants")
}

func (r *runner) compile(ctx context.Context) ([]byte, error) {
	replace := map[string]string{}
	put := func(name string, text []byte) error {
		at := filepath.Join(r.dir, strings.ReplaceAll(name, "/", "-"))
		replace[filepath.Join(r.pkg.root, name)] = at
		return os.WriteFile(at, text, 0o644)
	}
	if err := put(filepath.Join(helperDir, "ebbmutant.go"), helperText); err != nil {
		return nil, err
	}
	for _, f := range r.pkg.files {
		if err := put(f.name, f.mutated()); err != nil {
			return nil, err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	at := filepath.Join(r.dir, "overlay.json")
	if err := os.WriteFile(at, overlay, 0o644); err != nil {
		return nil, err
	}
	args := []string{"test", "-c", "-vet=off", "-gcflags=-e", "-overlay", at, "-o", r.binary, "./" + r.pkg.dir}
	if r.seeds != "" {
		args = append([]string{"build"}, append(args[3:8:8], "-tags=grpcnotrace,nethttpomithttp2", "./cmd/ebb")...)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.pkg.root
	return cmd.CombinedOutput()
}

var fault = regexp.MustCompile(`(?m)^(\S+\.go):(\d+)(?::\d+)?: `)

// leaveOut leaves out the mutants on lines for which the compiler reports an error. It reports whether there are any.
func (r *runner) leaveOut(said []byte) bool {
	any := false
	for _, at := range fault.FindAllSubmatch(said, -1) {
		line, _ := strconv.Atoi(string(at[2]))
		for _, m := range r.pkg.mutants {
			if filepath.Base(m.File) == overlaid(string(at[1]), r.pkg.dir) && m.Line == line && !m.dropped {
				log.Printf("%s:%d: %s does not compile: %s", m.File, m.Line, m.Op, m.Text)
				m.dropped, any = true, true
			}
		}
	}
	return any
}

// overlaid returns the name of a file, whether the compiler names the file itself or the one that is laid over it.
func overlaid(name, dir string) string {
	return strings.TrimPrefix(filepath.Base(name), strings.ReplaceAll(dir, "/", "-")+"-")
}

// sound runs each test alone, without a mutant, and records how long it takes and which mutants it reaches. A test that
// fails is not used.
func (r *runner) sound(ctx context.Context) error {
	reached := filepath.Join(r.dir, "reached")
	out := []byte(swarm)
	if r.seeds == "" {
		var err error
		if out, err = r.run(ctx, time.Minute, nil, "-test.list", "."); err != nil {
			return fmt.Errorf("list tests: %w: %s", err, out)
		}
		_, err = r.run(ctx, time.Minute, nil, "-rapid.nofailfile", "-test.list", ".")
		r.rapid = err == nil // else there is no such flag
	}
	for _, name := range strings.Fields(string(out)) {
		if strings.HasPrefix(name, "Benchmark") || r.only != nil && r.seeds == "" && !r.only.MatchString(name) {
			continue
		}
		if err := os.WriteFile(reached, make([]byte, len(r.pkg.mutants)+1), 0o644); err != nil {
			return err
		}
		from := time.Now()
		out, err := r.run(ctx, 10*time.Minute, []string{"EBB_MUTANTS_REACHED=" + reached}, r.args(name)...)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			log.Printf("%s fails without a mutant, and is not used: %v: %s", name, err, last(out, 300))
			continue
		}
		t := &test{name: name, took: time.Since(from)}
		if t.reached, err = os.ReadFile(reached); err != nil {
			return err
		}
		r.tests = append(r.tests, t)
	}
	if len(r.tests) == 0 {
		return errors.New("no test passes without a mutant")
	}
	slices.SortStableFunc(r.tests, func(a, b *test) int { return int(a.took - b.took) })
	return nil
}

// swarm stands for the name of a test.
const swarm = "swarm"

// args returns the arguments of a process that runs tests, or the swarm, until one fails.
func (r *runner) args(names ...string) []string {
	if r.seeds != "" {
		return []string{"chaos", "sim", "--seeds", r.seeds, "--first", "--parallel", "1", "--no-shrink"}
	}
	args := []string{"-test.failfast", "-test.run", "^(" + strings.Join(names, "|") + ")$"}
	if r.short {
		args = append(args, "-test.short")
	}
	if r.rapid {
		args = append(args, "-rapid.nofailfile") // it would be written to the source
	}
	return args
}

func last(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// stages are how long tests take together before a group of them ends; the quick tests come first.
var stages = []time.Duration{time.Second, 8 * time.Second}

// mutant tries a mutant. It runs the tests that reach the mutant, the quick ones first.
func (r *runner) mutant(ctx context.Context, m *mutant) (verdict, by string) {
	if m.dropped {
		return "does not compile", ""
	}
	var names []string
	var took, all time.Duration
	stage, any := 0, false
	for _, t := range r.tests {
		if t.reached[m.n] == 0 {
			continue
		}
		any = true
		if len(names) > 0 && stage < len(stages) && all+t.took > stages[stage] {
			if verdict, by := r.notice(ctx, m, names, took); verdict != survived {
				return verdict, by
			}
			names, took, stage = nil, 0, stage+1
		}
		names, took, all = append(names, t.name), took+t.took, all+t.took
	}
	if !any {
		return unreached, ""
	}
	return r.notice(ctx, m, names, took)
}

var failed = regexp.MustCompile(`(?m)^--- FAIL: ([^\s/]+)`)

// notice runs tests with a mutant. A test that fails runs once more alone, so that a flaky test does not kill a mutant
// that it does not notice.
func (r *runner) notice(ctx context.Context, m *mutant, names []string, took time.Duration) (verdict, by string) {
	env := []string{"EBB_MUTANT=" + strconv.Itoa(m.n)}
	limit := 5*took + 2*time.Second
	for tried := 0; ; tried++ {
		out, err := r.run(ctx, limit, env, r.args(names...)...)
		switch {
		case err == nil:
			return survived, ""
		case errors.Is(err, context.DeadlineExceeded):
			// a test that waits uses no CPU time, and one that loops uses all of it. Between them, other processes may
			// have had the CPU.
			if r.cpu > took/4 && r.cpu < limit/2 && tried == 0 {
				limit *= 4
				continue
			}
			return timeout, names[0]
		}
		if r.seeds != "" {
			return killed, swarm
		}
		name := failed.FindSubmatch(out)
		if name == nil { // another goroutine failed, or memory ran out
			return killed, "the process"
		}
		by = string(name[1])
		if _, err := r.run(ctx, limit, env, r.args(by)...); err != nil {
			return killed, by
		}
		log.Printf("%s fails now and then; it is left out for %s", by, m.ID)
		if names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == by }); len(names) == 0 {
			return survived, ""
		}
	}
}

// memory is how much address space the tests may have, in KiB.
const memory = 8 << 20

// run runs the tests on one core, with limits of memory and of time. At the time limit it kills all processes that the
// tests have started.
func (r *runner) run(ctx context.Context, limit time.Duration, env []string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tmp, err := os.MkdirTemp(r.dir, "tmp-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // close removes what is left
	args = append([]string{"-c", fmt.Sprintf(`ulimit -v %d; exec "$0" "$@"`, memory), r.binary}, args...)
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Dir = filepath.Join(r.pkg.root, r.pkg.dir)
	cmd.Env = append(os.Environ(), append(env, "GOMAXPROCS=1", "GOMEMLIMIT=4GiB", "TMPDIR="+tmp)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if r.cpu = 0; cmd.ProcessState != nil {
		r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if ctx.Err() != nil {
		return out.Bytes(), ctx.Err()
	}
	return out.Bytes(), err
}
