package cluster

import (
	"maps"
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// NextMoves returns the moves to begin now. At most most shards have a move under way; shards that lack replicas come
// first. The rules:
//
//   - A node that is not alive gets no replica.
//   - A move to a node that died and is no target any more is given up, and another node is tried if there is one.
//   - A move that leaves too few answering replicas is cancelled.
//   - A move that waits for a dead node does not block other moves, and no move begins that would have to wait for one.
//   - A node that is to be removed leaves the control group when it holds nothing else.
func NextMoves(t *Table, alive func(node string) bool, most int) []*ebbv1.BeginMove {
	var short, rest, instead []*ebbv1.BeginMove
	for id := uint32(1); id <= t.Shards(); id++ {
		record := t.Shard(id)
		if underWay(record) {
			dead := slices.IndexFunc(record.GetReplicas(), func(r *ebbv1.ReplicaRecord) bool { return r.GetJoining() && !alive(r.GetNode()) })
			stuck := !canComplete(record, alive)
			if dead < 0 && !stuck {
				most--
			} else if m := giveUp(record, dead, alive); m != nil {
				instead = append(instead, m)
			} else if m := cancelMove(record, alive); m != nil && stuck && t.marksLost() {
				instead = append(instead, m)
			}
			continue
		}
		m, lacking := nextMove(record, alive)
		switch {
		case m == nil || !canStart(record, m, alive):
		case lacking:
			short = append(short, m)
		default:
			rest = append(rest, m)
		}
	}
	moves := append(short, rest...)
	moves = append(instead, moves[:min(len(moves), max(0, most))]...)
	if m := removeFromControl(t); m != nil {
		moves = append(moves, m)
	}
	return moves
}

// giveUp returns the move that ends the wait for a joining replica whose node is dead and no longer a target; nil if
// there is none. If no other node can get the replica, giveUp waits unless enough replicas stay to survive one more
// failure.
func giveUp(record *ebbv1.ShardRecord, dead int, alive func(node string) bool) *ebbv1.BeginMove {
	if dead < 0 {
		return nil
	}
	joining, target := record.Replicas[dead], targetOf(record)
	if slices.Contains(target, joining.GetNode()) {
		return nil
	}
	m := &ebbv1.BeginMove{Shard: record.GetShard(), From: joining.GetId()}
	for _, node := range target {
		if !holds(record, node) && alive(node) {
			m.To = node
			return m
		}
	}
	stay, leave := 0, 0
	for _, r := range record.GetReplicas() {
		switch {
		case r.GetLeaving():
			leave++
		case !r.GetJoining():
			stay++
		}
	}
	if stay < 2 && leave > 0 {
		return nil
	}
	return m
}

// cancelMove returns the move that lets a leaving replica stay, if the group has no majority without it and has one
// with it; nil if there is none. The target does not matter here: if the replica still has to leave, a later move
// removes it.
func cancelMove(record *ebbv1.ShardRecord, alive func(node string) bool) *ebbv1.BeginMove {
	for _, r := range record.GetReplicas() {
		with := func(o *ebbv1.ReplicaRecord) bool { return o == r || !o.GetLeaving() }
		if asMember(record, r) != r && alive(r.GetNode()) && majority(record, alive, with) {
			return &ebbv1.BeginMove{Shard: record.GetShard(), Keep: r.GetId()}
		}
	}
	return nil
}

// underWay reports whether a group's membership is being changed.
func underWay(record *ebbv1.ShardRecord) bool {
	return slices.ContainsFunc(record.GetReplicas(), func(r *ebbv1.ReplicaRecord) bool { return r.GetJoining() || r.GetLeaving() })
}

// nextMove returns the move that brings a shard one replica closer to its target; nil if there is none. lacking says
// that the shard has too few replicas.
func nextMove(record *ebbv1.ShardRecord, alive func(node string) bool) (m *ebbv1.BeginMove, lacking bool) {
	target := targetOf(record)
	var from []*ebbv1.ReplicaRecord
	to := slices.Clone(target)
	for _, r := range record.GetReplicas() {
		if !slices.Contains(target, r.GetNode()) {
			from = append(from, r)
		}
		to = slices.DeleteFunc(to, func(n string) bool { return n == r.GetNode() })
	}
	slices.SortStableFunc(from, func(a, b *ebbv1.ReplicaRecord) int { return boolOrder(alive(a.GetNode()), alive(b.GetNode())) }) // the dead first
	lacking = len(record.GetReplicas()) < len(target)
	to = slices.DeleteFunc(to, func(n string) bool { return !alive(n) })
	m = &ebbv1.BeginMove{Shard: record.GetShard()}
	if len(to) > 0 {
		m.To = to[0]
	}
	if len(from) > 0 && !lacking && (m.To != "" || len(record.GetReplicas()) > len(target)) {
		m.From = from[0].GetId()
	}
	if m.To == "" && m.From == 0 {
		return nil, lacking
	}
	return m, lacking
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// removeFromControl returns the move that removes a node from the control group, if the node is to be removed and has
// nothing else; nil if there is none.
func removeFromControl(t *Table) *ebbv1.BeginMove {
	control := t.Shard(ControlShard)
	if control == nil {
		return nil
	}
	for _, r := range control.GetReplicas() {
		if !r.GetLeaving() && t.Node(r.GetNode()).GetState() == ebbv1.NodeState_NODE_STATE_LEAVING && r.GetNonvoter() && len(t.hosted[r.GetNode()]) == 1 {
			return &ebbv1.BeginMove{Shard: ControlShard, From: r.GetId()}
		}
	}
	return nil
}

// Moves returns the moves that are under way or planned, by shard, those of the control group last.
func Moves(t *Table) []*ebbv1.Move {
	var moves []*ebbv1.Move
	for id := uint32(1); id <= t.Shards(); id++ {
		moves = append(moves, movesOf(t.Shard(id))...)
	}
	if control := t.Shard(ControlShard); control != nil {
		moves = append(moves, movesOf(control)...)
		moves = append(moves, pendingRemovals(t, control)...)
	}
	return moves
}

// pendingRemovals returns the moves that remove nodes from the control group. They begin once such a node holds nothing
// else.
func pendingRemovals(t *Table, control *ebbv1.ShardRecord) (moves []*ebbv1.Move) {
	for _, r := range control.GetReplicas() {
		if node := t.Node(r.GetNode()); node.GetState() == ebbv1.NodeState_NODE_STATE_LEAVING && !r.GetLeaving() && !r.GetJoining() {
			moves = append(moves, &ebbv1.Move{From: node.GetName(), Why: node.GetName() + " is to be removed", Phase: "planned"})
		}
	}
	return moves
}

// movesOf pairs the nodes that get a replica of a group with the nodes that lose one. A node that gets another replica
// in place of a lost or leaving one loses none.
func movesOf(record *ebbv1.ShardRecord) []*ebbv1.Move {
	have := make(map[string]bool)
	to, from := make(map[string]string), make(map[string]string) // node -> phase
	target := targetOf(record)
	for _, r := range record.GetReplicas() {
		node := r.GetNode()
		have[node] = have[node] || !r.GetLeaving()
		switch {
		case r.GetLeaving():
			from[node] = "leaving"
		case r.GetJoining():
			to[node] = "joining"
		case record.GetShard() != ControlShard && !slices.Contains(target, node):
			from[node] = "planned"
		}
	}
	for _, node := range target {
		if !have[node] {
			to[node] = "planned"
		}
	}
	maps.DeleteFunc(from, func(node, _ string) bool { return to[node] != "" })
	why := record.GetWhy()
	if record.GetShard() == ControlShard && why == "" {
		why = "every node follows the control group"
	}
	gets, loses := slices.Sorted(maps.Keys(to)), slices.Sorted(maps.Keys(from))
	var moves []*ebbv1.Move
	for i := range max(len(gets), len(loses)) {
		m := &ebbv1.Move{Shard: record.GetShard(), Why: why}
		if i < len(loses) {
			m.From, m.Phase = loses[i], from[loses[i]]
		}
		if i < len(gets) {
			m.To, m.Phase = gets[i], to[gets[i]]
		}
		moves = append(moves, m)
	}
	if len(moves) == 0 && len(target) > 0 && target[0] != record.GetPreferred() && have[target[0]] {
		return []*ebbv1.Move{{Shard: record.GetShard(), From: record.GetPreferred(), To: target[0], Why: why, Phase: "leading"}}
	}
	return moves
}
