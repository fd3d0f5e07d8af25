package node

import (
	"context"

	"github.com/hashicorp/raft"
)

// mutantVerifyLeader is a failpoint that plants a bug on purpose: while it
// returns an error, reads trust raft's VerifyLeader, which counts answers that
// were sent before the read began. The tests of linearizability arm it to show
// that they would find such a bug.
const mutantVerifyLeader = "mutant.verify-leader"

// mutantLoseEntry is another one: while it returns an error, a replica applies entries as if they were empty, and
// differs from the others from then on. Tests arm it to show that audits find that.
const mutantLoseEntry = "mutant.lose-entry"

// confirm asks a majority of voters whether this node still leads in term.
func (n *Node) confirm(ctx context.Context, group uint32, term uint64, voters []raft.ServerAddress) error {
	if n.cfg.Fail.Hit(mutantVerifyLeader) != nil {
		return n.groups.Load().byShard[group].verifyLeader()
	}
	return n.mux.ReadIndex(ctx, group, term, voters)
}

// verifyLeader is what the mutant trusts.
func (m *member) verifyLeader() error {
	i := m.now.Load()
	return withShutdown(i.raft.VerifyLeader(), i.life).Error()
}
