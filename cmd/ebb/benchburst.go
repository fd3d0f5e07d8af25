package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/bench"
)

// burstSizeMax bounds the increments of a burst, and the questions a second.
const burstSizeMax = 1_000_000

func newBenchBurst(s *session, bf *benchFlags) *cobra.Command {
	var b bench.Burst
	cmd := &cobra.Command{
		Use: "burst", Short: "Bursts of increments to a million distributions during questions, and whether all of it is counted", Args: noArgs,
		Long: `Fills distributions in a cluster of its own, sends a burst of increments each second while questions are
asked at a fixed rate, and then asks for every distribution whether it counts what was sent.`,
		Example: `  ebb bench burst --duration 60s
  ebb bench burst --n 100000 --size 10000 --nodes 1`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case b.Distributions < 1 || b.Distributions > memoryNMax:
				return usagef("--n %d: it is from 1 to %d", b.Distributions, memoryNMax)
			case b.Size < 1 || b.Size > burstSizeMax:
				return usagef("--size %d: it is from 1 to %d", b.Size, burstSizeMax)
			case b.Reads < 1 || b.Reads > burstSizeMax:
				return usagef("--rate %d: it is from 1 to %d", b.Reads, burstSizeMax)
			}
			b.Duration = bf.duration
			b.Say = func(what string) { say(s, "%s ...", what) }
			return benchBurst(cmd.Context(), s, bf, b)
		},
	}
	f := cmd.Flags()
	f.IntVar(&b.Distributions, "n", 1_100_000, "how many distributions")
	f.IntVar(&b.Size, "size", 3_000, "increments a burst")
	f.IntVar(&b.Reads, "rate", 1_000, "questions a second")
	return cmd
}

func benchBurst(ctx context.Context, s *session, bf *benchFlags, b bench.Burst) error {
	var r bench.BurstResult
	err := withFleet(ctx, s, bf, func(t bench.Target) (err error) {
		return profiled(ctx, t, *bf, func() error {
			r, err = b.Run(ctx, t)
			return err
		})
	})
	if err != nil {
		return err
	}
	if s.output == "json" {
		if err := printJSON(s.term.out, r); err != nil {
			return err
		}
	} else {
		w := s.term.out
		fmt.Fprintf(w, "%d distributions on %d nodes, replication %d, fsync on\n", r.Distributions, bf.nodes, min(3, bf.nodes))
		fmt.Fprintf(w, "bursts        %d of %d: acknowledged after p50 %v, max %v\n", r.Bursts.N, b.Size, round(r.Bursts.P50), round(r.Bursts.Max))
		fmt.Fprintf(w, "questions     %d during them: p50 %v, p99 %v, max %v\n", r.Reads.N, round(r.Reads.P50), round(r.Reads.P99), round(r.Reads.Max))
		fmt.Fprintf(w, "counted       %d of %d sent, %d distributions differ\n", r.Counted, r.Sent, r.Different)
	}
	if r.Different > 0 {
		return fmt.Errorf("%d of %d distributions do not count what was sent to them", r.Different, r.Distributions)
	}
	return nil
}
