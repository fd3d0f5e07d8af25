package sketch

import (
	"math"
	"slices"
)

// Distribution is a categorical distribution that forgets. The zero value is empty and ready. Bins are small integers;
// the caller maps them to names. A Distribution holds one allocation, without pointers inside.
//
// It is a value with one owner: Clone makes an independent copy.
type Distribution struct {
	words []uint64 // the bins, see bins.go
	z, z2 float64  // everything ever added, decayed; 0 under Linear
	lost  float64  // how much any bin may be too low, see lost.go
	last  Tick     // the latest event
	mark  int64    // the landmark in half-lives; under Linear the highest level that a bin ever had
	shape uint32   // bins << 8 | form
	room  uint32   // bins that fit in words
}

// Add counts n events of a bin at time t. now is the namespace's clock: not before t, and not before the now of any
// earlier call.
//
// An n of 0 changes nothing. Add returns ErrTooManyBins, ErrNegative or ErrOverflow, and then no count has changed.
//
// Unless Params.OrderFree is set, a bin that has faded starts from 0, and a summary that is dead at now (see Dead)
// loses all its bins: to learn which bins, call Prune before. A call of PruneForBin before Add keeps the number of bins
// in proportion to the bins that have not faded.
func (d *Distribution) Add(p *Params, now, t Tick, bin uint32, n float64) error {
	at := p.Now(now)
	return d.AddNow(p, &at, t, bin, n)
}

// AddNow is Add with a Now that the caller computes once for many events of the same time.
func (d *Distribution) AddNow(p *Params, now *Now, t Tick, bin uint32, n float64) error {
	if n != n || math.Abs(n) > CountMax {
		return ErrOverflow
	}
	if n < 0 && !p.AllowNegative {
		return ErrNegative
	}
	if n == 0 {
		return nil
	}
	if p.Decay == Linear && p.Bounded {
		return d.addBounded(p, now.at, t, bin, n)
	}
	if p.Decay == Linear {
		return d.addLevel(p, now.at, t, bin, n)
	}
	if t == now.at && d.AddExisting(p, now, bin, n) {
		return nil
	}
	return d.addWeighted(p, now, t, bin, n)
}

// Takes returns the error that Add would return, and changes nothing. It is for HalfLife and None.
func (d *Distribution) Takes(p *Params, now, t Tick, bin uint32, n float64) error {
	switch {
	case n != n || math.Abs(n) > CountMax:
		return ErrOverflow
	case n < 0 && !p.AllowNegative:
		return ErrNegative
	case n == 0:
		return nil
	}
	if d.fresh() || !p.OrderFree && d.Dead(p, now) {
		d = &Distribution{mark: p.landmark(now)}
	}
	atNow := p.weight(now, d.mark)
	inc := float64(n * p.weight(t, d.mark))
	if math.Abs(inc) < float64(faintest*max(atNow, 1)) {
		return nil
	}
	i, cut, sum := d.find(bin), d.cut(p, atNow), inc
	if i >= 0 {
		sum = d.standing(p, i, cut) + inc
	}
	limit := float64(CountMax * atNow)
	switch {
	case math.Abs(d.z+inc) > limit || math.Abs(sum) > limit:
		return ErrOverflow
	case i < 0 && math.Abs(sum) >= cut && d.Len() >= p.binsMax():
		return ErrTooManyBins
	}
	return nil
}

func (d *Distribution) addWeighted(p *Params, now *Now, t Tick, bin uint32, n float64) error {
	d.settle(p, now.mark)
	s := now.scaleOf(p, d.mark)
	if !p.OrderFree && d.faded(p, s.weight) {
		*d = Distribution{mark: now.mark}
		s = now.scaleOf(p, d.mark)
	}
	w := s.weight
	if t != now.at {
		w = p.weight(t, d.mark)
	}
	inc := float64(n * w)
	if math.Abs(inc) < s.faint {
		if !p.KeepsFaint || !p.keeps() {
			d.last = max(d.last, t)
			return nil
		}
		inc = 0
	}
	i, cut := d.find(bin), s.cut[d.form()]
	sum, z := inc, atLeast(d.z+inc, s.faint)
	if i >= 0 {
		sum = atLeast(d.standing(p, i, cut)+inc, s.faint)
	}
	if math.Abs(z) > s.most || math.Abs(sum) > s.most {
		return ErrOverflow
	}
	if p.OrderFree && d.fresh() {
		d.lost = lostUp(float64(p.Held(now.at) * s.weight))
	}
	full := i < 0 && d.Len() >= p.binsMax()
	switch small := math.Abs(sum) < cut; {
	case i < 0 && small && !p.OrderFree:
	case full && small:
		d.lost = lostUp(d.lost + math.Abs(inc))
	case full:
		return ErrTooManyBins
	default:
		d.store(p, i, bin, sum, z, float64(min(n, 1)*s.weight))
	}
	d.z = z
	d.z2 = atLeast(atLeast(d.z2, s.faint2)+float64(math.Abs(n)*float64(w*w)), s.faint2)
	d.last = max(d.last, t)
	return nil
}

// standing is the value of a stored bin before an addition: 0 if the bin has faded, unless Params.OrderFree is set.
func (d *Distribution) standing(p *Params, i int, cut float64) float64 {
	if p.OrderFree {
		return d.value(i)
	}
	return atLeast(d.value(i), cut)
}

// cut is the stored value below which a bin counts as 0, at a time with the weight atNow.
func (d *Distribution) cut(p *Params, atNow float64) float64 { return d.form().cut(p, atNow) }

func (f form) cut(p *Params, atNow float64) float64 {
	t := p.binThreshold()
	if f == compact {
		t = max(t, compactFaintest)
	}
	return float64(t * atNow)
}

// settle moves the landmark when necessary, so that weights stay small. mark is the landmark of the present time.
func (d *Distribution) settle(p *Params, mark int64) {
	if p.Decay == None {
		return
	}
	if d.fresh() {
		d.mark, d.lost = mark, 0
		return
	}
	if mark-d.mark > RebaseAfter {
		d.rebase(mark)
	}
}

// fresh says whether nothing is stored that a landmark would scale.
func (d *Distribution) fresh() bool { return d.Len() == 0 && d.z == 0 && d.z2 == 0 }

// rebase moves to a later landmark: an exact multiplication by a power of two.
func (d *Distribution) rebase(mark int64) {
	scale := Exp2(d.mark-mark, 0)
	d.mark = mark
	d.z = atLeast(float64(d.z*scale), faintest)
	d.z2 = atLeast(float64(d.z2*float64(scale*scale)), faintest)
	d.lost = atLeast(float64(d.lost*scale), lostFaintest)
	for i := range d.Len() {
		d.scaleBin(i, scale)
	}
	d.remax()
}

// scaleBin multiplies a value by a power of two.
func (d *Distribution) scaleBin(i int, scale float64) {
	v := atLeast(float64(d.value(i)*scale), faintest)
	if d.form() == compact {
		c, _ := squeeze(v, 0)
		d.setRaw(i, uint64(c))
		return
	}
	d.setRaw(i, math.Float64bits(v))
}

// faded says whether the whole summary is below the floor, at a time with the weight atNow.
func (d *Distribution) faded(p *Params, atNow float64) bool {
	if p.OrderFree {
		return d.spent(p, atNow)
	}
	if d.z == 0 && d.z2 == 0 && d.magnitude(p) == 0 { // counts that cancel outlive both sums
		return d.Len() > 0 // Convert set all counts to 0
	}
	if p.Decay == None {
		return false
	}
	return d.magnitude(p) < float64(p.threshold()*atNow)
}

// magnitude is an upper bound of all stored values: Z, unless there are negative counts.
func (d *Distribution) magnitude(p *Params) float64 {
	m := math.Abs(d.z)
	if p.AllowNegative {
		for i := range d.Len() {
			m = max(m, math.Abs(d.value(i)))
		}
	}
	return m
}

// store sets the bin at i, or adds a bin when i is negative. unit is the stored size of an event of amount 1 at now.
func (d *Distribution) store(p *Params, i int, bin uint32, v, z, unit float64) {
	if d.Len() == 0 {
		d.choose(p)
	}
	raw := math.Float64bits(v)
	if d.form() == compact {
		c, ok := squeeze(v, dither(v, z))
		if ok && p.Compact && unit > 0 && v <= float64(compactMax*unit) {
			raw = uint64(c)
		} else {
			d.widen()
		}
	}
	if i < 0 {
		d.push(bin, raw)
		return
	}
	d.setRaw(i, raw)
	d.raise(i, raw)
}

// choose sets the form of a distribution without bins.
func (d *Distribution) choose(p *Params) {
	f := wide
	if p.Compact {
		f = compact
	}
	if p.Decay == Linear {
		f = micro
	}
	if f != d.form() {
		d.words, d.room = nil, 0
		d.setShape(0, f)
	}
}

// atLeast is v, or 0 when the absolute value of v is less than floor.
func atLeast(v, floor float64) float64 {
	if math.Abs(v) < floor {
		return 0
	}
	return v
}

func (d *Distribution) addLevel(p *Params, now, t Tick, bin uint32, n float64) error {
	drained, floor := p.leaked(now), p.microThreshold()
	if d.Len() > 0 && d.mark-drained < floor && !p.keeps() {
		*d = Distribution{}
	}
	level := p.leaked(t)
	i := d.find(bin)
	if i >= 0 {
		if stored := int64(d.raw(i)); stored-drained >= floor {
			level = max(level, stored)
		}
	}
	sum, ok := sumLevels(level, toMicro(n))
	if !ok || math.Abs(n) >= 0x1p63/microPerCount {
		return ErrOverflow
	}
	sum = max(sum, 0)
	if i < 0 && sum-drained < floor && p.Floor != Clamp && p.Floor != Prior {
		d.last = max(d.last, t)
		return nil
	}
	if i < 0 && d.Len() >= p.binsMax() {
		return ErrTooManyBins
	}
	d.storeLevel(p, i, bin, sum)
	d.last = max(d.last, t)
	return nil
}

func (d *Distribution) storeLevel(p *Params, i int, bin uint32, level int64) {
	if d.Len() == 0 {
		d.choose(p)
		d.mark = 0
	}
	d.mark = max(d.mark, level)
	if i < 0 {
		d.push(bin, uint64(level))
		return
	}
	d.setRaw(i, uint64(level))
	d.raise(i, uint64(level))
}

// Last is the tick of the latest event, 0 when there was none.
func (d *Distribution) Last() Tick { return d.last }

// Reached is the latest time that a write has brought into the distribution; what it holds cannot be read as of an
// earlier time. It is 0 without decay. Under linear decay it is the time of the last event.
func (d *Distribution) Reached(p *Params) Tick {
	switch {
	case p.Decay == None:
		return 0
	case p.Decay == Linear || d.form() == micro:
		return d.last
	}
	return max(d.last, Tick(max(d.mark-readableBack, 0))*p.HalfLife)
}

// Dead says whether the whole summary is below the floor at now: it reads as empty, and the next Add starts from an
// empty summary. An empty distribution is not dead, and neither is a distribution without decay (None). With
// Params.OrderFree, a distribution under the floors Clamp and Prior is not dead either.
func (d *Distribution) Dead(p *Params, now Tick) bool {
	if d.form() == micro {
		return d.Len() > 0 && d.dry(p.leaked(now), p.microThreshold()) && !p.keeps()
	}
	return d.faded(p, p.weight(now, d.mark))
}

// Death is a tick from which on Dead is true, as long as nothing is added. It is a few ticks, or 2^-44 half-lives,
// after the first such tick at most. It is MaxTick under None and 0 for an empty distribution. It takes constant time,
// unless negative amounts are allowed.
func (d *Distribution) Death(p *Params) Tick {
	if p.Decay == None {
		return MaxTick
	}
	if d.form() == micro {
		if p.keeps() {
			return MaxTick
		}
		level, ok := sumLevels(d.mark, d.microLost())
		if !ok {
			level = math.MaxInt64
		}
		return p.leakedBy(level - p.microThreshold() + 1)
	}
	if p.OrderFree {
		return d.spentBy(p)
	}
	m := d.magnitude(p)
	if m == 0 {
		return 0
	}
	return d.fallsBelow(p, m, p.threshold())
}

// Prune removes the bins that have faded by now, and all bins of a dead summary. It calls gone, which may be nil, with
// each removed bin. It takes time proportional to the number of bins.
//
// With Params.OrderFree, the largest bin removed counts as lost; see PruneWithinLoss and PruneForBin.
func (d *Distribution) Prune(p *Params, now Tick, gone func(bin uint32)) {
	dead := d.Dead(p, now)
	cut := d.cut(p, p.weight(now, d.mark))
	if p.OrderFree && !dead && !p.keeps() && d.form() != micro {
		d.removeBelow(cut, gone)
		return
	}
	if p.Bounded && !dead && !p.keeps() && d.form() == micro {
		d.removeDry(p, p.leaked(now), gone)
		return
	}
	kept := 0
	for i := range d.Len() {
		if !dead && !d.removable(p, i, now, cut) {
			d.move(i, kept)
			kept++
			continue
		}
		if gone != nil {
			gone(d.id(i))
		}
	}
	if dead {
		*d = Distribution{}
		return
	}
	if kept < d.Len() {
		d.truncate(kept)
	}
}

// removable says whether the bin counts as 0 and the floor does not keep it.
func (d *Distribution) removable(p *Params, i int, now Tick, cut float64) bool {
	if p.Floor == Clamp || p.Floor == Prior {
		return false
	}
	if d.form() == micro {
		return int64(d.raw(i))-p.leaked(now) < p.microThreshold()
	}
	return math.Abs(d.value(i)) < cut
}

func (d *Distribution) move(from, to int) {
	if from == to {
		return
	}
	d.setID(to, d.id(from))
	d.setRaw(to, d.raw(from))
}

// truncate keeps the first n bins, and frees memory when less than half of it is used.
func (d *Distribution) truncate(n int) {
	d.setShape(n, d.form())
	if n == 0 {
		d.words, d.room = nil, 0
		return
	}
	if n < int(d.room)/2 {
		d.resize(d.form(), n)
		return
	}
	d.reindex()
}

// Clone is a copy that shares no memory with the original.
func (d *Distribution) Clone() Distribution {
	c := *d
	c.words = slices.Clone(d.words)
	return c
}

// Each calls f with every stored bin, faded bins included, in no particular order.
func (d *Distribution) Each(f func(bin uint32)) {
	for i := range d.Len() {
		f(d.id(i))
	}
}

// Size is the memory of the distribution in bytes, the struct included.
func (d *Distribution) Size() int { return 72 + 8*cap(d.words) }
