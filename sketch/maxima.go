package sketch

import "math"

// A distribution with room for many bins stores, after its slots, one word for each 64 bins: the largest stored value
// among them. So Top reads only the blocks that may have a bin of the answer. Like the slots, the maxima are derived
// and not serialised. A write raises a maximum in constant time. When a value gets smaller, its maximum stays, so each
// maximum is an upper bound. Decay does not change the order of stored values.

// maximaMin is the largest room without maxima.
const maximaMin = 1024

func maximaWords(room int) int {
	if room <= maximaMin {
		return 0
	}
	return (room + block - 1) / block
}

// maxima are the maxima of the stored bins. room must be above maximaMin.
func (d *Distribution) maxima() []uint64 {
	room := int(d.room)
	at := idWords(room) + valueWords(d.form(), room) + slotWords(room)
	return d.words[at : at+(d.Len()+block-1)/block]
}

// raise must follow setRaw where a value may have become larger.
func (d *Distribution) raise(i int, v uint64) {
	if d.room > maximaMin {
		d.raiseMaximum(i, v)
	}
}

func (d *Distribution) raiseMaximum(i int, v uint64) {
	m := &d.maxima()[i/block]
	if i == d.Len()-1 && i%block == 0 || d.less(*m, v) {
		*m = v // the first bin of a block is its only one
	}
}

// less compares stored values.
func (d *Distribution) less(a, b uint64) bool {
	if d.form() == wide {
		return math.Float64frombits(a) < math.Float64frombits(b)
	}
	return a < b // compact values sort like integers, and levels are not negative
}

// remax derives the maxima from the values.
func (d *Distribution) remax() {
	if d.room <= maximaMin {
		return
	}
	maxima := d.maxima()
	for i := range d.Len() {
		v := d.raw(i)
		if i%block == 0 || d.less(maxima[i/block], v) {
			maxima[i/block] = v
		}
	}
}

// bounds computes an upper bound of the counts in each block from i on.
func (r *Reading) bounds(maxima []uint64, buf *[block]float64) []float64 {
	out := buf[:min(len(maxima), block)]
	maxima = maxima[:len(out)]
	switch r.d.form() {
	case wide:
		for j, m := range maxima {
			out[j] = float64(math.Float64frombits(m) * r.scale)
		}
	case compact:
		for j, m := range maxima {
			out[j] = float64(expand(uint32(m)) * r.scale)
		}
	case micro:
		for j, m := range maxima {
			out[j] = float64(int64(m)-r.leaked) / microPerCount
		}
	}
	if !r.plain {
		for j, c := range out {
			out[j] = max(c, 0) // what an invisible bin is lifted from
		}
		r.lift(out)
	}
	return out
}

// selectBlocks offers the bins of all blocks that may have a bin of the answer. It begins with the n blocks with the
// largest maxima, since each should have one. Then come the other blocks whose bounds are not below the selection.
func (r *Reading) selectBlocks(s *selection) {
	maxima := r.d.maxima()
	n := min(s.n, len(maxima))
	first := newSelection(make([]Bin, 0, n), n) // an ID is the number of a block
	r.eachBlock(&first.least, first.offer)
	for _, b := range first.bins {
		r.offerBlock(int(b.ID)*block, s)
	}
	last := first.last()
	if n == len(maxima) || s.least >= last.Count && s.least > first.left {
		return
	}
	r.eachBlock(&s.least, func(b Bin) {
		if before(last, b) {
			r.offerBlock(int(b.ID)*block, s)
		}
	})
}

// eachBlock calls f with the number and the bound of each block whose bound is not below least; f may raise least.
func (r *Reading) eachBlock(least *float64, f func(Bin)) {
	var buf [block]float64
	maxima := r.d.maxima()
	for i := 0; i < len(maxima); i += block {
		for j, c := range r.bounds(maxima[i:], &buf) {
			if c < *least {
				continue
			}
			if c != c { // 0 times infinity: in a distribution with invented values
				c = math.Inf(1)
			}
			f(Bin{ID: uint32(i + j), Count: c})
		}
	}
}

// offerBlock offers the bins of the block that begins at i.
func (r *Reading) offerBlock(i int, s *selection) {
	if r.plain && r.d.form() == wide {
		r.offerWide(i, s)
		return
	}
	var buf [block]float64
	for j, c := range r.counts(i, &buf) {
		if c >= s.least {
			s.offer(Bin{ID: r.d.id(i + j), Count: c})
		}
	}
}

// offerWide is offerBlock for the most usual form, without a buffer.
func (r *Reading) offerWide(i int, s *selection) {
	values := r.d.values()
	scale, cut, least := r.scale, r.cut, s.least
	for j, b := range values[i:min(i+block, len(values))] {
		v := math.Float64frombits(b)
		if c := float64(v * scale); c >= least && !(math.Abs(v) < cut) {
			s.offer(Bin{ID: r.d.id(i + j), Count: c})
			least = s.least
		}
	}
}

// eachFrom calls f with all bins that count at least least, and perhaps with others.
func (r *Reading) eachFrom(least float64, f func(Bin)) {
	if r.d.room <= maximaMin {
		r.each(f)
		return
	}
	r.eachBlock(&least, func(b Bin) { r.eachOf(int(b.ID)*block, f) })
}
