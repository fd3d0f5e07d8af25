package sketch

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/big"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func newQuantile(t testing.TB, accuracy float64, h Tick) *Quantile {
	t.Helper()
	q, err := NewQuantile(QuantileParams{Accuracy: accuracy, HalfLife: h})
	if err != nil {
		t.Fatal(err)
	}
	return &q
}

func quantileSamples(t testing.TB) (all []*Quantile) {
	for _, p := range []QuantileParams{{}, {HalfLife: hour}, {Accuracy: 0.05, HalfLife: hour, Threshold: 0.001, Compact: true}} {
		for _, events := range []int{0, 1, 12, 300} {
			q, err := NewQuantile(p)
			if err != nil {
				t.Fatal(err)
			}
			r := rng(events)
			for i := range events {
				at := epoch + Tick(i)*hour/20
				if err := q.Add(at, at, anyValue(&r), float64(1+i%3)); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, &q)
		}
	}
	return all
}

// anyValue is a number of either sign, mostly of a moderate size.
func anyValue(r *rng) float64 {
	x := math.Ldexp(1+r.float(), r.below(30)-10)
	switch r.below(10) {
	case 0:
		return 0
	case 1, 2:
		return -x
	}
	return x
}

func TestQuantileParams(t *testing.T) {
	for _, c := range []struct {
		p     QuantileParams
		names string
	}{
		{QuantileParams{}, ""},
		{QuantileParams{Accuracy: 1e-4, HalfLife: hour, Threshold: 1, BucketsMax: 1, Compact: true}, ""},
		{QuantileParams{Accuracy: 1e-5}, "accuracy 1e-05"},
		{QuantileParams{Accuracy: 0.6}, "accuracy 0.6 is not in 0.0001..0.5"},
		{QuantileParams{Accuracy: math.NaN()}, "accuracy NaN"},
		{QuantileParams{Threshold: -1}, "threshold -1"},
		{QuantileParams{Threshold: math.Inf(1)}, "threshold +Inf"},
		{QuantileParams{BucketsMax: -1}, "-1 buckets"},
		{QuantileParams{BucketsMax: 1 << 24}, "16777216 buckets are not in 1..16777215"},
		{QuantileParams{HalfLife: -1}, "half-life"},
	} {
		_, err := NewQuantile(c.p)
		wantParams(t, err, c.names)
	}
}

// TestQuantileBucketBound: what a bucket stands for is within the accuracy of every value in it, compared without
// rounding, at every magnitude and next to every edge.
func TestQuantileBucketBound(t *testing.T) {
	for _, a := range []float64{1e-4, 0.001, 0.01, 0.05, 0.5} {
		q := newQuantile(t, a, 0)
		check := func(x float64) {
			v := q.stands(q.bucket(x))
			off := newBig().Sub(bigOf(v), bigOf(x))
			if bound := newBig().Mul(bigOf(a), new(big.Float).Abs(bigOf(x))); off.Abs(off).Cmp(bound) > 0 {
				t.Fatalf("accuracy %v: %v stands for %v", a, v, x)
			}
		}
		r := rng(1)
		for range 20_000 {
			x := math.Float64frombits(r.next())
			if m := math.Abs(x); m >= 0x1p-1022 && m <= math.MaxFloat64 {
				check(x)
			}
			check(1 + r.float())
		}
		for e := -1022; e < 1024; e++ {
			check(math.Ldexp(1, e))
			edge := exp2Float(float64(int(float64(e)*q.perOctave)) / q.perOctave)
			for _, x := range []float64{edge, math.Nextafter(edge, 0), math.Nextafter(edge, 2*edge)} {
				if x >= 0x1p-1022 && x <= math.MaxFloat64 {
					check(x)
					check(-x)
				}
			}
		}
		check(math.MaxFloat64)
		check(-math.MaxFloat64)
		check(0)
		if q.stands(q.bucket(5e-324)) != 0 {
			t.Error("subnormal numbers have a bucket")
		}
	}
}

// TestQuantileBucketsAreOrdered: a larger value is never in an earlier bucket.
func TestQuantileBucketsAreOrdered(t *testing.T) {
	q := newQuantile(t, 0.01, 0)
	r := rng(2)
	var xs []float64
	for range 20_000 {
		if x := math.Float64frombits(r.next()); x == x && !math.IsInf(x, 0) {
			xs = append(xs, x, anyValue(&r))
		}
	}
	slices.Sort(xs)
	for i := range xs[1:] {
		if a, b := q.bucket(xs[i]), q.bucket(xs[i+1]); q.order(a) > q.order(b) || q.stands(a) > q.stands(b) {
			t.Fatalf("%v is in a later bucket than %v", xs[i], xs[i+1])
		}
	}
}

// weighted are the values of an oracle with their decayed counts.
type weighted struct {
	x float64
	n decayed
}

// checkQuantiles holds quantiles and ranks against sorted values.
func checkQuantiles(t *testing.T, q *Quantile, all []weighted, at Tick) {
	t.Helper()
	slices.SortStableFunc(all, func(a, b weighted) int {
		switch {
		case a.x < b.x:
			return -1
		case a.x > b.x:
			return 1
		}
		return 0
	})
	total := 0.0
	if len(all) == 0 {
		return
	}
	for _, v := range all {
		total += v.n.read(at)
	}
	a, r := q.Params().Accuracy, q.At(at)
	if math.Abs(r.N-total) > 1e-9*total+0x1p-90 {
		t.Fatalf("at %d: N %v, truth %v", at, r.N, total)
	}
	if total < 0x1p-60 { // too near to what counts as nothing
		return
	}
	// the value at a part, and the range that rounding of sums allows
	find := func(part float64) float64 {
		sum := 0.0
		for _, v := range all {
			if sum += v.n.read(at); sum >= part*total {
				return v.x
			}
		}
		return all[len(all)-1].x
	}
	least, most := math.Inf(1), math.Inf(-1)
	for _, v := range all {
		if v.n.read(at) > 0x1p-99 {
			least, most = min(least, v.x), max(most, v.x)
		}
	}
	if r.Min > least+a*math.Abs(least) || r.Max < most-a*math.Abs(most) || r.Quantile(0) != r.Min || r.Quantile(1) != r.Max {
		t.Fatalf("at %d: from %v to %v, truth %v to %v", at, r.Min, r.Max, least, most)
	}
	for _, part := range []float64{0.001, 0.01, 0.07, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999} {
		got, low, high := r.Quantile(part), find(part-1e-9), find(part+1e-9)
		if got < low-a*math.Abs(low) || got > high+a*math.Abs(high) {
			t.Fatalf("at %d: quantile %v is %v, truth %v..%v", at, part, got, low, high)
		}
		below := 0.0
		for _, v := range all {
			if v.x <= low {
				below += v.n.read(at)
			}
		}
		if from, to := r.Rank(low); below < (from-1e-9)*total || below > (to+1e-9)*total {
			t.Fatalf("at %d: rank of %v in [%v, %v], truth %v", at, low, from, to, below/total)
		}
	}
}

// TestQuantileAgainstSorted: uniform, heavy-tailed, two-signed and constant values, with whole counts and without
// forgetting.
func TestQuantileAgainstSorted(t *testing.T) {
	for name, draw := range map[string]func(*rng) float64{
		"uniform":  func(r *rng) float64 { return r.float() },
		"pareto":   func(r *rng) float64 { return 1 / (r.float() + 1e-9) },
		"normal":   func(r *rng) float64 { return r.float() + r.float() + r.float() - 1.5 },
		"any":      anyValue,
		"constant": func(*rng) float64 { return 42 },
		"integers": func(r *rng) float64 { return float64(r.below(100)) },
	} {
		for _, n := range []int{1, 2, 3, 10, 100, 5000} {
			q := newQuantile(t, 0.01, 0)
			r := rng(n)
			var all []weighted
			for range n {
				x := draw(&r)
				all = append(all, weighted{x: x, n: decayed{v: 1}})
				if err := q.Add(epoch, epoch, x, 1); err != nil {
					t.Fatal(name, err)
				}
			}
			checkQuantiles(t, q, all, epoch)
			reading := q.At(epoch)
			if reading.Min != all[0].x || reading.Max != all[n-1].x {
				t.Errorf("%s: from %v to %v, truth %v to %v", name, reading.Min, reading.Max, all[0].x, all[n-1].x)
			}
		}
	}
}

// TestQuantileForgets: bursts, late values and silence over a thousand half-lives, each value fading by its own age.
func TestQuantileForgets(t *testing.T) {
	q := newQuantile(t, 0.01, hour)
	var all []weighted
	faint := 0
	bursts(3, func(now, at Tick, item int, n float64) {
		x := float64(item) - 20
		if err := q.Add(now, at, x, n); err != nil {
			t.Fatal(err)
		}
		all = append(all, weighted{x, decayed{h: hour, v: n, asOf: at}})
	}, func(now Tick) {
		checkQuantiles(t, q, all, now)
		if r := q.At(now); r.N > 0x1p-90 && r.N < 1e-6 {
			faint++
		}
		all = slices.DeleteFunc(all, func(v weighted) bool { return v.n.read(now) < 0x1p-130 })
	})
	if faint < 3 {
		t.Errorf("%d readings of hardly anything", faint)
	}
	if r := q.At(q.Last() + 1000*hour); r.N != 0 || !math.IsNaN(r.Quantile(0.5)) {
		t.Errorf("after a thousand half-lives the median is %v of %v", r.Quantile(0.5), r.N)
	}
}

func TestQuantileRefuses(t *testing.T) {
	q, err := NewQuantile(QuantileParams{HalfLife: hour, Threshold: 0.001, BucketsMax: 2})
	if err != nil {
		t.Fatal(err)
	}
	for x := range 2 {
		if err := q.Add(epoch, epoch, float64(1+x), 1); err != nil {
			t.Fatal(err)
		}
	}
	before := q.AppendBinary(nil)
	for _, c := range []struct {
		x, n float64
		want error
	}{
		{math.NaN(), 1, ErrValue},
		{math.Inf(-1), 1, ErrValue},
		{1, -1, ErrNegative},
		{1, math.NaN(), ErrOverflow},
		{1, 0x1p201, ErrOverflow},
		{3, 1, ErrTooManyBins},
		{3, 0, nil},
	} {
		if err := q.Add(epoch, epoch, c.x, c.n); !errors.Is(err, c.want) {
			t.Errorf("adding %v of %v: %v, want %v", c.n, c.x, err, c.want)
		}
	}
	for _, p := range []QuantileParams{
		{Accuracy: 0.02, HalfLife: hour, Threshold: 0.001, BucketsMax: 2},
		{HalfLife: 2 * hour, Threshold: 0.001, BucketsMax: 2},
		{HalfLife: hour, BucketsMax: 2},
		{Threshold: 0.001, BucketsMax: 2},
	} {
		o, err := NewQuantile(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Merge(&o); !errors.Is(err, ErrIncompatible) {
			t.Errorf("merging %+v: %v", p, err)
		}
	}
	if !bytes.Equal(before, q.AppendBinary(nil)) {
		t.Error("something changed")
	}
	// ten half-lives on both buckets have faded and make room
	if err := q.Add(epoch+11*hour, epoch+11*hour, 3, 1); err != nil {
		t.Error(err)
	}
}

// TestQuantileFaint: what is too little to be stored leaves no trace in the range either.
func TestQuantileFaint(t *testing.T) {
	for _, compact := range []bool{false, true} {
		q, err := NewQuantile(QuantileParams{Compact: compact})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ x, n float64 }{{5, 0x1p-110}, {6, 0x1p-70}, {7, 1}, {5e-324, 1}, {-3, 1}} {
			if err := q.Add(epoch, epoch, c.x, c.n); err != nil {
				t.Fatal(err)
			}
			if _, err := new(Quantile).Decode(q.AppendBinary(nil)); err != nil {
				t.Fatalf("compact %v: after %v of %v: %v", compact, c.n, c.x, err)
			}
		}
		if r := q.At(epoch); r.Min != -3 || r.Max != 7 || r.Quantile(0.5) != 0 {
			t.Errorf("compact %v: from %v to %v, median %v", compact, r.Min, r.Max, r.Quantile(0.5))
		}
	}
}

// TestQuantileMerges: to the same bytes in either order, with whole counts in any order and in any parts.
func TestQuantileMerges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := rapid.SampledFrom([]Tick{0, hour}).Draw(t, "half-life")
		xs := rapid.SliceOfN(rapid.Float64Range(-1e9, 1e9), 1, 40).Draw(t, "values")
		order := rapid.Permutation(xs).Draw(t, "order")
		var whole Quantile
		var parts [3]Quantile
		whole, _ = NewQuantile(QuantileParams{HalfLife: h})
		for i := range parts {
			parts[i] = whole.Clone()
		}
		for i, x := range xs {
			at := epoch + Tick(i)*h
			if err := errors.Join(whole.Add(at, at, x, 2), parts[i%3].Add(at, at, order[i], 2)); err != nil {
				t.Fatal(err)
			}
		}
		ab, ba := parts[0].Clone(), parts[1].Clone()
		if err := errors.Join(ab.Merge(&parts[1]), ba.Merge(&parts[0])); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(ab.AppendBinary(nil), ba.AppendBinary(nil)) {
			t.Fatal("a merge does not commute")
		}
		if err := ab.Merge(&parts[2]); err != nil {
			t.Fatal(err)
		}
		if h == 0 && !bytes.Equal(ab.AppendBinary(nil), whole.AppendBinary(nil)) {
			t.Fatalf("%x\n%x", ab.AppendBinary(nil), whole.AppendBinary(nil))
		}
	})
}

func TestQuantileCodec(t *testing.T) {
	checkCodec(t, quantileSamples(t), useQuantile)
}

func FuzzQuantile(f *testing.F) { fuzzCodec(f, quantileSamples(f), useQuantile) }

func useQuantile(q *Quantile) {
	_ = q.Add(q.Last(), q.Last(), -3, 1)
	d := q.Clone()
	_ = q.Merge(&d)
	r := q.At(MaxTick)
	r.Quantile(0.5)
	q.At(q.Last()).Rank(17)
	q.Death()
}

func TestQuantileSize(t *testing.T) {
	q := newQuantile(t, 0.01, hour)
	if unsafe.Sizeof(*q) != 144 || q.Size() != 144 {
		t.Errorf("empty: %d bytes, says %d", unsafe.Sizeof(*q), q.Size())
	}
	r := rng(1)
	for range 100_000 { // latencies from 1 ms to 100 s
		if err := q.Add(epoch, epoch, 1e-3*math.Pow(10, 5*r.float()), 1); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d buckets over five decades: %d bytes", q.d.Len(), q.Size())
	if q.d.Len() > 580 || q.Size() > 20*580 {
		t.Errorf("%d buckets in %d bytes", q.d.Len(), q.Size())
	}
}

func TestGoldenQuantile(t *testing.T) {
	var b bytes.Buffer
	for _, q := range quantileSamples(t) {
		bytes := q.AppendBinary(nil)
		h := fnv.New64a()
		h.Write(bytes)
		if len(bytes) < 200 {
			fmt.Fprintf(&b, "bytes %x\n", bytes)
		}
		r := q.At(epoch + 3*hour)
		low, high := r.Rank(3)
		fmt.Fprintf(&b, "hash %016x N %x median %x p99 %x rank %x %x\n", h.Sum64(), r.N, r.Quantile(0.5), r.Quantile(0.99), low, high)
	}
	for _, a := range []float64{1e-4, 0.01, 0.5} {
		q, r, h := newQuantile(t, a, 0), rng(1), fnv.New64a()
		for range 20_000 {
			if x := math.Float64frombits(r.next()); x == x && !math.IsInf(x, 0) {
				fmt.Fprintf(h, "%d %x,", q.bucket(x), q.stands(q.bucket(x)))
			}
		}
		fmt.Fprintf(&b, "buckets of %v hash %016x\n", a, h.Sum64())
	}
	golden(t, "golden-quantile.txt", b.Bytes())
}

func BenchmarkQuantile(b *testing.B) {
	for _, h := range []Tick{0, hour} {
		q := newQuantile(b, 0.01, h)
		r := rng(1)
		b.Run(fmt.Sprintf("add/h=%d", h), func(b *testing.B) {
			i := 0
			for b.Loop() {
				i++
				if err := q.Add(epoch+Tick(i), epoch+Tick(i), 1/(r.float()+1e-3), 1); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("at/h=%d", h), func(b *testing.B) {
			for b.Loop() {
				q.At(epoch + hour).Quantile(0.99)
			}
		})
	}
}
