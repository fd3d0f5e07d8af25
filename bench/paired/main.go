// Command paired compares the servers of two commits under the same load. It starts a cluster of three processes of
// each build, and loads them in turn for a second at a time. So a machine whose speed drifts favours neither. A pair of
// fresh clusters gives one ratio of each cost. The command prints the mean change over all pairs, and its one-sided 95%
// bound.
//
//	go run ./bench/paired [-pairs 10] [-windows 12] [-window 1s] [-limit 5] [-only TEXT] FROM [TO]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ebbdb/ebb/bench"
	"github.com/ebbdb/ebb/chaos/proc"
)

// generatorGCPercent is GOGC of the load generator, which shares the machine with what it measures.
const generatorGCPercent = 1000

// startMax is how long a cluster may take to be ready.
const startMax = time.Minute

// settings say how much is measured.
type settings struct {
	pairs   int
	windows int           // of each load, on each cluster of a pair
	window  time.Duration // how long a load runs before the other cluster gets it
	loads   []load
}

func main() {
	log.SetFlags(0)
	var s settings
	flag.IntVar(&s.pairs, "pairs", 10, "how many pairs of fresh clusters")
	flag.IntVar(&s.windows, "windows", 12, "how often each load runs on each cluster of a pair")
	flag.DurationVar(&s.window, "window", time.Second, "how long a load runs at a time")
	limit := flag.Float64("limit", 5, "fail when the bound of a cost is over this many percent; 0 for no limit")
	only := flag.String("only", "", "run only loads with this `text` in their name")
	flag.Parse()
	if s.loads = loadsLike(*only); len(s.loads) == 0 {
		log.Fatalf("no load has %q in its name: there are %q", *only, costsOf(loads))
	}
	if flag.NArg() < 1 || flag.NArg() > 2 || s.pairs < 2 || s.windows < 1 || s.window <= 0 {
		log.Fatal("usage: paired [-pairs N, at least 2] [-windows N] [-window D] [-limit PERCENT] [-only TEXT] " +
			"FROM [TO]")
	}
	from, to := flag.Arg(0), "HEAD"
	if flag.NArg() == 2 {
		to = flag.Arg(1)
	}
	debug.SetGCPercent(generatorGCPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	changes, err := compare(ctx, from, to, s)
	if err == nil {
		err = report(os.Stdout, costsOf(s.loads), changes, *limit)
	}
	if err != nil {
		stop()
		log.Fatal(err)
	}
}

// compare returns, for each cost, the natural logarithms of TO/FROM, one for each pair.
func compare(ctx context.Context, from, to string, s settings) ([][]float64, error) {
	dir, err := os.MkdirTemp("", "paired")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	var builds [2]string
	for i, commit := range []string{from, to} {
		if builds[i], err = build(ctx, dir, commit); err != nil {
			return nil, err
		}
	}
	loadBefore, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("from %s to %s, %d pairs of clusters, %d windows of %v a load and cluster, load average before: %s",
		from, to, s.pairs, s.windows, s.window, loadBefore)
	changes := make([][]float64, len(costsOf(s.loads)))
	for pair := range s.pairs {
		ratios, err := onePair(ctx, filepath.Join(dir, fmt.Sprint("pair-", pair)), builds, pair, s)
		if err != nil {
			return nil, fmt.Errorf("pair %d: %w", pair+1, err)
		}
		for i, ratio := range ratios {
			if ratio <= 0 || math.IsInf(ratio, 0) || math.IsNaN(ratio) {
				return nil, fmt.Errorf("pair %d: no figure for %q", pair+1, costsOf(s.loads)[i])
			}
			changes[i] = append(changes[i], math.Log(ratio))
		}
		log.Printf("pair %d of %d done", pair+1, s.pairs)
	}
	return changes, nil
}

// onePair starts a cluster of each build, and returns TO/FROM of each cost.
func onePair(ctx context.Context, dir string, builds [2]string, pair int, s settings) ([]float64, error) {
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	var targets [2]bench.Target
	for k := range 2 {
		which := (k + pair) % 2
		fleet, err := start(ctx, filepath.Join(dir, fmt.Sprint(which)), builds[which])
		if err != nil {
			return nil, err
		}
		defer fleet.Close()
		targets[which] = bench.Target{Addrs: fleet.Addrs(), CPU: fleet.CPU}
	}
	var out []float64
	prepared := false
	for _, l := range s.loads {
		if l.reads && !prepared {
			prepared = true
			if err := errors.Join(bench.Read{}.Prepare(ctx, targets[0]), bench.Read{}.Prepare(ctx, targets[1])); err != nil {
				return nil, err
			}
		}
		ratios, err := l.compare(ctx, targets, pair, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
		out = append(out, ratios...)
	}
	return out, nil
}

func start(ctx context.Context, dir, binary string) (*proc.Fleet, error) {
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	return proc.Start(ctx, proc.Options{Binary: binary, Dir: dir})
}

// build builds the release binary of a commit in a work tree of its own.
func build(ctx context.Context, dir, commit string) (string, error) {
	hash, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", commit).Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse %s: %w", commit, err)
	}
	name := strings.TrimSpace(string(hash))
	tree, binary := filepath.Join(dir, "tree-"+name), filepath.Join(dir, "ebb-"+name)
	if _, err := os.Stat(binary); err == nil {
		return binary, nil // both commits are the same, and it is built already
	}
	if out, err := exec.CommandContext(ctx, "git", "worktree", "add", "--detach", tree, commit).CombinedOutput(); err != nil {
		return "", fmt.Errorf("git worktree add: %w: %s", err, out)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/ebb")
	cmd.Dir, cmd.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build of %s: %w: %s", commit, err, out)
	}
	return binary, errors.Join(err, exec.Command("git", "worktree", "remove", "--force", tree).Run())
}
