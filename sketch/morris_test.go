package sketch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
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

func morrisSamples(t testing.TB) []*Morris { return append(morrisOf(t, false), morrisOf(t, true)...) }

func measuredMorris(t testing.TB, bits int, h Tick) *Morris {
	t.Helper()
	m, err := NewMorris(MorrisParams{Bits: bits, HalfLife: h, Measured: true})
	if err != nil {
		t.Fatal(err)
	}
	return &m
}

func morrisOf(t testing.TB, measured bool) (all []*Morris) {
	for _, h := range []Tick{0, hour} {
		for _, bits := range []int{8, 16} {
			for _, n := range []int{0, 1, 100, 5000} {
				m := newMorris(t, bits, h)
				if measured {
					m = measuredMorris(t, bits, h)
				}
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
				errs[i].add(e.Count, float64(n), math.Sqrt(m.a*float64(n)*float64(n-1)/2))
				if want := e.Count * math.Sqrt(m.a/2); math.Abs(e.StandardError-want) > 1e-9*want {
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
			errs.add(m.Estimate(epoch).Count, sum, sum*math.Sqrt(m.a/2))
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
	scale, a := m.scale(at), m.a
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
			t.Errorf("merging %+v: %v", o.Params(), err)
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

func TestGoldenMorris(t *testing.T) { goldenMorris(t, false, "golden-morris.txt") }

func TestGoldenMorrisMeasured(t *testing.T) { goldenMorris(t, true, "golden-morris-measured.txt") }

func goldenMorris(t *testing.T, measured bool, file string) {
	var b bytes.Buffer
	for _, m := range morrisOf(t, measured) {
		e := m.Estimate(epoch + 60*hour)
		fmt.Fprintf(&b, "bytes %x count %x error %x\n", m.AppendBinary(nil), e.Count, e.StandardError)
	}
	for _, bits := range []int{8, 16} {
		m, h, r := newMorris(t, bits, hour), fnv.New64a(), rng(1)
		if measured {
			m = measuredMorris(t, bits, hour)
			m.Born(epoch, 0.008/7)
		}
		for i := range 20_000 {
			at := epoch + Tick(i)*hour/300
			if err := m.Add(at, at, r.float()*100, r.next()); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(h, "%d,", m.register)
			if measured {
				fmt.Fprintf(h, "%x,", m.variance)
			}
		}
		fmt.Fprintf(&b, "%d bits hash %016x\n", bits, h.Sum64())
	}
	golden(t, file, b.Bytes())
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

// morrisOrders are ways in which the events of a stream come in.
var morrisOrders = []string{"in time", "all late", "newest first", "any"}

// arrange puts times into an order, and says what the clock is at each.
func arrange(r *rng, order string, times []Tick, end Tick) (clocks []Tick) {
	switch order {
	case "in time", "all late":
		slices.Sort(times)
	case "newest first":
		slices.SortFunc(times, func(a, b Tick) int { return cmp.Compare(b, a) })
	default:
		for i := range times {
			j := i + r.below(len(times)-i)
			times[i], times[j] = times[j], times[i]
		}
	}
	clock := Tick(0)
	for _, at := range times {
		if clock = max(clock, at); order == "all late" {
			clock = end
		}
		clocks = append(clocks, clock)
	}
	return clocks
}

// The interval of a measured counter contains the truth in 95% of cases, in any order of events, with and without
// decay, and for amounts below 1.
func TestMorrisIntervals(t *testing.T) {
	const trials = 1000
	for _, c := range []struct {
		bits   int
		h      Tick
		events int
		most   float64 // the largest amount; 0: all are 1
	}{
		{16, hour, 400, 0},
		{16, hour, 3000, 0},
		{16, hour, 400, 0.05},
		{16, 0, 3000, 0},
		{16, 0, 3000, 0.05},
		{8, hour, 400, 0},
		{8, 0, 400, 0},
		{8, 0, 1500, 0.05},
	} {
		for _, order := range morrisOrders {
			if c.h == 0 && order != "any" {
				continue // times do not matter
			}
			inside, checks := 0, 0
			var errs errorsOf
			for seed := range trials {
				m, r, truth, end := measuredMorris(t, c.bits, c.h), rng(seed), decayed{h: c.h}, epoch+12*hour
				m.Born(end, 0.008/7)
				times := make([]Tick, c.events)
				for i := range times {
					times[i] = epoch + Tick(r.below(int(12*hour)))
				}
				clocks := arrange(&r, order, times, end)
				for i, at := range times {
					n := 1.0
					if c.most > 0 {
						n = r.float() * c.most
					}
					truth.add(at, n)
					if err := m.Add(clocks[i], at, n, hashOf(seed, i)); err != nil {
						t.Fatal(err)
					}
				}
				want := truth.read(end)
				low, high := m.Interval(end, 0.95)
				if checks++; low <= want && want <= high {
					inside++
				}
				e := m.Estimate(end)
				errs.add(e.Count, want, math.Sqrt(m.a/2)*want)
			}
			part := float64(inside) / float64(checks)
			what := fmt.Sprintf("%d bits, half-life %d, %d events of up to %v, %s", c.bits, c.h, c.events, c.most, order)
			t.Logf("%s: %.3f, bias %.3f, rms %.3f of theory", what, part, errs.sum/errs.n, math.Sqrt(errs.square/errs.n))
			if part < 0.93 || part > 0.97 {
				t.Errorf("%s: %.3f of the intervals contain the truth", what, part)
			}
			if bias, sd := errs.sum/errs.n, math.Sqrt(errs.square/errs.n/errs.n); math.Abs(bias) > 4*sd {
				t.Errorf("%s: a bias of %.3f standard errors", what, bias)
			}
		}
	}
}

// Where a register counts almost each step, one that it has missed is in the interval.
func TestMorrisIntervalsOfFewEvents(t *testing.T) {
	const trials = 4000
	for _, bits := range []int{8, 16} {
		for _, n := range []int{2, 3, 5, 8, 12, 16, 20, 22, 25, 27, 30, 35, 40, 60, 100} {
			inside := 0
			for seed := range trials {
				m := measuredMorris(t, bits, 0)
				for i := range n {
					if err := m.Add(epoch, epoch, 1, hashOf(seed, i)); err != nil {
						t.Fatal(err)
					}
				}
				if low, high := m.Interval(epoch, 0.95); low <= float64(n) && float64(n) <= high {
					inside++
				}
			}
			if part := float64(inside) / trials; part < 0.93 {
				t.Errorf("%d bits, %d events: %.3f of the intervals contain the truth", bits, n, part)
			}
		}
	}
}

// Late events that are few, and each weighs little, are in the interval: it says that it is not certain.
func TestMorrisOfFewLateEvents(t *testing.T) {
	for _, bits := range []int{8, 16} {
		for _, events := range []int{1, 30, 300, 3000} {
			outside := 0
			for seed := range 400 {
				m, truth := measuredMorris(t, bits, hour), decayed{h: hour}
				m.Born(epoch, 0.008/7)
				for i := range events {
					at := epoch - 11*hour
					truth.add(at, 1)
					if err := m.Add(epoch, at, 1, hashOf(seed, i)); err != nil {
						t.Fatal(err)
					}
				}
				low, high := m.Interval(epoch, 0.95)
				if want := truth.read(epoch); want < low || want > high {
					outside++
				}
				if low >= high || m.Estimate(epoch).StandardError == 0 {
					t.Fatalf("%d late events: %+v is certain", events, m.Estimate(epoch))
				}
				if m.Death(0.001) < epoch+3*hour {
					t.Fatalf("%d late events: it dies at once", events)
				}
			}
			if outside > 28 {
				t.Errorf("%d bits, %d late events: %d of 400 intervals do not contain the truth", bits, events, outside)
			}
		}
	}
}

// A counter that is not measured has an interval that is as wide as events in any order may need.
func TestMorrisIntervalsWithoutVariance(t *testing.T) {
	for _, order := range morrisOrders {
		inside := 0
		for seed := range 500 {
			m, r, truth, end := newMorris(t, 16, hour), rng(seed), decayed{h: hour}, epoch+12*hour
			times := make([]Tick, 400)
			for i := range times {
				times[i] = epoch + Tick(r.below(int(12*hour)))
			}
			clocks := arrange(&r, order, times, end)
			for i, at := range times {
				truth.add(at, 1)
				if err := m.Add(clocks[i], at, 1, hashOf(seed, i)); err != nil {
					t.Fatal(err)
				}
			}
			low, high := m.Interval(end, 0.95)
			if want := truth.read(end); low <= want && want <= high {
				inside++
			}
		}
		if inside < 465 {
			t.Errorf("%s: %d of 500 intervals contain the truth", order, inside)
		}
	}
}

// A counter that is measured and one that is not merge to one that is, in either order to the same bytes.
func TestMorrisMergesWithOneFromBefore(t *testing.T) {
	for _, h := range []Tick{0, hour} {
		inside := 0
		for seed := range 600 {
			old, now, truth := newMorris(t, 16, h), measuredMorris(t, 16, h), decayed{h: h}
			now.Born(epoch, 0.008/7)
			for i := range 200 {
				at := epoch + Tick(i)*hour/50
				truth.add(at, 3)
				one := old
				if i%2 == 0 {
					one = now
				}
				if err := one.Add(at, at, 3, hashOf(seed, i)); err != nil {
					t.Fatal(err)
				}
			}
			ab, ba := *old, *now
			if err := errors.Join(ab.Merge(now, uint64(seed)), ba.Merge(old, uint64(seed))); err != nil {
				t.Fatal(err)
			}
			if !ab.Params().Measured || !bytes.Equal(ab.AppendBinary(nil), ba.AppendBinary(nil)) {
				t.Fatalf("%+v and %+v", ab, ba)
			}
			low, high := ab.Interval(epoch+4*hour, 0.95)
			if want := truth.read(epoch + 4*hour); low <= want && want <= high {
				inside++
			}
		}
		if inside < 558 {
			t.Errorf("half-life %d: %d of 600 intervals contain the truth", h, inside)
		}
	}
}
