package sketch

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// filledScalable has the keys first to last of hashOf(1, ...).
func filledScalable(t testing.TB, capacity uint64, rate float64, first, last int) *BloomScalable {
	t.Helper()
	s := newScalable(t, capacity, rate)
	for i := first; i < last; i++ {
		s.Add(hashOf(1, i))
	}
	return s
}

func mergedSamples(t testing.TB) (all []*BloomScalable) {
	for _, other := range []*BloomScalable{
		filledScalable(t, 50, 0.01, 200, 900), filledScalable(t, 80, 0.01, 0, 30),
		filledScalable(t, 50, 0.001, 100, 700), filledScalable(t, 20, 0.1, 0, 4),
	} {
		s := filledScalable(t, 50, 0.01, 0, 400*(1-len(all)/3))
		if err := s.Merge(other); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if err := all[1].Merge(all[2]); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestBloomMergesGrown: filters of other lengths, capacities and rates have a union, which misses no key, says how
// often it errs, and how many keys there are.
func TestBloomMergesGrown(t *testing.T) {
	type filter struct {
		capacity    uint64
		rate        float64
		first, last int
	}
	for _, c := range []struct {
		name  string
		of    []filter
		union int
	}{
		{"one grown, one not", []filter{{1000, 0.01, 0, 40_000}, {1000, 0.01, 40_000, 40_500}}, 40_500},
		{"one not, one grown", []filter{{1000, 0.01, 0, 500}, {1000, 0.01, 500, 40_500}}, 40_500},
		{"the same keys in another order", []filter{{1000, 0.01, 0, 20_000}, {1000, 0.01, 10_000, 20_000}}, 20_000},
		{"other capacities", []filter{{1000, 0.01, 0, 10_000}, {3000, 0.01, 10_000, 20_000}}, 20_000},
		{"other rates", []filter{{1000, 0.01, 0, 10_000}, {1000, 0.001, 5_000, 20_000}}, 20_000},
		{"many", []filter{
			{1000, 0.01, 0, 9_000},
			{1000, 0.01, 9_000, 12_000},
			{500, 0.02, 8_000, 20_000},
			{1000, 0.01, 15_000, 30_000},
		}, 30_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all *BloomScalable
			for _, f := range c.of {
				next := filledScalable(t, f.capacity, f.rate, f.first, f.last)
				if all == nil {
					all = next
				} else if err := all.Merge(next); err != nil {
					t.Fatal(err)
				}
				before := all.AppendBinary(nil)
				if err := all.Merge(next); err != nil || !bytes.Equal(all.AppendBinary(nil), before) {
					t.Fatalf("merging twice makes a difference: %v", err)
				}
			}
			for i := range c.union {
				if !all.Has(hashOf(1, i)).Found {
					t.Fatalf("key %d is missed", i)
				}
			}
			const absent = 200_000
			found := 0
			for i := range absent {
				if all.Has(hashOf(2, i)).Found {
					found++
				}
			}
			s := all.State()
			got := float64(found) / absent
			t.Logf("false rate %.4f, stated %.4f; keys %d in %.0f to %.0f", got, s.FalseRate, c.union, s.KeysLeast,
				s.KeysMost)
			if got > 1.15*s.FalseRate+0.0005 || got < 0.85*s.FalseRate-0.0005 {
				t.Errorf("%.4f of absent keys are found, and %.4f are stated", got, s.FalseRate)
			}
			if n := float64(c.union); n < s.KeysLeast-4*s.KeysError || n > s.KeysMost+4*s.KeysError {
				t.Errorf("%v keys are not in %.0f to %.0f +- %.0f", n, s.KeysLeast, s.KeysMost, s.KeysError)
			}
			if s.FalseRate > all.Params().FalseRate && !s.Over {
				t.Errorf("a rate of %.4f is above %v, and it does not say so", s.FalseRate, all.Params().FalseRate)
			}
		})
	}
}

// TestBloomMergeOrder: no order and no grouping makes a difference to answers.
func TestBloomMergeOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 40 {
		var parts []*BloomScalable
		for range 2 + r.IntN(4) {
			first := r.IntN(2000)
			parts = append(parts, filledScalable(t, 50<<r.IntN(2), 0.01, first, first+r.IntN(1500)))
		}
		left := parts[0].Clone()
		for _, p := range parts[1:] {
			merge(t, &left, p)
		}
		right := parts[len(parts)-1].Clone()
		for i := len(parts) - 2; i >= 0; i-- {
			next := parts[i].Clone()
			merge(t, &next, &right)
			right = next
		}
		if !bytes.Equal(left.AppendBinary(nil), right.AppendBinary(nil)) {
			t.Fatalf("%+v and %+v", left.State(), right.State())
		}
	}
}

func merge(t *testing.T, into, from *BloomScalable) {
	t.Helper()
	if err := into.Merge(from); err != nil {
		t.Fatal(err)
	}
}

// TestBloomMergedGrows: a filter that was merged takes more keys.
func TestBloomMergedGrows(t *testing.T) {
	for _, s := range mergedSamples(t) {
		for i := range 5000 {
			s.Add(hashOf(3, i))
		}
		for i := range 5000 {
			if !s.Has(hashOf(3, i)).Found {
				t.Fatalf("key %d is missed", i)
			}
		}
		again := new(BloomScalable)
		if _, err := again.Decode(s.AppendBinary(nil)); err != nil ||
			!bytes.Equal(again.AppendBinary(nil), s.AppendBinary(nil)) {
			t.Fatalf("after a restart: %v", err)
		}
	}
}

func TestBloomMergeRefusesTooMuch(t *testing.T) {
	big := func(capacity uint64) *BloomScalable {
		f, err := NewBloomScalable(BloomParams{Capacity: capacity, FalseRate: 0.01})
		if err != nil {
			t.Fatal(err)
		}
		f.Add(1)
		return &f
	}
	s := big(30_000_000)
	before := s.AppendBinary(nil)
	if err := s.Merge(big(31_000_000)); !errors.Is(err, ErrIncompatible) || !bytes.Equal(s.AppendBinary(nil), before) {
		t.Errorf("two filters of 40 MB: %v", err)
	}
	if err := s.Merge(big(30_000_000)); err != nil {
		t.Errorf("of equal parameters: %v", err)
	}
}

func TestBloomMergedCodec(t *testing.T) {
	checkCodec(t, mergedSamples(t), useScalable)
	checkHeld(t, "bloom that was merged", mergedSamples(t))
}

func FuzzBloomMerged(f *testing.F) { fuzzCodec(f, mergedSamples(f), useScalable) }
