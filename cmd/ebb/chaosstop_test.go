package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/chaos/swarm"
)

// A trial that is interrupted while a node is removed, traced or short of memory, or before the last comparison, has no
// breach, and leaves no cgroup.
func TestInterruptedTrial(t *testing.T) {
	if testing.Short() {
		t.Skip("breaks real processes")
	}
	for family, at := range map[string]string{
		"replace": " is removed", "kill": "1 of 1 fault,", "kill-at-sync": " is to be killed", "file-error": ": EIO by", "memory-limit": " may use ",
	} {
		t.Run(family, func(t *testing.T) {
			if _, _, err := proc.Choose([]string{family}); err != nil {
				t.Skip(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			stopped, stop := context.WithCancel(ctx)
			defer stop()
			trial := proc.Trial{
				Binary: binary(t), Dir: t.TempDir(), Seed: 1, Nodes: 3, Shards: 4, Families: []string{family}, Rate: 400, Cycles: 1,
				Progress: func(line string) {
					t.Log(line)
					if strings.Contains(line, at) {
						stop()
					}
				},
			}
			r, err := trial.Run(stopped)
			if err != nil || ctx.Err() != nil {
				t.Fatal(err, ctx.Err())
			}
			if r.Failed() || !r.Interrupted || r.Ledger.Acknowledged == 0 {
				t.Errorf("interrupted: %v, breaches %v, ledger %+v", r.Interrupted, r.Verdict.Breaches, r.Ledger)
			}
			if lead := procLead(r); !strings.Contains(lead, "no key compared with the ledger; ") || !strings.Contains(lead, "; interrupted: ") {
				t.Error(lead)
			}
			own := fmt.Sprintf("ebb-chaos-%d-", os.Getpid())
			err = filepath.WalkDir("/sys/fs/cgroup", func(name string, d fs.DirEntry, err error) error {
				if err == nil && strings.HasPrefix(d.Name(), own) {
					t.Errorf("%s is left", name)
				}
				return nil // cgroups of others come and go
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A command that is interrupted says what is known, ends with 130, and leaves a page and no directory.
func TestInterruptedProc(t *testing.T) {
	if testing.Short() {
		t.Skip("breaks real processes")
	}
	scratch, page := t.TempDir(), filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(page, []byte("an earlier one"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), "chaos", "proc", "--faults", "kill", "--rate", "400", "--shards", "4", "--report", page)
	cmd.Env = append(os.Environ(), "TMPDIR="+scratch)
	var out bytes.Buffer
	cmd.Stdout = &out
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "is killed") {
		t.Log(lines.Text())
	}
	if before, err := os.ReadFile(page); string(before) != "an earlier one" {
		t.Errorf("while it runs, the page is %q: %v", before, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, said); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	if text := out.String(); strings.Contains(text, "FAILED") || !strings.Contains(text, "interrupted: what was not yet compared with the ledger is not judged") {
		t.Error(text)
	}
	if after, err := os.ReadFile(page); !bytes.Contains(after, []byte("held until it was interrupted")) {
		t.Errorf("a page of %d bytes: %v", len(after), err)
	}
	for _, dir := range []string{scratch, filepath.Dir(page)} {
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(left) > 0 && left[0] != page {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// The texts about runs that were interrupted, or have differences.
func TestChaosTexts(t *testing.T) {
	swarmed := &swarm.Report{Asked: 1000, Interrupted: true}
	swarmed.Sum.Seeds = 20
	failed := &proc.Report{Verdict: &swarm.Verdict{Faults: map[string]int{"kill": 1}}, Keys: 256, Lost: 1}
	held := &proc.Report{Verdict: &swarm.Verdict{}, Keys: 256}
	const election = 600 * time.Millisecond
	missed := &proc.FailoverReport{Trials: 2, Election: election, P99: 2 * time.Second, Written: 4, Counted: 4}
	met := &proc.FailoverReport{Trials: 2, Election: election, P99: 140209296 * time.Nanosecond, Written: 4, Counted: 4}
	stopped := &proc.FailoverReport{Trials: 1, Election: election, P99: 2 * time.Second, Written: 2, Interrupted: true}
	for _, c := range []struct{ text, want string }{
		{swarmed.Ran(), "interrupted after 20 of 1000 seeds"},
		{procLead(failed), "1 fault in 0s: 0 increments acknowledged, 0 unknown, 0 refused; 256 keys compared with the ledger: 1 key has lost increments, 0 keys have counted some twice"},
		{procLead(held), "256 keys compared with the ledger: 0 lost, 0 counted twice"},
		{failoverText(missed, 2), "the goal of a p99 within 3 election timeouts (1.8s) is missed\n"},
		{failoverText(met, 2), " 140ms (p99)"},
		{failoverText(met, 2), "the goal of a p99 within 3 election timeouts (1.8s) is met\n"},
		{failoverText(stopped, 300), "1 leader cut off: "},
		{failoverText(stopped, 300), "interrupted after 1 of 300 trials"},
		{failoverText(&proc.FailoverReport{Interrupted: true}, 300), "0 leaders cut off\ninterrupted after 0 of 300 trials"},
	} {
		if !strings.Contains(c.text, c.want) {
			t.Errorf("%q has no %q", c.text, c.want)
		}
	}
	if stopped.Err() != nil || missed.Err() == nil {
		t.Errorf("interrupted: %v; missed: %v", stopped.Err(), missed.Err())
	}
}
