package sketch

import "math"

// selection keeps the n first of the bins that it is offered, as a heap whose root is the last of them.
type selection struct {
	bins  []Bin
	n     int
	least float64 // what has a lower count need not be offered
	left  float64 // the largest count that was offered and is not kept
}

// newSelection selects into bins, which is empty and has room for n.
func newSelection(bins []Bin, n int) selection {
	return selection{bins: bins, n: n, least: math.Inf(-1), left: math.Inf(-1)}
}

// before is the order of answers: by count, largest first, then by id.
func before(a, b Bin) bool {
	return a.Count > b.Count || a.Count == b.Count && a.ID < b.ID
}

func compareBins(a, b Bin) int {
	if before(a, b) {
		return -1
	}
	return 1
}

func (s *selection) offer(b Bin) {
	if len(s.bins) < s.n {
		if s.bins = append(s.bins, b); len(s.bins) == s.n {
			makeHeap(s.bins)
			s.least = s.bins[0].Count
		}
		return
	}
	if !before(b, s.bins[0]) {
		s.left = max(s.left, b.Count)
		return
	}
	s.left = max(s.left, s.bins[0].Count)
	s.bins[0] = b
	sink(s.bins, 0)
	s.least = s.bins[0].Count
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

// sortHeap puts the first first.
func sortHeap(h []Bin) {
	for n := len(h) - 1; n > 0; n-- {
		h[0], h[n] = h[n], h[0]
		sink(h[:n], 0)
	}
}
