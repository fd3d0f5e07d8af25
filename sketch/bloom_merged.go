package sketch

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// A BloomScalable that was merged has more than its own generations:
//
//	own    generations of its parameters: generation i is the OR of all i-th generations of these parameters
//	sides  generations of filters of other capacities or rates, by (capacity, rate); Add leaves them as they are
//	shared the most keys that may stand in two generations and are counted twice
//
// A key is found if any generation has it, so no key is missed. An OR of two full generations finds more keys that were
// never added, and so do more generations. State reports the resulting rate, from the bits that are set, and Over says
// that it is above the requested rate. A union of n full filters of generation 0 has at most about n times the rate
// when their generations are kept separately. After an OR the rate is higher: two filters at 1% give 8%.

// Merge makes the receiver the union with o; o does not change. Filters of equal parameters are merged generation by
// generation; other filters are kept as sides. Merge returns ErrIncompatible if the hashes differ, if all generations
// would take more than BloomBytesMax, or if there would be more than 255 sides; then nothing has changed. It is
// idempotent, and the order of merges does not change the answers of Has and State. The parameters of s are kept.
func (s *BloomScalable) Merge(o *BloomScalable) error {
	if s.params.Hash != o.params.Hash {
		return fmt.Errorf("%w: scalable bloom of hash %+v and of %+v", ErrIncompatible, s.params.Hash, o.params.Hash)
	}
	if n := s.mergedBytes(o); n > BloomBytesMax {
		return fmt.Errorf("%w: scalable bloom: all generations take %d bytes, more than %d", ErrIncompatible, n,
			BloomBytesMax)
	}
	if n := s.mergedSides(o); n > bloomSidesMax {
		return fmt.Errorf("%w: scalable bloom: filters of %d parameters besides its own, more than %d", ErrIncompatible,
			n, bloomSidesMax)
	}
	least := max(s.leastKeys(), o.leastKeys())
	for f := range o.families() {
		if err := s.mergeFamily(f); err != nil {
			return err
		}
	}
	s.shared = 0
	if most := s.mostKeys(); most > least {
		s.shared = most - least
	}
	if s.countsOnce() {
		s.shared = 0
	}
	return nil
}

// families yields the filter and its sides, each with generations of one set of parameters.
func (s *BloomScalable) families() func(func(*BloomScalable) bool) {
	return func(yield func(*BloomScalable) bool) {
		if !yield(s) {
			return
		}
		for i := range s.sides {
			if !yield(&s.sides[i]) {
				return
			}
		}
	}
}

// family is the part of s with these parameters; nil if there is none.
func (s *BloomScalable) family(p BloomParams) *BloomScalable {
	for f := range s.families() {
		if f.params == p {
			return f
		}
	}
	return nil
}

// mergeFamily merges the generations of o, without its sides.
func (s *BloomScalable) mergeFamily(o *BloomScalable) error {
	into := s.family(o.params)
	if into == nil {
		if !o.empty() {
			side := BloomScalable{params: o.params, generations: o.clonedGenerations()}
			at, _ := slices.BinarySearchFunc(s.sides, side, compareSides)
			s.sides = slices.Insert(s.sides, at, side)
		}
		return nil
	}
	for i := range o.generations {
		if i == len(into.generations) {
			into.generations = append(into.generations, o.generations[i].Clone())
			continue
		}
		if err := into.generations[i].Merge(&o.generations[i]); err != nil {
			return err
		}
	}
	return nil
}

func compareSides(a, b BloomScalable) int {
	return cmp.Or(cmp.Compare(a.params.Capacity, b.params.Capacity),
		cmp.Compare(a.params.FalseRate, b.params.FalseRate))
}

// empty says whether no key was added.
func (s *BloomScalable) empty() bool { return len(s.generations) == 1 && s.generations[0].ones == 0 }

// countsOnce says whether no key can be in two generations, because there is only one generation.
func (s *BloomScalable) countsOnce() bool { return len(s.sides) == 0 && len(s.generations) == 1 }

// generationBytes is the memory of the bits of the own generations when dense, without the sides.
func (s *BloomScalable) generationBytes() (n int) {
	for i := range s.generations {
		n += s.generations[i].blocks * (blockBits / 8)
	}
	return n
}

// bitBytes is the memory of the bits of all generations when dense.
func (s *BloomScalable) bitBytes() (n int) {
	for f := range s.families() {
		n += f.generationBytes()
	}
	return n
}

// mergedBytes is bitBytes after a merge.
func (s *BloomScalable) mergedBytes(o *BloomScalable) int {
	n := s.bitBytes()
	for f := range o.families() {
		switch into := s.family(f.params); {
		case into != nil:
			n += max(0, f.generationBytes()-into.generationBytes())
		case !f.empty():
			n += f.generationBytes()
		}
	}
	return n
}

// mergedSides is the number of sides after a merge.
func (s *BloomScalable) mergedSides(o *BloomScalable) int {
	n := len(s.sides)
	for f := range o.families() {
		if s.family(f.params) == nil && !f.empty() {
			n++
		}
	}
	return n
}

// mostKeys is the sum of the estimates of all generations; leastKeys is that sum without keys that may be counted
// twice.
func (s *BloomScalable) mostKeys() uint64 {
	sum := 0.0
	for f := range s.families() {
		for i := range f.generations {
			sum += f.generations[i].State().Keys
		}
	}
	return uint64(min(sum, math.MaxInt64/2))
}

func (s *BloomScalable) leastKeys() uint64 {
	most := s.mostKeys()
	return most - min(s.shared, most)
}

// A merged BloomScalable in bytes: where keys may be counted twice or there are sides.
//
//	kind, version    1 byte each: 'm', 1
//	shared           uvarint
//	filters          uvarint of how many, the first its own; each as a BloomScalable that was not merged

const (
	bloomMergedKind = 'm'
	bloomSidesMax   = 255
)

// Merged says whether keys may be counted twice, or there are sides.
func (s *BloomScalable) Merged() bool { return s.shared > 0 || len(s.sides) > 0 }

func (s *BloomScalable) appendMerged(b []byte) []byte {
	b = binary.AppendUvarint(append(b, bloomMergedKind, codecVersion), s.shared)
	b = binary.AppendUvarint(b, uint64(1+len(s.sides)))
	for f := range s.families() {
		b = f.appendOwn(b)
	}
	return b
}

func (r *reader) mergedBloom() (BloomScalable, bool) {
	r.header(bloomMergedKind)
	shared, filters := r.uvarint(), r.int(1+bloomSidesMax)
	if !r.ok || filters == 0 {
		return BloomScalable{}, false
	}
	s, ok := r.ownBloom()
	for i := 1; ok && i < filters; i++ {
		var side BloomScalable
		side, ok = r.ownBloom()
		known := s.params == side.params || side.params.Hash != s.params.Hash || side.empty()
		if !ok || known || i > 1 && compareSides(s.sides[i-2], side) >= 0 {
			return BloomScalable{}, false
		}
		s.sides = append(s.sides, side)
	}
	s.shared = shared
	once := s.countsOnce() && shared > 0
	return s, ok && !once && s.Merged() && shared <= s.mostKeys() && s.bitBytes() <= BloomBytesMax
}
