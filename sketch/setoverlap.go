package sketch

import (
	"fmt"
	"math"
)

// SetsOverlap is how several sets lie to each other. Of decayed sets a thing weighs in the union what it weighs most in any of them, in the
// intersection what it weighs least, and in the difference what it weighs more in the first than in any other.
type SetsOverlap struct {
	Union, Intersection SetEstimate
	// Difference is the first without all others.
	Difference SetEstimate
	// Jaccard is Intersection / Union, of decayed sets the weighted similarity; 0 when all are empty.
	Jaccard SetEstimate
}

// walk goes over several rising lists of hashes at once.
type walk struct {
	lists [][]uint64
	heads []int // what is next in each
	in    []int // where each has the present hash, -1 where it has not
}

func newWalk(lists [][]uint64) *walk {
	return &walk{lists: lists, heads: make([]int, len(lists)), in: make([]int, len(lists))}
}

// next moves to the least hash that is left, until none is.
func (w *walk) next() bool {
	least, more := uint64(math.MaxUint64), false
	for i, list := range w.lists {
		if at := w.heads[i]; at < len(list) {
			least, more = min(least, list[at]), true
		}
	}
	for i, list := range w.lists {
		w.in[i] = -1
		if at := w.heads[i]; at < len(list) && list[at] == least {
			w.in[i] = at
			w.heads[i]++
		}
	}
	return more
}

// found says how many lists from the i-th on have the present hash.
func (w *walk) found(i int) (n int) {
	for _, at := range w.in[i:] {
		if at >= 0 {
			n++
		}
	}
	return n
}

// Overlap estimates how sets lie to each other from the hashes below the least theta of all, which is a uniform sample of their union of
// at least the least k. Standard errors are those of sampling; up to k things each it is exact. Different hashes or signatures are
// refused with ErrIncompatible. It does not write, and takes time proportional to the number of hashes and of sets.
func Overlap(sets []*Set) (SetsOverlap, error) {
	theta := uint64(0)
	for i, s := range sets {
		if err := sets[0].compatible(s); err != nil {
			return SetsOverlap{}, fmt.Errorf("set %d: %w", i, err)
		}
		theta = leastTheta(theta, s.theta)
	}
	lists := make([][]uint64, len(sets))
	for i, s := range sets {
		lists[i] = below(s.hashes, theta)
	}
	all, both, only := 0, 0, 0
	for w := newWalk(lists); w.next(); all++ {
		switch n := w.found(0); {
		case n == len(sets):
			both++
			if n == 1 {
				only++
			}
		case n == 1 && w.in[0] >= 0:
			only++
		}
	}
	share := shareOf(theta)
	return SetsOverlap{
		Union: estimateOf(all, share), Intersection: estimateOf(both, share), Difference: estimateOf(only, share), Jaccard: jaccardOf(both, all, share),
	}, nil
}

// sample is a SetDecayed as it is compared: its things with their weights, all from one landmark.
type sample struct {
	hashes  []uint64
	ranks   []int64
	weights []float64
	tau     int64
}

// samplesOf brings sets to the latest of their times, and says what a stored unit counts at another.
func samplesOf(sets []*SetDecayed, at Tick) (samples []sample, scale float64, err error) {
	if len(sets) == 0 {
		return nil, 1, nil
	}
	now, mark := Tick(0), int64(0)
	for i, s := range sets {
		if err := sets[0].compatible(s); err != nil {
			return nil, 0, fmt.Errorf("set %d: %w", i, err)
		}
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
		samples[i] = sample{hashes: s.hashes, ranks: s.ranks, tau: s.tau, weights: make([]float64, len(s.times))}
		for j, t := range s.times {
			samples[i].weights[j] = s.weight(t)
		}
	}
	return samples, aligned[0].scale(at), nil
}

// OverlapDecayed estimates how sets lie to each other at a time, from the things above the largest tau of all. Standard errors are those
// of priority sampling; up to k things each it is exact. Different half-lives or hashes are refused with ErrIncompatible. It does not
// write, and takes time proportional to the number of things and of sets.
func OverlapDecayed(sets []*SetDecayed, at Tick) (SetsOverlap, error) {
	samples, scale, err := samplesOf(sets, at)
	if err != nil {
		return SetsOverlap{}, err
	}
	out := overlapOf(samples)
	for _, e := range []*SetEstimate{&out.Union, &out.Intersection, &out.Difference} {
		e.Value, e.StdErr = float64(e.Value*scale), float64(e.StdErr*scale)
	}
	return out, nil
}

// seen is what a thing weighs in the greatest or the least of several sets.
type seen struct {
	weight float64
	rank   int64
}

// most of two: the hash is one, so that the larger weight has the larger rank.
func (a seen) most(b seen) seen {
	return seen{max(a.weight, b.weight), max(a.rank, b.rank)}
}

func (a seen) least(b seen) seen {
	return seen{min(a.weight, b.weight), min(a.rank, b.rank)}
}

// overlapOf reads from the landmark. A thing of weight w above tau stands for max(w, tau), and is above with probability w / that; the
// products of those of several weights of one thing, which are above together, give the covariances.
func overlapOf(samples []sample) SetsOverlap {
	tauRank, lists := int64(noRank), make([][]uint64, len(samples))
	for i := range samples {
		tauRank = max(tauRank, samples[i].tau)
		lists[i] = samples[i].hashes
	}
	tau := weightOf(tauRank)
	var all, both, only, allVariance, bothVariance, onlyVariance, covariance float64
	for w := newWalk(lists); w.next(); {
		whole, part, rest := seen{rank: noRank}, seen{math.Inf(1), math.MaxInt64}, seen{rank: noRank}
		for i, at := range w.in {
			one := seen{rank: noRank}
			if at >= 0 {
				one = seen{samples[i].weights[at], samples[i].ranks[at]}
			}
			whole, part = whole.most(one), part.least(one)
			if i > 0 {
				rest = rest.most(one)
			}
		}
		if whole.rank <= tauRank {
			continue
		}
		stands := max(whole.weight, tau)
		unsure := float64(tau * (stands - whole.weight))
		all += stands
		allVariance += unsure
		if part.rank > tauRank {
			least := max(part.weight, tau)
			both += least
			bothVariance += float64(tau * (least - part.weight))
			covariance += float64(least * (stands - whole.weight))
		}
		only += stands
		onlyVariance += unsure
		if rest.rank > tauRank {
			others := max(rest.weight, tau)
			only -= others
			onlyVariance += float64(tau*(others-rest.weight)) - float64(2*unsure)
		}
	}
	if all == 0 {
		return SetsOverlap{}
	}
	j := both / all // the variance is that of both - j all
	variance := bothVariance - float64(float64(2*j)*covariance) + float64(float64(j*j)*allVariance)
	once := float64(tau * tau) // what was not found is as uncertain as what was found once
	return SetsOverlap{
		Union:        SetEstimate{Value: all, StdErr: math.Sqrt(allVariance)},
		Intersection: SetEstimate{Value: both, StdErr: math.Sqrt(max(bothVariance, once))},
		Difference:   SetEstimate{Value: max(only, 0), StdErr: math.Sqrt(max(onlyVariance, once))},
		Jaccard:      SetEstimate{Value: min(j, 1), StdErr: math.Sqrt(max(variance, once)) / all},
	}
}
