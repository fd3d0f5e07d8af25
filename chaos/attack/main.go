package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

func main() {
	short := flag.Bool("short", false, "only what takes seconds")
	only := flag.String("only", "", "only attempts whose `group: name (mode)` matches this regular expression")
	binary := flag.String("binary", "", "the binary `ebb` to attack; built from this tree if empty")
	list := flag.Bool("list", false, "say what there is, and try nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	held, err := run(ctx, os.Stdout, *binary, *only, *short, *list)
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
	}
	if err != nil || !held {
		os.Exit(1)
	}
}

// title returns the text by which --only selects an attempt, and which names it in output.
func (a *Attempt) title() string { return fmt.Sprintf("%s: %s (%s)", a.Group, a.Name, a.Mode) }

// chosen returns the attempts that the flags select. It fails if there are none.
func chosen(all []Attempt, only string, short bool) ([]Attempt, error) {
	match, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(slices.Clone(all),
		func(a Attempt) bool { return short && a.Long || !match.MatchString(a.title()) })
	if len(all) == 0 {
		return nil, fmt.Errorf("no attempt matches %q", only)
	}
	return all, nil
}

func run(ctx context.Context, w io.Writer, binary, only string, short, list bool) (held bool, err error) {
	attempts, err := chosen(attempts(), only, short)
	if err != nil {
		return false, err
	}
	if list {
		for i := range attempts {
			fmt.Fprintln(w, attempts[i].title())
		}
		return true, nil
	}
	dir, err := os.MkdirTemp("", "ebb-attack-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if binary == "" {
		binary = filepath.Join(dir, "ebb")
		build := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-o", binary, "github.com/ebbdb/ebb/cmd/ebb")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return false, fmt.Errorf("build ebb: %w: %s", err, out)
		}
	} else if binary, err = filepath.Abs(binary); err != nil {
		return false, err
	}
	began := time.Now()
	verdicts, err := attack(ctx, attempts, binary, dir)
	return report(w, verdicts, time.Since(began)) && err == nil, err
}

// attack opens the clusters concurrently, and makes the attempts one after the other. After an attempt that did not
// hold, the next one gets a new cluster.
func attack(ctx context.Context, attempts []Attempt, binary, dir string) (verdicts []Verdict, err error) {
	arenas := make(map[Mode]*Arena)
	opened := 0
	defer func() {
		for _, a := range arenas {
			a.close()
		}
	}()
	var mu sync.Mutex // guards arenas and err
	var opening sync.WaitGroup
	for _, mode := range Modes {
		if !slices.ContainsFunc(attempts, func(a Attempt) bool { return a.Mode == mode }) {
			continue
		}
		opening.Go(func() {
			a, e := openWithin(ctx, mode, binary, filepath.Join(dir, string(mode)))
			mu.Lock()
			defer mu.Unlock()
			if err = errors.Join(err, e); e == nil {
				arenas[mode] = a
			}
		})
	}
	opening.Wait()
	if err != nil {
		return nil, err
	}
	for _, mode := range Modes {
		for i := range attempts {
			if attempts[i].Mode != mode {
				continue
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			a := arenas[mode]
			v := judge(ctx, a, &attempts[i], func(ctx context.Context) error { return attempts[i].Run(ctx, a) })
			fmt.Fprintf(os.Stderr, "%-6s %6.1fs  %s %s\n", word(v.Held), v.Took.Seconds(), attempts[i].title(), plain(v.Detail))
			verdicts = append(verdicts, v)
			if v.Held {
				continue
			}
			a.close()
			delete(arenas, mode)
			opened++
			if a, err = openWithin(ctx, mode, binary, filepath.Join(dir, fmt.Sprintf("%s-%d", mode, opened))); err != nil {
				return verdicts, err
			}
			arenas[mode] = a
		}
	}
	return verdicts, nil
}

// openWithin opens a cluster, and fails after openMax.
func openWithin(ctx context.Context, mode Mode, binary, dir string) (*Arena, error) {
	limited, cancel := context.WithTimeout(ctx, openMax)
	defer cancel()
	return open(limited, mode, binary, dir)
}

// openMax is how long a cluster may take to be ready for attempts.
const openMax = 2 * time.Minute

func word(held bool) string {
	if held {
		return "held"
	}
	return "BROKEN"
}

// report prints a table of the verdicts, with those that did not hold at its end. It reports whether all held.
func report(w io.Writer, verdicts []Verdict, took time.Duration) bool {
	verdicts = slices.Clone(verdicts)
	slices.SortStableFunc(verdicts, func(a, b Verdict) int {
		switch {
		case a.Held == b.Held:
			return 0
		case a.Held:
			return -1
		}
		return 1
	})
	held := 0
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "RESULT\tGROUP\tATTEMPT\tCLUSTER\tTOOK\tGREW\tWHAT DID NOT HOLD")
	for _, v := range verdicts {
		if v.Held {
			held++
		}
		detail := plain(v.Detail)
		if r := []rune(detail); len(r) > 300 {
			detail = string(r[:300]) + "..."
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%.1f s\t%d MiB\t%s\n", word(v.Held), v.Attempt.Group, v.Attempt.Name, v.Attempt.Mode,
			v.Took.Seconds(), v.Grew/mib, detail)
	}
	_ = tw.Flush()
	fmt.Fprintf(w, "\n%d of %d attempts held, in %v\n", held, len(verdicts), took.Round(time.Second))
	return held == len(verdicts)
}

// plain returns text in one line, with control characters quoted, because it may contain answers of a node.
func plain(text string) string {
	quoted := strconv.Quote(strings.Join(strings.Fields(text), " "))
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// attempts returns all attempts.
func attempts() []Attempt {
	return slices.Concat(answers(), decoding(), sessions(), peers(), webPages(), gossip(), inFlight(), audits(), budgets(),
		files(),
		floods(), slowness(), lengths(), documents(), names(), tokens(), foreigners(), certificates(), crowds())
}
