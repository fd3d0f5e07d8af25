package shard

import (
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// A union of sets is not a merge of them: it keeps all that their samples know. So a question about a union and a
// question about an overlap have the same answer (see sketch.SetUnion). For other kinds a union is a merge.

// addSet adds a set, and says whether the union is one of sets.
func (u *summaryMerger) addSet(b body) (sets bool, err error) {
	switch first := u.body.(type) {
	case *set:
		s, same := b.(*set)
		if !same {
			return true, errOtherForm
		}
		if u.sets == nil {
			u.sets = sketch.NewSetUnion(namesAtLeast(u.names, first))
			if err := u.sets.Add(&first.Set); err != nil {
				return true, err
			}
		}
		return true, u.sets.Add(&s.Set)
	case *setDecayed:
		if u.merges {
			return false, nil
		}
		s, same := b.(*setDecayed)
		if !same {
			return true, errOtherForm
		}
		if u.decayed == nil {
			u.decayed = sketch.NewSetDecayedUnion(max(u.names, sketch.SetKDefault))
			if err := u.decayed.Add(&first.SetDecayed); err != nil {
				return true, err
			}
		}
		return true, u.decayed.Add(&s.SetDecayed)
	}
	return false, nil
}

// merged returns the union of all that was added.
func (u *summaryMerger) merged() body {
	switch {
	case u.sets != nil:
		return &set{u.sets.Set()}
	case u.decayed != nil:
		return &setDecayed{u.decayed.Set()}
	}
	return u.body
}

// held bounds the memory of the union.
func (u *summaryMerger) held() int {
	switch {
	case u.sets != nil:
		return u.sets.Held()
	case u.decayed != nil:
		return u.decayed.Held()
	case u.body != nil:
		return mergedBytes(u.body)
	}
	return 0
}

// heldWith is held with one more body.
func (u *summaryMerger) heldWith(b body) int {
	if u.body == nil || b == nil {
		return u.held()
	}
	return u.held() + mergedBytes(b)
}

// namesAtLeast is for how many hashes a union with a set keeps the members, where names are asked for. A part of an
// answer has no room for all members of a large set.
func namesAtLeast(names int, s *set) int {
	return max(names, min(s.Params().K, proto.SetMembersEbbing))
}

// namesOf is how many members of sets a question asks for.
func namesOf(q *ebbv1.SummaryQuestion) int {
	if !q.GetMembers() {
		return 0
	}
	return limitOf(q)
}
