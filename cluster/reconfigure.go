package cluster

import (
	"fmt"
	"slices"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Server is a member of a group as its Raft configuration has it.
type Server struct {
	Replica uint64
	Voter   bool
}

// Action is what a group's leader does next with its configuration.
type Action int

const (
	StepNone               Action = iota
	StepWait                      // a new member does not have the data yet
	StepAdd                       // make the replica a member without a vote
	StepPromote                   // give it a vote
	StepDemote                    // take its vote
	StepRemove                    // end its membership
	StepTransferLeadership        // let another lead, since this one is to go or to lose its vote
	StepSettle                    // tell the control group that the configuration is as the table wants it
)

func (a Action) String() string {
	return [...]string{"nothing", "wait", "add", "promote", "demote", "remove", "hand over", "settle"}[a]
}

// Step is an action, and the replica that it is about.
type Step struct {
	Action  Action
	Replica uint64
	Node    string // "" for a replica that the table does not have
	Why     string
}

// NextStep returns what brings a group's configuration closer to its record in the table. It looks at both afresh each
// time, so any leader continues where another stopped. New replicas are added before old ones go: first without a vote,
// then with one when caughtUp says that they have the whole log. A member that the record does not have is one that was
// dropped from it. A replica is added when there says that its node has made it. It gets its vote only if there still
// says so: the second of two voters is needed for everything, the end of its own membership included. NextStep does not
// wait for a replica that is to have no vote. Otherwise a node that asked to follow the control group and never came
// back would keep all others from joining and leaving.
//
// A vote is taken only if the replicas that keep theirs have a majority that is there. Raft appends the smaller
// configuration at once, and then it could not be committed or undone. A replica whose disk is lost goes first, since
// it only counts against the majority.
//
// record must be newer than configuration: read after it.
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

// quorumCheck is a group in which a replica is to lose its vote.
type quorumCheck struct {
	record        *ebbv1.ShardRecord
	configuration []Server
	self          uint64
	there         func(node string, replica uint64) bool
}

// leavesMajority reports whether most of the voters besides one are there. One that the record does not have is not.
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

// removal is the step that takes membership or vote from a replica. A leader first transfers its leadership.
func removal(action Action, replica, self uint64, node, why string) Step {
	if replica == self {
		return Step{StepTransferLeadership, replica, node, why}
	}
	return Step{action, replica, node, why}
}
