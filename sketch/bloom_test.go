package sketch

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func newBloomOf(t testing.TB, capacity uint64, rate float64) *Bloom {
	t.Helper()
	f, err := NewBloom(BloomParams{Capacity: capacity, FalseRate: rate, Hash: Hash{Seed: 5}})
	if err != nil {
		t.Fatal(err)
	}
	return &f
}

func newScalable(t testing.TB, capacity uint64, rate float64) *BloomScalable {
	t.Helper()
	s, err := NewBloomScalable(BloomParams{Capacity: capacity, FalseRate: rate, Hash: Hash{Seed: 5}})
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

func bloomSamples(t testing.TB) (all []*Bloom) {
	for _, n := range []int{0, 1, 20, 100, 1500} {
		f := newBloomOf(t, 100, 0.01)
		for i := range n {
			f.Add(hashOf(1, i))
		}
		all = append(all, f)
	}
	return all
}

func scalableSamples(t testing.TB) (all []*BloomScalable) {
	for _, n := range []int{0, 1, 100, 400} {
		s := newScalable(t, 50, 0.01)
		for i := range n {
			s.Add(hashOf(1, i))
		}
		all = append(all, s)
	}
	return all
}

func TestBloomParams(t *testing.T) {
	for _, c := range []struct {
		p     BloomParams
		names string
	}{
		{BloomParams{Capacity: 1, FalseRate: 0.5}, ""},
		{BloomParams{Capacity: 1_000_000, FalseRate: 1e-6}, ""},
		{BloomParams{FalseRate: 0.01}, "capacity of 0"},
		{BloomParams{Capacity: 10}, "rate 0 of false positives"},
		{BloomParams{Capacity: 10, FalseRate: 0.6}, "rate 0.6 of false positives is not in 1e-06..0.5"},
		{BloomParams{Capacity: 10, FalseRate: math.NaN()}, "rate NaN"},
		{BloomParams{Capacity: 1 << 40, FalseRate: 0.01}, "more than 67108864"},
		{BloomParams{Capacity: math.MaxUint64, FalseRate: 0.01}, "more than 67108864"},
		{BloomParams{Capacity: 10, FalseRate: 0.01, Hash: Hash{ID: 4}}, "hash id 4"},
	} {
		_, err := NewBloom(c.p)
		wantParams(t, err, c.names)
		_, err = NewBloomScalable(c.p)
		wantParams(t, err, c.names)
	}
}

// TestBloomRate: at capacity no key is missed, what is measured over a million absent keys is below the target, and it
// takes the bits that it should.
func TestBloomRate(t *testing.T) {
	for _, c := range []struct {
		keys   int
		rate   float64
		probes int
		bits   float64
	}{
		{50_000, 0.1, 300_000, 6.1},
		{50_000, 0.01, 1_000_000, 10.65},
		{1_000, 0.01, 1_000_000, 10.8},
		{50_000, 0.001, 2_000_000, 17.5},
		{50_000, 0.0005, 3_000_000, 20.5},
		{3, 0.01, 300_000, 171},
	} {
		f := newBloomOf(t, uint64(c.keys), c.rate)
		for i := range c.keys {
			f.Add(hashOf(2, i))
		}
		found := 0
		for i := range c.keys {
			if !f.Has(hashOf(2, i)).Found {
				t.Fatalf("key %d is missed", i)
			}
		}
		for i := range c.probes {
			if f.Has(hashOf(2, c.keys+i)).Found {
				found++
			}
		}
		measured, bits, state := float64(found)/float64(c.probes), float64(f.Size()*8)/float64(c.keys), f.State()
		t.Logf("%d keys at %v: measured %.4g%%, expected %.4g%%, %.2f bits a key", c.keys, c.rate, 100*measured, 100*state.FalseRate, bits)
		if measured > c.rate || state.FalseRate > c.rate*1.01 || bits > c.bits+8*bloomOwn/float64(c.keys) {
			t.Errorf("%d keys at %v: measured %v, expected %v, %.2f bits a key", c.keys, c.rate, measured, state.FalseRate, bits)
		}
		if state.Over || f.Has(1).Over || math.Abs(state.Keys-float64(c.keys)) > 4*state.KeysError+1 {
			t.Errorf("%d keys at %v: %+v", c.keys, c.rate, state)
		}
		for i := range c.keys/10 + 30 {
			f.Add(hashOf(3, i))
		}
		if !f.Has(1).Over || !f.State().Over {
			t.Errorf("%d keys are not over a capacity of %d", c.keys+c.keys/10+30, c.keys)
		}
	}
}

// TestBloomNeverOverflows: ten thousand times its capacity sets every bit, and everything is found.
func TestBloomNeverOverflows(t *testing.T) {
	f, s := newBloomOf(t, 10, 0.01), newScalable(t, 10, 0.01)
	s.generations = append(s.generations[:0:0], *f) // one that cannot grow
	for len(s.generations) < BloomGenerationsMax {
		s.generations = append(s.generations, *newBloomOf(t, 1, 0.5))
	}
	for i := range 100_000 {
		f.Add(hashOf(4, i))
		s.Add(hashOf(4, i))
	}
	if f.ones != 256*f.blocks || !f.Has(12345).Found || !f.Has(12345).Over || f.State().FalseRate != 1 {
		t.Errorf("%d of %d bits, %+v", f.ones, 256*f.blocks, f.State())
	}
	if len(s.generations) != BloomGenerationsMax || !s.Has(1).Over {
		t.Errorf("%d generations, %+v", len(s.generations), s.State())
	}
}

// TestBloomScales from 100 to 100,000 keys, within the rate of the start.
func TestBloomScales(t *testing.T) {
	for _, rate := range []float64{0.05, 0.01, 0.001} {
		s := newScalable(t, 100, rate)
		for i := range 100_000 {
			s.Add(hashOf(5, i))
			if i == 1000 || i == 50_000 {
				for j := range i {
					if !s.Has(hashOf(5, j)).Found {
						t.Fatalf("key %d of %d is missed", j, i)
					}
				}
			}
		}
		found := 0
		const probes = 500_000
		for i := range probes {
			if s.Has(hashOf(6, i)).Found {
				found++
			}
		}
		state := s.State()
		t.Logf("at %v: measured %.4g%%, expected %.4g%%, %d generations, %.1f bits a key", rate, float64(found)/probes*100, 100*state.FalseRate,
			s.Generations(), float64(s.Size())*8/100_000)
		if float64(found)/probes > rate || state.FalseRate > rate || state.Over || math.Abs(state.Keys-100_000) > 1000+1e5*rate {
			t.Errorf("at %v: %d of %d, %+v", rate, found, probes, state)
		}
	}
}

// TestBloomIsASet: merging commutes, associates and repeats without effect, to the byte, and so does adding.
func TestBloomIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(rapid.IntRange(0, 100), 0, 80).Draw(t, "keys")
		order := rapid.Permutation(keys).Draw(t, "order")
		empty, _ := NewBloom(BloomParams{Capacity: 60, FalseRate: 0.02})
		whole, parts := empty.Clone(), [3]Bloom{empty, empty, empty}
		for i, key := range keys {
			whole.Add(hashOf(0, key))
			whole.Add(hashOf(0, key))
			parts[i%3].Add(hashOf(0, order[i]))
		}
		left, right := parts[2].Clone(), parts[0].Clone()
		if err := errors.Join(left.Merge(&parts[0]), left.Merge(&parts[1]), left.Merge(&left), right.Merge(&parts[1]), right.Merge(&parts[2])); err != nil {
			t.Fatal(err)
		}
		for _, got := range []*Bloom{&left, &right} {
			if !bytes.Equal(got.AppendBinary(nil), whole.AppendBinary(nil)) {
				t.Fatalf("%x\n%x", got.AppendBinary(nil), whole.AppendBinary(nil))
			}
		}
	})
}

func TestBloomRefuses(t *testing.T) {
	f, s := newBloomOf(t, 100, 0.01), newScalable(t, 50, 0.01)
	for i := range 120 {
		f.Add(hashOf(0, i))
		s.Add(hashOf(0, i))
	}
	before := string(f.AppendBinary(nil)) + string(s.AppendBinary(nil))
	for _, p := range []BloomParams{
		{Capacity: 101, FalseRate: 0.01, Hash: Hash{Seed: 5}},
		{Capacity: 100, FalseRate: 0.02, Hash: Hash{Seed: 5}},
		{Capacity: 100, FalseRate: 0.01, Hash: Hash{Seed: 6}},
		{Capacity: 100, FalseRate: 0.01, Hash: Hash{ID: HashSip, Seed: 5}},
	} {
		o, err := NewBloom(p)
		if err != nil {
			t.Fatal(err)
		}
		scalable, err := NewBloomScalable(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Merge(&o); !errors.Is(err, ErrIncompatible) {
			t.Errorf("merging %+v: %v", p, err)
		}
		if err := s.Merge(&scalable); p.Hash != (Hash{Seed: 5}) && !errors.Is(err, ErrIncompatible) {
			t.Errorf("merging scalable %+v: %v", p, err)
		}
	}
	if string(f.AppendBinary(nil))+string(s.AppendBinary(nil)) != before {
		t.Error("something changed")
	}
	twin := s.Clone()
	for i := range 20 {
		twin.Add(hashOf(7, i))
	}
	if err := s.Merge(&twin); err != nil || !s.Has(hashOf(7, 3)).Found || !s.Has(hashOf(0, 119)).Found {
		t.Errorf("merging a twin: %v", err)
	}
}

func TestBloomCodec(t *testing.T) {
	checkCodec(t, bloomSamples(t), useBloom)
	checkCodec(t, scalableSamples(t), useScalable)
}

func FuzzBloom(f *testing.F) { fuzzCodec(f, bloomSamples(f), useBloom) }

func FuzzBloomScalable(f *testing.F) { fuzzCodec(f, scalableSamples(f), useScalable) }

func useBloom(f *Bloom) {
	f.Add(1)
	d := f.Clone()
	_ = f.Merge(&d)
	f.State()
	if !f.Has(1).Found {
		panic("a key is missed")
	}
}

func useScalable(s *BloomScalable) {
	s.Add(1)
	d := s.Clone()
	_ = s.Merge(&d)
	s.State()
	if !s.Has(1).Found {
		panic("a key is missed")
	}
}

func TestBloomSize(t *testing.T) {
	f, s := newBloomOf(t, 1e6, 0.01), newScalable(t, 1e6, 0.01)
	if unsafe.Sizeof(*f) != bloomOwn || f.Size() != bloomOwn || unsafe.Sizeof(*s) != 88 || s.Size() != 88+bloomOwn {
		t.Errorf("empty: %d bytes, says %d; %d bytes, says %d", unsafe.Sizeof(*f), f.Size(), unsafe.Sizeof(*s), s.Size())
	}
}

func TestGoldenBloom(t *testing.T) {
	var b bytes.Buffer
	write := func(name string, bytes []byte, state BloomState) {
		h := fnv.New64a()
		h.Write(bytes)
		if len(bytes) < 200 {
			fmt.Fprintf(&b, "%s bytes %x\n", name, bytes)
		}
		fmt.Fprintf(&b, "%s hash %016x keys %x rate %x\n", name, h.Sum64(), state.Keys, state.FalseRate)
	}
	for _, f := range bloomSamples(t) {
		write("plain", f.AppendBinary(nil), f.State())
	}
	for _, s := range scalableSamples(t) {
		write("scalable", s.AppendBinary(nil), s.State())
	}
	for capacity := uint64(1); capacity < 1e7; capacity = capacity*7 + 1 {
		for _, rate := range []float64{0.1, 0.01, 1e-4} {
			f := newBloomOf(t, capacity, rate)
			fmt.Fprintf(&b, "%d keys at %v: %d blocks, full at %d, over at %d\n", capacity, rate, f.blocks, f.full, f.over)
		}
	}
	golden(t, "golden-bloom.txt", b.Bytes())
}

func BenchmarkBloom(b *testing.B) {
	f, s := newBloomOf(b, 1e6, 0.01), newScalable(b, 1e4, 0.01)
	for i := range int(1e6) {
		f.Add(hashOf(0, i))
		s.Add(hashOf(0, i))
	}
	x := uint64(0)
	b.Run("add", func(b *testing.B) {
		for b.Loop() {
			x += 0x9e3779b97f4a7c15
			f.Add(x)
		}
	})
	b.Run("has", func(b *testing.B) {
		for b.Loop() {
			x += 0x9e3779b97f4a7c15
			f.Has(x)
		}
	})
	b.Run("has/scalable", func(b *testing.B) {
		for b.Loop() {
			x += 0x9e3779b97f4a7c15
			s.Has(x)
		}
	})
}

// What is nearly empty is short in bytes and large in memory: DecodeWithin says how large it may be, and no generation
// follows one that is not full.
func TestDecodeWithin(t *testing.T) {
	hash := Hash{ID: HashXXH3, Seed: 5}
	f, err := NewBloomScalable(BloomParams{Capacity: 1_000_000, FalseRate: 0.01, Hash: hash})
	if err != nil {
		t.Fatal(err)
	}
	f.Add(1)
	e, err := NewBloomExpiring(BloomExpiringParams{Capacity: 1_000_000, FalseRate: 0.01, Window: 1e9, Hash: hash})
	if err != nil {
		t.Fatal(err)
	}
	e.Add(1e9, 1e9, 1)
	c, err := NewCountMin(CountMinParams{Epsilon: 1e-5, Delta: 0.1, Hash: hash})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Add(1e9, 1e9, 1, 1); err != nil {
		t.Fatal(err)
	}
	l, err := NewLinearCounter(LinearParams{Capacity: 20_000_000, StandardError: 0.001, Hash: hash})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(LinearExactMax + 1) {
		if err := l.Add(remix(i, 0), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []struct {
		kind   string
		raw    []byte
		most   int
		decode func(b []byte, room int) ([]byte, error)
	}{
		{"scalable bloom", f.AppendBinary(nil), f.Reserved(), new(BloomScalable).DecodeWithin},
		{"expiring bloom", e.AppendBinary(nil), e.Reserved(), new(BloomExpiring).DecodeWithin},
		{"count-min", c.AppendBinary(nil), c.Reserved(), new(CountMin).DecodeWithin},
		{"linear", l.AppendBinary(nil), l.ReservedMost(), new(LinearCounter).DecodeWithin},
	} {
		if len(d.raw) > d.most/100 {
			t.Fatalf("%s: %d bytes for %d of memory tell nothing", d.kind, len(d.raw), d.most)
		}
		if _, err := d.decode(d.raw, d.most); err != nil {
			t.Errorf("%s in %d bytes of memory: %v", d.kind, d.most, err)
		}
		if _, err := d.decode(d.raw, d.most/2); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s in half of what it takes: %v", d.kind, err)
		}
	}
	if !f.grow() {
		t.Fatal("it does not grow")
	}
	if _, err := new(BloomScalable).Decode(f.AppendBinary(nil)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a second generation after one of one key: %v", err)
	}
}
