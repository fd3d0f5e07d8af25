package sketch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
)

// Limits and defaults of a Quantile.
const (
	QuantileAccuracy       = 0.01 // default
	QuantileAccuracyMin    = 1e-4
	QuantileAccuracyMax    = 0.5
	QuantileBucketsDefault = 4096
)

// ErrValue says that a value is not a finite number.
var ErrValue = errors.New("value is not finite")

// QuantileParams decide the shape of a Quantile.
type QuantileParams struct {
	// Accuracy is the largest relative error of a value, 0 means 0.01.
	Accuracy float64
	// HalfLife in microseconds, 0 for none.
	HalfLife Tick
	// Threshold is the count below which a bucket is gone; 0 means 2^-100. Without a half-life it is ignored.
	Threshold float64
	// BucketsMax bounds the buckets, 12 bytes each (8 when Compact); 0 means 4096. At Accuracy 0.01, 35 buckets double
	// a value.
	BucketsMax int
	// Compact stores counts in 32 bits, with a relative error of at most 1e-5.
	Compact bool
}

func (p *QuantileParams) check() error {
	if !(p.Accuracy >= QuantileAccuracyMin && p.Accuracy <= QuantileAccuracyMax) {
		return fmt.Errorf("%w: quantile: accuracy %v is not in %v..%v", ErrParams, p.Accuracy, QuantileAccuracyMin, QuantileAccuracyMax)
	}
	if !(p.Threshold >= 0 && p.Threshold <= CountMax) {
		return fmt.Errorf("%w: quantile: threshold %v is not in 0..2^200", ErrParams, p.Threshold)
	}
	if p.BucketsMax < 1 || p.BucketsMax > BinsMax {
		return fmt.Errorf("%w: quantile: %d buckets are not in 1..%d", ErrParams, p.BucketsMax, BinsMax)
	}
	return checkHalfLife("quantile", p.HalfLife)
}

// Quantile estimates quantiles and ranks of values with a bounded relative error: DDSketch (Masson, Rim, Lee 2019). It
// is a Distribution over buckets, and decays, merges and is stored as one.
//
//	bucket i holds gamma^(i-1) < |x| <= gamma^i      gamma = (1+a)/(1-a), a = Accuracy
//	and stands for gamma^i (1-a)                     at most a|x| from every x in it
//
// Negative values have their own buckets; a value nearer to 0 than 2^-1022 counts as 0. Bucket numbers come from Log2,
// which is the same on every machine. The code reduces a by 2^-40 to cover the rounding of Log2, so the bound always
// holds. A quantile is chosen by the counts of the buckets, which are exact up to the rounding of sums.
//
// It is a value with one owner: Clone makes an independent copy. It hashes nothing.
type Quantile struct {
	params    QuantileParams
	perOctave float64 // buckets that double a value: 1/log2(gamma)
	low, high float64 // the least and the largest value; only without a half-life
	orderFree bool
	d         Distribution
}

// NewQuantile makes an empty summary, or returns ErrParams.
func NewQuantile(p QuantileParams) (Quantile, error) {
	if p.Accuracy == 0 {
		p.Accuracy = QuantileAccuracy
	}
	if p.BucketsMax == 0 {
		p.BucketsMax = QuantileBucketsDefault
	}
	if err := p.check(); err != nil {
		return Quantile{}, err
	}
	a := p.Accuracy - 0x1p-40
	return Quantile{params: p, perOctave: 1 / Log2((1+a)/(1-a))}, nil
}

// Params are the parameters of the constructor, defaults filled in.
func (q *Quantile) Params() QuantileParams { return q.params }

// under are the Params of the underlying distribution.
func (q *Quantile) under() Params {
	p := Params{
		Decay: HalfLife, HalfLife: q.params.HalfLife, Floor: Prune,
		Threshold: q.params.Threshold, Compact: q.params.Compact, BinsMax: q.params.BucketsMax,
	}
	if q.params.HalfLife == 0 {
		p.Decay = None
	}
	p.OrderFree = q.orderFree && p.Decay == HalfLife
	return p
}

// Lack must be called after the first Add, with the same now, if held is more than the settings of this summary imply.
// held is how many values an earlier summary of the key may have held when it died: see Params.Held.
func (q *Quantile) Lack(now Tick, held float64) {
	if p := q.under(); p.OrderFree && !q.d.fresh() {
		q.d.lost = max(q.d.lost, lostUp(float64(held*p.weight(max(now, 0), q.d.mark))))
	}
}

// Lose adds held to lost, because another summary of its key may have held that many values when it died.
func (q *Quantile) Lose(now Tick, held float64) {
	p := q.under()
	q.d.Lose(&p, now, held)
}

// CountAll makes all later values count, even if they weigh little, so that their order changes no answer by more than
// the stated bounds: see Params.OrderFree.
func (q *Quantile) CountAll() { q.orderFree = q.params.HalfLife > 0 }

// The ids of buckets as bins: 0 is the bucket of 0. Buckets near 1 come next, so that ids are small numbers.
//
//	id = 1 + 2*zigzag(i) + (1 when negative)

// bucket is the id of a finite value's bucket.
func (q *Quantile) bucket(x float64) uint32 {
	m := math.Abs(x)
	if m < 0x1p-1022 {
		return 0
	}
	i := int32(math.Ceil(float64(Log2(m) * q.perOctave)))
	id := 1 + 2*uint32(i<<1^i>>31)
	if x < 0 {
		id++
	}
	return id
}

// index is the signed number of a bucket other than the bucket of 0.
func (q *Quantile) index(id uint32) (i int32, negative bool) {
	z := (id - 1) / 2
	return int32(z>>1) ^ -int32(z&1), id%2 == 0
}

// order is a number that sorts buckets by their values.
func (q *Quantile) order(id uint32) int64 {
	if id == 0 {
		return 0
	}
	i, negative := q.index(id)
	if negative {
		return -int64(i) - 1<<32
	}
	return int64(i) + 1<<32
}

// stands is the value that a bucket stands for.
func (q *Quantile) stands(id uint32) float64 {
	if id == 0 {
		return 0
	}
	i, negative := q.index(id)
	a := q.params.Accuracy - 0x1p-40
	v := 0.0
	if octaves := float64(i) / q.perOctave; i > 0 { // by half or twice the value, which a double can always hold
		v = min(float64(exp2Float(octaves-1)*float64(2*(1-a))), math.MaxFloat64)
	} else {
		v = float64(exp2Float(octaves+1) * float64((1-a)/2))
	}
	if negative {
		return -v
	}
	return v
}

// Add counts n values x at time t. now is the namespace's clock: not before t, and not before the now of any earlier
// call. It returns ErrValue, ErrTooManyBins, ErrNegative or ErrOverflow, and then no count has changed.
func (q *Quantile) Add(now, t Tick, x, n float64) error {
	if x != x || math.IsInf(x, 0) {
		return ErrValue
	}
	if err := checkAmount(n); err != nil || n < faintest {
		return err
	}
	if math.Abs(x) < 0x1p-1022 {
		x = 0
	}
	now, t = max(now, 0), max(t, 0)
	p, id := q.under(), q.bucket(x)
	err := q.d.Add(&p, now, t, id, n)
	if err == ErrTooManyBins {
		q.d.Prune(&p, now, nil)
		err = q.d.Add(&p, now, t, id, n)
	}
	if err == nil && q.params.HalfLife == 0 && q.d.find(id) >= 0 {
		q.extend(x)
	}
	return err
}

// extend widens the range of values by x, which was counted. The range is only kept without a half-life.
func (q *Quantile) extend(x float64) {
	if q.d.Len() == 1 && q.low == 0 && q.high == 0 && x != 0 {
		q.low, q.high = x, x // the first value
	}
	q.low, q.high = min(q.low, x), max(q.high, x)
}

// Last is the tick of the latest event, 0 when there was none.
func (q *Quantile) Last() Tick { return q.d.Last() }

// Reached is the latest time that a write has brought into the state; the state cannot be read as of an earlier time.
// It is 0 if the state does not depend on time.
func (q *Quantile) Reached() Tick {
	if q.params.HalfLife == 0 {
		return 0
	}
	p := q.under()
	return q.d.Reached(&p)
}

// Dead says whether everything has faded at now; see Distribution.Dead.
func (q *Quantile) Dead(now Tick) bool {
	p := q.under()
	return q.d.Dead(&p, now)
}

// Death is a tick from which on Dead holds, as long as nothing is added; see Distribution.Death.
func (q *Quantile) Death() Tick {
	p := q.under()
	return q.d.Death(&p)
}

// DeathBelow is Death with another threshold, if that is lower than the summary's own.
func (q *Quantile) DeathBelow(threshold float64) Tick {
	p := q.under()
	p.Threshold = min(p.Threshold, threshold)
	return q.d.Death(&p)
}

// QuantileReading is a Quantile evaluated at one time. It shares no memory with the Quantile.
type QuantileReading struct {
	// N is the decayed number of values at this time; EffectiveN is how many values of equal weight give the same
	// error.
	N, EffectiveN float64
	// Sum is the number of values, faded buckets included; it may be too low by Lost. Unless CountAll was called, Sum
	// is N and Lost is 0.
	Sum, Lost float64
	// Min and Max are exact without a half-life; otherwise within Accuracy of the least and the largest value not
	// faded.
	Min, Max float64
	// Accuracy is the largest relative error of a value.
	Accuracy float64

	q       Quantile // for its mapping
	buckets []quantileBucket
}

type quantileBucket struct {
	order int64
	value float64
	upTo  float64 // count of this bucket and all before it
	faded bool    // it is below the threshold
}

// At reads the summary at any time. It never writes. It sorts the buckets.
func (q *Quantile) At(at Tick) QuantileReading {
	p := q.under()
	r := q.d.At(&p, at)
	out := QuantileReading{EffectiveN: r.EffectiveN, Accuracy: q.params.Accuracy, q: Quantile{params: q.params, perOctave: q.perOctave}}
	if p.OrderFree {
		out.Sum, out.Lost = r.Z, r.Lost
	}
	if r.Bins == 0 {
		return out
	}
	out.buckets = make([]quantileBucket, 0, r.Bins)
	if p.OrderFree { // with the faded buckets: their values are known
		for i := range q.d.Len() {
			id := q.d.id(i)
			bucket := quantileBucket{order: q.order(id), value: q.stands(id), upTo: float64(q.d.value(i) * r.scale)}
			bucket.faded = q.d.value(i) < r.cut
			out.buckets = append(out.buckets, bucket)
		}
	} else {
		r.each(func(b Bin) {
			bucket := quantileBucket{order: q.order(b.ID), value: q.stands(b.ID), upTo: b.Count}
			out.buckets = append(out.buckets, bucket)
		})
	}
	slices.SortFunc(out.buckets, func(a, b quantileBucket) int {
		if a.order < b.order {
			return -1
		}
		return 1
	})
	for i := range out.buckets {
		out.N += out.buckets[i].upTo
		out.buckets[i].upTo = out.N
	}
	if !p.OrderFree {
		out.Sum = out.N
	}
	shows := func(b quantileBucket) bool { return !b.faded }
	first := slices.IndexFunc(out.buckets, shows)
	last := len(out.buckets) - 1
	for out.buckets[last].faded {
		last--
	}
	out.Min, out.Max = out.buckets[first].value, out.buckets[last].value
	if q.params.HalfLife == 0 {
		out.Min, out.Max = q.low, q.high
	}
	return out
}

// Quantile is the least value that at least this part of all values does not exceed, with a relative error of at most
// Accuracy. Part 0 is the least value, 0.5 the (lower) median and 1 the largest. Faded buckets count too as long as
// they are stored. It is NaN when there are no values.
func (r QuantileReading) Quantile(part float64) float64 {
	if len(r.buckets) == 0 || part != part {
		return math.NaN()
	}
	switch kept := r.q.params.HalfLife == 0; {
	case part <= 0 && kept:
		return r.Min
	case part >= 1 && kept:
		return r.Max
	case part <= 0:
		return r.buckets[0].value
	case part >= 1:
		return r.buckets[len(r.buckets)-1].value
	}
	return r.reached(float64(part*r.N) - float64(r.N*0x1p-48)) // 0.07 * 100 is a little more than 7
}

// Bracket returns the bounds of Quantile of a part when some values are hidden: values of faded buckets and values
// lost. The bounds hold whatever the hidden values are. Both ends have the error of Accuracy. An end is
// -math.MaxFloat64 or math.MaxFloat64 where hidden values alone may decide it.
func (r QuantileReading) Bracket(part float64) (low, high float64) {
	v := r.Quantile(part)
	hidden := r.hidden()
	if v != v || hidden == 0 {
		return v, v
	}
	part = min(max(part, 0), 1)
	low, high = -math.MaxFloat64, math.MaxFloat64
	target, rounding := float64(part*r.N), float64(r.N*1e-9)
	if least := target - float64(hidden*(1-part)) - rounding; least > 0 {
		low = min(r.reached(least), v)
	}
	if most := target + float64(hidden*part) + rounding; most < r.N {
		high = max(r.reached(most), v)
	}
	return low, high
}

// hidden is the number of values in no bucket of the reading.
func (r *QuantileReading) hidden() float64 { return max(0, r.Sum-r.N) + r.Lost }

// reached is the value of the first bucket at which the running count reaches target.
func (r *QuantileReading) reached(target float64) float64 {
	i := sort.Search(len(r.buckets)-1, func(i int) bool { return r.buckets[i].upTo >= target })
	if r.q.params.HalfLife > 0 {
		return r.buckets[i].value // Min and Max are of the buckets not faded
	}
	return min(max(r.buckets[i].value, r.Min), r.Max)
}

// Rank is the part of all values that do not exceed x, as a bracket. low and high differ by the bucket of x and by the
// hidden values. Both are NaN when there are no values.
func (r QuantileReading) Rank(x float64) (low, high float64) {
	if len(r.buckets) == 0 || x != x {
		return math.NaN(), math.NaN()
	}
	if math.IsInf(x, 0) {
		x = math.Copysign(math.MaxFloat64, x)
	}
	order := r.q.order(r.q.bucket(x))
	i := sort.Search(len(r.buckets), func(i int) bool { return r.buckets[i].order >= order })
	if i > 0 {
		low = r.buckets[i-1].upTo
	}
	high = low
	if i < len(r.buckets) && r.buckets[i].order == order {
		high = r.buckets[i].upTo
	}
	hidden := r.hidden()
	return low / (r.N + hidden), (high + hidden) / (r.N + hidden)
}

// Merge adds what o holds; o does not change. It commutes, bit for bit, and associates up to the rounding of sums; see
// Distribution.Merge. The result may have more buckets than BucketsMax. Merge returns ErrIncompatible or ErrOverflow,
// and then nothing has changed.
func (q *Quantile) Merge(o *Quantile) error {
	if q.params != o.params {
		return &mismatch{kind: "quantile", a: q.params, b: o.params}
	}
	if q.d.z+o.d.z > mergedMax {
		return ErrOverflow
	}
	switch {
	case o.d.Len() == 0:
	case q.d.Len() == 0:
		q.low, q.high = o.low, o.high
	default:
		q.low, q.high = min(q.low, o.low), max(q.high, o.high)
	}
	q.orderFree = q.orderFree || o.orderFree
	p := q.under()
	q.d.Merge(&p, &o.d, nil)
	return nil
}

// Clone is a copy that shares no memory with the original.
func (q *Quantile) Clone() Quantile {
	c := *q
	c.d = q.d.Clone()
	return c
}

// Size is the memory in bytes, the struct itself included.
func (q *Quantile) Size() int { return 144 + 8*cap(q.d.words) }

// A Quantile in bytes. Every state has one encoding.
//
//	kind, version    1 byte each: 'q', 1, or 2 where CountAll holds
//	accuracy         8 bytes, a little endian double
//	half-life        uvarint
//	threshold        8 bytes
//	buckets max      uvarint
//	compact          1 byte, 0 or 1
//	min, max         8 bytes each; only without a half-life
//	distribution     over buckets, see Distribution.AppendBinary

const (
	quantileKind       = 'q'
	quantileAllVersion = codecVersion + 1
)

// AppendBinary appends the encoding to b.
func (q *Quantile) AppendBinary(b []byte) []byte {
	version := byte(codecVersion)
	if q.orderFree {
		version = quantileAllVersion
	}
	b = appendFloat(append(b, quantileKind, version), q.params.Accuracy)
	b = appendFloat(binary.AppendUvarint(b, uint64(q.params.HalfLife)), q.params.Threshold)
	b = binary.AppendUvarint(b, uint64(q.params.BucketsMax))
	compact := byte(0)
	if q.params.Compact {
		compact = 1
	}
	b = append(b, compact)
	if q.params.HalfLife == 0 {
		b = appendFloat(appendFloat(b, q.low), q.high)
	}
	return q.d.AppendBinary(b)
}

// Decode replaces the summary by the one encoded at the start of b, and returns the bytes that follow. It returns
// ErrCorrupt for bytes that AppendBinary cannot have written, and then the receiver does not change.
func (q *Quantile) Decode(b []byte) (rest []byte, err error) {
	r := reader{b: b, ok: true}
	version := r.headerLoss(quantileKind)
	p := QuantileParams{Accuracy: r.plainFloat(), HalfLife: Tick(r.uvarint()), Threshold: r.plainFloat(), BucketsMax: r.int(BinsMax)}
	flag := r.byte()
	p.Compact = flag == 1
	if !r.ok || flag > 1 || p.check() != nil || version == quantileAllVersion && p.HalfLife == 0 {
		return nil, ErrCorrupt
	}
	n, err := NewQuantile(p)
	if err != nil {
		return nil, ErrCorrupt
	}
	n.orderFree = version == quantileAllVersion
	if p.HalfLife == 0 {
		n.low, n.high = r.plainFloat(), r.plainFloat()
	}
	if !r.ok {
		return nil, ErrCorrupt
	}
	if rest, err = n.d.Decode(r.b); err != nil || !n.valid() {
		return nil, ErrCorrupt
	}
	*q = n
	return rest, nil
}

// valid says whether the distribution can be the buckets of a Quantile.
func (q *Quantile) valid() bool {
	f, h := q.d.form(), int64(q.params.HalfLife)
	if f == micro || f == compact && !q.params.Compact || q.d.z < 0 {
		return false
	}
	if q.d.mark < 0 || h == 0 && q.d.mark != 0 || h > 0 && q.d.mark > math.MaxInt64/h {
		return false
	}
	if !(q.low <= q.high && q.low >= -math.MaxFloat64 && q.high <= math.MaxFloat64) || q.d.Len() == 0 && (q.low != 0 || q.high != 0) {
		return false
	}
	first, last := q.bucket(math.MaxFloat64), q.bucket(0x1p-1022)
	most := max(first, last) + 1
	for i := range q.d.Len() {
		if q.d.id(i) > most || q.d.value(i) < 0 {
			return false
		}
	}
	return true
}
