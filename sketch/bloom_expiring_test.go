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

func newExpiring(t testing.TB, capacity uint64, rate float64, window Tick) *BloomExpiring {
	t.Helper()
	f, err := NewBloomExpiring(BloomExpiringParams{Capacity: capacity, FalseRate: rate, Window: window, Hash: Hash{Seed: 5}})
	if err != nil {
		t.Fatal(err)
	}
	return &f
}

func expiringSamples(t testing.TB) (all []*BloomExpiring) {
	for _, window := range []Tick{0, hour} {
		for _, n := range []int{0, 1, 10, 100, 400} {
			f := newExpiring(t, 60, 0.05, window)
			for i := range n {
				at := epoch + Tick(i)*hour/100
				f.Add(at, at-Tick(i%3)*hour/20, hashOf(1, i))
			}
			all = append(all, f)
		}
	}
	return all
}

func TestBloomExpiringParams(t *testing.T) {
	for _, c := range []struct {
		p     BloomExpiringParams
		names string
	}{
		{BloomExpiringParams{Capacity: 1, FalseRate: 0.5}, ""},
		{BloomExpiringParams{Capacity: 1_000_000, FalseRate: 1e-6, Window: hour}, ""},
		{BloomExpiringParams{FalseRate: 0.01}, "capacity of 0"},
		{BloomExpiringParams{Capacity: 10, FalseRate: 1e-7}, "rate 1e-07 of false positives"},
		{BloomExpiringParams{Capacity: 10, FalseRate: math.NaN()}, "rate NaN"},
		{BloomExpiringParams{Capacity: math.MaxUint64, FalseRate: 0.01}, "more than 67108864"},
		{BloomExpiringParams{Capacity: 10, FalseRate: 0.01, Window: -1}, "window of -1"},
		{BloomExpiringParams{Capacity: 10, FalseRate: 0.01, Window: 63}, "window of 63 microseconds is neither 0 nor in 128.."},
		{BloomExpiringParams{Capacity: 10, FalseRate: 0.01, Window: MaxTick}, "window of"},
		{BloomExpiringParams{Capacity: 10, FalseRate: 0.01, Hash: Hash{ID: 4}}, "hash id 4"},
	} {
		_, err := NewBloomExpiring(c.p)
		wantParams(t, err, c.names)
	}
}

// TestBloomExpiringShape: the rate of the chosen k and l, by the definition: slices hit at random, and k in a row
// sought.
func TestBloomExpiringShape(t *testing.T) {
	for _, rate := range []float64{0.1, 0.01, 0.001} {
		k, l := ageShape(rate)
		f := newExpiring(t, 100_000, rate, 0)
		bits := float64(f.slices()*f.m) / 100_000
		r := rng(1)
		const trials = 60_000
		fills := make([]float64, k+l)
		for i := range fills {
			fills[i] = 1 - math.Exp2(-float64(min(i+1, k))/float64(k))
		}
		found := 0
		for range trials {
			run := 0
			for _, fill := range fills {
				if r.float() >= fill {
					run = 0
				} else if run++; run == k {
					found++
					break
				}
			}
		}
		got := float64(found) / trials
		t.Logf("at %v: k %d, l %d, %.2f bits a key, simulated %.4g%%", rate, k, l, bits, 100*got)
		if got > rate+4*math.Sqrt(rate/trials) || rate == 0.01 && bits > 19.8 {
			t.Errorf("at %v: simulated %v, %.2f bits a key", rate, got, bits)
		}
	}
}

// TestBloomExpiringByCount: the last Capacity keys are always found, others at no more than the rate, and none for
// ever.
func TestBloomExpiringByCount(t *testing.T) {
	const capacity = 5000
	for _, rate := range []float64{0.1, 0.01, 0.001} {
		f := newExpiring(t, capacity, rate, 0)
		found, probes := 0, 0
		for i := range 5 * capacity {
			f.Add(0, 0, hashOf(2, i))
			if i%3777 != 0 && i != 5*capacity-1 {
				continue
			}
			for j := max(0, i-capacity+1); j <= i; j++ {
				if !f.Has(0, hashOf(2, j)).Found {
					t.Fatalf("at %v: after %d keys number %d is missed", rate, i, j)
				}
			}
			if i < 2*capacity {
				continue
			}
			for range 30_000 {
				probes++
				if f.Has(0, hashOf(3, probes)).Found {
					found++
				}
			}
			forgotten := i - capacity - (f.k+2)*int(f.size) // until then a key fades
			for j := max(0, forgotten-20_000); j < forgotten; j++ {
				probes++
				if f.Has(0, hashOf(2, j)).Found {
					found++
				}
			}
			if a := f.Has(0, 1); a.Over {
				t.Fatalf("at %v: over after %d keys", rate, i)
			}
		}
		measured, state := float64(found)/float64(probes), f.State(0)
		t.Logf("at %v: measured %.4g%%, expected %.4g%% now, %.0f keys", rate, 100*measured, 100*state.FalseRate, state.Keys)
		if measured > rate || math.Abs(state.Keys-capacity) > 2*float64(f.size)+5*state.KeysError {
			t.Errorf("at %v: measured %v, %+v", rate, measured, state)
		}
	}
}

// TestBloomExpiringByTime: a key is found for a window after its own time, late or not, and not when k generations more
// have passed; reads see the time they ask for and change nothing.
func TestBloomExpiringByTime(t *testing.T) {
	const capacity = 3000
	f := newExpiring(t, capacity, 0.001, hour)
	r, now := rng(3), epoch
	type key struct{ i, at Tick }
	var keys []key
	for i := range 5 * capacity {
		now += Tick(r.below(int(2 * hour / capacity)))
		if r.below(5000) == 0 {
			now += Tick(r.below(int(5 * hour))) // silence
		}
		at := now
		if r.below(10) == 0 {
			at -= Tick(r.below(int(2 * hour)))
		}
		f.Add(now, at, hashOf(4, i))
		keys = append(keys, key{Tick(i), at})
		if i%501 != 0 {
			continue
		}
		before := f.AppendBinary(nil)
		stale, old := 0, 0
		for _, later := range []Tick{0, hour / 3, hour, 30 * hour} {
			moved := f.Clone()
			moved.advance(moved.generationAt(now + later))
			for _, k := range keys {
				got := f.Has(now+later, hashOf(4, int(k.i)))
				if got != moved.Has(now+later, hashOf(4, int(k.i))) {
					t.Fatal("a read is not what a write would find")
				}
				switch age := now + later - k.at; {
				case age <= hour && !got.Found:
					t.Fatalf("a key is missed after %d s", age/1e6)
				case age > hour+Tick(f.k+2)*f.Span():
					old++
					if got.Found {
						stale++
					}
				}
			}
		}
		if float64(stale) > 0.001*float64(old)+5*math.Sqrt(0.001*float64(old)) {
			t.Fatalf("%d of %d old keys are still found", stale, old)
		}
		if !bytes.Equal(before, f.AppendBinary(nil)) {
			t.Fatal("reading wrote")
		}
	}
	f.Add(now, now-2*hour, 77)
	if f.Has(now, 77).Found {
		t.Error("a key that came two windows late is found")
	}
}

// TestBloomExpiringBurst: more keys than a window is for are all found; it says that it is over, and is not any more
// when they have gone.
func TestBloomExpiringBurst(t *testing.T) {
	f := newExpiring(t, 1000, 0.01, hour)
	for i := range 3000 {
		f.Add(epoch, epoch, hashOf(5, i))
	}
	for i := range 3000 {
		if a := f.Has(epoch+hour, hashOf(5, i)); !a.Found || !a.Over {
			t.Fatalf("key %d: %+v", i, a)
		}
	}
	if s := f.State(epoch); !s.Over || s.FalseRate < 0.01 {
		t.Errorf("%+v", s)
	}
	if s := f.State(epoch + 3*hour); s.Over || s.FalseRate > 1e-9 || s.Keys != 0 {
		t.Errorf("three windows on: %+v", s)
	}
}

// TestBloomExpiringMerges: what either has is found as long as each would have it, in either order to the byte, and
// repeating makes no difference.
func TestBloomExpiringMerges(t *testing.T) {
	for seed := range 20 {
		r, now := rng(seed), epoch
		a, b := newExpiring(t, 500, 0.01, hour), newExpiring(t, 500, 0.01, hour)
		for i := range 600 {
			now += Tick(r.below(int(hour / 200)))
			f := []*BloomExpiring{a, b}[r.below(2)]
			if seed%3 == 0 && i > 300 {
				f = a
			}
			f.Add(now, now-Tick(r.below(int(hour/4))), hashOf(seed, i))
		}
		ab, ba := a.Clone(), b.Clone()
		if err := errors.Join(ab.Merge(b), ba.Merge(a), ba.Merge(a), ba.Merge(b)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(ab.AppendBinary(nil), ba.AppendBinary(nil)) {
			t.Fatal("a merge does not commute")
		}
		for i := range 600 {
			for _, later := range []Tick{0, hour / 2} {
				h := hashOf(seed, i)
				if (a.Has(now+later, h).Found || b.Has(now+later, h).Found) && !ab.Has(now+later, h).Found {
					t.Fatalf("key %d is lost", i)
				}
			}
		}
	}
}

func TestBloomExpiringRefuses(t *testing.T) {
	f := newExpiring(t, 100, 0.01, 0)
	for i := range 100 {
		f.Add(0, 0, hashOf(0, i))
	}
	before := f.AppendBinary(nil)
	for _, p := range []BloomExpiringParams{
		{Capacity: 100, FalseRate: 0.01, Hash: Hash{Seed: 5}}, // of another generation
		{Capacity: 101, FalseRate: 0.01, Hash: Hash{Seed: 5}},
		{Capacity: 100, FalseRate: 0.02, Hash: Hash{Seed: 5}},
		{Capacity: 100, FalseRate: 0.01, Window: hour, Hash: Hash{Seed: 5}},
		{Capacity: 100, FalseRate: 0.01, Hash: Hash{Seed: 6}},
	} {
		o, err := NewBloomExpiring(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Merge(&o); !errors.Is(err, ErrIncompatible) {
			t.Errorf("merging %+v: %v", p, err)
		}
	}
	if !bytes.Equal(before, f.AppendBinary(nil)) {
		t.Error("something changed")
	}
	twin := f.Clone()
	twin.Add(0, 0, hashOf(0, 99)) // changes nothing
	if err := f.Merge(&twin); err != nil || !bytes.Equal(before, f.AppendBinary(nil)) {
		t.Errorf("merging a twin: %v", err)
	}
}

func TestBloomExpiringCodec(t *testing.T) {
	checkCodec(t, expiringSamples(t), useExpiring)
}

func FuzzBloomExpiring(f *testing.F) { fuzzCodec(f, expiringSamples(f), useExpiring) }

func useExpiring(f *BloomExpiring) {
	f.Has(-1<<63, 1)
	f.State(MaxTick)
	f.Add(MaxTick, MaxTick, 1)
	d := f.Clone()
	_ = f.Merge(&d)
	if !f.Has(MaxTick, 1).Found {
		panic("a key is missed")
	}
}

func TestBloomExpiringSize(t *testing.T) {
	f := newExpiring(t, 1e5, 0.01, hour)
	if unsafe.Sizeof(*f) != bloomExpiringOwn || f.Size() != bloomExpiringOwn {
		t.Errorf("empty: %d bytes, says %d", unsafe.Sizeof(*f), f.Size())
	}
	f.Add(epoch, epoch, 1)
	if bits := float64(f.Size()) * 8 / 1e5; bits > 20 {
		t.Errorf("%.1f bits a key", bits)
	}
}

func TestGoldenBloomExpiring(t *testing.T) {
	var b bytes.Buffer
	for _, f := range expiringSamples(t) {
		bytes := f.AppendBinary(nil)
		h := fnv.New64a()
		h.Write(bytes)
		if len(bytes) < 200 {
			fmt.Fprintf(&b, "bytes %x\n", bytes)
		}
		s := f.State(epoch + 4*hour)
		fmt.Fprintf(&b, "hash %016x keys %x rate %x\n", h.Sum64(), s.Keys, s.FalseRate)
	}
	for rate := 0.5; rate > 1e-6; rate /= 3 {
		f := newExpiring(t, 1000, rate, 0)
		fmt.Fprintf(&b, "at %v: k %d, l %d, %d bits a slice, %d keys a generation\n", rate, f.k, f.l, f.m, f.size)
	}
	golden(t, "golden-bloom-expiring.txt", b.Bytes())
}

func BenchmarkBloomExpiring(b *testing.B) {
	f := newExpiring(b, 1e5, 0.01, hour)
	for i := range int(1e5) {
		at := epoch + Tick(i)*hour/1e5
		f.Add(at, at, hashOf(0, i))
	}
	x := uint64(0)
	b.Run("has", func(b *testing.B) {
		for b.Loop() {
			x += 0x9e3779b97f4a7c15
			f.Has(epoch+hour, x)
		}
	})
	b.Run("add", func(b *testing.B) {
		for b.Loop() {
			x += 0x9e3779b97f4a7c15
			f.Add(epoch+hour, epoch+hour, x)
		}
	})
}

// It dies when nothing that was added can be found any more: not before the last key is gone, and in the same
// generation.
func TestBloomExpiringDies(t *testing.T) {
	const hour = Tick(3600e6)
	f, err := NewBloomExpiring(BloomExpiringParams{Capacity: 1000, FalseRate: 0.01, Window: hour})
	if err != nil {
		t.Fatal(err)
	}
	if f.Death() != 0 || f.Last() != 0 {
		t.Errorf("an empty one dies at %d, after %d", f.Death(), f.Last())
	}
	for i := range 500 {
		f.Add(epoch, epoch, remix(7, i))
	}
	found := func(at Tick) (n int) {
		for i := range 500 {
			if f.Has(at, remix(7, i)).Found {
				n++
			}
		}
		return n
	}
	if s := f.State(epoch); s.KeysLeast > 500+4*s.KeysError || s.KeysMost < 500-4*s.KeysError || s.Keys < s.KeysLeast/12 || s.Keys > s.KeysMost {
		t.Errorf("of 500 keys: %+v", s)
	}
	death := f.Death()
	if last := f.Last(); last > epoch || last+f.Span() <= epoch {
		t.Errorf("the latest generation is said to begin at %d, written at %d", last, epoch)
	}
	if n := found(epoch + hour); n != 500 {
		t.Errorf("%d of 500 are found after a window", n)
	}
	if before, after := found(death-1), found(death); before == 0 || after != 0 {
		t.Errorf("%d keys are found before its death, %d after", before, after)
	}
	f.Add(death+9*hour, death+9*hour, 1)
	if f.Death() <= death+9*hour {
		t.Error("it is dead as soon as it is written again")
	}
	counted, _ := NewBloomExpiring(BloomExpiringParams{Capacity: 1000, FalseRate: 0.01})
	counted.Add(0, 0, 1)
	if counted.Death() != MaxTick || counted.Last() != 0 {
		t.Errorf("without a window it dies at %d, after %d", counted.Death(), counted.Last())
	}
}
