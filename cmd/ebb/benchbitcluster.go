package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/bench"
)

// bitmapClusterIDs is the default number of users; their bitmaps fit well into the memory of a laptop.
const bitmapClusterIDs = 16_000_000

// bitmapClusterShape is the result for one shape.
type bitmapClusterShape struct {
	One     bench.BitmapsResult       `json:"one_process"`
	Cluster bench.BitmapClusterResult `json:"cluster"`
	Load    string                    `json:"load_average"` // of the machine, during the questions to the cluster
}

// clusterGoal returns how long a cluster may take for a question that takes one process the time one.
func clusterGoal(one time.Duration) time.Duration { return one*13/10 + 3*time.Millisecond }

// benchBitmapCluster asks first one process and then a cluster, for each shape.
func benchBitmapCluster(ctx context.Context, s *session, bf benchFlags, b bench.Bitmaps) error {
	b.Still, b.Roaring = true, false
	var results []bitmapClusterShape
	err := withFleet(ctx, s, &bf, func(t bench.Target) (err error) {
		for _, b.Shape = range bench.BitmapShapes {
			var r bitmapClusterShape
			if r.One, err = b.Run(ctx); err != nil {
				return err
			}
			if r.Cluster, err = (bench.BitmapCluster{Bitmaps: b}).Run(ctx, t); err != nil {
				return err
			}
			r.Load = loadAverage()
			results = append(results, r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"users": b.IDs, "nodes": bf.nodes, "shapes": results})
	}
	w := s.term.out
	for _, r := range results {
		fmt.Fprintf(w, "%d users, %s a day, %d nodes: %d ids loaded at %.1f million ids/s, replicated and synced; load of the machine %s\n",
			b.IDs, r.Cluster.Shape, bf.nodes, r.Cluster.IDs, r.Cluster.LoadPerSecond/1e6, r.Load)
		for i, d := range r.Cluster.Windows {
			one := r.One.Windows[i]
			if one.Count != d.Count {
				return fmt.Errorf("%d days: the cluster counts %d users, one process %d", d.Days, d.Count, one.Count)
			}
			fmt.Fprintf(w, "  %2d days %11d users   one process %9v   cluster %9v (least %v)   goal %9v\n",
				d.Days, d.Count, round(one.Took), round(d.Took), round(d.Least), round(clusterGoal(one.Took)))
		}
	}
	return nil
}

// loadAverage returns the system's load average of the last minute; "unknown" if the system does not say it.
func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if fields := strings.Fields(string(raw)); err == nil && len(fields) > 0 {
		return fields[0]
	}
	return "unknown"
}

func newBenchBits(s *session, bf *benchFlags) *cobra.Command {
	var b bench.BitWrites
	cmd := &cobra.Command{
		Use: "bits", Short: "Random single ids put into bitmaps per second", Args: noArgs,
		Long: `Starts a node without replicas (or as many as --nodes says) and puts single random ids into many bitmaps, each with a
call of its own of the SDK, which batches them.`,
		Example: "  ebb bench bits\n  ebb bench bits --nodes 3 --keys 10 --ids 128000000",
		RunE: func(cmd *cobra.Command, _ []string) error {
			bf := *bf
			if !cmd.Flags().Changed("nodes") {
				bf.nodes = 1
			}
			if b.Keys < 1 || b.IDs < 1 || b.Workers < 1 {
				return usagef("--keys, --ids and --workers are 1 or more")
			}
			return benchBits(cmd.Context(), s, bf, b)
		},
	}
	f := cmd.Flags()
	f.IntVar(&b.Keys, "keys", 1000, "how many bitmaps")
	f.Uint64Var(&b.IDs, "ids", 1_000_000, "ids are below this")
	f.IntVar(&b.Workers, "workers", 2, "how many goroutines of the client write")
	return cmd
}

func benchBits(ctx context.Context, s *session, bf benchFlags, b bench.BitWrites) error {
	var r bench.BitWritesResult
	b.Duration = bf.duration
	err := withFleet(ctx, s, &bf, func(t bench.Target) error {
		say(s, "single ids for %v ...", bf.duration)
		return profiled(ctx, t, bf, func() (err error) {
			r, err = b.Run(ctx, t)
			return err
		})
	})
	if err != nil {
		return err
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{"bits": r, "nodes": bf.nodes, "keys": b.Keys, "ids": b.IDs, "load_average": loadAverage()})
	}
	_, err = fmt.Fprintf(s.term.out, "%d nodes, %d bitmaps: %.2f million single ids/s over %.1f s (%d, %d of them new), %.2f us of the nodes' CPU an id; load of the machine %s\n",
		bf.nodes, b.Keys, r.PerSecond/1e6, r.Seconds, r.Acknowledged, r.Changed, r.ServerCPU.Seconds()*1e6/float64(max(r.Acknowledged, 1)), loadAverage())
	return err
}
