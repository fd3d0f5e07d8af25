package sketch

import "math"

// selection keeps the first n of the bins offered, in the order of before. A few are kept sorted, many as a heap with
// the last of them at its root.
type selection struct {
	bins  []Bin
	n     int
	least float64 // bins with a lower count need not be offered
	left  float64 // the largest count that was offered and not kept
}

// sortedMax is the most bins that are kept sorted: moving a few bins is faster than the branches of a heap, which
// cannot be predicted.
const sortedMax = 24

// newSelection selects into bins, which must be empty and have room for n.
func newSelection(bins []Bin, n int) selection {
	return selection{bins: bins, n: n, least: math.Inf(-1), left: math.Inf(-1)}
}

// before is the order of answers: by descending count, then by id.
func before(a, b Bin) bool {
	return a.Count > b.Count || a.Count == b.Count && a.ID < b.ID
}

func compareBins(a, b Bin) int {
	if before(a, b) {
		return -1
	}
	return 1
}

// last is the last of the bins of a full selection.
func (s *selection) last() Bin {
	if s.n <= sortedMax {
		return s.bins[s.n-1]
	}
	return s.bins[0]
}

// sorted are the bins kept, in order. It ends the selection.
func (s *selection) sorted() []Bin {
	if s.n > sortedMax {
		if len(s.bins) < s.n {
			makeHeap(s.bins)
		}
		sortHeap(s.bins)
	}
	return s.bins
}

// offer offers a bin whose count is not below least.
func (s *selection) offer(b Bin) {
	if s.n <= sortedMax {
		s.insert(b)
		return
	}
	if len(s.bins) < s.n {
		if s.bins = append(s.bins, b); len(s.bins) == s.n {
			makeHeap(s.bins)
			s.least = s.bins[0].Count
		}
		return
	}
	if !before(b, s.bins[0]) {
		s.left = b.Count // it equals least, and no bin left out before counts more
		return
	}
	s.left = s.bins[0].Count
	s.bins[0] = b
	sink(s.bins, 0)
	s.least = s.bins[0].Count
}

// insert is offer for a selection that is kept sorted.
func (s *selection) insert(b Bin) {
	i := len(s.bins)
	if i < s.n {
		s.bins = append(s.bins, b)
	} else {
		i--
		if !before(b, s.bins[i]) {
			s.left = b.Count
			return
		}
		s.left = s.bins[i].Count
	}
	bins := s.bins
	for i > 0 && before(b, bins[i-1]) {
		bins[i] = bins[i-1]
		i--
	}
	bins[i] = b
	if len(bins) == s.n {
		s.least = bins[len(bins)-1].Count
	}
}

func makeHeap(h []Bin) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		sink(h, i)
	}
}

// sink restores the heap below i.
func sink(h []Bin, i int) {
	b := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && before(h[child], h[child+1]) {
			child++
		}
		if !before(b, h[child]) {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = b
}

// sortHeap sorts a heap in the order of before.
func sortHeap(h []Bin) {
	for n := len(h) - 1; n > 0; n-- {
		h[0], h[n] = h[n], h[0]
		sink(h[:n], 0)
	}
}
