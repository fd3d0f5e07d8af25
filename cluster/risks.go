package cluster

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// ExplainWaits sets for each move what it waits for: nodes that do not answer, and that are to get a replica or are
// needed for a majority.
func ExplainWaits(t *Table, moves []*ebbv1.Move, alive func(node string) bool) {
	for _, m := range moves {
		switch why := blockedBy(t.Shard(m.GetShard()), alive); {
		case m.GetPhase() == "leading":
		case m.GetTo() != "" && !alive(m.GetTo()):
			m.Waits = m.GetTo() + " does not answer"
		case m.GetShard() != ControlShard:
			m.Waits = why
		}
	}
}

// Risks returns what may go wrong during the change from one table to another, and what to do then.
func Risks(now, then *Table, alive func(node string) bool) (risks []string) {
	if then.Replication() == 2 && (now.Replication() != 2 || slices.ContainsFunc(Moves(then), func(m *ebbv1.Move) bool { return m.GetShard() != ControlShard })) {
		risks = append(risks, "of two replicas both are needed: while one is away, its shards cannot be written; if its disk is lost, they come back only from a backup. Three survive the loss of one")
	}
	waited := make(map[string]int)
	for shard := uint32(1); shard <= now.Shards(); shard++ {
		for _, r := range now.Replicas(shard) {
			if r.GetJoining() && !alive(r.GetNode()) {
				waited[r.GetNode()]++
			}
		}
	}
	for _, node := range slices.Sorted(maps.Keys(waited)) {
		risks = append(risks, fmt.Sprintf("node %s is being given %d replicas and does not answer. If it is gone for good, ebb cluster replication with a lower number or ebb cluster remove %s gives them up. "+
			"A shard that has no leader counts on its vote already, and needs the node back, with its data directory, or a restore from a backup", node, waited[node], node))
	}
	return risks
}
