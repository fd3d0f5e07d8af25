package sketch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

func newDistinct(t testing.TB, precision int) Distinct {
	t.Helper()
	d, err := NewDistinct(DistinctParams{Precision: precision})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// distinctOf holds n random hashes.
func distinctOf(t testing.TB, precision, n int, seed uint64) Distinct {
	d := newDistinct(t, precision)
	r := rng(seed)
	for range n {
		d.Add(r.next())
	}
	return d
}

func TestDistinctParams(t *testing.T) {
	for _, c := range []struct {
		p    DistinctParams
		want error
	}{
		{DistinctParams{}, nil},
		{DistinctParams{Precision: 2}, nil},
		{DistinctParams{Precision: 18, Hash: Hash{ID: HashSip, Seed: 7}}, nil},
		{DistinctParams{Precision: 1}, ErrParams},
		{DistinctParams{Precision: 19}, ErrParams},
		{DistinctParams{Precision: -1}, ErrParams},
		{DistinctParams{Hash: Hash{ID: 9}}, ErrParams},
	} {
		d, err := NewDistinct(c.p)
		if !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.p, err, c.want)
		}
		if c.p.Precision == 0 && err == nil && d.Params() != (DistinctParams{Precision: 11, Hash: Hash{ID: HashXXH3}}) {
			t.Errorf("the default is %+v", d.Params())
		}
	}
}

// TestDistinctSize: what a count of so many things takes, at the default precision.
func TestDistinctSize(t *testing.T) {
	for _, c := range []struct{ things, bytes, encoded int }{
		{0, 48, 13},
		{1, 64, 17},
		{10, 112, 53},
		{100, 48 + 600, 413},
		{1000, 48 + 7000, 4014},
		{1536, 48 + 9500, 6158},
		{1537, 48 + 8192, 8204},
		{1_000_000, 48 + 8192, 8204},
	} {
		d := distinctOf(t, 11, c.things, 1)
		if d.Size() > c.bytes || len(d.AppendBinary(nil)) != c.encoded {
			t.Errorf("%d things take %d bytes, encoded %d, want at most %d and %d", c.things, d.Size(), len(d.AppendBinary(nil)), c.bytes, c.encoded)
		}
	}
}

// TestDistinctIsExactWhileSmall: tokens tell things apart.
func TestDistinctIsExactWhileSmall(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 10, 100, 500} {
		d := distinctOf(t, 11, n, 5)
		if got, stdErr := d.Estimate(); got != float64(n) || stdErr > 0.03 {
			t.Errorf("%d things: %v +- %v", n, got, stdErr)
		}
	}
}

// drawHashes has repetitions, hashes that share registers, and hashes of nearly nothing but zeros.
func drawHashes(t *rapid.T, label string) []uint64 {
	r := rng(rapid.Uint64().Draw(t, label))
	hashes := make([]uint64, r.below(300))
	for i := range hashes {
		hashes[i] = r.next() >> (r.next() % 64)
		if i > 0 && r.below(4) == 0 {
			hashes[i] = hashes[r.below(i)]
		}
	}
	return hashes
}

// TestDistinctIsAFunctionOfTheSet: whatever the order, the repetition, the grouping into parts of any precision and the
// order of their merging, the bytes are those of one sketch in the lowest precision that saw each hash once.
func TestDistinctIsAFunctionOfTheSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hashes := drawHashes(t, "hashes")
		r := rng(rapid.Uint64().Draw(t, "grouping"))
		var parts []Distinct
		lowest := 18
		for range rapid.IntRange(1, 5).Draw(t, "parts") {
			p := rapid.IntRange(2, 12).Draw(t, "precision")
			d, _ := NewDistinct(DistinctParams{Precision: p})
			parts = append(parts, d)
			lowest = min(lowest, p)
		}
		whole, _ := NewDistinct(DistinctParams{Precision: lowest})
		for _, h := range hashes {
			whole.Add(h)
			for range 1 + r.below(2) {
				parts[r.below(len(parts))].Add(h)
			}
		}
		for len(parts) > 1 {
			i, j := r.below(len(parts)), r.below(len(parts))
			if err := parts[i].Merge(&parts[j]); err != nil {
				t.Fatal(err)
			}
			if i != j {
				parts[j] = parts[len(parts)-1]
				parts = parts[:len(parts)-1]
			}
		}
		if a, b := parts[0].AppendBinary(nil), whole.AppendBinary(nil); string(a) != string(b) {
			t.Fatalf("%x\nwant %x", a, b)
		}
	})
}

// TestDistinctMerge: it commutes, associates, and repeats without effect.
func TestDistinctMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s [3]Distinct
		for i := range s {
			s[i], _ = NewDistinct(DistinctParams{Precision: rapid.IntRange(2, 7).Draw(t, "precision")})
			for _, h := range drawHashes(t, "hashes") {
				s[i].Add(h)
			}
		}
		merged := func(order ...int) string {
			d := s[order[0]].Clone()
			for _, i := range order[1:] {
				before := s[i].AppendBinary(nil)
				if err := d.Merge(&s[i]); err != nil {
					t.Fatal(err)
				}
				if string(before) != string(s[i].AppendBinary(nil)) {
					t.Fatal("the other changed")
				}
			}
			return string(d.AppendBinary(nil))
		}
		if merged(0, 1) != merged(1, 0) {
			t.Fatal("does not commute")
		}
		if merged(0, 1, 1, 0) != merged(0, 1) || merged(0, 0) != merged(0) {
			t.Fatal("is not idempotent")
		}
		right := s[1].Clone()
		if err := right.Merge(&s[2]); err != nil {
			t.Fatal(err)
		}
		left := s[0].Clone()
		if err := left.Merge(&right); err != nil {
			t.Fatal(err)
		}
		if string(left.AppendBinary(nil)) != merged(0, 1, 2) {
			t.Fatal("does not associate")
		}
	})
}

func TestDistinctMergeRefuses(t *testing.T) {
	a := distinctOf(t, 4, 100, 1)
	b, err := NewDistinct(DistinctParams{Precision: 3, Hash: Hash{Seed: 0xbeef}})
	if err != nil {
		t.Fatal(err)
	}
	before := a.AppendBinary(nil)
	err = a.Merge(&b)
	if !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "0x0") || !strings.Contains(err.Error(), "0xbeef") {
		t.Errorf("got %v", err)
	}
	if string(a.AppendBinary(nil)) != string(before) {
		t.Error("it changed something")
	}
}

// TestDistinctAddSaysWhatChanged, which windows rely on: an Add that answers false changed nothing, and one that
// answers true did.
func TestDistinctAddSaysWhatChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, _ := NewDistinct(DistinctParams{Precision: rapid.IntRange(2, 8).Draw(t, "precision")})
		for _, h := range drawHashes(t, "hashes") {
			before := string(d.AppendBinary(nil))
			if changed := d.Add(h); changed != (string(d.AppendBinary(nil)) != before) {
				t.Fatalf("Add(%#x) answered %v", h, changed)
			}
		}
	})
}

// moments gather relative errors.
type moments struct{ n, sum, squares float64 }

func (m *moments) add(e float64) { m.n++; m.sum += e; m.squares += e * e }

func (m *moments) rmse() float64 { return math.Sqrt(m.squares / m.n) }

// check fails when the rmse is above 1.05 of theory, with 4.5 standard errors of a measured rmse (1/sqrt(2n) each) to
// spare, or when the bias is not 0 within 4.5 standard errors, the second order (the square of the error) aside.
func (m *moments) check(t *testing.T, what string, theory float64) {
	t.Helper()
	bias, allowed := m.sum/m.n, 4.5*m.rmse()/math.Sqrt(m.n)+theory*theory
	t.Logf("%s: bias %+.4f%%, rmse %.3f%% = %.3f of theory", what, 100*bias, 100*m.rmse(), m.rmse()/theory)
	if m.rmse() > theory*(1.05+4.5/math.Sqrt(2*m.n)) {
		t.Errorf("%s: rmse %v, theory %v", what, m.rmse(), theory)
	}
	if math.Abs(bias) > allowed {
		t.Errorf("%s: bias %v, allowed %v", what, bias, allowed)
	}
}

func distinctTheory(precision int) float64 { return 0.34376 / math.Sqrt(float64(int(1)<<precision)) }

// TestDistinctError adds really: from one thing to 200,000, over the change from tokens to registers, merged from two
// halves of another precision or not.
func TestDistinctError(t *testing.T) {
	for _, c := range []struct {
		name                  string
		precision, high, runs int
		dense                 bool
	}{
		{"8 KiB", 11, 11, 60, false},
		{"1 KiB", 8, 8, 300, false},
		{"1 KiB, reduced from 8", 8, 11, 100, false},
		{"registers from the start", 8, 8, 300, true},
		{"64 B", 4, 4, 1000, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			grid := []int{1, 2, 5, 10, 20, 50, 100, 190, 193, 200, 500, 1000, 1500, 1600, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000}
			errs, stated := make([]moments, len(grid)), make([]moments, len(grid))
			r := rng(uint64(c.precision))
			for range c.runs {
				d := newDistinct(t, c.precision)
				if c.dense {
					d.densify(d.p)
				}
				other := newDistinct(t, c.high)
				n := 0
				for i, to := range grid {
					if to > 200<<c.precision {
						break
					}
					for ; n < to; n++ {
						if c.high != c.precision && n%2 == 0 {
							other.Add(r.next())
							continue
						}
						d.Add(r.next())
					}
					merged := &d
					if c.high != c.precision {
						m := d.Clone()
						merged = &m
						if err := merged.Merge(&other); err != nil {
							t.Fatal(err)
						}
					}
					estimate, stdErr := merged.Estimate()
					errs[i].add(estimate/float64(to) - 1)
					stated[i].add(stdErr / float64(to))
				}
			}
			for i, n := range grid {
				if errs[i].n == 0 {
					continue
				}
				errs[i].check(t, fmt.Sprint(n), distinctTheory(c.precision))
				if rmse, said := errs[i].rmse(), stated[i].rmse(); rmse > 1e-3 && math.Abs(said/rmse-1) > 0.05+4.5/math.Sqrt(2*errs[i].n) {
					t.Errorf("%d: states an error of %v, has %v", n, said, rmse)
				}
			}
		})
	}
}

// TestDistinctErrorOfMany goes to 10^18 by drawing, for every update of every register, when it is first seen:
// exponential times stand for the number of things added. Its own sampling error is below a thousandth of theory from
// 10^5 on.
func TestDistinctErrorOfMany(t *testing.T) {
	const precision, first, points = 8, 5, 14
	m := 1 << precision
	runs := 400
	if testing.Short() {
		runs = 150
	}
	var errs [points]moments
	var all moments
	r := rng(3)
	type update struct{ register, value uint32 }
	for range runs {
		var seen [points][]update
		for i := range m {
			for k := 1; k <= 4*(63-precision); k++ {
				rate := math.Ldexp(1/float64(m), -int(ellLevel(uint32(k), 64-precision)))
				at := max(0, math.Ceil(math.Log10(-math.Log(1-r.float())/rate)-first))
				if at < points {
					seen[int(at)] = append(seen[int(at)], update{uint32(i), uint32(k)})
				}
			}
		}
		d := newDistinct(t, precision)
		d.densify(precision)
		for point, updates := range seen {
			for _, u := range updates {
				d.words[u.register] = ellUpdate(d.words[u.register], u.value)
			}
			estimate, _ := d.Estimate()
			e := estimate/math.Pow10(first+point) - 1
			errs[point].add(e)
			all.add(e)
		}
	}
	for i := range errs {
		errs[i].check(t, fmt.Sprintf("10^%d", first+i), distinctTheory(precision))
	}
	if all.rmse() > 1.05*distinctTheory(precision) {
		t.Errorf("over all: rmse %v, theory %v", all.rmse(), distinctTheory(precision))
	}
}

// distinctSamples are encodings of all forms.
func distinctSamples(t testing.TB) (all [][]byte) {
	for _, p := range []int{2, 3, 5} {
		for _, n := range []int{0, 1, 2, 3, 24, 25, 1000} {
			d := distinctOf(t, p, n, uint64(n))
			all = append(all, d.AppendBinary(nil))
		}
	}
	return all
}

func TestDistinctDecodeRefuses(t *testing.T) {
	few, many := distinctOf(t, 4, 3, 1), distinctOf(t, 4, 100, 1)
	put := func(b []byte, at int, with ...byte) []byte {
		b = append([]byte(nil), b...)
		copy(b[at:], with)
		return b
	}
	tokens, registers := few.AppendBinary(nil), many.AppendBinary(nil)
	word := func(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }
	bad := map[string][]byte{
		"nothing":                            nil,
		"another version":                    put(tokens, 0, 2),
		"another form":                       put(tokens, 1, 2),
		"precision too low":                  put(tokens, 2, 1),
		"precision too high":                 put(tokens, 2, 19),
		"an unknown hash":                    put(tokens, 3, 9),
		"more tokens than a precision has":   put(tokens, 12, 13),
		"a count that lies":                  put(tokens, 12, 4),
		"a token without zeros":              put(tokens, 13, word(0)...),
		"a token of too many zeros":          put(tokens, 13, word(40)...),
		"tokens out of order":                put(tokens, 13, word(0xffffff01)...),
		"a token twice":                      put(tokens, 13, tokens[17:21]...),
		"a register beyond the last update":  put(registers, 12, word(237<<24)...),
		"bits in a register without updates": put(registers, 12, word(1)...),
		"a first update without its mark":    put(registers, 12, word(5<<24)...),
		"an update before the first":         put(registers, 12, word(5<<24|1<<19|1<<10)...),
		"registers of nothing":               append(registers[:12:12], make([]byte, 64)...),
	}
	for i := range tokens {
		bad[fmt.Sprintf("%d bytes of tokens", i)] = tokens[:i]
	}
	for i := range registers {
		bad[fmt.Sprintf("%d bytes of registers", i)] = registers[:i]
	}
	d := distinctOf(t, 5, 10, 2)
	before := string(d.AppendBinary(nil))
	for name, b := range bad {
		if rest, err := d.Decode(b); !errors.Is(err, ErrCorrupt) || rest != nil {
			t.Errorf("%s: %x gives %v", name, b, err)
		}
		if string(d.AppendBinary(nil)) != before {
			t.Fatalf("%s: the receiver changed", name)
		}
	}
	for _, b := range distinctSamples(t) {
		rest, err := d.Decode(append(b, "tail"...))
		if err != nil || string(rest) != "tail" || string(d.AppendBinary(nil)) != string(b) {
			t.Errorf("%x: %v, rest %q", b, err, rest)
		}
	}
}

// FuzzDistinctDecode: what is accepted encodes to the same bytes and can be used; what is not leaves the receiver
// alone.
func FuzzDistinctDecode(f *testing.F) {
	for _, b := range distinctSamples(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := distinctOf(t, 4, 5, 1)
		before := string(d.AppendBinary(nil))
		rest, err := d.Decode(b)
		if err != nil {
			if string(d.AppendBinary(nil)) != before {
				t.Fatal("refused, and changed the receiver")
			}
			return
		}
		if again := d.AppendBinary(nil); string(again) != string(b[:len(b)-len(rest)]) {
			t.Fatalf("%x encodes to %x", b[:len(b)-len(rest)], again)
		}
		if n, stdErr := d.Estimate(); !(n >= 0) || !(stdErr >= 0) {
			t.Fatalf("estimate %v +- %v", n, stdErr)
		}
		low := Distinct{p: 2, hash: d.hash}
		if err := low.Merge(&d); err != nil {
			t.Fatal(err)
		}
		for h := range uint64(100) {
			d.Add(remix(h, 0))
		}
		if _, err := low.Decode(d.AppendBinary(nil)); err != nil {
			t.Fatal(err)
		}
	})
}

// TestGoldenDistinct: every machine computes the same bits, estimates included.
func TestGoldenDistinct(t *testing.T) {
	var b strings.Builder
	for _, p := range []int{2, 8, 11} {
		hash := fnv.New64a()
		d := newDistinct(t, p)
		r := rng(p)
		for i := range 30_000 {
			d.Add(r.next())
			if i&(i+1) == 0 || i%5000 == 0 {
				n, stdErr := d.Estimate()
				fmt.Fprintf(hash, "%x %x %x", d.AppendBinary(nil), n, stdErr)
				fmt.Fprintf(&b, "precision %d after %d: %x +- %x\n", p, i+1, n, stdErr)
			}
		}
		if p == 2 {
			fmt.Fprintf(&b, "precision %d bytes %x\n", p, d.AppendBinary(nil))
		}
		fmt.Fprintf(&b, "precision %d hash %016x\n", p, hash.Sum64())
	}
	golden(t, "golden_distinct.txt", []byte(b.String()))
}

func BenchmarkDistinctAdd(b *testing.B) {
	for _, things := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("things=%d", things), func(b *testing.B) {
			d := newDistinct(b, 0)
			var key [16]byte
			r, n := rng(1), uint64(things)
			for b.Loop() {
				binary.LittleEndian.PutUint64(key[:], r.next()%n)
				d.Add(xxh3.HashSeed(key[:], 1))
			}
		})
	}
	b.Run("fresh", func(b *testing.B) {
		r, i := rng(1), 0
		var d Distinct
		for b.Loop() {
			if i%1500 == 0 {
				d = newDistinct(b, 0)
			}
			i++
			d.Add(r.next())
		}
	})
}

func BenchmarkDistinctEstimate(b *testing.B) {
	for _, things := range []int{100, 1500, 2000, 1_000_000} {
		b.Run(fmt.Sprintf("things=%d", things), func(b *testing.B) {
			d := distinctOf(b, 0, things, 1)
			for b.Loop() {
				d.Estimate()
			}
		})
	}
}

func BenchmarkDistinctMerge(b *testing.B) {
	for _, things := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("things=%d", things), func(b *testing.B) {
			x, y := distinctOf(b, 0, things, 1), distinctOf(b, 0, things, 2)
			for b.Loop() {
				if err := x.Merge(&y); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
