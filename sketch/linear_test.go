package sketch

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func newLinear(t testing.TB, capacity uint64, members bool) *LinearCounter {
	t.Helper()
	l, err := NewLinearCounter(LinearParams{Capacity: capacity, Members: members, Hash: Hash{Seed: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

func linearSamples(t testing.TB) (all []*LinearCounter) {
	for _, p := range []LinearParams{{Capacity: 1000, StandardError: 0.05}, {Capacity: 1000, StandardError: 0.05, Members: true}} {
		for _, n := range []int{0, 1, 5, 250, 251, 600, 1500, 3000, 20_000} {
			l, err := NewLinearCounter(p)
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				if err := l.Add(hashOf(1, i), itemName(i)); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, &l)
		}
	}
	return all
}

func TestLinearParams(t *testing.T) {
	for _, c := range []struct {
		p     LinearParams
		names string
	}{
		{LinearParams{Capacity: 1}, ""},
		{LinearParams{Capacity: 50_000, StandardError: 0.001}, ""},
		{LinearParams{Capacity: 100_000_000}, ""},
		{LinearParams{}, "capacity of 0"},
		{LinearParams{Capacity: 1 << 40}, "takes more than 8388608 bytes"},
		{LinearParams{Capacity: math.MaxUint64}, "takes more than 8388608 bytes"},
		{LinearParams{Capacity: 1, StandardError: 1e-4}, "standard error 0.0001 is not in 0.001..0.1"},
		{LinearParams{Capacity: 1, StandardError: 0.2}, "standard error 0.2"},
		{LinearParams{Capacity: 1, StandardError: math.NaN()}, "standard error NaN"},
		{LinearParams{Capacity: 1, Hash: Hash{ID: 77}}, "hash id 77"},
	} {
		_, err := NewLinearCounter(c.p)
		wantParams(t, err, c.names)
	}
}

// TestLinearIsExact up to 250 members, and lists them until then.
func TestLinearIsExact(t *testing.T) {
	l := newLinear(t, 50_000, true)
	want := map[string]bool{}
	for i := range 251 {
		members, ok := l.Members(nil)
		if e := l.Estimate(); !ok || len(members) != i || e != (LinearEstimate{Count: float64(i), Exact: true}) {
			t.Fatalf("after %d: %d members, %+v", i, len(members), e)
		}
		for _, m := range members {
			if !want[string(m)] {
				t.Fatalf("after %d: %q was never added", i, m)
			}
		}
		want[string(itemName(i))] = true
		for range 2 {
			if err := l.Add(hashOf(0, i), itemName(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, ok := l.Members(nil); ok || l.Exact() || l.Estimate().Exact {
		t.Error("251 members are still held one by one")
	}
}

// TestLinearAccuracy: from 250 to 50,000 members in at most 8 KiB, mean error below 1%, with the bias and the error of
// theory.
func TestLinearAccuracy(t *testing.T) {
	const trials = 300
	points := []int{251, 300, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000}
	errs, mean := make([]errorsOf, len(points)), make([]float64, len(points))
	for seed := range trials {
		l := newLinear(t, 50_000, false)
		n := 0
		for i, point := range points {
			for ; n < point; n++ {
				if err := l.Add(hashOf(seed, n), nil); err != nil {
					t.Fatal(err)
				}
			}
			e := l.Estimate()
			mean[i] += math.Abs(e.Count-float64(n)) / float64(n) / trials
			errs[i].add(e.Count, float64(n), math.Sqrt(linearVariance(float64(n), float64(l.m))))
			if e.Over || e.Saturated || e.Exact || e.StandardError > 1.02*LinearStandardError*e.Count {
				t.Fatalf("%d members: %+v", n, e)
			}
		}
		if l.Size() > 8<<10 || len(l.AppendBinary(nil)) > 8<<10 {
			t.Fatalf("%d bytes, %d encoded", l.Size(), len(l.AppendBinary(nil)))
		}
	}
	for i, point := range points {
		t.Logf("%d members: mean error %.3f%%", point, 100*mean[i])
		if mean[i] >= 0.01 {
			t.Errorf("%d members: mean error %.2f%%", point, 100*mean[i])
		}
		errs[i].check(t, fmt.Sprint(point, " members"))
	}
}

// TestLinearBounds: bounds contain the count as often as they say, also where few members share bits, and seldom more
// often than a Poisson variable that takes whole values must.
func TestLinearBounds(t *testing.T) {
	const trials = 1000
	for _, n := range []int{260, 300, 360, 410, 600, 1000, 3000, 10_000} {
		rng := rand.New(rand.NewPCG(uint64(n), 7))
		inside := 0
		for range trials {
			l := newLinear(t, 50_000, false)
			for range n {
				_ = l.Add(rng.Uint64(), nil)
			}
			if low, high := l.Between(l.Estimate(), 0.95); low <= float64(n) && float64(n) <= high {
				inside++
			}
		}
		if inside < 0.935*trials || inside > 0.99*trials {
			t.Errorf("bounds of %d members contain them %d times of %d", n, inside, trials)
		}
	}
}

// TestPoissonBetween: the fewest values in a row, of tables.
func TestPoissonBetween(t *testing.T) {
	for _, c := range []struct{ mean, probability, first, last float64 }{
		{0, 0.95, 0, 0},
		{0.05, 0.95, 0, 0},
		{0.06, 0.95, 0, 1},
		{1.2, 0.95, 0, 3},
		{3, 0.95, 0, 6},
		{10, 0.95, 4, 16},
		{1, 1, 0, 18},
		{100, 0.95, 81, 120},
	} {
		if first, last := poissonBetween(c.mean, c.probability); first != c.first || last != c.last {
			t.Errorf("%v at %v: %v to %v, want %v to %v", c.probability, c.mean, first, last, c.first, c.last)
		}
	}
}

// TestLinearBytes: what it takes at rest.
func TestLinearBytes(t *testing.T) {
	for _, c := range []struct{ members, most int }{{0, 69}, {1, 40}, {250, 2100}, {251, 500}, {1000, 1300}, {10_000, 4200}, {50_000, 4200}, {200_000, 800}} {
		l := newLinear(t, 50_000, false)
		for i := range c.members {
			if err := l.Add(hashOf(0, i), nil); err != nil {
				t.Fatal(err)
			}
		}
		n := len(l.AppendBinary(nil))
		t.Logf("%d members: %d bytes encoded, %d in memory", c.members, n, l.Size())
		if n > c.most {
			t.Errorf("%d members take %d bytes, more than %d", c.members, n, c.most)
		}
	}
}

// TestLinearOverflows: beyond its capacity it says so, and never fails.
func TestLinearOverflows(t *testing.T) {
	l := newLinear(t, 1000, false)
	for n := 1; n <= 2_000_000; n++ {
		if err := l.Add(hashOf(0, n), nil); err != nil {
			t.Fatal(err)
		}
		if n == 1000 && l.Estimate().Over {
			t.Error("over at capacity")
		}
		if n == 1100 && !l.Estimate().Over {
			t.Error("not over at 1.1 times capacity")
		}
	}
	e := l.Estimate()
	if !e.Saturated || !e.Over || !math.IsInf(e.StandardError, 1) || e.Count < 1000 {
		t.Errorf("saturated: %+v", e)
	}
	small := newLinear(t, 5, false)
	for n := range 6 {
		if err := small.Add(hashOf(0, n), nil); err != nil {
			t.Fatal(err)
		}
	}
	if e := small.Estimate(); !e.Over || e.Count != 6 {
		t.Errorf("6 of 5: %+v", e)
	}
}

// TestLinearIsASet: merging commutes, associates and repeats without effect, to the byte, over the edge of the exact
// set; and any order of adding is the same.
func TestLinearIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kept := rapid.Bool().Draw(t, "members")
		draw := func(label string) (l LinearCounter) {
			l, _ = NewLinearCounter(LinearParams{Capacity: 1000, StandardError: 0.05, Members: kept})
			from := rapid.IntRange(0, 300).Draw(t, label)
			for i := range rapid.IntRange(0, 400).Draw(t, label+" members") {
				if err := l.Add(hashOf(0, from+i), itemName((from+i)%1000)); err != nil {
					t.Fatal(err)
				}
			}
			return l
		}
		union := func(ls ...LinearCounter) string {
			u, _ := NewLinearCounter(ls[0].Params())
			u = u.Clone()
			for i := range ls {
				if err := u.Merge(&ls[i]); err != nil {
					t.Fatal(err)
				}
			}
			return string(u.AppendBinary(nil))
		}
		a, b, c := draw("a"), draw("b"), draw("c")
		bc := b.Clone()
		if err := bc.Merge(&c); err != nil {
			t.Fatal(err)
		}
		want := union(a, b, c)
		for name, got := range map[string]string{
			"other order": union(c, a, b), "other brackets": union(a, bc), "repeated": union(a, b, a, c, c, b, bc),
		} {
			if got != want {
				t.Fatalf("%s: %x\n%x", name, got, want)
			}
		}
	})
}

// TestLinearOneHash: two members of one hash are one member, the same one in any order.
func TestLinearOneHash(t *testing.T) {
	a, b := newLinear(t, 10, true), newLinear(t, 10, true)
	if err := errors.Join(a.Add(5, []byte("x")), a.Add(5, []byte("y")), b.Add(5, []byte("y")), b.Add(5, []byte("x"))); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.AppendBinary(nil), b.AppendBinary(nil)) || a.Estimate().Count != 1 {
		t.Errorf("%x and %x", a.AppendBinary(nil), b.AppendBinary(nil))
	}
}

func TestLinearRefuses(t *testing.T) {
	l := newLinear(t, 1000, true)
	if err := l.Add(1, []byte("a")); err != nil {
		t.Fatal(err)
	}
	before := l.AppendBinary(nil)
	if err := l.Add(2, make([]byte, 1025)); !errors.Is(err, ErrName) {
		t.Errorf("a long member: %v", err)
	}
	for _, p := range []LinearParams{
		{Capacity: 1001, Members: true, Hash: Hash{Seed: 1}},
		{Capacity: 1000, Hash: Hash{Seed: 1}},
		{Capacity: 1000, Members: true, Hash: Hash{Seed: 2}},
		{Capacity: 1000, Members: true, Hash: Hash{ID: HashSip, Seed: 1}},
		{Capacity: 1000, Members: true, StandardError: 0.01, Hash: Hash{Seed: 1}},
	} {
		o, err := NewLinearCounter(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Merge(&o); !errors.Is(err, ErrIncompatible) {
			t.Errorf("merging %+v: %v", p, err)
		}
	}
	if !bytes.Equal(before, l.AppendBinary(nil)) {
		t.Error("something changed")
	}
}

func TestLinearCodec(t *testing.T) {
	checkCodec(t, linearSamples(t), useLinear)
}

func FuzzLinear(f *testing.F) { fuzzCodec(f, linearSamples(f), useLinear) }

func useLinear(l *LinearCounter) {
	for i := range 20 {
		_ = l.Add(hashOf(9, i), itemName(i))
	}
	d := l.Clone()
	_ = l.Merge(&d)
	l.Estimate()
	l.Members(nil)
}

func TestLinearSize(t *testing.T) {
	l := newLinear(t, 50_000, true)
	if unsafe.Sizeof(*l) != linearOwn || l.Size() != linearOwn {
		t.Errorf("empty: %d bytes, says %d", unsafe.Sizeof(*l), l.Size())
	}
}

func TestGoldenLinear(t *testing.T) {
	var b bytes.Buffer
	for _, l := range linearSamples(t) {
		bytes := l.AppendBinary(nil)
		h := fnv.New64a()
		h.Write(bytes)
		if len(bytes) < 200 {
			fmt.Fprintf(&b, "bytes %x\n", bytes)
		}
		fmt.Fprintf(&b, "hash %016x estimate %x %x\n", h.Sum64(), l.Estimate().Count, l.Estimate().StandardError)
	}
	for capacity := uint64(1); capacity < 1e8; capacity = capacity*3 + 1 {
		fmt.Fprintf(&b, "capacity %d takes %d bits\n", capacity, newLinear(t, capacity, false).m)
	}
	golden(t, "golden-linear.txt", b.Bytes())
}

func BenchmarkLinear(b *testing.B) {
	l := newLinear(b, 50_000, false)
	for i := range 50_000 {
		if err := l.Add(hashOf(0, i), nil); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("add", func(b *testing.B) {
		x := uint64(0)
		for b.Loop() {
			x += 0x9e3779b97f4a7c15
			if err := l.Add(x, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("estimate", func(b *testing.B) {
		for b.Loop() {
			l.Estimate()
		}
	})
	buf := l.AppendBinary(nil)
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			buf = l.AppendBinary(buf[:0])
		}
	})
}
