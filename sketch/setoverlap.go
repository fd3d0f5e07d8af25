package sketch

import "fmt"

// SetsOverlap is how several sets lie to each other. Of decayed sets a thing weighs in the union what it weighs most in
// any of them, in the intersection what it weighs least, and in the difference what it weighs more in the first than in
// any other.
type SetsOverlap struct {
	Union, Intersection SetEstimate
	// Difference is the first without all others.
	Difference SetEstimate
	// Jaccard is Intersection / Union, of decayed sets the weighted similarity. It is 0 when all are empty, with a
	// standard error of 0, and 0 with a standard error of 1 when the sample holds nothing of the union: then it may be
	// anything.
	Jaccard SetEstimate
}

// walk goes over several rising lists of hashes at once. A step takes time proportional to the lists that have its
// hash, times the logarithm of how many lists there are.
type walk struct {
	lists [][]uint64
	heads []int // what is next in each
	in    []int // where each has the present hash, -1 where it has not
	have  []int // the lists that have it, in their order
	queue []int // a heap of the lists that go on, by their next hash and then by their number
	hash  uint64
}

func newWalk(lists [][]uint64) *walk {
	w := &walk{lists: lists, heads: make([]int, len(lists)), in: make([]int, len(lists))}
	for i, list := range lists {
		w.in[i] = -1
		if len(list) > 0 {
			w.queue = append(w.queue, i)
		}
	}
	for i := len(w.queue) / 2; i >= 0; i-- {
		w.sink(i)
	}
	return w
}

// next moves to the least hash that is left, until none is.
func (w *walk) next() bool {
	for _, i := range w.have {
		w.in[i] = -1
	}
	w.have = w.have[:0]
	if len(w.queue) == 0 {
		return false
	}
	w.hash = w.ahead(w.queue[0])
	for len(w.queue) > 0 && w.ahead(w.queue[0]) == w.hash {
		i := w.queue[0]
		w.in[i], w.have = w.heads[i], append(w.have, i)
		if w.heads[i]++; w.heads[i] == len(w.lists[i]) {
			last := len(w.queue) - 1
			w.queue[0], w.queue = w.queue[last], w.queue[:last]
		}
		w.sink(0)
	}
	return true
}

// ahead is the next hash of a list.
func (w *walk) ahead(list int) uint64 { return w.lists[list][w.heads[list]] }

// sink moves a list of the heap down to its place.
func (w *walk) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(w.queue); child++ {
			a, b := w.queue[child], w.queue[least]
			if x, y := w.ahead(a), w.ahead(b); x < y || x == y && a < b {
				least = child
			}
		}
		if least == i {
			return
		}
		w.queue[i], w.queue[least] = w.queue[least], w.queue[i]
		i = least
	}
}

// Overlap estimates how sets lie to each other from the hashes below the least theta of all, which is a uniform sample
// of their union of at least the least k and at most SetSampleMax. Standard errors are those of sampling; up to k
// things each it is exact. Different hashes or signatures are refused with ErrIncompatible. It does not write, and
// takes time proportional to the number of hashes.
func Overlap(sets []*Set) (SetsOverlap, error) { return OverlapOf(sets, leafExprs(len(sets))) }

// leafExprs are n sets as they are.
func leafExprs(n int) []SetExpr {
	out := make([]SetExpr, n)
	for i := range out {
		out[i] = LeafExpr(i)
	}
	return out
}

// sample is a SetDecayed as it is compared: its things with their weights, all from one landmark.
type sample struct {
	hashes  []uint64
	ranks   []int64
	times   []Tick
	members []string // when they are kept
	weights []float64
	tau     int64
}

// samplesOf brings sets to the latest of their times, and says what a stored unit counts at another.
func samplesOf(sets []*SetDecayed, at Tick) (samples []sample, scale float64, err error) {
	if len(sets) == 0 {
		return nil, 1, nil
	}
	for i, s := range sets {
		if err := sets[0].compatible(s); err != nil {
			return nil, 0, fmt.Errorf("set %d: %w", i, err)
		}
	}
	samples, scale = alignedSamples(sets, at)
	return samples, scale, nil
}

// alignedSamples is samplesOf for sets that are compatible, one at least.
func alignedSamples(sets []*SetDecayed, at Tick) (samples []sample, scale float64) {
	now, mark := Tick(0), int64(0)
	for _, s := range sets {
		now = max(now, s.latest)
	}
	aligned := make([]SetDecayed, len(sets))
	for i, s := range sets {
		aligned[i] = s.Clone()
		aligned[i].advance(now)
		mark = max(mark, aligned[i].mark)
	}
	samples = make([]sample, len(sets))
	for i := range aligned {
		s := &aligned[i]
		s.rebase(mark)
		samples[i] = sample{
			hashes: s.hashes, ranks: s.ranks, times: s.times, members: s.members, tau: s.tau,
			weights: make([]float64, len(s.times)),
		}
		for j, t := range s.times {
			samples[i].weights[j] = s.weight(t)
		}
	}
	return samples, aligned[0].scale(at)
}

// OverlapDecayed estimates how sets lie to each other at a time, from the things above the largest tau of all. Standard
// errors are those of priority sampling; up to k things each it is exact. Different half-lives or hashes are refused
// with ErrIncompatible. It does not write, and takes time proportional to the number of things.
func OverlapDecayed(sets []*SetDecayed, at Tick) (SetsOverlap, error) {
	return OverlapOfDecayed(sets, leafExprs(len(sets)), at)
}
