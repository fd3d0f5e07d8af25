package sketch

import "slices"

// A large set stores recent hashes separately. Inserting a hash moves all hashes after it: in a list of 65,536 with
// members some 800 KB, so a set that fills would spend its time on that. So new hashes go into a short list, which is
// merged into the long list when it is full: that moves some 4 KB for each hash.
//
// Late hashes are only a layout in memory. Code that reads the lists must use settled.
const (
	setLateFrom = 2048 // a list of up to this length is cheap to insert into
	setLateMost = 512
	setLateNear = 1024 // the most hashes that an insertion may move in the long list
)

// lateSet is the recent hashes: an ascending list, with the members when they are kept.
type lateSet struct {
	hashes  []uint64
	members []string
}

func (l *lateSet) len() int {
	if l == nil {
		return 0
	}
	return len(l.hashes)
}

// size is its memory in bytes.
func (l *lateSet) size() int {
	if l == nil {
		return 0
	}
	return 48 + 8*cap(l.hashes) + 16*cap(l.members)
}

// clone is a copy that shares no memory with the original.
func (l *lateSet) clone() lateSet {
	return lateSet{hashes: slices.Clone(l.hashes), members: slices.Clone(l.members)}
}

// nameless is the list without members, readable until l changes.
func (l *lateSet) nameless() *lateSet {
	if l == nil {
		return nil
	}
	return &lateSet{hashes: l.hashes}
}

// insert inserts a hash that is in neither list: at i in the long list, or in the late list.
func (s *Set) insert(i int, hash uint64, member string) {
	if s.p.Members {
		s.named += len(member)
	}
	if len(s.hashes)-i <= setLateNear || len(s.hashes) < setLateFrom {
		s.hashes = slices.Insert(roomier(s.hashes, s.p.K), i, hash)
		if s.p.Members {
			s.members = slices.Insert(roomier(s.members, s.p.K), i, member)
		}
		return
	}
	if s.late == nil {
		s.late = new(lateSet)
	}
	l := s.late
	i, _ = slices.BinarySearch(l.hashes, hash)
	l.hashes = slices.Insert(roomier(l.hashes, setLateMost), i, hash)
	if s.p.Members {
		l.members = slices.Insert(roomier(l.members, setLateMost), i, member)
	}
	if len(l.hashes) == setLateMost {
		s.settle()
	}
}

// settle merges the late hashes into the long list.
func (s *Set) settle() {
	n, l := s.late.len(), s.late
	if n == 0 {
		return
	}
	i, j := len(s.hashes)-1, n-1
	s.hashes = grown(s.hashes, n, s.p.K)
	if s.p.Members {
		s.members = grown(s.members, n, s.p.K)
	}
	for at := len(s.hashes) - 1; j >= 0; at-- { // from the end, where there is room
		from, names, k := s.hashes, s.members, &i
		if i < 0 || l.hashes[j] > s.hashes[i] {
			from, names, k = l.hashes, l.members, &j
		}
		s.hashes[at] = from[*k]
		if s.p.Members {
			s.members[at] = names[*k]
		}
		*k--
	}
	l.hashes = l.hashes[:0]
	clear(l.members)
	l.members = l.members[:0]
}

// grown is a list with n more elements. Its capacity grows to at most most elements, or by a quarter.
func grown[T any](v []T, n, most int) []T {
	if len(v)+n > cap(v) {
		v = enlarged(v, max(len(v)+n, min(most, len(v)+len(v)/4)))
	}
	return v[:len(v)+n]
}

// settled is the set without late hashes, readable until s changes. It does not write.
func (s *Set) settled() *Set {
	if s.late.len() == 0 {
		return s
	}
	c := s.Clone()
	return &c
}

// allSettled are the settled sets.
func allSettled(sets []*Set) []*Set {
	out := slices.Clone(sets)
	for i, s := range out {
		out[i] = s.settled()
	}
	return out
}

// largest is the largest hash of a set, which must not be empty, and whether that is a late hash.
func (s *Set) largest() (hash uint64, late bool) {
	if n := s.late.len(); n > 0 && (len(s.hashes) == 0 || s.late.hashes[n-1] > s.hashes[len(s.hashes)-1]) {
		return s.late.hashes[n-1], true
	}
	return s.hashes[len(s.hashes)-1], false
}

// drop removes the last element of a list.
func (s *Set) drop(hashes []uint64, members []string) ([]uint64, []string) {
	last := len(hashes) - 1
	if s.p.Members {
		s.named -= len(members[last])
		members[last] = ""
		members = members[:last]
	}
	return hashes[:last], members
}
