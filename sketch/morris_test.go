package sketch

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"testing"
	"unsafe"
)

func newMorris(t testing.TB, bits int, h Tick) *Morris {
	t.Helper()
	m, err := NewMorris(MorrisParams{Bits: bits, HalfLife: h})
	if err != nil {
		t.Fatal(err)
	}
	return &m
}

func morrisSamples(t testing.TB) (all []*Morris) {
	for _, h := range []Tick{0, hour} {
		for _, bits := range []int{8, 16} {
			for _, n := range []int{0, 1, 100, 5000} {
				m := newMorris(t, bits, h)
				for i := range n {
					at := epoch + Tick(i)*hour/100
					if err := m.Add(at, at-Tick(i%3)*hour, float64(1+i%2), uint64(i)); err != nil {
						t.Fatal(err)
					}
				}
				all = append(all, m)
			}
		}
	}
	return all
}

func TestMorrisParams(t *testing.T) {
	for _, c := range []struct {
		p     MorrisParams
		names string
	}{
		{MorrisParams{Bits: 8}, ""},
		{MorrisParams{Bits: 16, A: 1, HalfLife: hour}, ""},
		{MorrisParams{Bits: 8, A: 1e-4}, ""},
		{MorrisParams{}, "0 bits are neither 8 nor 16"},
		{MorrisParams{Bits: 32}, "32 bits"},
		{MorrisParams{Bits: 8, A: 2}, "a of 2 is not in 0.0001..1"},
		{MorrisParams{Bits: 8, A: -1}, "a of -1"},
		{MorrisParams{Bits: 8, A: math.NaN()}, "a of NaN"},
		{MorrisParams{Bits: 8, HalfLife: -1}, "half-life"},
	} {
		_, err := NewMorris(c.p)
		wantParams(t, err, c.names)
	}
}

// TestMorrisAccuracy: counting one by one, the bias is none and the standard deviation sqrt(a n(n-1)/2).
func TestMorrisAccuracy(t *testing.T) {
	for bits, points := range map[int][]int{8: {2, 10, 100, 1000, 5000}, 16: {100, 1000, 5000}} { // with 16 bits the first few hardly ever err
		errs := make([]errorsOf, len(points))
		for seed := range 600 {
			m, n := newMorris(t, bits, 0), 0
			for i, point := range points {
				for ; n < point; n++ {
					if err := m.Add(epoch, epoch, 1, hashOf(seed, n)); err != nil {
						t.Fatal(err)
					}
				}
				e := m.Estimate(epoch)
				errs[i].add(e.Count, float64(n), math.Sqrt(m.params.A*float64(n)*float64(n-1)/2))
				if want := e.Count * math.Sqrt(m.params.A/2); math.Abs(e.StandardError-want) > 1e-9*want {
					t.Fatalf("states a standard error of %v, want %v", e.StandardError, want)
				}
			}
		}
		for i, point := range points {
			errs[i].check(t, fmt.Sprintf("%d bits, %d events", bits, point))
			if rmse := math.Sqrt(errs[i].square / errs[i].n); rmse < 0.85 {
				t.Errorf("%d bits, %d events: rmse is %.2f of theory: too good", bits, point, rmse)
			}
		}
	}
	for _, bits := range []int{8, 16} {
		m := newMorris(t, bits, 0)
		if err := m.Add(epoch, epoch, 1, 5); err != nil || math.Abs(m.Estimate(epoch).Count-1) > 1e-9 {
			t.Errorf("%d bits: one event counts as %v", bits, m.Estimate(epoch).Count)
		}
	}
}

// TestMorrisAmounts: amounts of all sizes up to billions, not only ones.
func TestMorrisAmounts(t *testing.T) {
	for _, bits := range []int{8, 16} {
		var errs errorsOf
		for seed := range 2000 {
			m, r, sum := newMorris(t, bits, 0), rng(seed), 0.0
			for i := range 40 {
				n := math.Ldexp(1+r.float(), r.below(24))
				sum += n
				if err := m.Add(epoch, epoch, n, hashOf(seed, i)); err != nil {
					t.Fatal(err)
				}
			}
			errs.add(m.Estimate(epoch).Count, sum, sum*math.Sqrt(m.params.A/2))
		}
		errs.check(t, fmt.Sprintf("%d bits, any amounts", bits))
	}
}

// TestMorrisForgets: a steady stream over 30 half-lives, some of it late, and then silence.
func TestMorrisForgets(t *testing.T) {
	for _, bits := range []int{8, 16} {
		var steady, silent errorsOf
		for seed := range 800 {
			m, truth := newMorris(t, bits, hour), decayed{h: hour}
			r, now := rng(seed), epoch
			for i := range 1500 {
				now += Tick(r.below(int(hour / 25)))
				at := now
				if r.below(10) == 0 {
					at -= Tick(r.below(int(hour)))
				}
				n := float64(1 + r.below(1000))
				truth.add(at, n)
				if err := m.Add(now, at, n, hashOf(seed, i)); err != nil {
					t.Fatal(err)
				}
			}
			e := m.Estimate(now)
			want := truth.read(now)
			steady.add(e.Count, want, morrisError(m, now, want))
			// eight half-lives of silence, and one event that makes the counter move its landmark
			later := now + 8*hour
			if err := m.Add(later, later, 1, hashOf(seed, -1)); err != nil {
				t.Fatal(err)
			}
			want = truth.read(later) + 1
			silent.add(m.Estimate(later).Count, want, morrisError(m, later, want))
			if e := m.Estimate(later + 1000*hour); e.Count > 1e-200 || e.Saturated {
				t.Fatalf("after a thousand half-lives: %+v", e)
			}
			if err := m.Add(later+1000*hour, later+1000*hour, 1, 9); err != nil {
				t.Fatal(err)
			}
			if e := m.Estimate(later + 1000*hour); e.Count > 3 {
				t.Fatalf("a thousand half-lives on, one event counts as %v", e.Count)
			}
		}
		steady.check(t, fmt.Sprintf("%d bits, steady", bits))
		silent.check(t, fmt.Sprintf("%d bits, after silence", bits))
	}
}

// morrisError is the standard deviation that is promised of a count at a time.
func morrisError(m *Morris, at Tick, count float64) float64 {
	scale, a := m.scale(at), m.params.A
	sum := count / scale
	return scale * math.Sqrt(a*sum*sum/2+sum/4+(1+a*sum)*(1+a*sum)/3)
}

// TestMorrisMerges: counts add up in expectation, and either order gives the same bytes.
func TestMorrisMerges(t *testing.T) {
	for _, h := range []Tick{0, hour} {
		var errs errorsOf
		for seed := range 1500 {
			r := rng(seed)
			var parts [2]*Morris
			truth, now := decayed{h: h}, epoch
			for i := range parts {
				parts[i] = newMorris(t, 8, h)
				for j := range 20 {
					now += Tick(r.below(int(hour / 8)))
					n := float64(r.below(10_000))
					truth.add(now, n)
					if err := parts[i].Add(now, now, n, hashOf(seed, 100*i+j)); err != nil {
						t.Fatal(err)
					}
				}
			}
			ab, ba := *parts[0], *parts[1]
			if err := errors.Join(ab.Merge(parts[1], uint64(seed)), ba.Merge(parts[0], uint64(seed))); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(ab.AppendBinary(nil), ba.AppendBinary(nil)) {
				t.Fatal("a merge does not commute")
			}
			want := truth.read(now)
			errs.add(ab.Estimate(now).Count, want, morrisError(&ab, now, want))
		}
		errs.check(t, fmt.Sprintf("merged, h=%d", h))
	}
}

// TestMorrisIsData: the same seeds give the same bytes, and other seeds others.
func TestMorrisIsData(t *testing.T) {
	run := func(salt int) string {
		m := newMorris(t, 16, hour)
		for i := range 1000 {
			if err := m.Add(epoch+Tick(i)*hour/100, epoch, 1, hashOf(salt, i)); err != nil {
				t.Fatal(err)
			}
		}
		return string(m.AppendBinary(nil))
	}
	first := run(1)
	if again, other := run(1), run(2); first != again || first == other {
		t.Error("the register does not follow the seeds")
	}
}

func TestMorrisRefuses(t *testing.T) {
	m := newMorris(t, 8, hour)
	if err := m.Add(epoch, epoch, 5, 1); err != nil {
		t.Fatal(err)
	}
	before := m.AppendBinary(nil)
	for _, c := range []struct {
		n    float64
		want error
	}{{-1, ErrNegative}, {math.NaN(), ErrOverflow}, {math.Inf(1), ErrOverflow}, {0, nil}} {
		if err := m.Add(epoch, epoch, c.n, 1); !errors.Is(err, c.want) {
			t.Errorf("adding %v: %v, want %v", c.n, err, c.want)
		}
	}
	for _, o := range []*Morris{newMorris(t, 16, hour), newMorris(t, 8, 2*hour), newMorris(t, 8, 0)} {
		if err := m.Merge(o, 1); !errors.Is(err, ErrIncompatible) {
			t.Errorf("merging %+v: %v", o.params, err)
		}
	}
	if !bytes.Equal(before, m.AppendBinary(nil)) {
		t.Error("something changed")
	}
}

// TestMorrisSaturates at the end of its range, and fades from there.
func TestMorrisSaturates(t *testing.T) {
	for _, p := range []MorrisParams{{Bits: 8}, {Bits: 16}, {Bits: 16, A: 1}, {Bits: 8, HalfLife: hour}} {
		m, err := NewMorris(p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := m.Add(epoch, epoch, CountMax, uint64(i)); err != nil {
				t.Fatal(err)
			}
		}
		if e := m.Estimate(epoch); !e.Saturated || math.IsInf(e.Count, 0) || e.Count < 1e9 {
			t.Errorf("%+v: %+v", p, e)
		}
		twin := m
		if err := m.Merge(&twin, 1); err != nil || m != twin {
			t.Errorf("%+v: merged with itself it is %+v, %v", p, m, err)
		}
		if err := m.Add(epoch+20*hour, epoch+20*hour, 1, 9); err != nil || m.Estimate(epoch+20*hour).Saturated != (p.HalfLife == 0) {
			t.Errorf("%+v: after 20 hours %+v", p, m.Estimate(epoch+20*hour))
		}
	}
}

func TestMorrisCodec(t *testing.T) {
	checkCodec(t, morrisSamples(t), useMorris)
}

func FuzzMorris(f *testing.F) { fuzzCodec(f, morrisSamples(f), useMorris) }

func useMorris(m *Morris) {
	m.Estimate(-1 << 63)
	_ = m.Add(MaxTick, MaxTick, 1, 1)
	o := *m
	_ = m.Merge(&o, 1)
	if e := m.Estimate(MaxTick); !(e.Count >= 0 && e.Count <= CountMax*2) {
		panic("no count")
	}
}

func TestMorrisSize(t *testing.T) {
	m := newMorris(t, 8, hour)
	if unsafe.Sizeof(*m) != 64 || m.Size() != 64 {
		t.Errorf("%d bytes, says %d", unsafe.Sizeof(*m), m.Size())
	}
	if n := len(m.AppendBinary(nil)); n > 20 {
		t.Errorf("%d bytes encoded", n)
	}
}

func TestGoldenMorris(t *testing.T) {
	var b bytes.Buffer
	for _, m := range morrisSamples(t) {
		e := m.Estimate(epoch + 60*hour)
		fmt.Fprintf(&b, "bytes %x count %x error %x\n", m.AppendBinary(nil), e.Count, e.StandardError)
	}
	for _, bits := range []int{8, 16} {
		m, h, r := newMorris(t, bits, hour), fnv.New64a(), rng(1)
		for i := range 20_000 {
			at := epoch + Tick(i)*hour/300
			if err := m.Add(at, at, r.float()*100, r.next()); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(h, "%d,", m.register)
		}
		fmt.Fprintf(&b, "%d bits hash %016x\n", bits, h.Sum64())
	}
	golden(t, "golden-morris.txt", b.Bytes())
}

func BenchmarkMorris(b *testing.B) {
	for _, h := range []Tick{0, hour} {
		m := newMorris(b, 8, h)
		b.Run(fmt.Sprintf("add/h=%d", h), func(b *testing.B) {
			i := 0
			for b.Loop() {
				i++
				if err := m.Add(epoch+Tick(i), epoch+Tick(i), 1, uint64(i)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// It dies when its count fades below the threshold, and not before; without a half-life never.
func TestMorrisDies(t *testing.T) {
	const hour = Tick(3600e6)
	m, err := NewMorris(MorrisParams{Bits: 16, HalfLife: hour})
	if err != nil {
		t.Fatal(err)
	}
	if d := m.Death(0.5); d != 0 {
		t.Errorf("an empty one dies at %d", d)
	}
	for i := range uint64(100) {
		if err := m.Add(epoch+hour/2, epoch, 3, i); err != nil {
			t.Fatal(err)
		}
	}
	death := m.Death(0.5)
	if before, after := m.Estimate(death-10).Count, m.Estimate(death).Count; before < 0.5 || after >= 0.5 {
		t.Errorf("%v before its death, %v after", before, after)
	}
	plain, _ := NewMorris(MorrisParams{Bits: 16})
	if err := plain.Add(epoch, epoch, 1, 1); err != nil || plain.Death(0.5) != MaxTick {
		t.Errorf("without a half-life it dies at %d (%v)", plain.Death(0.5), err)
	}
}
