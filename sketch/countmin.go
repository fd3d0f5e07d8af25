package sketch

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Limits of a CountMin.
const (
	CountMinCellsMax = 1 << 22
	CountMinDepthMax = 32
)

// CountMinParams decide the shape of a CountMin: a width of ceil(e/Epsilon) cells and a depth of ceil(ln(1/Delta))
// rows.
type CountMinParams struct {
	// Epsilon is the error as a part of Z, the sum of all counts: in (0, 1).
	Epsilon float64
	// Delta is the probability that the error of an estimate is larger: in (0, 1).
	Delta float64
	// HalfLife in microseconds, 0 for none.
	HalfLife Tick
	Hash     Hash
}

// shape is width and depth.
func (p *CountMinParams) shape() (width, depth int, err error) {
	if !(p.Epsilon > 0 && p.Epsilon < 1) {
		return 0, 0, fmt.Errorf("%w: count-min: epsilon %v is not between 0 and 1", ErrParams, p.Epsilon)
	}
	if !(p.Delta >= 0x1p-1000 && p.Delta < 1) {
		return 0, 0, fmt.Errorf("%w: count-min: delta %v is not between 0 and 1", ErrParams, p.Delta)
	}
	w, d := math.Ceil(math.E/p.Epsilon), max(1, math.Ceil(float64(-Log2(p.Delta)*math.Ln2)))
	if d > CountMinDepthMax {
		return 0, 0, fmt.Errorf("%w: count-min: delta %v takes %.0f rows, more than %d", ErrParams, p.Delta, d, CountMinDepthMax)
	}
	if float64(w*d) > CountMinCellsMax {
		return 0, 0, fmt.Errorf("%w: count-min: epsilon %v and delta %v take %.0f cells, more than %d",
			ErrParams, p.Epsilon, p.Delta, float64(w*d), CountMinCellsMax)
	}
	if !p.Hash.known() {
		return 0, 0, fmt.Errorf("%w: count-min: hash id %d is unknown", ErrParams, p.Hash.ID)
	}
	return int(w), int(d), checkHalfLife("count-min", p.HalfLife)
}

// CountMin estimates how often each of any number of items occurred (Cormode, Muthukrishnan 2005), under forward decay.
// A write adds n times the weight of its time to one cell of each row; a read scales the least of these cells. All
// cells share one landmark, so that decay changes no cell.
//
//	truth <= estimate, and estimate <= truth + e/width * Z with probability 1 - Delta
//
// Where an earlier sketch of the key had died (see Born), the truth may exceed the estimate by Lost.
//
// The update is the plain one, because the conservative one does not merge. Updates commute: to the bit without a
// half-life and with whole amounts (up to 2^53 in total), otherwise up to the rounding of sums. Values below 2^-100
// count as 0.
//
// It is a value with one owner: Clone makes an independent copy. While few cells are nonzero, it takes memory for these
// cells only. Once an eighth to a quarter of them is nonzero, it takes memory for all, 8 bytes each.
type CountMin struct {
	params CountMinParams
	fade
	loss
	width, depth int
	cells        []float64 // depth rows; nil unless dense
	z            float64
	last         Tick
	few          *sparseCells[[1]float64] // nil unless sparse: while at most `most` cells are not zero
	most         int
}

// countMinSize is the size of a CountMin without its cells. countMinOwn is the size that limits count, the same in all
// replicas: the size of the struct before loss was added.
const (
	countMinSize = 144
	countMinOwn  = 128
)

// NewCountMin makes an empty sketch, or returns ErrParams.
func NewCountMin(p CountMinParams) (CountMin, error) {
	p.Hash = p.Hash.orDefault()
	width, depth, err := p.shape()
	if err != nil {
		return CountMin{}, err
	}
	most := sparseMost[[1]float64](width * depth)
	return CountMin{params: p, fade: fade{halfLife: p.HalfLife}, width: width, depth: depth, most: most}, nil
}

// Params are the parameters of NewCountMin.
func (c *CountMin) Params() CountMinParams { return c.params }

// Add counts n events of an item at time t. now is the namespace's clock: not before t, and not before the now of any
// earlier call. It returns ErrNegative or ErrOverflow, and then no count has changed.
func (c *CountMin) Add(now, t Tick, hash uint64, n float64) error {
	if err := checkAmount(n); err != nil || n == 0 {
		return err
	}
	c.settle(now)
	atNow := c.weight(now)
	inc, least := float64(n*c.weight(t)), faint(atNow)
	if inc < least {
		c.last = max(c.last, t)
		return nil
	}
	z := atLeast(c.z, least) + inc
	if z > float64(CountMax*atNow) {
		return ErrOverflow
	}
	if c.cells == nil && c.addFew(hash, inc, least) {
		c.z, c.last = z, max(c.last, t)
		return nil
	}
	for row := range c.depth {
		cell := &c.cells[c.at(row, hash)]
		*cell = atLeast(*cell, least) + inc
	}
	c.z = z
	c.last = max(c.last, t)
	return nil
}

// addFew adds to the cells of an item while the sketch is sparse or empty. It returns false when the sketch must be
// dense from the start: then the sketch is dense, and the item is not added.
func (c *CountMin) addFew(hash uint64, inc, least float64) bool {
	if c.most == 0 {
		c.spread()
		return false
	}
	if c.few == nil {
		c.few = newSparse[[1]float64](c.depth)
	}
	for row := range c.depth {
		cell := &c.few.cell(c.at(row, hash))[0]
		*cell = atLeast(*cell, least) + inc
	}
	if c.few.used > c.most {
		c.spread()
	}
	return true
}

// spread makes a sketch dense.
func (c *CountMin) spread() {
	if c.cells != nil {
		return
	}
	few := c.few
	c.cells, c.few = make([]float64, c.width*c.depth), nil
	if few != nil {
		few.each(func(i int, v *[1]float64) { c.cells[i] = v[0] })
	}
}

// narrow makes a dense sketch sparse; used is how many of its cells are used.
func (c *CountMin) narrow(used int) {
	c.few = newSparse[[1]float64](used)
	for i, v := range c.cells {
		if v != 0 {
			c.few.cell(i)[0] = v
		}
	}
	c.cells = nil
}

// at is the cell of an item in a row.
func (c *CountMin) at(row int, hash uint64) int {
	return row*c.width + int(mulHigh(remix(hash, row), uint64(c.width)))
}

// settle moves the landmark when necessary, so that weights stay small.
func (c *CountMin) settle(now Tick) {
	if c.z == 0 {
		c.mark = c.landmark(now)
		return
	}
	if mark, move := c.due(now); move {
		c.rebase(mark)
	}
}

// rebase moves to a later landmark: an exact multiplication by a power of two. It is the only loop over the cells.
func (c *CountMin) rebase(mark int64) {
	scale := c.moveTo(mark)
	c.z = atLeast(float64(c.z*scale), faintest)
	used := 0
	for i, v := range c.cells {
		v = atLeast(float64(v*scale), faintest)
		c.cells[i] = v
		if v != 0 {
			used++
		}
	}
	if c.few != nil {
		c.few.change(func(_ int, v *[1]float64) { v[0] = atLeast(float64(v[0]*scale), faintest) })
		used = c.few.used
	}
	c.tidy(used)
}

// tidy makes a sketch empty when no cell is used or Z is 0, and chooses the sparse or the dense form by used.
func (c *CountMin) tidy(used int) {
	switch {
	case used == 0 || c.z == 0:
		c.z, c.cells, c.few = 0, nil, nil
	case c.cells != nil && used <= c.most:
		c.narrow(used)
	case c.few != nil && used > c.most:
		c.spread()
	}
}

// CountMinEstimate is the count of an item at one time: Count - Err <= truth <= Count. The upper bound always holds,
// the lower bound with probability 1 - Delta.
type CountMinEstimate struct {
	Count, Err float64
	// Z is the sum of all counts.
	Z float64
}

// Estimate reads the count of an item at a time. It never writes.
func (c *CountMin) Estimate(at Tick, hash uint64) CountMinEstimate {
	if c.z == 0 {
		return CountMinEstimate{}
	}
	scale, cut := c.scale(at), faint(c.weight(at))
	least := c.z
	if c.cells == nil {
		least = c.leastFew(hash)
	} else {
		for row := range c.depth {
			least = min(least, c.cells[c.at(row, hash)])
		}
	}
	z := float64(atLeast(c.z, cut) * scale)
	count := float64(atLeast(least, cut) * scale)
	return CountMinEstimate{Count: count, Err: min(count, float64(z*math.E)/float64(c.width)), Z: z}
}

// leastFew is the least of Z and an item's cells while the sketch is sparse.
func (c *CountMin) leastFew(hash uint64) float64 {
	least := c.z
	for row := range c.depth {
		cell := c.few.find(c.at(row, hash))
		if cell == nil {
			return 0
		}
		least = min(least, cell[0])
	}
	return least
}

// Last is the tick of the latest event, 0 when there was none.
func (c *CountMin) Last() Tick { return c.last }

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (c *CountMin) Reached() Tick { return c.reached(c.last) }

// Death is a tick from which on Z is below a threshold above 0, as long as nothing is added: a few ticks after the
// first such tick. It is MaxTick without a half-life, and 0 when nothing was ever counted. Where something is lost,
// Death waits until lost is a seventh of the threshold.
func (c *CountMin) Death(threshold float64) Tick {
	if c.z == 0 {
		return 0
	}
	return max(Faded(c.Estimate(c.last, 0).Z, c.last, c.halfLife, threshold), c.loss.faded(c.halfLife, threshold))
}

// Merge adds what o holds; o does not change. It commutes, bit for bit, and associates up to the rounding of sums. It
// returns ErrIncompatible or ErrOverflow, and then nothing has changed.
func (c *CountMin) Merge(o *CountMin) error {
	if c.params != o.params {
		return &mismatch{kind: "count-min", a: c.params, b: o.params}
	}
	if c.z+o.z > mergedMax {
		return ErrOverflow
	}
	last, lost := max(c.last, o.last), c.loss.plus(o.loss, c.halfLife)
	if c.z == 0 {
		*c = o.Clone()
	} else if o.z != 0 {
		c.add(o)
	}
	c.last, c.loss = last, lost
	return nil
}

// add merges cells, where both sketches have some.
func (c *CountMin) add(o *CountMin) {
	scale := 1.0
	if o.mark > c.mark {
		c.rebase(o.mark)
	} else {
		scale = Exp2(o.mark-c.mark, 0)
	}
	c.z += atLeast(float64(o.z*scale), faintest)
	if o.cells == nil && c.cells == nil {
		c.addBothFew(o, scale)
		return
	}
	grown := c.cells == nil
	c.spread()
	for i, v := range o.cells {
		c.cells[i] += atLeast(float64(v*scale), faintest)
	}
	if o.few != nil {
		o.few.each(func(i int, v *[1]float64) { c.cells[i] += atLeast(float64(v[0]*scale), faintest) })
	}
	if !grown {
		return // no cell becomes smaller, so the sketch stays dense
	}
	used := 0
	for _, v := range c.cells {
		if v != 0 {
			used++
		}
	}
	c.tidy(used)
}

// addBothFew merges the cells of two sparse sketches. c may be empty, because rebase may have removed faded cells.
func (c *CountMin) addBothFew(o *CountMin, scale float64) {
	if c.few == nil {
		c.few = newSparse[[1]float64](1)
	}
	o.few.each(func(i int, v *[1]float64) {
		if inc := atLeast(float64(v[0]*scale), faintest); inc != 0 {
			c.few.cell(i)[0] += inc
		}
	})
	c.tidy(c.few.used)
}

// Clone is a copy that shares no memory with the original.
func (c *CountMin) Clone() CountMin {
	d := *c
	d.cells, d.few = append([]float64(nil), c.cells...), c.few.clone()
	return d
}

// Size is the memory in bytes, the struct itself included.
func (c *CountMin) Size() int { return countMinSize + 8*cap(c.cells) + c.few.size() }

// A CountMin in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 'c', 1, or 2 where something is lost
//	hash             9 bytes, see Hash
//	epsilon, delta   8 bytes each, little endian doubles
//	half-life        uvarint
//	mark, last       uvarints; mark is 0 when nothing is stored
//	lost             in version 2: 4 bytes, the upper half of a double above 0, and a uvarint, since when
//	z                8 bytes; 0 is the end
//	form             1 byte: 0 dense, 1 sparse, which is when less than half of the cells are used
//	cells            dense: 8 bytes each
//	                 sparse: a uvarint of how many; of each the distance from its predecessor, less 1, and 8 bytes

const countMinKind = 'c'

// AppendBinary appends the encoding to b.
func (c *CountMin) AppendBinary(b []byte) []byte {
	b = c.params.Hash.append(append(b, countMinKind, c.loss.version(codecVersion)))
	b = appendFloat(appendFloat(b, c.params.Epsilon), c.params.Delta)
	b = c.loss.append(c.fade.append(b, c.z == 0, c.last))
	b = appendFloat(b, c.z)
	if c.z == 0 {
		return b
	}
	if c.few != nil {
		return c.appendFew(b)
	}
	used := 0
	for _, v := range c.cells {
		if v != 0 {
			used++
		}
	}
	if 2*used >= len(c.cells) {
		b = append(b, 0)
		for _, v := range c.cells {
			b = appendFloat(b, v)
		}
		return b
	}
	b = binary.AppendUvarint(append(b, 1), uint64(used))
	next := 0
	for i, v := range c.cells {
		if v != 0 {
			b = appendFloat(binary.AppendUvarint(b, uint64(i-next)), v)
			next = i + 1
		}
	}
	return b
}

// appendFew writes the cells of a sparse sketch. A sparse sketch never has so many cells that the dense encoding
// applies.
func (c *CountMin) appendFew(b []byte) []byte {
	b = binary.AppendUvarint(append(b, 1), uint64(c.few.used))
	next := 0
	c.few.ordered(func(i int, v *[1]float64) {
		b = appendFloat(binary.AppendUvarint(b, uint64(i-next)), v[0])
		next = i + 1
	})
	return b
}

func appendFloat(b []byte, v float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
}

// Decode replaces the sketch by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change. A short encoding
// may be of a sketch that grows to CountMinCellsMax cells of memory.
func (c *CountMin) Decode(b []byte) (rest []byte, err error) {
	return c.DecodeWithin(b, math.MaxInt)
}

// DecodeWithin is Decode that also refuses a sparse encoding whose sketch would need more memory than room, in bytes,
// once all its cells are used.
func (c *CountMin) DecodeWithin(b []byte, room int) (rest []byte, err error) {
	r := reading(b, room)
	version := r.headerLoss(countMinKind)
	p := CountMinParams{Hash: r.hash(), Epsilon: r.plainFloat(), Delta: r.plainFloat()}
	f, last := r.fade()
	p.HalfLife = f.halfLife
	lost := r.loss(version, codecVersion, p.HalfLife)
	z := r.float()
	n, err := NewCountMin(p)
	if !r.ok || err != nil || z < 0 || z == 0 && f.mark != 0 {
		return nil, ErrCorrupt
	}
	n.fade, n.loss, n.last, n.z = f, lost, last, z
	if z != 0 && !n.decodeCells(&r) {
		return nil, ErrCorrupt
	}
	*c = n
	return r.b, nil
}

func (c *CountMin) decodeCells(r *reader) bool {
	cells, used := c.width*c.depth, 0
	switch r.byte() {
	case 0:
		if !r.ok || cells > len(r.b)/8 {
			return false
		}
		c.cells = make([]float64, cells)
		for i := range c.cells {
			if c.cells[i] = r.float(); c.cells[i] != 0 {
				used++
			}
			r.ok = r.ok && c.cells[i] >= 0
		}
		return r.ok && 2*used >= cells
	case 1:
		n := r.uvarint()
		if !r.ok || n == 0 || 2*n >= uint64(cells) || n > uint64(len(r.b)/9) || !r.claim(8*cells) {
			return false
		}
		if n <= uint64(c.most) {
			c.few = newSparse[[1]float64](int(n))
		} else {
			c.cells = make([]float64, cells)
		}
		next := uint64(0)
		for range n {
			gap, v := r.uvarint(), r.float()
			if !r.ok || gap >= uint64(cells)-next || v <= 0 {
				return false
			}
			if c.few != nil {
				c.few.cell(int(next + gap))[0] = v
			} else {
				c.cells[next+gap] = v
			}
			next += gap + 1
		}
		return true
	}
	return false
}
