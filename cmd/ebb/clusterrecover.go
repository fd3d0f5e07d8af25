package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// newClusterRecover makes a command that prints what a recovery would lose, and recovers only with --yes.
func newClusterRecover(s *session) *cobra.Command {
	var from string
	var yes bool
	request := func(args []string) (*ebbv1.ChangeClusterRequest, error) { return recoverRequest(args[0], from) }
	cmd := newClusterChange(s, "recover SHARD", "Go on with one replica of a shard that has lost its majority",
		`  ebb cluster recover 3 --from ebb-2 --dry-run
  ebb cluster recover 3 --from ebb-2 --yes --wait`, request)
	cmd.Long = `Go on with one replica of a shard that has lost its majority.

Two of three replicas of a shard are lost for good, or lack entries that they acknowledged (ebb status names them) and
cannot have them back. The replica on the node of --from becomes all that is left of the shard: its node makes it the
only member of its group, the others are given up, and nodes get new replicas from it. Shard 0 is the control group:
recover it first, if it has no leader.

What others acknowledged, and this replica does not have, is lost; --dry-run says what is known of that. It is refused
without --yes, and while the shard has a leader or enough replicas to elect one. First start all nodes that can be
started: a replica with more entries may be among theirs. It takes the role operator.`
	cmd.Flags().StringVar(&from, "from", "", "go on with the replica on this `node`")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it although it cannot be taken back")
	change := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req, err := request(args)
		if err != nil {
			return err
		}
		if dry, _ := cmd.Flags().GetBool("dry-run"); !dry && !yes {
			return s.refuseRecover(cmd, req)
		}
		return change(cmd, args)
	}
	return cmd
}

func recoverRequest(shard, from string) (*ebbv1.ChangeClusterRequest, error) {
	id, err := strconv.ParseUint(shard, 10, 32)
	switch {
	case err != nil || id > proto.ShardsMax:
		return nil, usagef("shard %q: a number, such as 3; 0 is the control group", shard)
	case from == "":
		return nil, usagef("--from says which node's replica is to be all that is left of shard %d", id)
	}
	return &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Recover{
		Recover: &ebbv1.RecoverShard{Shard: uint32(id), Node: from},
	}}, nil
}

// refuseRecover returns an error that says what a recovery would lose.
func (s *session) refuseRecover(cmd *cobra.Command, req *ebbv1.ChangeClusterRequest) error {
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	req.DryRun = true
	resp, err := s.changeOnce(cmd.Context(), c, req)
	if err != nil {
		return err
	}
	shard, from := req.GetRecover().GetShard(), req.GetRecover().GetNode()
	return proto.ErrBadRequest.Errorf("shard %d would go on with the replica of node %s alone: %s", shard, from,
		strings.Join(resp.GetWarnings(), "; ")).
		WithHint(fmt.Sprintf("`ebb cluster recover %d --from %s --yes` does it; it cannot be taken back", shard, from))
}
