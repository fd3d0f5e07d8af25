package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/bench"
)

// bitmapIDsMax is how many ids redis-server can hold in one string.
const bitmapIDsMax = 1 << 32

func newBenchBitmaps(s *session, bf *benchFlags) *cobra.Command {
	var b bench.Bitmaps
	cmd := &cobra.Command{
		Use: "bitmaps", Short: "How many of many users were there within 1, 7 and 30 days, compared with roaring bitmaps and Redis", Args: noArgs,
		Long: `Loads a bitmap of all users for each of 30 days into states of shards in this process, without log and
network, and counts who was there within 1, 7 and 30 days, with the caches full of other things. It compares with roaring/v2,
redis-server (BITOP OR and BITCOUNT) and how fast the machine reads memory. Then windows of 7 and 30 days roll on with
unions kept, as a node keeps them: how long the first question of a day takes, the second, which makes a union, and
those that follow.

With --nodes it starts so many nodes, loads bitmaps that are placed by slice through the log, and asks the cluster and
one process that has the same bitmaps: 16 million users (a gigabyte of memory and one of disk), or as many as --ids says.`,
		Example: `  ebb bench bitmaps
  ebb bench bitmaps --ids 10000000 --rival=false --json
  ebb bench bitmaps --nodes 3
  ebb bench bitmaps --nodes 3 --ids 128000000`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster := cmd.Flags().Changed("nodes")
			if cmd.Flags().Changed("duration") {
				return usagef("--duration: this benchmark ends when it has asked")
			}
			for _, flag := range []string{"profile", "dir"} {
				if cmd.Flags().Changed(flag) && !cluster {
					return usagef("--%s: without --nodes this benchmark starts none", flag)
				}
			}
			if cluster && !cmd.Flags().Changed("ids") {
				b.IDs = bitmapClusterIDs
			}
			switch {
			case b.IDs < 1 || b.IDs > bitmapIDsMax:
				return usagef("--ids %d: it is from 1 to %d", b.IDs, int64(bitmapIDsMax))
			case b.Rounds < 1:
				return usagef("--rounds %d: it is 1 or more", b.Rounds)
			}
			b.Roaring = bf.rival
			b.Say = func(what string) { say(s, "%s ...", what) }
			if cluster {
				return benchBitmapCluster(cmd.Context(), s, *bf, b)
			}
			return benchBitmaps(cmd.Context(), s, b)
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&b.IDs, "ids", 128_000_000, "how many users there are; 16,000,000 by default with --nodes")
	f.IntVar(&b.Rounds, "rounds", 9, "how often each question is asked; the median is printed")
	return cmd
}

func benchBitmaps(ctx context.Context, s *session, b bench.Bitmaps) (err error) {
	if _, missing := exec.LookPath("redis-server"); b.Roaring && missing == nil {
		if b.Redis, err = os.MkdirTemp("", "ebb-bench-redis-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(b.Redis)) }()
	}
	var results []bench.BitmapsResult
	for _, b.Shape = range bench.BitmapShapes {
		r, err := b.Run(ctx)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"users": b.IDs, "shapes": results})
	}
	w := s.term.out
	for _, r := range results {
		fmt.Fprintf(w, "%d users, %s a day: %d ids in %.0f MB, loaded at %.1f million ids/s on %d cores\n",
			b.IDs, r.Shape, r.IDs, float64(r.Mapped)/1e6, r.LoadPerSecond/1e6, r.LoadCores)
		for _, d := range r.Windows {
			fmt.Fprintf(w, "  %2d days %11d users   ebb %9v (least %v)", d.Days, d.Count, round(d.Took), round(d.Least))
			if d.Roaring > 0 {
				fmt.Fprintf(w, "   roaring %9v", round(d.Roaring))
			}
			if d.Redis > 0 {
				fmt.Fprintf(w, "   redis %9v", round(d.Redis))
			}
			fmt.Fprintln(w)
		}
		for _, d := range r.Rolling {
			fmt.Fprintf(w, "  %2d days that roll, %d users: first %9v   second, with a union made, %9v   then %9v   %d unions kept, %.0f MB\n",
				d.Days, d.Count, round(d.First), round(d.Second), round(d.Third), d.Unions, float64(d.Bytes)/1e6)
		}
		fmt.Fprintf(w, "  memory is read at %.1f GB/s\n", r.Bandwidth/1e9)
	}
	return nil
}
