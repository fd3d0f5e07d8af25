package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Result is the result of a mutant.
type Result struct {
	Mutant  string        `json:"mutant"`
	Checker string        `json:"checker"` // the package of tests, or the swarm
	Caught  bool          `json:"caught"`
	By      string        `json:"by,omitempty"`    // the first test that failed, or the swarm's invariant
	Seeds   uint64        `json:"seeds,omitempty"` // how many were tried, from 1 on; 0 for checkers without seeds
	Said    string        `json:"said,omitempty"`  // the first message of the checker
	Took    time.Duration `json:"took_ns"`         // of the run with the mutant, without building
}

// Runner tries mutants on a module's source with the go command, several at once if asked to.
type Runner struct {
	root  string // of the module
	limit time.Duration
	dir   string // for what is built

	mu     sync.Mutex         // guards what follows; held during the run that fills it in
	sound  map[Checker]uint64 // checkers that passed without a mutant, and with how many seeds
	binary map[string]string  // of the source as it is, by package
}

// NewRunner returns a runner for the module at root. One run of a checker may take as long as limit. A run that hangs
// for so long counts as having noticed the mutant.
func NewRunner(root string, limit time.Duration) (*Runner, error) {
	dir, err := os.MkdirTemp("", "ebb-mutants-")
	if err != nil {
		return nil, err
	}
	return &Runner{root: root, limit: limit, dir: dir, sound: make(map[Checker]uint64), binary: make(map[string]string)}, nil
}

// Close removes what was built.
func (r *Runner) Close() error { return os.RemoveAll(r.dir) }

// Root returns the root of the module that holds dir. It fails if dir is not in the source of ebb.
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

// Try plants a mutant and runs its checker. The checker must also pass without the mutant: otherwise it would catch
// anything. The error says why there is no verdict, such as that the mutant does not build.
func (r *Runner) Try(ctx context.Context, m *Mutant) (Result, error) {
	res := Result{Mutant: m.Name, Checker: m.Checker.String()}
	dir, err := os.MkdirTemp(r.dir, "mutant-")
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // Close removes what is left
	overlay, err := m.overlay(r.root, dir)
	if err != nil {
		return res, err
	}
	binary := filepath.Join(dir, "checker")
	if err := r.build(ctx, m.Checker, overlay, binary); err != nil {
		return res, err
	}
	found, err := r.run(ctx, m.Checker, binary)
	if err != nil {
		return res, err
	}
	res.Caught, res.By, res.Seeds, res.Said, res.Took = found.caught, found.by, found.seeds, found.said, found.took
	if res.Caught {
		err = r.passes(ctx, m.Checker, found.seeds)
	}
	return res, err
}

// Sound runs a checker on the source as it is, and returns an error if the checker does not pass.
func (r *Runner) Sound(ctx context.Context, c Checker) error { return r.passes(ctx, c, c.Seeds) }

// passes runs a checker on the source as it is, unless the checker has passed with as many seeds before.
func (r *Runner) passes(ctx context.Context, c Checker, seeds uint64) error {
	of := c
	of.Seeds = 0
	r.mu.Lock()
	defer r.mu.Unlock()
	if passed, known := r.sound[of]; known && passed >= seeds {
		return nil
	}
	binary := r.binary[c.Package]
	if binary == "" {
		binary = filepath.Join(r.dir, fmt.Sprintf("sound-%d", len(r.binary)))
		if err := r.build(ctx, c, "", binary); err != nil {
			return err
		}
		r.binary[c.Package] = binary
	}
	c.Seeds = seeds
	found, err := r.run(ctx, c, binary)
	switch {
	case err != nil:
		return err
	case found.caught:
		return fmt.Errorf("%s finds something without a mutant: %s: %s", c, found.by, found.said)
	}
	r.sound[of] = seeds
	return nil
}

// build builds a checker.
func (r *Runner) build(ctx context.Context, c Checker, overlay, binary string) error {
	args, of := []string{"test", "-c", "-vet=off"}, c.Package
	if of == "" {
		args, of = []string{"build"}, "./cmd/ebb"
	}
	args = append(args, "-ldflags=-s -w", "-overlay", overlay, "-o", binary, of) // no debug information: half of the linker's work
	build := exec.CommandContext(ctx, "go", args...)
	build.Dir = r.root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w: %s", err, out)
	}
	return nil
}

// found is the result of one run of a checker.
type found struct {
	caught bool
	by     string
	seeds  uint64
	said   string
	took   time.Duration
}

func (r *Runner) run(ctx context.Context, c Checker, binary string) (found, error) {
	var cmd *exec.Cmd
	switch {
	case c.Faults != "":
		cmd = exec.CommandContext(ctx, binary, "chaos", "proc", "--cycles", fmt.Sprint(c.Seeds), "--for", r.limit.String(), "--faults", c.Faults, "--json")
		cmd.Dir = r.root
	case c.Package == "":
		cmd = exec.CommandContext(ctx, binary, "chaos", "sim", "--seeds", fmt.Sprintf("1-%d", c.Seeds), "--for", r.limit.String(),
			"--parallel", "1", "--first", "--no-shrink", "--json", "--families", c.Families)
		cmd.Dir = r.root
	default:
		cmd = exec.CommandContext(ctx, binary, "-test.run", "^("+c.Run+")$", "-test.failfast", "-test.v", "-test.timeout", r.limit.String())
		cmd.Dir = filepath.Join(r.root, c.Package)
		if usesRapid(cmd.Dir) {
			cmd.Args = append(cmd.Args, "-rapid.nofailfile")
		}
		if c.Seeds > 0 {
			cmd.Env = append(os.Environ(), "EBB_SEED=1", fmt.Sprintf("EBB_SEEDS=%d", c.Seeds))
		}
	}
	began := time.Now()
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	took := time.Since(began)
	if ctx.Err() != nil {
		return found{}, ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return found{}, err
	}
	var f found
	var rerr error
	switch {
	case c.Faults != "":
		f, rerr = readProcesses(out, c)
	case c.Package == "":
		f, rerr = readSwarm(out, c)
	default:
		f, rerr = readTests(append(out, said.Bytes()...), err == nil, c)
	}
	if rerr != nil {
		return f, fmt.Errorf("%s: %w: %s", c, rerr, bytes.TrimSpace(said.Bytes()))
	}
	f.took = took
	return f, nil
}

// usesRapid reports whether tests of a package use rapid. By default rapid writes into the source what made a test
// fail.
func usesRapid(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go")) // the pattern is sound
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && bytes.Contains(text, []byte(`"pgregory.net/rapid"`))
	})
}

// readSwarm reads the output of `ebb chaos sim --json`.
func readSwarm(out []byte, c Checker) (f found, err error) {
	var report struct {
		Sum struct {
			Seeds uint64 `json:"seeds"`
		} `json:"sum"`
		FirstFailure *struct {
			Seed      uint64 `json:"seed"`
			Invariant string `json:"invariant"`
			What      string `json:"what"`
		} `json:"first_failure"`
	}
	switch err := json.Unmarshal(out, &report); {
	case err != nil:
		return f, fmt.Errorf("no report of the swarm: %w", err)
	case report.FirstFailure != nil:
		first := report.FirstFailure
		return found{caught: true, by: first.Invariant, seeds: first.Seed, said: first.What}, nil
	case report.Sum.Seeds < c.Seeds:
		return f, fmt.Errorf("ended after %d of %d seeds", report.Sum.Seeds, c.Seeds)
	}
	return found{seeds: c.Seeds}, nil
}

// readProcesses reads the output of `ebb chaos proc --json`.
func readProcesses(out []byte, c Checker) (f found, err error) {
	var report struct {
		Verdict *struct {
			Breaches []struct {
				Invariant string `json:"invariant"`
				What      string `json:"what"`
			} `json:"breaches"`
			Faults map[string]uint64 `json:"faults"`
		} `json:"verdict"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return f, fmt.Errorf("no report of real processes: %w", err)
	}
	if report.Verdict == nil {
		return f, errors.New("no verdict in the report of real processes")
	}
	for _, n := range report.Verdict.Faults {
		f.seeds += n
	}
	switch breaches := report.Verdict.Breaches; {
	case len(breaches) > 0:
		f.caught, f.by, f.said = true, breaches[0].Invariant, breaches[0].What
	case f.seeds < c.Seeds:
		return f, fmt.Errorf("ended after %d of %d faults", f.seeds, c.Seeds)
	}
	return f, nil
}

// readTests reads the output of go test -v.
func readTests(out []byte, passed bool, c Checker) (found, error) {
	if passed {
		ran := false
		for name := range strings.SplitSeq(c.Run, "|") {
			done := bytes.Contains(out, []byte("--- PASS: "+name+" "))
			if !done && !bytes.Contains(out, []byte("--- SKIP: "+name+" ")) {
				return found{}, fmt.Errorf("there is no %s", name)
			}
			ran = ran || done
		}
		if !ran {
			return found{}, fmt.Errorf("%s was skipped", c.Run)
		}
		return found{seeds: c.Seeds}, nil
	}
	f := found{caught: true}
	f.by, f.said, f.seeds = read(out)
	if c.Seeds == 0 {
		f.seeds = 0 // the checker takes no seeds: the number is another one
	}
	if f.by == "" {
		return f, fmt.Errorf("no test failed, and yet it ended so: %s", out)
	}
	return f, nil
}
