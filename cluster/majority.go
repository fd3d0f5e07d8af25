package cluster

import (
	"slices"
	"strings"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// majority reports whether most of the voters among some replicas answer: their nodes live, and their disks are not
// lost.
func majority(record *ebbv1.ShardRecord, alive func(node string) bool, among func(*ebbv1.ReplicaRecord) bool) bool {
	voters, answer := 0, 0
	for _, r := range record.GetReplicas() {
		if r.GetNonvoter() || !among(r) {
			continue
		}
		voters++
		if alive(r.GetNode()) && !r.GetLost() {
			answer++
		}
	}
	return 2*answer > voters
}

// canComplete reports whether a group whose members are being changed is sure to come to the end of that. It needs a
// majority that answers among the former members, among all, and among those that stay. The record does not say which
// of these it is at.
func canComplete(record *ebbv1.ShardRecord, alive func(node string) bool) bool {
	return majority(record, alive, func(r *ebbv1.ReplicaRecord) bool { return !r.GetJoining() }) &&
		majority(record, alive, func(*ebbv1.ReplicaRecord) bool { return true }) &&
		majority(record, alive, func(r *ebbv1.ReplicaRecord) bool { return !r.GetLeaving() })
}

// canStart reports whether a group at rest is sure to come to the end of a move: it has a majority that answers, and
// keeps it if the move only takes away. A group that gets a replica gets one that answers. It has a majority
// afterwards if it had one before.
func canStart(record *ebbv1.ShardRecord, m *ebbv1.BeginMove, alive func(node string) bool) bool {
	return majority(record, alive, func(*ebbv1.ReplicaRecord) bool { return true }) &&
		(m.GetTo() != "" || majority(record, alive, func(r *ebbv1.ReplicaRecord) bool { return r.GetId() != m.GetFrom() }))
}

// blockedBy returns why a group cannot be changed: voters whose nodes do not answer, without which it has no majority.
// "" if it can, or if there is nothing to change.
func blockedBy(record *ebbv1.ShardRecord, alive func(node string) bool) string {
	if underWay(record) {
		if canComplete(record, alive) {
			return ""
		}
	} else if m, _ := nextMove(record, alive); m == nil || canStart(record, m, alive) {
		return ""
	}
	var away []string
	for _, r := range record.GetReplicas() {
		if !r.GetNonvoter() && !r.GetLost() && !alive(r.GetNode()) {
			away = append(away, r.GetNode())
		}
	}
	slices.Sort(away)
	away = slices.Compact(away)
	switch len(away) {
	case 0:
		return ""
	case 1:
		return away[0] + " does not answer, and is needed for a majority"
	}
	return strings.Join(away, ", ") + " do not answer, and are needed for a majority"
}
