package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/internal/outfile"
)

func newChaosFailover(s *session) *cobra.Command {
	var o proc.Failover
	cmd := &cobra.Command{
		Use: "failover", Short: "Cut leaders off, and measure how soon the majority acknowledges a write", Args: noArgs,
		Long: `Nodes are processes of this very binary, in network namespaces (Linux and root). In each trial the leader of a shard and the other nodes do not hear each other any more; then a
client that was connected all the time writes to that shard. The p99 must be at most 3 election timeouts.`,
		Example: `  ebb chaos failover --trials 300
  ebb chaos failover --trials 100 --deaf`,
		RunE: func(cmd *cobra.Command, _ []string) error { return chaosFailover(cmd.Context(), s, o) },
	}
	f := cmd.Flags()
	f.IntVar(&o.Trials, "trials", 300, "how often")
	f.IntVar(&o.Nodes, "nodes", 3, "how many nodes to start")
	f.Uint32Var(&o.Shards, "shards", 8, "number of shards")
	f.BoolVar(&o.Deaf, "deaf", false, "cut the leader off from clients, too")
	f.StringVar(&o.Dir, "dir", "", "`directory` for data and logs; a temporary one, removed at the end, if empty")
	return cmd
}

// chaosFailover measures failovers, and fails if one takes too long.
func chaosFailover(ctx context.Context, s *session, o proc.Failover) (err error) {
	switch {
	case o.Trials < 1:
		return usagef("--trials %d: one at least", o.Trials)
	case o.Nodes < 3 || o.Nodes > 9:
		return usagef("--nodes %d: from 3 to 9", o.Nodes)
	case int(o.Shards) < o.Nodes || o.Shards > 64:
		return usagef("--shards %d: from one a node to 64", o.Shards)
	}
	if err := unused("--dir", o.Dir); err != nil {
		return err
	}
	if o.Binary, err = os.Executable(); err != nil {
		return err
	}
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "ebb-chaos-"); err != nil {
			return err
		}
		defer removeAll(s, o.Dir)
	} else if err := outfile.MakeDir("--dir", o.Dir); err != nil {
		return err
	}
	o.Progress = func(line string) { fmt.Fprintln(s.term.err, line) }
	r, err := o.Run(ctx)
	if err != nil {
		return err
	}
	r.Command = strings.Join(append([]string{"ebb"}, os.Args[1:]...), " ")
	if s.output == "json" {
		err = printJSON(s.term.out, r)
	} else {
		_, err = fmt.Fprint(s.term.out, failoverText(r, o.Trials))
	}
	if err == nil && r.Interrupted {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	return r.Err()
}

// failoverText describes the result of a measurement; trials is how many trials were planned.
func failoverText(r *proc.FailoverReport, trials int) string {
	var b strings.Builder
	fmt.Fprint(&b, plural(r.Trials, "leader", "leaders"), " cut off")
	if r.Trials > 0 {
		fmt.Fprintf(&b, ": the first write to their shard took %v (p50), %v (p99), %v (max); the election timeout is %v",
			r.P50.Round(time.Millisecond), r.P99.Round(time.Millisecond), r.Max.Round(time.Millisecond), r.Election)
	}
	b.WriteByte('\n')
	if r.Interrupted {
		fmt.Fprintf(&b, "interrupted after %d of %s: whether the p99 is within 3 election timeouts is not judged, nor are writes counted\n", r.Trials, plural(trials, "trial", "trials"))
		return b.String()
	}
	fmt.Fprintf(&b, "%d writes acknowledged, %.0f counted\n", r.Written, r.Counted)
	met := "met"
	if r.P99 > r.Limit() {
		met = "missed"
	}
	fmt.Fprintf(&b, "the goal of a p99 within 3 election timeouts (%v) is %s\n", r.Limit(), met)
	return b.String()
}
