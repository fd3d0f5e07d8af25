package swarm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A test binary that is started with this variable is a worker, of one kind or another.
const workerVariable = "EBB_SWARM_WORKER"

func TestMain(m *testing.M) {
	switch os.Getenv(workerVariable) {
	case "":
		os.Exit(m.Run())
	case "real":
		Main(os.Stdin, os.Stdout, os.Stderr, nil)
	case "odd": // ends at even seeds, and answers the others without doing anything
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			var p Plan
			if err := json.Unmarshal(in.Bytes(), &p); err != nil || p.Seed%2 == 0 {
				panic("a node panics")
			}
			b, _ := json.Marshal(&Verdict{Plan: p, Virtual: time.Second})
			fmt.Printf("noise\n%s%s\n", verdictMark, b)
		}
	case "deaf":
		time.Sleep(time.Hour)
	}
}

func fleet(t *testing.T, kind string, stuck time.Duration) *Fleet {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &Fleet{StuckAfter: stuck, Command: func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, binary)
		cmd.Env = append(os.Environ(), workerVariable+"="+kind)
		return cmd
	}}
}

// A process that ends over a plan is that plan's failure, and the others go on in another process. What failed is
// shrunk, and says how to see it again.
func TestProcessesThatEnd(t *testing.T) {
	c := &Campaign{Fleet: fleet(t, "odd", time.Minute), First: 1, Last: 7, Workers: 2}
	r, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Sum.Seeds != 7 || len(r.Failures) != 3 || r.FirstFailure.Seed != 2 {
		t.Fatalf("%d seeds, %d failures, the first: %+v", r.Sum.Seeds, len(r.Failures), r.FirstFailure)
	}
	f := r.FirstFailure
	if f.Invariant != "time-goes-on" || !strings.Contains(f.What, "a node panics") || f.Faults != "none" || f.Replay != "ebb chaos sim --seeds 2 --acts none" {
		t.Errorf("the first failure is %+v", f)
	}
	c.StopAtFirst, c.Workers, c.NoShrink = true, 1, true
	if r, err = c.Run(t.Context()); err != nil || r.Sum.Seeds != 2 || len(r.Failures) != 1 {
		t.Errorf("to the first failure there are %d seeds, %v", r.Sum.Seeds, err)
	}
}

// So is a process that is stuck.
func TestProcessesThatAreStuck(t *testing.T) {
	c := &Campaign{Fleet: fleet(t, "deaf", time.Millisecond), First: 1, Last: 1, Workers: 1, NoShrink: true}
	r, err := c.Run(t.Context())
	if err != nil || len(r.Failures) != 1 || !strings.Contains(r.FirstFailure.What, "stuck for 1ms") {
		t.Errorf("%v, %+v", err, r.FirstFailure)
	}
}

// A worker of this very binary runs a plan, and says nothing but its verdict and PASS.
func TestWorker(t *testing.T) {
	c := &Campaign{Fleet: fleet(t, "real", time.Minute), First: 5, Last: 5, Workers: 1, Faults: &Choice{}}
	r, err := c.Run(t.Context())
	if err != nil || r.Sum.Seeds != 1 || len(r.Failures) > 0 || r.Sum.Tally.Acked == 0 {
		t.Errorf("%v: %+v", err, r)
	}
	if len(r.UnusedFamilies) != len(Families) {
		t.Errorf("without faults, all but %d families are unused", len(Families)-len(r.UnusedFamilies))
	}
}
