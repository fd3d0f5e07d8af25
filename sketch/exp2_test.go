package sketch

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// exact arithmetic for the tests: 256 bits

const bigBits = 256

func bigOf(x float64) *big.Float { return newBig().SetFloat64(x) }

func newBig() *big.Float { return new(big.Float).SetPrec(bigBits) }

// bigLn2 is the sum of 1/(k 2^k).
var bigLn2 = func() *big.Float {
	sum, power := newBig(), bigOf(1)
	for k := 1; k < bigBits+16; k++ {
		power.Quo(power, bigOf(2))
		sum.Add(sum, newBig().Quo(power, bigOf(float64(k))))
	}
	return sum
}()

// bigExp is e^x for a small x.
func bigExp(x *big.Float) *big.Float {
	sum, term := bigOf(1), bigOf(1)
	for k := 1; k < 80; k++ {
		term.Mul(term, x)
		term.Quo(term, bigOf(float64(k)))
		sum.Add(sum, term)
	}
	return sum
}

// bigExp2 is 2^(k + frac/2^64).
func bigExp2(k int64, frac uint64) *big.Float {
	x := newBig().SetMantExp(newBig().SetUint64(frac), -64)
	y := bigExp(x.Mul(x, bigLn2))
	return y.SetMantExp(y, int(k))
}

// bigLog2 is the base-2 logarithm, by Newton's method on bigExp.
func bigLog2(x *big.Float) *big.Float {
	mantissa := newBig()
	e := x.MantExp(mantissa)
	f, _ := mantissa.Float64()
	y := bigOf(math.Log(f))
	for range 3 { // 53 bits, doubled each time
		v := bigExp(y)
		v.Quo(newBig().Sub(mantissa, v), v)
		y.Add(y, v)
	}
	y.Quo(y, bigLn2)
	return y.Add(y, bigOf(float64(e)))
}

// apart is |got/want - 1|.
func apart(got float64, want *big.Float) float64 {
	if want.Sign() == 0 {
		return math.Abs(got)
	}
	d := newBig().Sub(bigOf(got), want)
	q, _ := d.Quo(d, want).Float64()
	return math.Abs(q)
}

func fixed(x *big.Float, q int) *big.Int {
	y := newBig().SetMantExp(x, q)
	y.Add(y, bigOf(math.Copysign(0.5, float64(y.Sign()))))
	i, _ := y.Int(nil)
	return i
}

// TestTables recomputes every constant of table.go.
func TestTables(t *testing.T) {
	for i, got := range exp2Table {
		if want := fixed(bigExp2(0, uint64(i)<<57), 63); want.Uint64() != got {
			t.Errorf("exp2Table[%d] = %#x, want %#x", i, got, want)
		}
	}
	term := bigOf(1)
	for i, got := range exp2Poly {
		term.Mul(term, bigLn2)
		term.Quo(term, bigOf(128*float64(i+1)))
		if want := fixed(term, 64); want.Uint64() != got {
			t.Errorf("exp2Poly[%d] = %#x, want %#x", i, got, want)
		}
	}
	for i, got := range log2Table {
		want := bigLog2(bigOf(float64(got.inv) / 1024))
		want.Neg(want)
		if i >= log2Upper {
			want.Sub(want, bigOf(1))
		}
		if want := fixed(want, 62); want.Int64() != got.log {
			t.Errorf("log2Table[%d].log = %d, want %d", i, got.log, want)
		}
		for _, m := range []float64{1 + float64(i)/128, math.Nextafter(1+float64(i+1)/128, 0)} {
			if r := m*float64(got.inv)/1024 - 1; math.Abs(r) >= 0x1p-6 {
				t.Errorf("log2Table[%d]: remainder %v at %v", i, r, m)
			}
		}
	}
	for i, got := range log2Poly {
		want := newBig().Mul(bigLn2, bigOf(float64(i+1)))
		if want := fixed(want.Quo(bigOf(1), want), 62); want.Uint64() != got {
			t.Errorf("log2Poly[%d] = %#x, want %#x", i, got, want)
		}
	}
	if want := fixed(newBig().Mul(bigLn2, bigOf(1e6)), 40); want.Uint64() != leakPerHalfLife {
		t.Errorf("leakPerHalfLife = %#x, want %#x", leakPerHalfLife, want)
	}
}

func TestExp2Accuracy(t *testing.T) {
	worst := 0.0
	check := func(k int64, frac uint64) {
		worst = max(worst, apart(Exp2(k, frac), bigExp2(k, frac)))
	}
	for i := range uint64(128) {
		for _, off := range []uint64{0, 1, 1 << 10, 1<<57 - 1, 1 << 56} {
			check(0, i<<57+off)
		}
	}
	check(-1022, 0)
	check(-1022, 1)
	check(1023, 0)
	r := rng(1)
	for range 5_000 {
		check(int64(r.below(2045))-1022, r.next())
	}
	t.Logf("worst relative error %.4g", worst)
	if worst > 1.2e-16 {
		t.Errorf("worst relative error %g, promised 1.2e-16", worst)
	}
}

func TestExp2Edges(t *testing.T) {
	for _, c := range []struct {
		k    int64
		frac uint64
		want float64
	}{
		{0, 0, 1},
		{1, 0, 2},
		{-1, 0, 0.5},
		{0, 1 << 63, math.Sqrt2},
		{0, math.MaxUint64, 2},
		{1023, math.MaxUint64, math.Inf(1)},
		{1024, 0, math.Inf(1)},
		{math.MaxInt64, 5, math.Inf(1)},
		{-1022, 0, 0x1p-1022},
		{-1023, math.MaxUint64, 0},
		{math.MinInt64, 5, 0},
	} {
		if got := Exp2(c.k, c.frac); got != c.want {
			t.Errorf("Exp2(%d, %d) = %g, want %g", c.k, c.frac, got, c.want)
		}
	}
}

// TestExp2FloatNearIntegers: next to every integer, above and below, exp2Float is 2^x within 2.3e-16, does not fall as
// x grows, and is exact at the integer.
func TestExp2FloatNearIntegers(t *testing.T) {
	for k := -1022; k <= 1023; k++ {
		if got, want := exp2Float(float64(k)), math.Ldexp(1, k); got != want {
			t.Fatalf("2^%d is %g, want %g", k, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		k := float64(rapid.IntRange(-1000, 1000).Draw(t, "k"))
		off := math.Ldexp(rapid.Float64Range(1, 2).Draw(t, "mantissa"), -rapid.IntRange(1, 1074).Draw(t, "exponent"))
		steps := rapid.IntRange(1, 4).Draw(t, "steps")
		below, above := k-off, k+off
		for range steps { // the doubles next to the integer, too
			below, above = math.Nextafter(below, k), math.Nextafter(above, k)
		}
		list := []float64{k - off, below, math.Nextafter(k, -2000), k, math.Nextafter(k, 2000), above, k + off}
		slices.Sort(list)
		before := 0.0
		for _, x := range list {
			got := exp2Float(x)
			if worst := apart(got, bigExp2Of(x)); worst > 2.3e-16 {
				t.Fatalf("2^%g is %g: off by %g", x, got, worst)
			}
			if got < before {
				t.Fatalf("2^%g is %g, less than %g of a smaller exponent", x, got, before)
			}
			before = got
		}
	})
	for _, x := range []float64{-1e-20, -0x1p-54, -0x1p-55, -5e-324, math.Nextafter(-0x1p-54, -1)} {
		if got := exp2Float(x); got < 1-0x1p-52 || got > 1 {
			t.Errorf("2^%g is %g, want 1", x, got)
		}
	}
}

// bigExp2Of is 2^x.
func bigExp2Of(x float64) *big.Float {
	k := math.Floor(x)
	y := newBig().Sub(bigOf(x), bigOf(k))
	return newBig().SetMantExp(bigExp(y.Mul(y, bigLn2)), int(k))
}

// TestWeightIsMonotonic: a later event never weighs less.
func TestWeightIsMonotonic(t *testing.T) {
	const h = Tick(1_000_003)
	before := 0.0
	for at := -10 * h; at < 10*h; at += 997 {
		w := Weight(at, 0, h)
		if w < before {
			t.Fatalf("weight at %d is %v, less than %v before", at, w, before)
		}
		before = w
	}
}

// TestWeightAcrossLandmarks: moving the landmark by whole half-lives changes the exponent and no bit of the mantissa.
func TestWeightAcrossLandmarks(t *testing.T) {
	r := rng(2)
	for range 10_000 {
		h := Tick(1 + r.below(1_000_000_000_000))
		at := Tick(r.below(1 << 52))
		mark, k := int64(at/h)-int64(r.below(30)), int64(r.below(40))
		if a, b := Weight(at, mark, h), Weight(at, mark+k, h); a != b*Exp2(k, 0) {
			t.Fatalf("t=%d h=%d: %v at landmark %d, %v at %d", at, h, a, mark, b, mark+k)
		}
	}
}

func TestLog2Accuracy(t *testing.T) {
	worst := 0.0
	check := func(x float64) {
		if x == 1 {
			return // exactly 0, see below
		}
		worst = max(worst, apart(Log2(x), bigLog2(bigOf(x))))
	}
	for i := range 128 {
		edge := 1 + float64(i)/128
		for _, x := range []float64{edge, math.Nextafter(edge, 2), math.Nextafter(edge, 0)} {
			check(x)
		}
	}
	for i := range 50 {
		check(1 + math.Ldexp(1, -i-2))
		check(1 - math.Ldexp(1, -i-3))
	}
	r := rng(3)
	for range 2_000 {
		check(math.Ldexp(1+r.float(), r.below(2046)-1022))
		check(0.5 + r.float())
	}
	t.Logf("worst relative error %.4g", worst)
	if worst > 2.3e-16 {
		t.Errorf("worst relative error %g, promised 2.3e-16", worst)
	}
	for e := -1022; e < 1024; e++ {
		if got := Log2(math.Ldexp(1, e)); got != float64(e) {
			t.Errorf("Log2(2^%d) = %v", e, got)
		}
	}
}

func TestRoughLog2(t *testing.T) {
	r := rng(3)
	for range 100_000 {
		x := math.Ldexp(1+r.float(), r.below(60)-50)
		if got, want := roughLog2(x), Log2(x); math.Abs(got-want) > 0x1p-46 {
			t.Fatalf("log2 of %v is %v, want %v", x, got, want)
		}
	}
}
