package sketch

import "math"

// Convert changes a distribution from one set of Params to another that applies from at on. Its counts at that moment
// do not change, and decay in the new way afterwards. A distribution that is dead at that moment becomes empty; its
// bins stay until Prune.
//
// A changed half-life costs each value a rounding or two. A compact value stays compact unless new says otherwise.
func (d *Distribution) Convert(old, new *Params, at Tick) {
	if d.fresh() {
		return
	}
	if d.Dead(old, at) {
		d.forget()
	}
	switch {
	case d.form() == micro && new.Decay == Linear:
		d.convertLevels(old, new, at)
	case d.form() == micro:
		d.levelsToCounts(old, new, at)
	case new.Decay == Linear:
		d.countsToLevels(old, new, at)
	default:
		d.convertCounts(old, new, at)
	}
	d.remax()
}

// forget sets every count to 0 and leaves the bins in place.
func (d *Distribution) forget() {
	d.z, d.z2, d.lost, d.mark = 0, 0, 0, 0
	for i := range d.Len() {
		d.setRaw(i, 0)
	}
}

func (d *Distribution) convertCounts(old, new *Params, at Tick) {
	if !new.Compact {
		d.widen()
	}
	if old.Decay == new.Decay && (old.Decay == None || old.HalfLife == new.HalfLife) {
		return
	}
	shrink := old.shrink(at, d.mark)
	d.mark = new.landmark(at)
	scale := float64(shrink * new.weight(at, d.mark))
	d.z = atLeast(float64(d.z*scale), faintest)
	d.z2 = atLeast(float64(d.z2*float64(scale*scale)), faintest)
	d.lost = lostUp(float64(d.lost * scale))
	for i := range d.Len() {
		d.convertBin(i, atLeast(float64(d.value(i)*scale), faintest))
	}
}

func (d *Distribution) convertBin(i int, v float64) {
	if d.form() == compact {
		if c, ok := squeeze(v, dither(v, d.z)); ok {
			d.setRaw(i, uint64(c))
			return
		}
		d.widen()
	}
	d.setRaw(i, math.Float64bits(v))
}

func (d *Distribution) convertLevels(old, new *Params, at Tick) {
	if old.HalfLife == new.HalfLife {
		return
	}
	from, to := old.leaked(at), new.leaked(at)
	d.mark = 0
	for i := range d.Len() {
		d.convertLevel(i, int64(d.raw(i))-from, to)
	}
}

// convertLevel stores the level of a content, at a moment when leaked has leaked.
func (d *Distribution) convertLevel(i int, content, leaked int64) {
	level, ok := sumLevels(max(content, 0), leaked)
	if !ok && content > 0 {
		level = math.MaxInt64
	}
	d.setRaw(i, uint64(level))
	d.mark = max(d.mark, level)
}

func (d *Distribution) levelsToCounts(old, new *Params, at Tick) {
	leaked := old.leaked(at)
	levels := d.rawValues()
	d.mark = new.landmark(at)
	w := new.weight(at, d.mark)
	d.setShape(d.Len(), wide)
	var hi, lo uint64 // sums of upper and lower halves: no order changes them
	for i, level := range levels {
		content := uint64(max(int64(level)-leaked, 0))
		hi += content >> 32
		lo += content & math.MaxUint32
		n := float64(content) / microPerCount
		d.setRaw(i, math.Float64bits(float64(n*w)))
	}
	z := (float64(float64(hi)*(1<<32)) + float64(lo)) / microPerCount
	d.z = float64(z * w)
	d.z2 = float64(d.z * w)
	d.lost = lostUp(float64(d.lost * w))
}

func (d *Distribution) countsToLevels(old, new *Params, at Tick) {
	d.widen()
	shrink, leaked := old.shrink(at, d.mark), new.leaked(at)
	values := d.rawValues()
	d.setShape(d.Len(), micro)
	lost := d.lost
	d.z, d.z2, d.lost, d.mark = 0, 0, 0, 0
	if new.Bounded && len(values) > 0 {
		d.lost = lostUp(float64(lost * shrink))
	}
	for i, v := range values {
		d.convertLevel(i, toMicro(float64(math.Float64frombits(v)*shrink)), leaked)
	}
}

// rawValues are the stored values of a form with one word a value.
func (d *Distribution) rawValues() []uint64 { return d.values()[:d.Len()] }

// Merge adds what o holds; o does not change. Both must have been written under Params of the same decay and half-life
// (Convert a copy first). remap translates the bins of o; nil means that they are the same. The result is wide, so that
// no value is rounded twice. There is no limit of bins.
//
// It commutes, bit for bit. It associates up to the rounding of sums, so callers must merge in a fixed order. Under
// Linear it adds the contents at the later of the two last events, and promises neither law for the bytes.
func (d *Distribution) Merge(p *Params, o *Distribution, remap func(uint32) uint32) {
	d.MergeAt(p, o, 0, remap)
}

// MergeAt is Merge for readings at a time or later. Under Linear it adds the contents at that time, if it is after the
// last events.
func (d *Distribution) MergeAt(p *Params, o *Distribution, at Tick, remap func(uint32) uint32) {
	d.widen()
	if o.fresh() {
		d.last = max(d.last, o.last)
		return
	}
	if remap == nil {
		remap = func(bin uint32) uint32 { return bin }
	}
	if p.Decay == Linear {
		d.mergeLevels(p, o, p.leaked(max(d.last, o.last, at)), remap)
	} else {
		d.mergeCounts(o, remap)
	}
	d.last = max(d.last, o.last)
}

func (d *Distribution) mergeCounts(o *Distribution, remap func(uint32) uint32) {
	if d.fresh() {
		*d = Distribution{mark: o.mark, last: d.last}
	}
	if d.Len() == 0 {
		*d = Distribution{z: d.z, z2: d.z2, lost: d.lost, mark: d.mark, last: d.last}
	}
	if o.mark > d.mark {
		d.rebase(o.mark)
	}
	scale := Exp2(o.mark-d.mark, 0)
	d.z = atLeast(d.z+atLeast(float64(o.z*scale), faintest), faintest)
	d.z2 += atLeast(float64(o.z2*float64(scale*scale)), faintest)
	d.lost = lostUp(d.lost + float64(o.lost*scale))
	for i := range o.Len() {
		d.addBin(remap(o.id(i)), atLeast(float64(o.value(i)*scale), faintest))
	}
}

func (d *Distribution) addBin(bin uint32, v float64) {
	if i := d.find(bin); i >= 0 {
		sum := math.Float64bits(atLeast(d.value(i)+v, faintest))
		d.setRaw(i, sum)
		d.raise(i, sum)
		return
	}
	d.push(bin, math.Float64bits(v))
}

func (d *Distribution) mergeLevels(p *Params, o *Distribution, leaked int64, remap func(uint32) uint32) {
	if d.Len() == 0 {
		*d = Distribution{last: d.last}
		d.choose(p)
	}
	d.lost = lostUp(d.lost + o.lost)
	for i := range d.Len() {
		d.setRaw(i, uint64(max(int64(d.raw(i)), leaked)))
	}
	d.mark = max(d.mark, o.mark, leaked)
	for i := range o.Len() {
		d.addContent(remap(o.id(i)), max(int64(o.raw(i))-leaked, 0), leaked)
	}
	d.remax()
}

func (d *Distribution) addContent(bin uint32, content, leaked int64) {
	i := d.find(bin)
	if i < 0 {
		d.push(bin, 0)
		i = d.Len() - 1
		d.setRaw(i, uint64(leaked))
	}
	level, ok := sumLevels(int64(d.raw(i)), content)
	if !ok && content > 0 {
		level = math.MaxInt64
	}
	d.setRaw(i, uint64(level))
	d.mark = max(d.mark, level)
}
