package sketch

import "fmt"

// SetsOverlap describes how several sets overlap. For decayed sets, the weight of a thing in the union is its largest
// weight in any set, and in the intersection its least. In the difference it is the excess of its weight in the first
// set over all others.
type SetsOverlap struct {
	Union, Intersection SetEstimate
	// Difference is the first set without all others.
	Difference SetEstimate
	// Jaccard is Intersection / Union; for decayed sets, the weighted similarity. When all sets are empty it is 0 with
	// a standard error of 0. When the sample holds nothing of the union, it is 0 with a standard error of 1: it may be
	// any value.
	Jaccard SetEstimate
}

// walk goes over several ascending lists of hashes at once. A step takes time proportional to the number of lists with
// its hash, times the logarithm of the number of lists.
type walk struct {
	lists [][]uint64
	heads []int // the next position in each list
	in    []int // the position of the present hash in each list, -1 where it is absent
	have  []int // the lists that have it, in ascending order
	queue []int // a heap of the unfinished lists, by their next hash and then by their number
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

// next moves to the least remaining hash; false if there is none.
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

// Overlap estimates how sets overlap. It uses the hashes below the least theta of all sets. These are a uniform sample
// of their union, of at least the least k and at most SetSampleMax things. Standard errors are sampling errors; up to k
// things in each set, the result is exact. Overlap returns ErrIncompatible for different hashes or signatures. It does
// not write, and takes time proportional to the number of hashes.
func Overlap(sets []*Set) (SetsOverlap, error) { return OverlapOf(sets, leafExprs(len(sets))) }

// leafExprs are the expressions of n plain sets.
func leafExprs(n int) []SetExpr {
	out := make([]SetExpr, n)
	for i := range out {
		out[i] = LeafExpr(i)
	}
	return out
}

// sample is a SetDecayed prepared for comparison: its things with their weights, all relative to one landmark.
type sample struct {
	hashes  []uint64
	ranks   []int64
	times   []Tick
	members []string // when they are kept
	weights []float64
	tau     int64
}

// samplesOf advances copies of the sets to the latest of their times, and returns the count of a stored unit at time
// at.
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

// alignedSamples is samplesOf for compatible sets, at least one.
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

// OverlapDecayed estimates how sets overlap at a time, from the things above the largest tau of all. Standard errors
// are those of priority sampling; up to k things in each set, the result is exact. It returns ErrIncompatible for
// different half-lives or hashes. It does not write, and takes time proportional to the number of things.
func OverlapDecayed(sets []*SetDecayed, at Tick) (SetsOverlap, error) {
	return OverlapOfDecayed(sets, leafExprs(len(sets)), at)
}
