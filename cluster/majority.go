package cluster

import (
	"slices"
	"strings"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// majority reports whether most of the voters among some replicas answer: their nodes are alive, and their disks are
// not lost.
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

// canComplete reports whether a change of a group's members is sure to complete. This needs an answering majority of
// the former members, of all, and of those that stay: the record does not show which of these is the present
// configuration.
func canComplete(record *ebbv1.ShardRecord, alive func(node string) bool) bool {
	return majority(record, alive, func(r *ebbv1.ReplicaRecord) bool { return !r.GetJoining() }) &&
		majority(record, alive, func(*ebbv1.ReplicaRecord) bool { return true }) &&
		majority(record, alive, func(r *ebbv1.ReplicaRecord) bool { return !r.GetLeaving() })
}

// canStart reports whether a move is sure to complete in a group that is not being changed. The group needs an
// answering majority and, if the move only removes a replica, must keep it. A replica that joins is on a node that
// answers, so a group with a majority keeps it.
func canStart(record *ebbv1.ShardRecord, m *ebbv1.BeginMove, alive func(node string) bool) bool {
	return majority(record, alive, func(*ebbv1.ReplicaRecord) bool { return true }) &&
		(m.GetTo() != "" || majority(record, alive, func(r *ebbv1.ReplicaRecord) bool { return r.GetId() != m.GetFrom() }))
}

// blockedBy returns why a group cannot be changed: it lacks a majority, and the voters that do not answer. "" if it can
// be changed, or if there is nothing to change.
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
