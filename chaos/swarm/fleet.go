package swarm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Fleet runs plans in worker processes, several at once. A panic of a node, or a wait that stops virtual time, ends one
// process only, and becomes a failed verdict.
type Fleet struct {
	// Command returns the command that starts a worker, which must call Work. Its standard output is for verdicts.
	Command func(ctx context.Context) *exec.Cmd
	// StuckAfter is how long one plan may take in real time. After that its process is ended, and the plan has failed.
	StuckAfter time.Duration
}

// verdictMark begins the lines of a worker's output that are verdicts.
const verdictMark = "verdict "

// Work is the main loop of a worker. It reads plans from in, as one line of JSON each. It runs each plan and writes its
// verdict to out, until in ends.
func Work(bubble Bubble, in io.Reader, out io.Writer, logger *slog.Logger) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var p Plan
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return fmt.Errorf("a plan is expected: %w", err)
		}
		b, err := json.Marshal(Run(bubble, p, Options{Logger: logger}))
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s%s\n", verdictMark, b); err != nil {
			return err
		}
	}
	return lines.Err()
}

// Judge runs plans on this many workers, until plans returns false. It calls plans and done one at a time, and done
// once for each verdict. When ctx ends, Judge returns early, without verdicts of the plans that still run.
func (f *Fleet) Judge(ctx context.Context, workers int, plans func() (Plan, bool), done func(*Verdict)) error {
	var mu sync.Mutex // held while plans or done runs
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for i := range workers {
		wg.Go(func() {
			w := &worker{fleet: f}
			defer w.end()
			for ctx.Err() == nil {
				mu.Lock()
				p, ok := plans()
				mu.Unlock()
				if !ok {
					return
				}
				v, err := w.judge(ctx, p)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					errs[i] = err
					return
				}
				mu.Lock()
				done(v)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// worker runs plans in one process at a time. It has no process before its first plan, and after a plan that ended the
// process.
type worker struct {
	fleet *Fleet
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	said  *tail
}

// start starts the process unless it runs.
func (w *worker) start(ctx context.Context) (err error) {
	if w.cmd != nil {
		return nil
	}
	cmd := w.fleet.Command(ctx)
	w.said = &tail{}
	cmd.Stderr = w.said
	if w.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a process that simulates: %w", err)
	}
	w.cmd, w.out = cmd, bufio.NewReaderSize(out, 1<<16)
	return nil
}

// judge has the process run a plan. If that ends the process, the plan has failed.
func (w *worker) judge(ctx context.Context, p Plan) (*Verdict, error) {
	if err := w.start(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	stuck := time.AfterFunc(w.fleet.StuckAfter, func() {
		w.said.write("stuck for %v of real time\n", w.fleet.StuckAfter)
		_ = w.cmd.Process.Signal(syscall.SIGQUIT) // it may have ended
	})
	defer stuck.Stop()
	if _, err := w.in.Write(append(b, '\n')); err == nil {
		if v := w.verdict(); v != nil {
			if Replays() {
				w.end() // so that the next plan has a new process, too
			}
			return v, nil
		}
	}
	w.end()
	v := &Verdict{Plan: p, Real: time.Since(began), Faults: map[string]int{}, Checks: map[string]int{"time-goes-on": 1}}
	v.Breaches = append(v.Breaches, Breach{Invariant: "time-goes-on", What: "the process ended: " + w.said.first()})
	v.Story = append(v.Story, Line{Kind: LineBreach, Text: w.said.all()})
	return v, nil
}

// verdict reads the output of the process up to the next verdict. It is nil if the process ends first.
func (w *worker) verdict() *Verdict {
	for {
		line, err := w.out.ReadBytes('\n')
		if err != nil {
			return nil
		}
		if b, ok := bytes.CutPrefix(line, []byte(verdictMark)); ok {
			v := new(Verdict)
			if json.Unmarshal(b, v) != nil {
				return nil
			}
			return v
		}
	}
}

// end ends the process, and waits for it.
func (w *worker) end() {
	if w.cmd == nil {
		return
	}
	w.in.Close()
	over := time.AfterFunc(5*time.Second, func() { _ = w.cmd.Process.Kill() })
	defer over.Stop()
	_ = w.cmd.Wait() // that it ended is all that matters
	w.cmd = nil
}

// tailMax is how many bytes are kept of the start of standard error, and how many of its end.
const tailMax = 32 << 10

// tail keeps the start and the end of a process's standard error. A panic writes its reason at the start.
type tail struct {
	mu   sync.Mutex // guards what follows
	head []byte
	end  []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if room := tailMax - len(t.head); room > 0 {
		k := min(room, len(p))
		t.head = append(t.head, p[:k]...)
		p = p[k:]
	}
	t.end = append(t.end, p...)
	t.end = t.end[max(0, len(t.end)-tailMax):]
	return n, nil
}

func (t *tail) write(format string, args ...any) { fmt.Fprintf(t, format, args...) }

// first returns the first line that is not blank.
func (t *tail) first() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range strings.SplitSeq(string(t.head), "\n") {
		if strings.TrimSpace(line) != "" {
			return line
		}
	}
	return "it said nothing"
}

func (t *tail) all() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.end) == 0 {
		return string(t.head)
	}
	return string(t.head) + "\n...\n" + string(t.end)
}

var _ io.Writer = (*tail)(nil)
