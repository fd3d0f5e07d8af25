package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// replicationSafe is how many replicas a shard needs so that, with one of them down, it still takes writes and keeps
// what it acknowledged.
const replicationSafe = 3

// newClusterReplication makes a command that changes the number of replicas. It needs --yes to reduce them below
// replicationSafe.
func newClusterReplication(s *session) *cobra.Command {
	var yes bool
	cmd := newClusterChange(s, "replication N", "How many replicas each shard has", `  ebb cluster replication 3 --wait
  ebb cluster replication 1 --dry-run`,
		func(args []string) (*ebbv1.ChangeClusterRequest, error) { return replicationRequest(args[0]) })
	cmd.Long = `How many replicas each shard has.

A number that is lower than now and below 3 is refused without --yes: with 2 replicas a shard takes no writes while one of its nodes is
away, and with 1 what is on a disk that is lost is lost.`
	cmd.Flags().BoolVar(&yes, "yes", false, "do it although a shard then cannot do without one of its nodes")
	change := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := replicationRequest(args[0])
		if err != nil {
			return err
		}
		if dry, _ := cmd.Flags().GetBool("dry-run"); !dry && !yes && req.GetReplication() < replicationSafe {
			table, err := s.table(cmd)
			if err != nil {
				return err
			}
			if err := checkReplication(req.GetReplication(), table.GetReplication()); err != nil {
				return err
			}
		}
		return change(cmd, args)
	}
	return cmd
}

// checkReplication refuses to reduce the replicas below replicationSafe.
func checkReplication(next, now uint32) error {
	if next >= now || next >= replicationSafe {
		return nil
	}
	risk := "with 2 replicas a shard takes no writes while one of its nodes is away, and has one copy left when a disk is lost"
	if next == 1 {
		risk = "with 1 replica a shard is away with its node, and what is on a disk that is lost is lost"
	}
	return proto.ErrBadRequest.Errorf("replication %d, and it is %d now: %s", next, now, risk).
		WithHint(fmt.Sprintf("`ebb cluster replication %d --yes` does it; `ebb cluster plan --replication %d` shows what would go", next, next))
}
