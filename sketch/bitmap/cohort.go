package bitmap

import (
	"math/bits"

	"github.com/ebbdb/ebb/internal/kernel"
)

// Cohorts counts tables of periods, slice by slice. A row is the lows of its period that are in the set within and,
// unless everyone is set, in no earlier period. Each row is counted with each later period:
//
//	row(i)      = period(i) & within - (period(0) | ... | period(i-1))
//	again(i, j) = row(i) & period(j)    j > i
//
// The number of counts is half the square of the number of periods, so each period is first converted to the fastest
// form: a list for few lows, which are looked up, and a block for many. The zero Cohorts is ready. Its memory, up to 8
// KiB a period, is reused for the next slice.
type Cohorts struct {
	periods      []cohortPeriod
	row          kernel.Block
	seen, within kernel.Block
	lows         []uint16
}

// listMax is the most lows that are looked up one by one in a block; more lows are counted as a block.
const listMax = 160

// cohortPeriod is the lows of a period: a list of few, or a block. It has neither if the period has no lows.
type cohortPeriod struct {
	few   []uint16
	block *kernel.Block // own, or the block of a dense container
	own   *kernel.Block
}

func (p *cohortPeriod) set(c Container) {
	p.few, p.block = p.few[:0], nil
	switch {
	case c.Form == Dense:
		p.block = c.block()
	case c.Count <= listMax:
		c.Each(0, func(low uint16) bool {
			p.few = append(p.few, low)
			return true
		})
	default:
		if p.own == nil {
			p.own = new(kernel.Block)
		}
		Expand(p.own, c)
		p.block = p.own
	}
}

// Count adds a slice: it adds to counts[i] the lows of row i, and to again[i][j] how many of them are in period i+1+j.
func (t *Cohorts) Count(periods []Container, within Container, everyone bool, counts []uint64, again [][]uint64) {
	for len(t.periods) < len(periods) {
		t.periods = append(t.periods, cohortPeriod{})
	}
	for i, c := range periods {
		t.periods[i].set(c)
	}
	if !within.Full() {
		Expand(&t.within, within)
	}
	clear(t.seen[:])
	for i := range periods {
		p := &t.periods[i]
		switch {
		case p.block != nil:
			counts[i] += t.countBlock(p, within.Full(), everyone, t.periods[i+1:len(periods)], again[i])
		case len(p.few) > 0:
			counts[i] += t.countFew(p, within.Full(), everyone, t.periods[i+1:len(periods)], again[i])
		}
	}
}

// countBlock makes a row from a block, and counts it.
func (t *Cohorts) countBlock(p *cohortPeriod, all, everyone bool, later []cohortPeriod, again []uint64) uint64 {
	row := p.block
	if !all || !everyone {
		t.row = *p.block
		row = &t.row
	}
	if !all {
		kernel.And(row, []*kernel.Block{&t.within})
	}
	if !everyone {
		kernel.AndNot(row, []*kernel.Block{&t.seen})
		kernel.Or(&t.seen, []*kernel.Block{p.block})
	}
	n := kernel.Count(row[:])
	if n <= listMax {
		t.lows = t.lows[:0]
		for i, w := range row {
			for ; w != 0; w &= w - 1 {
				t.lows = append(t.lows, uint16(i<<6+bits.TrailingZeros64(w)))
			}
		}
		countLows(t.lows, later, again)
		return uint64(n)
	}
	for j := range later {
		if b := later[j].block; b != nil {
			again[j] += uint64(kernel.AndCount(row, b))
		} else {
			again[j] += lowsIn(later[j].few, row)
		}
	}
	return uint64(n)
}

// countFew makes a row from few lows, and counts it.
func (t *Cohorts) countFew(p *cohortPeriod, all, everyone bool, later []cohortPeriod, again []uint64) uint64 {
	t.lows = t.lows[:0]
	for _, low := range p.few {
		word, bit := low>>6, uint64(1)<<(low&63)
		if (all || t.within[word]&bit != 0) && (everyone || t.seen[word]&bit == 0) {
			t.lows = append(t.lows, low)
		}
		t.seen[word] |= bit
	}
	countLows(t.lows, later, again)
	return uint64(len(t.lows))
}

// countLows counts a row that is a list with all later periods.
func countLows(lows []uint16, later []cohortPeriod, again []uint64) {
	if len(lows) == 0 {
		return
	}
	for j := range later {
		if b := later[j].block; b != nil {
			again[j] += lowsIn(lows, b)
		} else {
			again[j] += lowsOfBoth(lows, later[j].few)
		}
	}
}

// lowsIn is the number of lows of a list that are in a block.
func lowsIn(lows []uint16, block *kernel.Block) (n uint64) {
	for _, low := range lows {
		n += block[low>>6] >> (low & 63) & 1
	}
	return n
}

// lowsOfBoth is the number of lows that two lists have in common.
func lowsOfBoth(a, b []uint16) (n uint64) {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i] < b[j]:
			i++
		case a[i] > b[j]:
			j++
		default:
			n, i, j = n+1, i+1, j+1
		}
	}
	return n
}
