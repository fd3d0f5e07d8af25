package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// ShardCheck is the result of comparing a shard's replicas.
type ShardCheck struct {
	Shard    uint32
	Index    uint64            // entry of the log after which they were compared
	Replicas map[string]uint64 // node -> checksum
	// Equal means that the shard has a leader, and that all replicas of the table were compared and are the same. If
	// the shard is to have more than one replica, more than one was compared.
	Equal bool
	// Missing names nodes whose replicas could not be compared: they do not answer, or lag.
	Missing []string
	// Silent names those of Missing that do not answer, or do not run their replica.
	Silent []string
	// Leader is the node that leads the shard; "" if none of the nodes that answer does.
	Leader string
	// Wanted is how many replicas the shard is to have.
	Wanted int
}

const (
	// checkRounds is how often Verify tries to compare all replicas of a shard at one entry. checkMargin is how many
	// entries ahead of the newest the second try goes; each further try goes four times as many.
	checkRounds = 5
	checkMargin = 16
	// absentMax is for how long Verify asks again for replicas that do not answer and for leaders that are missing,
	// counted from when it first missed them in a shard. absentEvery is how often it asks. The time is long enough for
	// an election.
	absentMax   = 10 * time.Second
	absentEvery = 500 * time.Millisecond
)

// Verify compares the replicas of each shard: their checksums after one and the same entry of the shard's log. If a
// shard is written to at that time, Verify compares it at a later entry. It waits a while for a shard that has no
// leader, or has a replica that does not answer. After every round it calls each, which may be nil, with the shards
// that are left. A shard that could not be compared when ctx ends, or after some rounds, is no error of Verify. The
// check of that shard has the error (see Err).
func (c *Client) Verify(ctx context.Context, each func(left []ShardCheck)) ([]ShardCheck, error) {
	ctx, cancel := withDefaultTimeout(ctx, c.cfg.timeout)
	defer cancel()
	table, err := c.Table(ctx)
	if err != nil {
		return nil, err
	}
	checks := make([]ShardCheck, table.GetShards())
	ask := &ebbv1.StatusRequest{}
	for i := range checks {
		checks[i] = ShardCheck{Shard: uint32(i + 1), Wanted: int(table.GetReplication())}
		ask.Checksums = append(ask.Checksums, &ebbv1.ChecksumRequest{Shard: uint32(i + 1)})
	}
	margin, tries, missed := uint64(checkMargin), make(map[uint32]int), make(map[uint32]time.Time)
	for round := 1; len(ask.Checksums) > 0; round++ {
		asked := c.now()
		status, err := c.status(ctx, ask)
		if err == nil {
			table, err = c.Table(ctx) // replicas may have moved
		}
		switch {
		case err != nil && round > 1 && ctx.Err() != nil:
			return checks, nil // as far as it came
		case err != nil:
			return nil, err
		}
		again, pause := &ebbv1.StatusRequest{}, true
		var left []ShardCheck
		last, now := newestEntries(status), c.now()
		for _, a := range ask.Checksums {
			check := compareReplicas(table, a.GetShard(), status)
			checks[a.GetShard()-1] = check
			next := &ebbv1.ChecksumRequest{Shard: a.GetShard()}
			switch {
			case check.Equal || check.diverged():
				continue
			case check.onlyAtOtherEntries() && tries[a.GetShard()] < checkRounds:
				delete(missed, a.GetShard()) // it is led
				tries[a.GetShard()]++
				next.At, pause = last[a.GetShard()]+margin, false
			case check.onlyAtOtherEntries():
				continue
			case missed[a.GetShard()].IsZero():
				missed[a.GetShard()] = now // however long the answer took: it was true for a moment
			case asked.Sub(missed[a.GetShard()]) >= absentMax: // leaders are as of the question
				continue
			}
			again.Checksums, left = append(again.Checksums, next), append(left, check)
		}
		if ask = again; !pause {
			margin *= 4
		}
		if each != nil {
			each(left)
		}
		if pause && len(left) > 0 && c.sleep(ctx, absentEvery) != nil {
			return checks, nil
		}
	}
	return checks, nil
}

// diverged reports whether two replicas differ after the same entry.
func (s *ShardCheck) diverged() bool {
	var first *uint64
	for _, sum := range s.Replicas {
		if first == nil {
			first = &sum
		} else if *first != sum {
			return true
		}
	}
	return false
}

// onlyAtOtherEntries reports whether the replicas could not be compared only because they were not at the same entry.
func (s *ShardCheck) onlyAtOtherEntries() bool {
	return s.Leader != "" && len(s.Silent) == 0 && len(s.Missing) > 0
}

// newestEntries returns the newest entry of each shard's log that any node has.
func newestEntries(status *ebbv1.StatusResponse) map[uint32]uint64 {
	newest := make(map[uint32]uint64)
	for _, n := range status.GetNodes() {
		for _, r := range n.GetReplicas() {
			newest[r.GetShard()] = max(newest[r.GetShard()], r.GetLastIndex())
		}
	}
	return newest
}

// compareReplicas compares those replicas of a shard that were caught at the newest entry of any. Those on their way,
// to a node or away from it, do not count.
func compareReplicas(table *ebbv1.Table, shard uint32, status *ebbv1.StatusResponse) ShardCheck {
	check := ShardCheck{Shard: shard, Replicas: make(map[string]uint64), Wanted: int(table.GetReplication())}
	found, term := make(map[string]*ebbv1.ReplicaStatus), uint64(0)
	for _, n := range status.GetNodes() {
		for _, r := range n.GetReplicas() {
			if r.GetShard() != shard {
				continue
			}
			found[n.GetNode().GetName()] = r
			check.Index = max(check.Index, r.GetChecksumIndex())
			if r.GetRole() == "leader" && r.GetTerm() >= term {
				check.Leader, term = n.GetNode().GetName(), r.GetTerm()
			}
		}
	}
	for _, r := range table.GetPlacement()[shard].GetReplicas() {
		at := found[r.GetNode()]
		if r.GetJoining() || r.GetLeaving() {
			continue
		}
		if at != nil && at.GetReplica() == r.GetId() && at.GetChecksumIndex() > 0 && at.GetChecksumIndex() == check.Index {
			check.Replicas[r.GetNode()] = at.GetChecksum()
			continue
		}
		check.Missing = append(check.Missing, r.GetNode())
		if at == nil || at.GetReplica() != r.GetId() {
			check.Silent = append(check.Silent, r.GetNode())
		}
	}
	slices.Sort(check.Missing)
	slices.Sort(check.Silent)
	check.Equal = check.Leader != "" && len(check.Missing) == 0 && !check.diverged() && len(check.Replicas) >= min(check.Wanted, 2)
	return check
}

// Uncompared returns why the replicas were not compared, "" if they were. Shards with the same reason have the same
// text.
func (s *ShardCheck) Uncompared() string {
	var why []string
	switch {
	case s.Equal || s.diverged():
		return ""
	case s.onlyAtOtherEntries():
		return "written to during the check: not all of its nodes were caught at one entry"
	case s.Leader == "":
		why = append(why, "no leader")
	}
	if len(s.Silent) > 0 {
		why = append(why, "no answer from "+strings.Join(s.Silent, ", "))
	}
	if len(s.Replicas) == 1 && s.Wanted > 1 && len(s.Missing) == len(s.Silent) { // one at another entry is a copy too
		for node := range s.Replicas {
			why = append(why, fmt.Sprintf("one whole copy alone, on %s, where %d are wanted", node, s.Wanted))
		}
	}
	return strings.Join(why, "; ")
}

// Err returns what is wrong with a shard's replicas; nil if they are equal.
func (s *ShardCheck) Err() error {
	switch {
	case s.Equal:
		return nil
	case s.diverged():
		return proto.ErrCorrupt.Errorf("shard %d: its replicas differ after entry %d: %x", s.Shard, s.Index, s.Replicas).WithShard(s.Shard).
			WithHint("keep the data directories of all its nodes, and report it")
	}
	return proto.ErrIncomplete.Errorf("shard %d was not compared: %s", s.Shard, s.Uncompared()).WithShard(s.Shard).WithHint(s.next())
}

// next returns what to do about replicas that were not compared.
func (s *ShardCheck) next() string {
	switch {
	case s.onlyAtOtherEntries():
		return "try again when less is written, or with a longer --timeout"
	case len(s.Silent) > 0:
		return "start " + strings.Join(s.Silent, ", ") + " again, or give up what is gone for good with `ebb cluster remove`; `ebb status` shows who answers"
	case s.Leader == "":
		return "`ebb status --shards` shows which shards have a leader; try again when all have"
	}
	return "`ebb cluster moves` shows the other copies on their way; try again when they are there"
}
