package sketch

import (
	"fmt"
	"slices"
	"strings"
)

// SetUnion computes the union of sets for reading. Merge of two sets keeps k hashes, because a set may be merged
// without end. A SetUnion keeps all hashes below the least theta of its sets, up to SetSampleMax. So a union of n sets
// of equal sizes is a sample of up to n k things, and its error is up to sqrt(n) times smaller. It is also the sample
// of Overlap, so that every query gives the same estimate for a union.
//
// The result is a function of the set of sets that were added. The zero value is not ready: use NewSetUnion.
type SetUnion struct {
	names     int // how many of the least hashes have their members
	sets      int
	p         SetParams
	k         int
	theta     uint64
	hashes    []uint64 // in no order, with repetitions; compact removes those from time to time
	named     []namedHash
	signature []uint8
}

type namedHash struct {
	hash   uint64
	member string
}

// NewSetUnion is an empty union that keeps the members of the least n hashes, if the sets have members.
func NewSetUnion(n int) *SetUnion { return &SetUnion{names: max(n, 0)} }

// Add adds all things of a set, which does not change. It returns ErrIncompatible for sets that Merge refuses, and then
// nothing changes.
func (u *SetUnion) Add(s *Set) error {
	if u.sets == 0 {
		u.p, u.k = s.p, s.p.K
	}
	like := Set{p: u.p}
	if err := like.compatible(s); err != nil {
		return err
	}
	if s.p.Members != u.p.Members {
		return fmt.Errorf("set: one keeps members and one does not: %w", ErrIncompatible)
	}
	s = s.settled()
	u.sets++
	u.k = min(u.k, s.p.K)
	u.theta = leastTheta(u.theta, s.theta)
	u.sign(s)
	u.hashes = append(u.hashes, below(s.hashes, u.theta)...)
	for i, m := range s.members[:min(len(s.members), u.names)] {
		u.named = append(u.named, namedHash{s.hashes[i], m})
	}
	if len(u.hashes) > 4*SetSampleMax {
		u.compact()
	}
	if len(u.named) > 4*u.names+64 {
		u.compactNames()
	}
	return nil
}

func (u *SetUnion) sign(s *Set) {
	if u.p.Signature < 0 {
		return
	}
	if u.signature == nil {
		u.signature = s.signed()
		return
	}
	if s.signature == nil {
		c := Set{signature: u.signature}
		for _, h := range s.hashes {
			c.sign(h)
		}
		return
	}
	for i, v := range s.signature {
		u.signature[i] = max(u.signature[i], v)
	}
}

// compact keeps the SetSampleMax least hashes below theta.
func (u *SetUnion) compact() {
	slices.Sort(u.hashes)
	u.hashes = below(slices.Compact(u.hashes), u.theta)
	if len(u.hashes) > SetSampleMax {
		u.theta = u.hashes[SetSampleMax]
		u.hashes = u.hashes[:SetSampleMax]
	}
}

// compactNames keeps the members of the least hashes. Of two members with one hash, it keeps the lesser that is not
// empty.
func (u *SetUnion) compactNames() {
	slices.SortFunc(u.named, func(a, b namedHash) int {
		switch {
		case a.hash != b.hash:
			return compareHashes(a.hash, b.hash)
		case (a.member == "") != (b.member == ""):
			return len(b.member) - len(a.member)
		}
		return strings.Compare(a.member, b.member)
	})
	u.named = slices.CompactFunc(u.named, func(a, b namedHash) bool { return a.hash == b.hash })
	u.named = u.named[:min(len(u.named), u.names)]
}

func compareHashes(a, b uint64) int {
	if a < b {
		return -1
	}
	return 1
}

// Set is the union as a set. It shares memory with the union. Its K is the least that has room for its hashes. If sets
// have members, the members that are not kept are empty.
func (u *SetUnion) Set() Set {
	u.compact()
	u.compactNames()
	s := Set{p: u.p, hashes: u.hashes, theta: u.theta}
	s.p.K = max(u.k, len(u.hashes))
	if u.theta != 0 {
		s.signature, s.p.K = u.signature, len(u.hashes)
	}
	if u.p.Members {
		s.members = make([]string, len(u.hashes))
		for i := range u.named {
			if i < len(u.hashes) && u.hashes[i] == u.named[i].hash {
				s.members[i] = u.named[i].member
			}
		}
		s.named = bytesIn(s.members)
	}
	return s
}

// Held is about how many bytes of memory the union takes, including the set made of it.
func (u *SetUnion) Held() int {
	n := 2*8*len(u.hashes) + 24*len(u.named) + len(u.signature)
	for i := range u.named {
		n += len(u.named[i].member)
	}
	if u.p.Members {
		n += 16 * min(len(u.hashes), SetSampleMax)
	}
	return n
}

// SetDecayedUnion computes the union of decayed sets for reading, as SetUnion does for sets. It keeps all things above
// the largest tau, up to the SetSampleMax things of the highest ranks. Sets that were added must not change until Set.
// The zero value is not ready: use NewSetDecayedUnion.
type SetDecayedUnion struct {
	names  int
	sets   []*SetDecayed // compact unites them from time to time
	things int           // of all sets
}

// NewSetDecayedUnion is an empty union that keeps the members of the n things of the highest ranks, if the sets have
// members.
func NewSetDecayedUnion(n int) *SetDecayedUnion { return &SetDecayedUnion{names: max(n, 0)} }

// Add adds all things of a set. It returns ErrIncompatible for sets that Merge refuses, and then nothing changes.
func (u *SetDecayedUnion) Add(s *SetDecayed) error {
	if len(u.sets) > 0 {
		if err := u.sets[0].compatible(s); err != nil {
			return err
		}
		if u.sets[0].p.Members != s.p.Members {
			return fmt.Errorf("%w: set: one keeps members and one does not", ErrIncompatible)
		}
	}
	u.sets = append(u.sets, s)
	if u.things += len(s.hashes); u.things > 2*SetSampleMax {
		u.compact()
	}
	return nil
}

func (u *SetDecayedUnion) compact() {
	if len(u.sets) > 1 {
		one := unite(u.sets, u.names)
		u.sets, u.things = append(u.sets[:0], &one), len(one.hashes)
	}
}

// Set is the union as a set, for reading. Without any added set it returns a zero SetDecayed, which is not ready.
func (u *SetDecayedUnion) Set() SetDecayed {
	if u.compact(); len(u.sets) == 0 {
		return SetDecayed{}
	}
	return *u.sets[0]
}

// Held is about how many bytes of memory making the set takes at most, including the set.
func (u *SetDecayedUnion) Held() int {
	const (
		thing  = 24 + 40 // stored, and during comparison
		member = 2 * 16
	)
	n := thing * u.things
	for _, s := range u.sets {
		n += 200 + member*len(s.members) // the bytes of members are shared
	}
	return n
}

// UniteDecayed is the union of decayed sets, with the members of the n things of the highest ranks, as SetDecayedUnion
// makes it. It returns ErrIncompatible for sets that Merge refuses.
func UniteDecayed(sets []*SetDecayed, n int) (SetDecayed, error) {
	u := NewSetDecayedUnion(n)
	for i, s := range sets {
		if err := u.Add(s); err != nil {
			return SetDecayed{}, fmt.Errorf("set %d: %w", i, err)
		}
	}
	return u.Set(), nil
}

// unite is the union of compatible sets, at least one. It does not change them.
func unite(sets []*SetDecayed, names int) SetDecayed {
	samples, _ := alignedSamples(sets, 0)
	aligned := *sets[0]
	aligned.hashes, aligned.times, aligned.ranks, aligned.members = nil, nil, nil, nil
	for _, s := range sets[1:] {
		c := *s
		c.hashes, c.times, c.ranks, c.members = nil, nil, nil, nil
		aligned.alignWith(&c)
		aligned.p.K = min(aligned.p.K, s.p.K)
		aligned.loss = aligned.loss.plus(s.loss, aligned.halfLife)
	}
	out := SetDecayed{
		p: aligned.p, fade: aligned.fade, latest: aligned.latest, tau: sampleTau(samples),
		loss: aligned.loss, least: -1,
	}
	out.fill(samples)
	out.p.K = max(out.p.K, len(out.hashes))
	out.keepNames(names)
	return out
}

// fill adds the things above tau, each with the latest time at which it was seen.
func (s *SetDecayed) fill(samples []sample) {
	lists := make([][]uint64, len(samples))
	for i := range samples {
		lists[i] = samples[i].hashes
	}
	s.oldest = s.latest
	for w := newWalk(lists); w.next(); {
		rank, t, member := int64(noRank), Tick(0), ""
		for _, i := range w.have {
			at := w.in[i]
			rank, t = max(rank, samples[i].ranks[at]), max(t, samples[i].times[at])
			if s.p.Members {
				member = lesserName(member, samples[i].members[at])
			}
		}
		if rank <= s.tau {
			continue
		}
		s.hashes, s.times, s.ranks = append(s.hashes, w.hash), append(s.times, t), append(s.ranks, rank)
		if s.p.Members {
			s.members = append(s.members, member)
		}
		s.oldest = min(s.oldest, t)
	}
}

// lesserName is the lesser of two names, ignoring empty ones.
func lesserName(a, b string) string {
	if a == "" || b != "" && b < a {
		return b
	}
	return a
}

// keepNames keeps only the members of the n things of the highest ranks.
func (s *SetDecayed) keepNames(n int) {
	if s.p.Members && len(s.members) > n {
		for _, i := range s.byPriority()[n:] {
			s.members[i] = ""
		}
	}
	s.named = bytesIn(s.members)
}
