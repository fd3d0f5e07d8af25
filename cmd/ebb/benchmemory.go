package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/bench"
)

// memoryFlags are the flags of ebb bench memory.
type memoryFlags struct {
	bench.Memory
	kind      string
	shape     string
	precision string
}

// memoryNMax bounds --n, so that a typing error does not fill the machine's memory.
const memoryNMax = 1 << 28

func newBenchMemory(s *session, bf *benchFlags) *cobra.Command {
	var mf memoryFlags
	cmd := &cobra.Command{
		Use: "memory", Short: "Bytes a bin of millions of distributions, and answers while they are snapshotted; bytes of small bitmaps", Args: noArgs,
		Long: `Builds distributions in this process, in as many shards as asked for, without log and network, and
prints what they take, everything included; then increments and asks them while snapshots are written.
Or builds bitmaps of 15 ids on average (Pareto, below 2^32), and prints what they take: given all
their ids at once, and one after the other.`,
		Example: `  ebb bench memory --n 1000000 --shape 10
  ebb bench memory --n 10000000 --shape pareto --precision compact --rival=false
  ebb bench memory --kind bitmap --n 1000000 --shards 64`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, flag := range []string{"nodes", "profile", "dir"} {
				if cmd.Flags().Changed(flag) {
					return usagef("--%s: this benchmark starts no nodes", flag)
				}
			}
			switch mf.kind {
			case "distribution":
				return benchMemory(cmd.Context(), s, bf, mf)
			case "bitmap":
				for _, flag := range []string{"shape", "precision", "rate", "duration", "rival"} {
					if cmd.Flags().Changed(flag) {
						return usagef("--%s: it is of distributions", flag)
					}
				}
				return benchMemoryBitmaps(cmd.Context(), s, mf)
			}
			return usagef("--kind %s: it is distribution or bitmap", mf.kind)
		},
	}
	f := cmd.Flags()
	f.StringVar(&mf.kind, "kind", "distribution", "distribution, or bitmap")
	f.IntVar(&mf.N, "n", 1_000_000, "how many distributions or bitmaps")
	f.StringVar(&mf.shape, "shape", string(bench.ShapePareto), "bins of each: a `number`, or pareto (3 and more, mean 9)")
	f.StringVar(&mf.precision, "precision", "double", "double, or compact: values of 32 bits")
	f.IntVar(&mf.Shards, "shards", 8, "how many shards they lie in")
	f.IntVar(&mf.Rate, "rate", 100_000, "increments a second of the load")
	return cmd
}

// checkNumber refuses impossible numbers of keys and shards.
func (mf *memoryFlags) checkNumber() error {
	switch {
	case mf.N < 1 || mf.N > memoryNMax:
		return usagef("--n %d: it is from 1 to %d", mf.N, memoryNMax)
	case mf.Shards < 1 || mf.Shards > mf.N:
		return usagef("--shards %d: it is from 1 to --n", mf.Shards)
	}
	return nil
}

func benchMemoryBitmaps(ctx context.Context, s *session, mf memoryFlags) error {
	if err := mf.checkNumber(); err != nil {
		return err
	}
	say(s, "%d bitmaps, filled at once ...", mf.N)
	once, err := bench.SmallBitmaps{N: mf.N, Shards: mf.Shards}.Run(ctx)
	if err != nil {
		return err
	}
	say(s, "%d bitmaps, filled in turn ...", mf.N)
	turn, err := bench.SmallBitmaps{N: mf.N, Shards: mf.Shards, InTurn: true}.Run(ctx)
	if err != nil {
		return err
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"shards": mf.Shards, "bitmaps": map[string]any{"at_once": once, "in_turn": turn}})
	}
	printSmallBitmaps(s.term.out, "at once", mf.Shards, &once)
	printSmallBitmaps(s.term.out, "in turn", mf.Shards, &turn)
	return nil
}

func printSmallBitmaps(w io.Writer, filled string, shards int, r *bench.SmallBitmapsResult) {
	fmt.Fprintf(w, "%d bitmaps of %.1f ids below 2^32, filled %s, in %d shards of one process\n", r.Bitmaps, float64(r.IDs)/float64(r.Bitmaps), filled, shards)
	for _, line := range []struct {
		name  string
		bytes int64
	}{{"resident", r.Resident}, {"used", r.Pages + r.Allocated}, {"pages", r.Pages}} {
		fmt.Fprintf(w, "%-13s %8.1f bytes an id  %8.1f a bitmap without 4 an id  %8.1f MB\n", line.name,
			float64(line.bytes)/float64(r.IDs), r.Overhead(line.bytes), float64(line.bytes)/1e6)
	}
	fmt.Fprintf(w, "built by      %.0f ids/s, names and ids generated on the way\n", r.FillPerSecond)
}

func benchMemory(ctx context.Context, s *session, bf *benchFlags, mf memoryFlags) error {
	m := mf.Memory
	m.Shape, m.Load = bench.Shape(mf.shape), bf.duration
	if err := mf.checkNumber(); err != nil {
		return err
	}
	switch {
	case m.Rate < 1 || m.Rate > int(time.Second):
		return usagef("--rate %d: it is above 0, and at most a thousand million", m.Rate)
	case mf.precision != "double" && mf.precision != "compact":
		return usagef("--precision %s: it is double or compact", mf.precision)
	}
	if err := m.Shape.Check(); err != nil {
		return usagef("--%w", err)
	}
	m.Compact = mf.precision == "compact"
	say(s, "%d distributions ...", m.N)
	r, err := m.Run(ctx)
	if err != nil {
		return err
	}
	redis := int64(0)
	if bf.rival {
		say(s, "the same in redis-server ...")
		redis, err = bench.RedisMemory(ctx, m)
		if errors.Is(err, bench.ErrNoRedis) {
			say(s, "%v: nothing to compare with", err)
		} else if err != nil {
			return err
		}
	}
	return printMemory(s, mf, &r, redis)
}

func printMemory(s *session, mf memoryFlags, r *bench.MemoryResult, redis int64) error {
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{
			"shape": mf.shape, "precision": mf.precision, "shards": mf.Shards, "memory": r, "redis_resident_bytes": redis,
		})
	}
	w := s.term.out
	fmt.Fprintf(w, "%d distributions of %.1f bins, precision %s, in %d shards of one process\n", r.Distributions, r.BinsEach, mf.precision, mf.Shards)
	for _, line := range []struct {
		name  string
		bytes int64
	}{{"resident", r.Resident}, {"allocated", r.Allocated}, {"mapped", r.Mapped}, {"serialised", r.Serialised}, {"redis-server", redis}} {
		if line.bytes != 0 || line.name != "redis-server" {
			fmt.Fprintf(w, "%-13s %8.1f bytes a bin  %8.1f a distribution  %8.1f MB\n", line.name,
				r.PerBin(line.bytes), float64(line.bytes)/float64(r.Distributions), float64(line.bytes)/1e6)
		}
	}
	fmt.Fprintf(w, "built by      %.0f increments/s, names generated on the way; GC %.2f%% of the CPU\n", r.FillPerSecond, 100*r.FillGCShare)
	if l := r.Load; l != nil {
		fmt.Fprintf(w, "under load    %.0f increments/s, %.0f ns each; GC %.2f%% of the CPU\n", l.PerSecond, l.ApplyEach, 100*l.GCShare)
		for _, q := range []struct {
			name string
			bench.Quantiles
		}{{"top 10", l.Read}, {"  snapshotted", l.ReadSnapshots}} {
			fmt.Fprintf(w, "%-13s p50 %v, p99 %v, p99.9 %v, max %v\n", q.name,
				q.P50.Round(time.Microsecond), q.P99.Round(time.Microsecond), q.P999.Round(time.Microsecond), q.Max.Round(time.Microsecond))
		}
		fmt.Fprintf(w, "snapshots     %d written during it, one shard each\n", l.Snapshots)
	}
	return nil
}
