package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// verifyTimeout is the default timeout of `ebb cluster verify`, which reads all data.
const verifyTimeout = time.Minute

// checkedJSON is one shard as `ebb cluster verify --json` prints it.
type checkedJSON struct {
	Shard      uint32            `json:"shard"`
	Index      uint64            `json:"index"`
	Equal      bool              `json:"equal"`
	Leader     string            `json:"leader"`
	Replicas   map[string]string `json:"replicas"` // from node to checksum
	Missing    []string          `json:"missing,omitempty"`
	Uncompared string            `json:"uncompared,omitempty"` // the reason; empty if compared
}

func newClusterVerify(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Compare the checksums of all replicas of each shard, at one and the same entry of its log", Args: noArgs,
		Long: `Reads all that is replicated, on all nodes. Shards that are written to during it are
compared at an entry that is still to come; shards without a leader, or with a replica that
does not answer, are waited for, up to 10 seconds. All of it takes a minute at most, or --timeout.

The exit status is not 0 if replicas differ or could not be compared: it names
the shards, and says why.`,
		Example: `  ebb cluster verify
  ebb cluster verify --timeout 10m   # with much data`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			timeout := verifyTimeout
			if cmd.Flags().Changed("timeout") {
				timeout = s.timeout
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			c, err := s.dialIn(ctx, client.WithTimeout(timeout))
			if err != nil {
				return err
			}
			defer c.Close()
			said := ""
			checks, err := c.Verify(ctx, func(left []client.ShardCheck) {
				if now := waitsFor(left); now != said {
					said = now
					fmt.Fprint(s.term.err, now)
				}
			})
			if err != nil {
				return err
			}
			return s.printChecks(checks)
		},
	}
}

// reasons groups shards by the reason why they were not compared. Reasons are in the order of their first shard.
func reasons(checks []client.ShardCheck) (whys []string, shards map[string][]string) {
	shards = make(map[string][]string)
	for i := range checks {
		why := checks[i].Uncompared()
		if why == "" {
			continue
		}
		if shards[why] == nil {
			whys = append(whys, why)
		}
		shards[why] = append(shards[why], strconv.FormatUint(uint64(checks[i].Shard), 10))
	}
	return whys, shards
}

// waitsFor describes the shards that are compared again, and why.
func waitsFor(left []client.ShardCheck) string {
	var b strings.Builder
	whys, shards := reasons(left)
	for _, why := range whys {
		fmt.Fprintf(&b, "asks again about %s: %s\n", shardsText(shards[why]), why)
	}
	return b.String()
}

// shardsText names shards in words.
func shardsText(shards []string) string {
	if len(shards) == 1 {
		return "shard " + shards[0]
	}
	return fmt.Sprintf("%d shards (%s)", len(shards), strings.Join(shards, " "))
}

func (s *session) printChecks(checks []client.ShardCheck) error {
	out := make([]checkedJSON, 0, len(checks))
	var rows [][]string
	var differ []error
	replicas, equal := 0, 0
	for i := range checks {
		check := &checks[i]
		j := checkedJSON{
			Shard: check.Shard, Index: check.Index, Equal: check.Equal, Leader: check.Leader, Missing: check.Missing, Replicas: make(map[string]string),
			Uncompared: check.Uncompared(),
		}
		for node, sum := range check.Replicas {
			j.Replicas[node] = fmt.Sprintf("%016x", sum)
		}
		replicas += len(check.Replicas)
		out = append(out, j)
		switch {
		case check.Equal:
			equal++
		case j.Uncompared == "":
			differ = append(differ, check.Err())
		}
		rows = append(rows, []string{strconv.FormatUint(uint64(check.Shard), 10), strconv.FormatUint(check.Index, 10), strconv.FormatBool(check.Equal), strconv.Itoa(len(check.Replicas)), orDash(j.Uncompared)})
	}
	var err error
	switch s.output {
	case "json":
		err = printJSON(s.term.out, map[string]any{"equal": equal == len(checks), "shards": out})
	case "tsv":
		err = s.printTable("", rows)
	default:
		_, err = fmt.Fprintf(s.term.out, "%d shards, %d replicas: %d shards are equal on all their nodes\n", len(checks), replicas, equal)
	}
	return errors.Join(append(differ, uncompared(checks), err)...)
}

// uncompared returns one error for all shards that were not compared; nil if there are none. Its next step is the one
// of the first shard.
func uncompared(checks []client.ShardCheck) error {
	whys, shards := reasons(checks)
	if len(whys) == 0 {
		return nil
	}
	var said []string
	for _, why := range whys {
		said = append(said, fmt.Sprintf("%s: %s", shardsText(shards[why]), why))
	}
	err := proto.ErrIncomplete.Errorf("not compared: %s", strings.Join(said, "; and "))
	for i := range checks {
		if checks[i].Uncompared() != "" {
			return err.WithHint(nextStep(checks[i].Err()))
		}
	}
	return err
}
