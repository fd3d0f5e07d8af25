package shard

import (
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// A union of sets is not a merge of them: it keeps all that their samples know, so that a question about a union and one about an overlap
// have one answer (see sketch.SetUnion). To other kinds a union is a merge.

// unite adds a set, and says whether what there is is one.
func (u *union) unite(b body) (sets bool, err error) {
	switch first := u.body.(type) {
	case *set:
		s, same := b.(*set)
		if !same {
			return true, errOtherForm
		}
		if u.sets == nil {
			u.sets = sketch.NewSetUnion(max(u.names, first.Params().K))
			if err := u.sets.Add(&first.Set); err != nil {
				return true, err
			}
		}
		return true, u.sets.Add(&s.Set)
	case *setDecayed:
		s, same := b.(*setDecayed)
		if !same {
			return true, errOtherForm
		}
		all, err := sketch.UniteDecayed([]*sketch.SetDecayed{&first.SetDecayed, &s.SetDecayed}, max(u.names, sketch.SetKDefault))
		if err == nil {
			u.body, u.owned = &setDecayed{all}, true
		}
		return true, err
	}
	return false, nil
}

// whole is all that was added.
func (u *union) whole() body {
	if u.sets == nil {
		return u.body
	}
	return &set{u.sets.Set()}
}

// held bounds what the union takes in memory.
func (u *union) held() int {
	if u.sets != nil {
		return u.sets.Held()
	}
	return mergedBytes(u.body)
}

// namesOf is how many members of sets a question asks for.
func namesOf(q *ebbv1.SummaryQuestion) int {
	if !q.GetMembers() {
		return 0
	}
	return limitOf(q)
}
