package sketch

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newTimed(t testing.TB, capacity uint64, rate float64, window Tick) BloomTimed {
	t.Helper()
	f, err := NewBloomTimed(BloomTimedParams{Capacity: capacity, FalseRate: rate, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// falseRate is the part of absent keys that is found.
func falseRate(f *BloomTimed, at Tick, probes int) float64 {
	found := 0
	for i := range probes {
		if f.Has(at, remix(uint64(i), 99)).Found {
			found++
		}
	}
	return float64(found) / float64(probes)
}

// TestBloomTimedBursts: filled in a burst of up to 100 times its capacity, evenly, or in bursts after each other, the
// filter keeps the rate that it promises, also as it reports it, finds all keys of a window, and no generation later
// all are gone. A BloomExpiring of the same size finds up to all absent keys.
func TestBloomTimedBursts(t *testing.T) {
	for _, c := range []struct {
		name     string
		capacity uint64
		rate     float64
		bursts   []int // keys at once, a quarter of a window after each other
	}{
		{"one burst of the capacity", 10_000, 0.01, []int{10_000}},
		{"a burst of 100 times the capacity", 1_000, 0.01, []int{100_000}},
		{"bursts after each other", 2_000, 0.01, []int{20_000, 100, 50_000, 3_000}},
		{"a low rate", 1_000, 1e-4, []int{30_000}},
		{"a tiny filter", 1, 0.05, []int{5_000, 5_000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			window := 8 * hour
			f, now := newTimed(t, c.capacity, c.rate, window), epoch
			type batch struct {
				at   Tick
				from uint64
				n    int
			}
			var batches []batch
			next := uint64(0)
			for _, n := range c.bursts {
				now += window / 4
				batches = append(batches, batch{now, next, n})
				for range n {
					f.Add(now, now, remix(next, 0))
					next++
				}
			}
			probes := max(100_000, int(50/c.rate))
			measured, state := falseRate(&f, now, probes), f.State(now)
			t.Logf("measured %.5f%%, reported %.5f%%, promised %.3f%%; %.1f bits a key",
				100*measured, 100*state.FalseRate, 100*c.rate, 8*float64(f.Size())/float64(next))
			if measured > c.rate || state.FalseRate > c.rate || state.Over {
				t.Errorf("measured %v and reported %v (over: %v), promised %v", measured, state.FalseRate, state.Over, c.rate)
			}
			for _, b := range batches {
				at, lost, kept := max(now, b.at+window), 0, 0
				for i := range b.n {
					h := remix(b.from+uint64(i), 0)
					if !f.Has(at, h).Found {
						lost++
					}
					if f.Has(max(now, b.at+window+2*f.Span()), h).Found {
						kept++
					}
				}
				if lost > 0 {
					t.Errorf("%d of %d keys are lost a window after they came", lost, b.n)
				}
				if b.at == now && kept > 0 {
					t.Errorf("%d of %d keys are found two generations too long", kept, b.n)
				}
			}
			if f.Has(f.Death(), remix(next-1, 0)).Found {
				t.Error("found when it is dead")
			}
		})
	}
}

// TestBloomTimedRest: after a burst a filter takes what it took before.
func TestBloomTimedRest(t *testing.T) {
	f, now := newTimed(t, 4_000, 0.01, 8*hour), epoch
	key := uint64(0)
	add := func(n int) {
		for range n {
			f.Add(now, now, remix(key, 0))
			key++
		}
		now += hour
	}
	for range 20 {
		add(500)
	}
	even := f.Held()
	if bits := 8 * float64(even) / (9 * 500); bits > 28 {
		t.Errorf("%.1f bits a key where keys come evenly", bits)
	}
	add(200_000)
	burst := f.Held()
	for range 10 {
		add(500)
	}
	if after := f.Held(); after > even*13/10 || burst < 10*even {
		t.Errorf("%d bytes before a burst, %d in it, %d after it", even, burst, after)
	}
}

// TestBloomTimedLaws: of filters with late events and idle times, merged in any order: no key is lost within its
// window; merging commutes, associates and repeats without effect, to the byte; one that restarts continues the same.
func TestBloomTimedLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rng(rapid.Uint64().Draw(t, "seed"))
		make := func() BloomTimed {
			f, _ := NewBloomTimed(BloomTimedParams{Capacity: uint64(1 + r.below(100)), FalseRate: 0.01, Window: 8 * hour})
			return f
		}
		first := make()
		parts := []BloomTimed{first, first.Clone(), first.Clone()}
		latest := map[uint64]Tick{}
		now := epoch
		for range r.below(1500) {
			if r.below(40) == 0 {
				now += Tick(r.below(int(hour) * (1 + r.below(12))))
			}
			at := now - Tick(r.below(int(8*hour)))
			if r.below(2) == 0 {
				at = now
			}
			hash := remix(uint64(r.below(1000)), 1)
			part := &parts[r.below(len(parts))]
			if r.below(50) == 0 {
				again := part.Clone()
				if _, err := part.Decode(again.AppendBinary(nil)); err != nil {
					t.Fatal(err)
				}
				if part.Held() != again.Held() {
					t.Fatalf("holds %d bytes, and %d before a restart", part.Held(), again.Held())
				}
			}
			part.Add(now, at, hash)
			latest[hash] = max(latest[hash], at)
		}
		a, b := parts[0].Clone(), parts[2].Clone()
		for _, err := range []error{
			a.Merge(&parts[1]), a.Merge(&parts[2]), b.Merge(&parts[1]), b.Merge(&parts[0]), b.Merge(&parts[1]),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if string(a.AppendBinary(nil)) != string(b.AppendBinary(nil)) {
			t.Fatal("the order of merges makes a difference")
		}
		at := now + Tick(r.below(int(8*hour)))
		for hash, last := range latest {
			if found := a.Has(at, hash).Found; !found && last >= at-8*hour {
				t.Fatalf("a key is lost %d us after it came", at-last)
			}
		}
	})
}

func TestBloomTimedRefuses(t *testing.T) {
	for _, p := range []BloomTimedParams{
		{Capacity: 0, FalseRate: 0.01, Window: hour},
		{Capacity: 1, FalseRate: 0.6, Window: hour},
		{Capacity: 1, FalseRate: 0.01, Window: 7},
		{Capacity: 1, FalseRate: 0.01, Window: HalfLifeMax + 1},
		{Capacity: 1 << 40, FalseRate: 0.01, Window: hour},
		{Capacity: 40_000_000, FalseRate: 0.01, Window: hour},
	} {
		if _, err := NewBloomTimed(p); !errors.Is(err, ErrParams) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	f := newTimed(t, 10, 0.01, hour)
	f.Add(epoch, epoch, 1)
	f.Add(epoch, epoch-hour/2, 2)
	good := string(f.AppendBinary(nil))
	for _, p := range []BloomTimedParams{
		{Capacity: 11, FalseRate: 0.01, Window: hour},
		{Capacity: 10, FalseRate: 0.02, Window: hour},
		{Capacity: 10, FalseRate: 0.01, Window: hour + 1},
		{Capacity: 10, FalseRate: 0.01, Window: hour, Hash: Hash{Seed: 1}},
	} {
		o, err := NewBloomTimed(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Merge(&o); !errors.Is(err, ErrIncompatible) || string(f.AppendBinary(nil)) != good {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for i := range len(good) {
		if rest, err := f.Decode([]byte(good[:i])); !errors.Is(err, ErrCorrupt) || rest != nil {
			t.Errorf("%d bytes of %d: %v", i, len(good), err)
		}
	}
	if _, err := f.DecodeWithin([]byte(good), 100); !errors.Is(err, ErrCorrupt) {
		t.Errorf("decodes into 100 bytes: %v", err)
	}
	if _, err := f.DecodeWithin([]byte(good), f.ReservedMost()); err != nil {
		t.Errorf("does not decode into the room of all first layers: %v", err)
	}
}

// TestBloomTimedIsOver: at its largest size it still takes keys, and says that it is over.
func TestBloomTimedIsOver(t *testing.T) {
	if testing.Short() {
		t.Skip("fills 64 MiB")
	}
	f := newTimed(t, 24_000_000, 0.01, hour)
	for i := range uint64(4_000_000) {
		f.Add(epoch, epoch, remix(i, 0))
	}
	if f.Reserved() > BloomBytesMax+BloomBytesMax/8 || !f.State(epoch).Over {
		t.Errorf("takes %d bytes, over %v", f.Reserved(), f.State(epoch).Over)
	}
}

// TestBloomTimedUnionIsTooLarge: a union of more than BloomBytesMax is refused, and changes nothing. One of bursts in
// the same generation is as large as each of them.
func TestBloomTimedUnionIsTooLarge(t *testing.T) {
	burst := func(at Tick) BloomTimed {
		f := newTimed(t, 24_000_000, 0.01, 8*hour)
		f.Add(at, at, 1)
		for i := range 2 {
			next, err := f.layer(1 + i)
			if err != nil {
				t.Fatal(err)
			}
			f.generations[0].layers = append(f.generations[0].layers, next)
		}
		return f
	}
	early, late, same := burst(epoch), burst(epoch+hour), burst(epoch)
	if err := early.Merge(&same); err != nil || early.Reserved() != same.Reserved() {
		t.Errorf("of the same generation: %v, %d bytes and %d", err, early.Reserved(), same.Reserved())
	}
	before, size := string(early.AppendBinary(nil)), early.Reserved()
	if err := early.Merge(&late); !errors.Is(err, ErrOverflow) || string(early.AppendBinary(nil)) != before {
		t.Errorf("twice %d bytes: %v", size, err)
	}
	gone := burst(epoch + 20*hour)
	if err := early.Merge(&gone); err != nil || len(early.generations) != 1 {
		t.Errorf("after all was dropped: %v, %d generations", err, len(early.generations))
	}
}

// timedSamples are encodings of filters in all states.
func timedSamples(t testing.TB) (all [][]byte) {
	f := newTimed(t, 5, 0.1, hour)
	all = append(all, f.AppendBinary(nil))
	r, now := rng(1), epoch
	for i := range 400 {
		now += Tick(r.below(int(hour) / 20))
		f.Add(now, now-Tick(r.below(int(hour))), r.next())
		if i%100 == 0 {
			all = append(all, f.AppendBinary(nil))
		}
	}
	return all
}

// FuzzBloomTimed: what is accepted encodes to the same bytes and can be used; what is not leaves the receiver
// alone.
func FuzzBloomTimed(f *testing.F) {
	for _, b := range timedSamples(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w := newTimed(t, 10, 0.01, hour)
		w.Add(epoch, epoch, 5)
		before := string(w.AppendBinary(nil))
		rest, err := w.DecodeWithin(b, 1<<20)
		if err != nil {
			if string(w.AppendBinary(nil)) != before {
				t.Fatal("refused, and changed the receiver")
			}
			return
		}
		if again := w.AppendBinary(nil); string(again) != string(b[:len(b)-len(rest)]) {
			t.Fatalf("%x encodes to %x", b[:len(b)-len(rest)], again)
		}
		now := w.Last()
		w.State(now)
		c := w.Clone()
		w.Add(now, now, 7)
		if err := c.Merge(&w); err != nil {
			t.Fatal(err)
		}
		if string(c.AppendBinary(nil)) != string(w.AppendBinary(nil)) {
			t.Fatal("merging what is part of it is not without effect")
		}
	})
}

// TestGoldenBloomTimed: every machine computes the same bits.
func TestGoldenBloomTimed(t *testing.T) {
	var b strings.Builder
	hash := fnv.New64a()
	f := newTimed(t, 100, 0.01, 20*hour)
	r, now := rng(1), epoch
	for i := range 6000 {
		now += Tick(r.below(int(hour) / 50))
		f.Add(now, now-Tick(r.below(int(hour)*3)), remix(uint64(r.below(100_000)), 0))
		if i%200 == 0 {
			s := f.State(now)
			fmt.Fprintf(&b, "after %d: %x +- %x, rate %x\n", i+1, s.Keys, s.KeysError, s.FalseRate)
			fmt.Fprintf(hash, "%x", f.AppendBinary(nil))
		}
	}
	fmt.Fprintf(&b, "hash %016x\n", hash.Sum64())
	golden(t, "golden-bloom-timed.txt", []byte(b.String()))
}

func BenchmarkBloomTimed(b *testing.B) {
	f, now := newTimed(b, 100_000, 0.01, 8*hour), epoch
	key := uint64(0)
	add := func() {
		now += 8 * hour / 100_000
		f.Add(now, now, remix(key, 0))
		key++
	}
	for range 300_000 {
		add()
	}
	b.Run("add", func(b *testing.B) {
		for b.Loop() {
			add()
		}
		b.ReportMetric(float64(f.Size()), "B")
	})
	b.Run("has", func(b *testing.B) {
		i := uint64(0)
		for b.Loop() {
			f.Has(now, remix(i, 7))
			i++
		}
	})
}
