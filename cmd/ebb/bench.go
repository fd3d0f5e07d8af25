package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/bench"
	"github.com/ebbdb/ebb/chaos/proc"
)

// briefMax bounds each measurement that is made in addition to the main figure.
const briefMax = 20 * time.Second

// generatorGCPercent is GOGC of the load generator, not of the nodes.
const generatorGCPercent = 1000

// benchFlags are shared by all benchmarks.
type benchFlags struct {
	duration time.Duration
	nodes    int
	profile  string
	rival    bool
	dir      string
	rate     int // of the paced questions
}

func newBench(s *session) *cobra.Command {
	var bf benchFlags
	read := &cobra.Command{Use: "read", Short: "Linearizable answers per second and per CPU-second, and their latency", Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return benchRead(cmd.Context(), s, bf)
	}}
	read.Flags().IntVar(&bf.rate, "rate", 0, "questions a second of the latency measurement; half of what the single ones reached, if 0")
	cmd := children(
		&cobra.Command{
			Use: "bench", Short: "Measure this machine: a fresh three-node cluster, or the memory of distributions, compared with others",
			Long: `Starts its own nodes as processes on loopback, with replication and fsync on, measures
them and stops them. The figures are of this machine, clients included.`,
		},
		&cobra.Command{Use: "write", Short: "Acknowledged increments per second, and the latency of one", Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return benchWrite(cmd.Context(), s, bf)
		}},
		read,
		newBenchBitmaps(s, &bf),
		newBenchBits(s, &bf),
		newBenchBurst(s, &bf),
		newBenchMemory(s, &bf),
	)
	f := cmd.PersistentFlags()
	durationVar(f, &bf.duration, "duration", 10*time.Second, time.Second, "of each measurement")
	f.IntVar(&bf.nodes, "nodes", 3, "how many nodes to start")
	f.StringVar(&bf.profile, "profile", "", "write a CPU profile of one node to this `file`")
	f.BoolVar(&bf.rival, "rival", true, "also measure redis-server, when it is installed")
	f.StringVar(&bf.dir, "dir", "", "data `directory`; a temporary one, removed at the end, if empty")
	return cmd
}

// withFleet starts a cluster of processes of this same binary, and calls f with it.
func withFleet(ctx context.Context, s *session, bf *benchFlags, f func(bench.Target) error) error {
	if bf.dir == "" {
		dir, err := os.MkdirTemp("", "ebb-bench-")
		if err != nil {
			return err
		}
		defer removeAll(s, dir)
		bf.dir = dir
	}
	// The generator shares the machine with the nodes, so it collects garbage of its own small heap less often.
	defer debug.SetGCPercent(debug.SetGCPercent(generatorGCPercent))
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	start, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	say(s, "starting %d nodes ...", bf.nodes)
	fleet, err := proc.Start(start, proc.Options{Binary: binary, Dir: bf.dir, Nodes: bf.nodes})
	if err != nil {
		return err
	}
	defer fleet.Close()
	return f(bench.Target{
		Addrs: fleet.Addrs(), CPU: fleet.CPU,
		Profile: func(ctx context.Context, d time.Duration, w io.Writer) error {
			return profile(ctx, fleet.Admin(0), d, w)
		},
	})
}

func say(s *session, format string, args ...any) {
	fmt.Fprintf(s.term.err, format+"\n", args...)
}

// profile fetches a CPU profile from a node's admin address.
func profile(ctx context.Context, admin string, d time.Duration, w io.Writer) error {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, int(d.Seconds()))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return err
}

// profiled runs f, and takes a CPU profile at the same time if --profile is given.
func profiled(ctx context.Context, t bench.Target, bf benchFlags, f func() error) error {
	if bf.profile == "" {
		return f()
	}
	out, err := os.Create(bf.profile)
	if err != nil {
		return err
	}
	defer out.Close()
	done := make(chan error, 1)
	go func() { done <- t.Profile(ctx, max(bf.duration-time.Second, time.Second), out) }()
	return errors.Join(f(), <-done)
}

func benchWrite(ctx context.Context, s *session, bf benchFlags) error {
	var result bench.WriteResult
	var single bench.Quantiles
	err := withFleet(ctx, s, &bf, func(t bench.Target) error {
		brief := min(bf.duration, briefMax)
		say(s, "one increment at a time, 1000/s for %v ...", brief)
		var err error
		if single, err = (bench.Single{Duration: brief}).Run(ctx, t); err != nil {
			return err
		}
		say(s, "batches for %v ...", bf.duration)
		return profiled(ctx, t, bf, func() error {
			result, err = bench.Write{Duration: bf.duration}.Run(ctx, t)
			return err
		})
	})
	if err != nil {
		return err
	}
	redis, err := benchRedis(ctx, s, bf)
	if err != nil {
		return err
	}
	return printWrite(s, bf, result, single, redis)
}

// benchRedis measures Redis on the same disk, after the nodes have stopped. It returns 0 if Redis was not measured.
func benchRedis(ctx context.Context, s *session, bf benchFlags) (float64, error) {
	if !bf.rival {
		return 0, nil
	}
	dir, err := os.MkdirTemp("", "ebb-bench-redis-")
	if err != nil {
		return 0, err
	}
	defer removeAll(s, dir)
	brief := min(bf.duration, briefMax)
	say(s, "redis-server, ZINCRBY pipelined by 64, appendfsync always, for %v ...", brief)
	perSecond, err := bench.Redis(ctx, dir, 2, 100_000, 10, brief)
	if errors.Is(err, bench.ErrNoRedis) {
		say(s, "%v: no ratio", err)
		return 0, nil
	}
	return perSecond, err
}

func printWrite(s *session, bf benchFlags, r bench.WriteResult, single bench.Quantiles, redis float64) error {
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"write": r, "single": single, "redis_per_second": redis})
	}
	w := s.term.out
	fmt.Fprintf(w, "%d nodes, replication %d, fsync on, one machine together with the client\n", bf.nodes, min(3, bf.nodes))
	fmt.Fprintf(w, "acknowledged  %.0f increments/s over %.1f s (%d in %d commands)\n", r.PerSecond, r.Seconds, r.Acknowledged, r.Commands)
	fmt.Fprintf(w, "server CPU    %.2f us an increment, all nodes together\n", r.ServerCPU.Seconds()*1e6/float64(r.Acknowledged))
	fmt.Fprintf(w, "one at a time, 1000/s: p50 %v, p99 %v, p99.9 %v, max %v\n", round(single.P50), round(single.P99), round(single.P999), round(single.Max))
	if redis > 0 {
		fmt.Fprintf(w, "redis-server  %.0f increments/s, without replicas: ebb/redis %.2f\n", redis, r.PerSecond/redis)
	}
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

func benchRead(ctx context.Context, s *session, bf benchFlags) error {
	var batches, singles, shared bench.ReadResult
	var paced, pacedAlone bench.Quantiles
	rate := bf.rate
	if rate < 0 {
		return usagef("--rate %d: it is above 0, or 0 for half of what the single questions reach", rate)
	}
	err := withFleet(ctx, s, &bf, func(t bench.Target) error {
		say(s, "writing 1000 distributions of 260 bins ...")
		if err := (bench.Read{}).Prepare(ctx, t); err != nil {
			return err
		}
		var err error
		say(s, "batches of 32 questions for %v ...", bf.duration)
		if err = profiled(ctx, t, bf, func() error {
			batches, err = bench.Read{Duration: bf.duration, Batch: 32}.Run(ctx, t)
			return err
		}); err != nil {
			return err
		}
		say(s, "single questions, a request for each, for %v ...", bf.duration)
		if singles, err = (bench.Read{Duration: bf.duration, Workers: 128, Alone: true}).Run(ctx, t); err != nil {
			return err
		}
		say(s, "single questions that share requests, for %v ...", bf.duration)
		if shared, err = (bench.Read{Duration: bf.duration, Workers: 128}).Run(ctx, t); err != nil {
			return err
		}
		if rate == 0 {
			rate = max(int(singles.CallsPerS/2), 1)
		}
		say(s, "single questions at %d/s for %v ...", rate, bf.duration)
		if paced, err = (bench.Read{Duration: bf.duration}).Paced(ctx, t, rate); err != nil {
			return err
		}
		say(s, "the same, a request for each, for %v ...", bf.duration)
		pacedAlone, err = bench.Read{Duration: bf.duration, Alone: true}.Paced(ctx, t, rate)
		return err
	})
	if err != nil {
		return err
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{
			"batches_of_32": batches, "single": singles, "shared": shared, "rate": rate, "paced": paced, "paced_alone": pacedAlone,
		})
	}
	w := s.term.out
	fmt.Fprintf(w, "%d nodes, top 10 of 260 bins, linearizable, one machine together with the client\n", bf.nodes)
	for _, r := range []struct {
		name string
		bench.ReadResult
	}{{"batches of 32", batches}, {"a request each", singles}, {"sharing", shared}} {
		fmt.Fprintf(w, "%-14s %.0f answers/s, %.0f per CPU-second of the servers\n", r.name, r.PerSecond, r.PerServerCPUSec)
	}
	for _, q := range []struct {
		name string
		bench.Quantiles
	}{{"sharing", paced}, {"a request each", pacedAlone}} {
		fmt.Fprintf(w, "%-14s at %d/s: p50 %v, p99 %v, max %v\n", q.name, rate, round(q.P50), round(q.P99), round(q.Max))
	}
	return nil
}
