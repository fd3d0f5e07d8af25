// Command paired compares the benchmarks of two commits in interleaved pairs, so that a machine whose speed drifts
// favours neither. It prints for each figure the mean change and its one-sided 95% bound.
//
//	go run -C tools ./paired [-pairs 10] [-duration 5s] [-limit 5] FROM [TO]
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// figure is a measured value of `ebb bench --json`.
type figure struct {
	name  string
	bench string             // write or read
	value func(result) value // a cost: lower is better
}

type value = float64

// result is the part of the benchmarks' JSON that is compared.
type result struct {
	Write struct {
		Acknowledged float64 `json:"acknowledged"`
		PerSecond    float64 `json:"per_second"`
		ServerCPU    float64 `json:"server_cpu_ns"`
	} `json:"write"`
	Batches asked `json:"batches_of_32"`
	Single  asked `json:"single"`
	Shared  asked `json:"shared"`
}

type asked struct {
	PerSecond float64 `json:"answers_per_second"`
	PerCPU    float64 `json:"answers_per_server_cpu_second"`
}

// figures are what is compared, each as a cost.
var figures = []figure{
	{"write: seconds an increment", "write", func(r result) value { return 1 / r.Write.PerSecond }},
	{"write: server CPU an increment", "write", func(r result) value { return r.Write.ServerCPU / r.Write.Acknowledged }},
	{"read, batches of 32: server CPU an answer", "read", func(r result) value { return 1 / r.Batches.PerCPU }},
	{"read, single: seconds an answer", "read", func(r result) value { return 1 / r.Single.PerSecond }},
	{"read, single: server CPU an answer", "read", func(r result) value { return 1 / r.Single.PerCPU }},
	{"read, shared requests: server CPU an answer", "read", func(r result) value { return 1 / r.Shared.PerCPU }},
}

func main() {
	log.SetFlags(0)
	pairs := flag.Int("pairs", 10, "how many pairs of runs")
	duration := flag.Duration("duration", 5*time.Second, "of each measurement")
	limit := flag.Float64("limit", 5, "fail when the bound of a figure is over this many percent; 0 for no limit")
	flag.Parse()
	if flag.NArg() < 1 || flag.NArg() > 2 || *pairs < 2 {
		log.Fatal("usage: paired [-pairs N, at least 2] [-duration D] [-limit PERCENT] FROM [TO]")
	}
	from, to := flag.Arg(0), "HEAD"
	if flag.NArg() == 2 {
		to = flag.Arg(1)
	}
	if err := compare(from, to, *pairs, *duration, *limit); err != nil {
		log.Fatal(err)
	}
}

// compare runs the pairs. The build that runs first alternates, because the second run finds a warmer machine.
func compare(from, to string, pairs int, duration time.Duration, limit float64) error {
	dir, err := os.MkdirTemp("", "paired")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	var builds [2]string
	for i, commit := range []string{from, to} {
		if builds[i], err = build(dir, commit); err != nil {
			return err
		}
	}
	loadBefore, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("from %s to %s, %d pairs, %v a measurement, load before: %s", from, to, pairs, duration, loadBefore)
	changes := make([][]float64, len(figures)) // natural logarithms of ratios
	for pair := range pairs {
		for i, change := range onePair(builds, pair, duration) {
			if math.IsNaN(change) || math.IsInf(change, 0) {
				return fmt.Errorf("pair %d: no figure for %q", pair+1, figures[i].name)
			}
			changes[i] = append(changes[i], change)
		}
		log.Printf("pair %d of %d done", pair+1, pairs)
	}
	return report(changes, limit)
}

// onePair returns the logarithm of to/from of each figure; NaN of a run that failed.
func onePair(builds [2]string, pair int, duration time.Duration) []float64 {
	out := make([]float64, len(figures))
	for _, bench := range []string{"write", "read"} {
		var got [2]result
		for k := range 2 {
			which := (k + pair) % 2
			got[which] = run(builds[which], bench, duration)
		}
		for i, f := range figures {
			if f.bench == bench {
				out[i] = math.Log(f.value(got[1]) / f.value(got[0]))
			}
		}
	}
	return out
}

func run(binary, bench string, duration time.Duration) (r result) {
	cmd := exec.Command(binary, "bench", bench, "--rival=false", "--json", "--duration", duration.String())
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		log.Printf("%s bench %s: %v", binary, bench, err)
	}
	return r
}

// build builds the release binary of a commit in a work tree of its own.
func build(dir, commit string) (string, error) {
	hash, err := exec.Command("git", "rev-parse", "--short", commit).Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse %s: %w", commit, err)
	}
	name := strings.TrimSpace(string(hash))
	tree, binary := filepath.Join(dir, "tree-"+name), filepath.Join(dir, "ebb-"+name)
	if _, err := os.Stat(binary); err == nil {
		return binary, nil // both commits are the same
	}
	if out, err := exec.Command("git", "worktree", "add", "--detach", tree, commit).CombinedOutput(); err != nil {
		return "", fmt.Errorf("git worktree add: %w: %s", err, out)
	}
	cmd := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./cmd/ebb")
	cmd.Dir, cmd.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go build of %s: %w: %s", commit, err, out)
	}
	return binary, errors.Join(err, exec.Command("git", "worktree", "remove", "--force", tree).Run())
}

// tQuantile is the 95% quantile of Student's t distribution by degrees of freedom, from 1 on; 1.645 is its limit.
var tQuantile = []float64{
	6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
	1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
}

// bound returns the mean of a sample and the upper end of its one-sided 95% interval.
func bound(sample []float64) (mean, upper float64) {
	n := float64(len(sample))
	for _, v := range sample {
		mean += v / n
	}
	squares := 0.0
	for _, v := range sample {
		squares += (v - mean) * (v - mean)
	}
	t := 1.697 // of 30 degrees; a little wide for more
	if len(sample) <= len(tQuantile) {
		t = tQuantile[len(sample)-2]
	}
	return mean, mean + t*math.Sqrt(squares/(n-1)/n)
}

func report(changes [][]float64, limit float64) (err error) {
	percent := func(log float64) float64 { return 100 * math.Expm1(log) }
	fmt.Printf("\n| cost | mean change | upper 95%% bound | smallest | largest |\n| --- | --- | --- | --- | --- |\n")
	for i, f := range figures {
		mean, upper := bound(changes[i])
		low, high := math.Inf(1), math.Inf(-1)
		for _, v := range changes[i] {
			low, high = min(low, v), max(high, v)
		}
		fmt.Printf("| %s | %+.1f%% | %+.1f%% | %+.1f%% | %+.1f%% |\n", f.name, percent(mean), percent(upper), percent(low), percent(high))
		if limit > 0 && percent(upper) > limit {
			err = errors.Join(err, fmt.Errorf("%s: the upper bound is %+.1f%%, the limit %+.1f%%", f.name, percent(upper), limit))
		}
	}
	return err
}
