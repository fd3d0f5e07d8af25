package cluster

import (
	"fmt"
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Server is a member of a group in its Raft configuration.
type Server struct {
	Replica uint64
	Voter   bool
}

// Action is what a group's leader does next with its Raft configuration.
type Action int

const (
	StepNone               Action = iota
	StepWait                      // a new member does not have the data yet
	StepAdd                       // add the replica as a nonvoter
	StepPromote                   // make it a voter
	StepDemote                    // make it a nonvoter
	StepRemove                    // end its membership
	StepTransferLeadership        // transfer leadership: the leader is to be removed or to lose its vote
	StepSettle                    // report to the control group that the configuration matches the table
)

func (a Action) String() string {
	return [...]string{"nothing", "wait", "add", "promote", "demote", "remove", "hand over", "settle"}[a]
}

// Step is an action and its replica.
type Step struct {
	Action  Action
	Replica uint64
	Node    string // "" for a replica that the table does not have
	Why     string
}

// NextStep returns the step that brings a group's Raft configuration closer to its record in the table. It depends only
// on the present state, so any leader can continue where another stopped. self is the leader's replica. The rules:
//
//   - New replicas are added before old ones are removed: first as nonvoters. They become voters when caughtUp reports
//     that they have the whole log.
//   - A replica is added when there reports that its node has made it, and becomes a voter only if there still reports
//     it. The second of two voters is needed for every commit, also for its own removal.
//   - NextStep does not wait for a replica that stays a nonvoter. Otherwise a node that asked to follow the control
//     group and never came back would keep all others from joining and leaving.
//   - A vote is taken only if the remaining voters have a majority for which there reports true. Raft uses the smaller
//     configuration at once, so otherwise it could be neither committed nor undone.
//   - A replica whose disk is lost is removed first, since it only counts against the majority.
//   - A member that the record lacks was dropped from it, and is removed.
//
// record must be read after configuration.
func NextStep(record *ebbv1.ShardRecord, configuration []Server, self uint64, there func(node string, replica uint64) bool, caughtUp func(replica uint64) bool) Step {
	members := make(map[uint64]bool, len(configuration)) // replica -> votes
	for _, s := range configuration {
		members[s.Replica] = s.Voter
	}
	d := quorumCheck{record, configuration, self, there}
	for _, r := range record.GetReplicas() {
		if votes, member := members[r.GetId()]; r.GetLost() && member && (!votes || d.leavesMajority(r.GetId())) {
			return removal(StepRemove, r.GetId(), self, r.GetNode(), "its disk is lost")
		}
	}
	known := make(map[uint64]bool)
	waits := Step{}
	for _, r := range record.GetReplicas() {
		known[r.GetId()] = true
		votes, member := members[r.GetId()]
		switch {
		case r.GetLeaving():
		case !member && there(r.GetNode(), r.GetId()):
			return Step{StepAdd, r.GetId(), r.GetNode(), "it is to hold a replica"}
		case !member && r.GetNonvoter():
		case !member:
			waits = Step{StepWait, r.GetId(), r.GetNode(), "its node has not made it yet"}
		case !votes && !r.GetNonvoter() && caughtUp(r.GetId()) && there(r.GetNode(), r.GetId()):
			return Step{StepPromote, r.GetId(), r.GetNode(), "it has the whole log"}
		case !votes && !r.GetNonvoter():
			waits = Step{StepWait, r.GetId(), r.GetNode(), "it does not have the whole log yet, or does not answer"}
		}
	}
	if waits.Action != StepNone {
		return waits
	}
	settled, withheld := true, Step{}
	for _, r := range record.GetReplicas() {
		votes, member := members[r.GetId()]
		switch {
		case votes && (r.GetLeaving() || r.GetNonvoter()) && !d.leavesMajority(r.GetId()):
			withheld = Step{StepWait, r.GetId(), r.GetNode(), "those that would go on voting have no majority that answers"}
		case r.GetLeaving() && member:
			return removal(StepRemove, r.GetId(), self, r.GetNode(), "the others hold the shard")
		case !r.GetLeaving() && votes && r.GetNonvoter():
			return removal(StepDemote, r.GetId(), self, r.GetNode(), "others vote")
		}
		settled = settled && !r.GetLeaving() && (!r.GetJoining() || !member)
	}
	for _, s := range configuration {
		switch {
		case known[s.Replica]:
		case s.Voter && !d.leavesMajority(s.Replica):
			withheld = Step{StepWait, s.Replica, "", "those that would go on voting have no majority that answers"}
		default:
			return removal(StepRemove, s.Replica, self, "", "the table does not have it")
		}
	}
	switch {
	case withheld.Action != StepNone:
		return withheld
	case settled:
		return Step{}
	}
	return Step{Action: StepSettle, Why: fmt.Sprintf("its %d members are as the table wants them", len(configuration))}
}

// quorumCheck checks whether a group keeps a majority when a replica loses its vote.
type quorumCheck struct {
	record        *ebbv1.ShardRecord
	configuration []Server
	self          uint64
	there         func(node string, replica uint64) bool
}

// leavesMajority reports whether most of the voters other than one are there. A voter that the record lacks, or whose
// disk is lost, does not count as there.
func (d *quorumCheck) leavesMajority(one uint64) bool {
	voters, here := 0, 0
	for _, s := range d.configuration {
		if !s.Voter || s.Replica == one {
			continue
		}
		voters++
		if s.Replica == d.self {
			here++
			continue
		}
		at := slices.IndexFunc(d.record.GetReplicas(), func(r *ebbv1.ReplicaRecord) bool { return r.GetId() == s.Replica && !r.GetLost() })
		if at >= 0 && d.there(d.record.Replicas[at].GetNode(), s.Replica) {
			here++
		}
	}
	return 2*here > voters
}

// removal returns the step that ends a replica's membership or vote. If the replica leads, it first transfers
// leadership.
func removal(action Action, replica, self uint64, node, why string) Step {
	if replica == self {
		return Step{StepTransferLeadership, replica, node, why}
	}
	return Step{action, replica, node, why}
}
