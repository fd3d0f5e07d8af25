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

func newCountMin(t testing.TB, epsilon, delta float64, h Tick) *CountMin {
	t.Helper()
	c, err := NewCountMin(CountMinParams{Epsilon: epsilon, Delta: delta, HalfLife: h, Hash: Hash{Seed: 7}})
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

func countMinSamples(t testing.TB) (all []*CountMin) {
	for _, h := range []Tick{0, hour} {
		for _, events := range []int{0, 1, 4, 500} {
			c := newCountMin(t, 0.1, 0.05, h)
			for i := range events {
				if err := c.Add(epoch+Tick(i)*hour/10, epoch+Tick(i)*hour/10, hashOf(1, i), float64(1+i%3)); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, c)
		}
	}
	return all
}

func TestCountMinParams(t *testing.T) {
	for _, c := range []struct {
		p     CountMinParams
		names string
	}{
		{CountMinParams{Epsilon: 0.01, Delta: 0.01}, ""},
		{CountMinParams{Epsilon: 1e-4, Delta: 1e-4, HalfLife: hour}, ""},
		{CountMinParams{Delta: 0.01}, "epsilon 0"},
		{CountMinParams{Epsilon: 1, Delta: 0.01}, "epsilon 1"},
		{CountMinParams{Epsilon: math.NaN(), Delta: 0.01}, "epsilon NaN"},
		{CountMinParams{Epsilon: 0.1}, "delta 0"},
		{CountMinParams{Epsilon: 0.1, Delta: 1}, "delta 1"},
		{CountMinParams{Epsilon: 0.1, Delta: 1e-200}, "more than 32"},
		{CountMinParams{Epsilon: 1e-6, Delta: 0.1}, "cells, more than 4194304"},
		{CountMinParams{Epsilon: 5e-324, Delta: 0.1}, "cells, more than 4194304"},
		{CountMinParams{Epsilon: 0.1, Delta: 0.1, HalfLife: -1}, "half-life of -1"},
		{CountMinParams{Epsilon: 0.1, Delta: 0.1, HalfLife: MaxTick}, "half-life of"},
		{CountMinParams{Epsilon: 0.1, Delta: 0.1, Hash: Hash{ID: 9}}, "hash id 9"},
	} {
		_, err := NewCountMin(c.p)
		wantParams(t, err, c.names)
	}
	c := newCountMin(t, 0.01, 0.01, 0)
	if c.width != 272 || c.depth != 5 {
		t.Errorf("width %d, depth %d: want ceil(100 e) and ceil(ln 100)", c.width, c.depth)
	}
}

// TestCountMinBracket: over a thousand half-lives no estimate is below the truth, and hardly any is further above than
// Err.
func TestCountMinBracket(t *testing.T) {
	for _, h := range []Tick{0, hour} {
		c := newCountMin(t, 0.01, 0.01, h)
		items, z := map[int]*decayed{}, decayed{h: h}
		asked, beyond := 0, 0
		check := func(now Tick) {
			for item, truth := range items {
				e, want := c.Estimate(now, hashOf(0, item)), truth.read(now)
				asked++
				if e.Count < want*(1-1e-9)-0x1p-90 {
					t.Fatalf("h=%d at %d: item %d estimates %v, truth %v", h, now, item, e.Count, want)
				}
				if e.Count-e.Err > want*(1+1e-9) {
					beyond++
				}
				if math.Abs(e.Z-z.read(now)) > 1e-9*e.Z+0x1p-90 {
					t.Fatalf("h=%d at %d: Z %v, truth %v", h, now, e.Z, z.read(now))
				}
			}
		}
		bursts(1, func(now, at Tick, item int, n float64) {
			if err := c.Add(now, at, hashOf(0, item), n); err != nil {
				t.Fatal(err)
			}
			if items[item] == nil {
				items[item] = &decayed{h: h}
			}
			items[item].add(at, n)
			z.add(at, n)
		}, check)
		t.Logf("h=%d: %d of %d beyond the bracket", h, beyond, asked)
		if float64(beyond) > 0.01*float64(asked) {
			t.Errorf("h=%d: %d of %d beyond the bracket, promised 1%%", h, beyond, asked)
		}
	}
}

// TestCountMinError: in one row an item shares its cell with each other with probability 1/width, which gives mean and
// variance.
func TestCountMinError(t *testing.T) {
	var errs errorsOf
	for seed := range 400 {
		c := newCountMin(t, 0.02, 0.5, 0)
		sum, squares := 0.0, 0.0
		for item := range 1000 {
			n := float64(1 + item%7)
			if err := c.Add(epoch, epoch, hashOf(seed, item), n); err != nil {
				t.Fatal(err)
			}
			sum, squares = sum+n, squares+n*n
		}
		p := 1 / float64(c.width)
		for other := range 5 {
			estimate := c.Estimate(epoch, hashOf(seed, 1000+other)).Count
			errs.add(estimate, sum*p, math.Sqrt(squares*p*(1-p)))
		}
	}
	errs.check(t, "one row")
}

// TestCountMinPermutes: whole counts without a half-life give the same bytes in any order, and in any number of parts.
func TestCountMinPermutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		items := rapid.SliceOfN(rapid.IntRange(0, 30), 1, 60).Draw(t, "items")
		order := rapid.Permutation(items).Draw(t, "order")
		whole, parts := new(CountMin), [3]CountMin{}
		for i := range parts {
			parts[i], _ = NewCountMin(CountMinParams{Epsilon: 0.2, Delta: 0.1})
		}
		*whole = parts[0].Clone()
		for i, item := range items {
			if err := errors.Join(whole.Add(epoch, epoch, hashOf(0, item), float64(1+item)),
				parts[i%3].Add(epoch, epoch, hashOf(0, order[i]), float64(1+order[i]))); err != nil {
				t.Fatal(err)
			}
		}
		left, right := parts[0].Clone(), parts[1].Clone()
		if err := errors.Join(left.Merge(&parts[1]), left.Merge(&parts[2]), right.Merge(&parts[2]), right.Merge(&parts[0])); err != nil {
			t.Fatal(err)
		}
		for _, got := range []*CountMin{&left, &right} {
			if a, b := got.AppendBinary(nil), whole.AppendBinary(nil); !bytes.Equal(a, b) {
				t.Fatalf("%x\n%x", a, b)
			}
		}
	})
}

// TestCountMinMergeCommutes, to the bit, over different landmarks.
func TestCountMinMergeCommutes(t *testing.T) {
	for seed := range 30 {
		r := rng(seed)
		var parts [2]*CountMin
		now := epoch
		for i := range parts {
			parts[i] = newCountMin(t, 0.05, 0.1, hour)
			for range r.below(50) {
				now += Tick(r.below(int(3 * hour)))
				if err := parts[i].Add(now, now-Tick(r.below(10))*hour, hashOf(0, r.below(20)), r.float()); err != nil {
					t.Fatal(err)
				}
			}
		}
		ab, ba := parts[0].Clone(), parts[1].Clone()
		if err := errors.Join(ab.Merge(parts[1]), ba.Merge(parts[0])); err != nil {
			t.Fatal(err)
		}
		if a, b := ab.AppendBinary(nil), ba.AppendBinary(nil); !bytes.Equal(a, b) {
			t.Fatalf("seed %d: %x\n%x", seed, a, b)
		}
	}
}

// TestCountMinRebase: it makes no difference when, or whether, the landmark moves.
func TestCountMinRebase(t *testing.T) {
	calm, moved := newCountMin(t, 0.05, 0.1, hour), newCountMin(t, 0.05, 0.1, hour)
	r := rng(5)
	bursts(5, func(now, at Tick, item int, n float64) {
		for _, c := range []*CountMin{calm, moved} {
			if err := c.Add(now, at, hashOf(0, item), n); err != nil {
				t.Fatal(err)
			}
		}
		if mark := moved.landmark(now); mark > moved.mark && r.below(10) == 0 {
			moved.rebase(mark)
		}
	}, func(now Tick) {
		for item := range 100 {
			if a, b := calm.Estimate(now, hashOf(0, item)), moved.Estimate(now, hashOf(0, item)); a != b {
				t.Fatalf("at %d item %d reads %v and %v", now, item, a, b)
			}
		}
	})
}

func TestCountMinRefuses(t *testing.T) {
	c := newCountMin(t, 0.1, 0.1, hour)
	if err := c.Add(epoch, epoch, 1, 0x1p199); err != nil {
		t.Fatal(err)
	}
	before := c.AppendBinary(nil)
	for _, x := range []struct {
		n    float64
		want error
	}{{math.NaN(), ErrOverflow}, {math.Inf(1), ErrOverflow}, {0x1p201, ErrOverflow}, {0x1p200, ErrOverflow}, {-1, ErrNegative}, {0, nil}} {
		if err := c.Add(epoch, epoch, 1, x.n); !errors.Is(err, x.want) {
			t.Errorf("adding %v: %v, want %v", x.n, err, x.want)
		}
	}
	for _, p := range []CountMinParams{
		{Epsilon: 0.2, Delta: 0.1, HalfLife: hour, Hash: Hash{Seed: 7}},
		{Epsilon: 0.1, Delta: 0.01, HalfLife: hour, Hash: Hash{Seed: 7}},
		{Epsilon: 0.1, Delta: 0.1, Hash: Hash{Seed: 7}},
		{Epsilon: 0.1, Delta: 0.1, HalfLife: hour, Hash: Hash{Seed: 8}},
		{Epsilon: 0.1, Delta: 0.1, HalfLife: hour, Hash: Hash{ID: HashSip, Seed: 7}},
	} {
		o, err := NewCountMin(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Merge(&o); !errors.Is(err, ErrIncompatible) {
			t.Errorf("merging %+v: %v", p, err)
		}
	}
	if !bytes.Equal(before, c.AppendBinary(nil)) {
		t.Error("something changed")
	}
	huge := c.Clone()
	for range 300 {
		if err := c.Merge(&huge); err != nil {
			break
		}
		huge = c.Clone()
	}
	if err := c.Merge(&huge); !errors.Is(err, ErrOverflow) {
		t.Errorf("doubled for ever: %v", err)
	}
	if _, err := new(CountMin).Decode(c.AppendBinary(nil)); err != nil {
		t.Errorf("the largest does not decode: %v", err)
	}
}

func TestCountMinCodec(t *testing.T) {
	checkCodec(t, countMinSamples(t), useCountMin)
}

func FuzzCountMin(f *testing.F) { fuzzCodec(f, countMinSamples(f), useCountMin) }

// useCountMin does everything once.
func useCountMin(c *CountMin) {
	_ = c.Add(c.Last(), c.Last(), 1, 1)
	d := c.Clone()
	_ = c.Merge(&d)
	c.Estimate(MaxTick, 1)
	c.Estimate(-1<<63, 1)
}

func TestCountMinSize(t *testing.T) {
	c := newCountMin(t, 0.01, 0.01, 0)
	if unsafe.Sizeof(*c) != countMinSize || c.Size() != countMinSize {
		t.Errorf("empty: %d bytes, says %d", unsafe.Sizeof(*c), c.Size())
	}
	for i := range 1000 {
		if err := c.Add(epoch, epoch, hashOf(0, i), 1); err != nil {
			t.Fatal(err)
		}
		if got := c.Size(); i == 0 && got > countMinSize+sparseOwn+8*12 {
			t.Errorf("%d bytes after one event", got)
		}
	}
	if got, want := c.Size(), countMinSize+8*5*272; got < want || got > want*9/8 {
		t.Errorf("%d bytes, want about %d", got, want)
	}
}

func TestGoldenCountMin(t *testing.T) {
	var b bytes.Buffer
	for _, c := range countMinSamples(t) {
		bytes := c.AppendBinary(nil)
		h := fnv.New64a()
		h.Write(bytes)
		if len(bytes) < 300 {
			fmt.Fprintf(&b, "bytes %x\n", bytes)
		}
		fmt.Fprintf(&b, "hash %016x estimate %x\n", h.Sum64(), c.Estimate(epoch+70*hour, hashOf(1, 1)))
	}
	golden(t, "golden-countmin.txt", b.Bytes())
}

func BenchmarkCountMin(b *testing.B) {
	for _, h := range []Tick{0, hour} {
		c := newCountMin(b, 0.001, 0.01, h)
		b.Run(fmt.Sprintf("add/h=%d", h), func(b *testing.B) {
			i := 0
			for b.Loop() {
				i++
				if err := c.Add(epoch+Tick(i), epoch+Tick(i), uint64(i)*0x9e3779b97f4a7c15, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("estimate/h=%d", h), func(b *testing.B) {
			i := 0
			for b.Loop() {
				i++
				c.Estimate(epoch+hour, uint64(i)*0x9e3779b97f4a7c15)
			}
		})
	}
}

// It dies when Z fades below the threshold, and not before; without a half-life never.
func TestCountMinDies(t *testing.T) {
	const hour = Tick(3600e6)
	c, err := NewCountMin(CountMinParams{Epsilon: 0.1, Delta: 0.1, HalfLife: hour})
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Death(0.5); d != 0 {
		t.Errorf("an empty one dies at %d", d)
	}
	for i := range 8 {
		if err := c.Add(epoch, epoch, uint64(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	death := c.Death(0.5)
	if late := death - epoch - 4*hour; late < 0 || late > 4 {
		t.Errorf("8 counts are below 1/2 %d ticks after 4 half-lives", late)
	}
	if before, after := c.Estimate(death-10, 0).Z, c.Estimate(death, 0).Z; before < 0.5 || after >= 0.5 {
		t.Errorf("%v before its death, %v after", before, after)
	}
	plain, _ := NewCountMin(CountMinParams{Epsilon: 0.1, Delta: 0.1})
	if err := plain.Add(epoch, epoch, 1, 1); err != nil || plain.Death(0.5) != MaxTick {
		t.Errorf("without a half-life it dies at %d (%v)", plain.Death(0.5), err)
	}
}

// What has faded cell by cell is empty, although the sum of all would still be seen: so its bytes decode.
func TestCountMinFadesByCells(t *testing.T) {
	const second = Tick(1e6)
	fresh := func() CountMin {
		c, err := NewCountMin(CountMinParams{Epsilon: 0.01, Delta: 0.01, HalfLife: second})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3000 {
			if err := c.Add(epoch, epoch, remix(uint64(i), 1), 1); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	for age := Tick(95); age < 125; age++ {
		c := fresh()
		if err := c.Add(epoch+age*second, epoch+age*second, 7, 1e-300); err != nil {
			t.Fatal(err)
		}
		var back CountMin
		if rest, err := back.Decode(c.AppendBinary(nil)); err != nil || len(rest) > 0 {
			t.Fatalf("after %d half-lives: %v", age, err)
		}
		late := fresh()
		if err := late.Merge(&c); err != nil {
			t.Fatal(err)
		}
		if rest, err := back.Decode(late.AppendBinary(nil)); err != nil || len(rest) > 0 {
			t.Fatalf("merged after %d half-lives: %v", age, err)
		}
	}
}
