package sketch

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newDistinctDecayed(t testing.TB, registers int) DistinctDecayed {
	t.Helper()
	d, err := NewDistinctDecayed(DistinctDecayedParams{Registers: registers, HalfLife: hour})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDistinctDecayedParams(t *testing.T) {
	for _, c := range []struct {
		p     DistinctDecayedParams
		names string
	}{
		{DistinctDecayedParams{HalfLife: 1}, ""},
		{DistinctDecayedParams{HalfLife: HalfLifeMax, Registers: 64, Hash: Hash{ID: HashSip}}, ""},
		{DistinctDecayedParams{}, "half-life of 0"},
		{DistinctDecayedParams{HalfLife: HalfLifeMax + 1}, "half-life"},
		{DistinctDecayedParams{HalfLife: 1, Registers: 32}, "32 registers"},
		{DistinctDecayedParams{HalfLife: 1, Registers: 100}, "100 registers"},
		{DistinctDecayedParams{HalfLife: 1, Registers: 1 << 17}, "131072 registers"},
		{DistinctDecayedParams{HalfLife: 1, Hash: Hash{ID: 4}}, "hash 4"},
	} {
		_, err := NewDistinctDecayed(c.p)
		wantParams(t, err, c.names)
	}
}

// TestDistinctDecayedIsExactWhileSmall: each thing counts as its latest time says, however often and in whatever order
// it was seen.
func TestDistinctDecayedIsExactWhileSmall(t *testing.T) {
	d := newDistinctDecayed(t, 64)
	for _, e := range []struct{ now, t, who Tick }{
		{0, 0, 1},
		{1, 1, 2},
		{2, 2, 1},
		{2, 0, 1}, // seen later already
		{3, 1, 3}, // late
	} {
		d.Add(epoch+e.now*hour, epoch+e.t*hour, hashOf(1, int(e.who)))
	}
	for _, c := range []struct {
		at   Tick
		want float64
	}{
		{3, 0.5 + 0.25 + 0.25},
		{4, 0.5},
		{13, 1. / 1024},
		{2, 2},
	} {
		if got, stdErr := d.Estimate(epoch + c.at*hour); math.Abs(got-c.want) > 1e-12 || stdErr != 0 {
			t.Errorf("at hour %d: %v +- %v, want %v", c.at, got, stdErr, c.want)
		}
	}
	if late := d.Death(1./1024) - epoch - 13*hour; late < 0 || late > 4 {
		t.Errorf("dies %d ticks after 13 hours", late)
	}
}

// TestDistinctDecayedForgets: what is 64 half-lives old makes room, and after a long silence counting is exact again.
func TestDistinctDecayedForgets(t *testing.T) {
	d, now := newDistinctDecayed(t, 64), epoch
	for i := range 1000 { // one an hour: never more than 64 that count, where 32 would fit
		now += 3 * hour
		d.Add(now, now, hashOf(1, i))
		if !d.Exact() {
			t.Fatalf("registers after %d things", i)
		}
	}
	for i := range 1000 {
		d.Add(now, now, hashOf(2, i))
	}
	if d.Exact() {
		t.Fatal("a thousand are not too many")
	}
	now += 300 * hour
	d.Add(now, now, hashOf(3, 1))
	if n, _ := d.Estimate(now); !d.Exact() || math.Abs(n-1) > 1e-12 {
		t.Errorf("after a long silence: exact %v, %v things", d.Exact(), n)
	}
	d.Add(now, now-64*hour, hashOf(3, 2))
	if n, _ := d.Estimate(now); math.Abs(n-1) > 1e-12 {
		t.Errorf("something too old counts: %v", n)
	}
}

// crowd is what a test has seen, and the exact oracle of how much of it is around.
type crowd map[int]Tick

func (c crowd) around(at Tick) (n float64) {
	for _, t := range c {
		n += math.Exp2(-float64(at-t) / float64(hour))
	}
	return n
}

// TestDistinctDecayedError: things come over twenty half-lives, late ones and old acquaintances among them; and are
// read at once, after another half-life and past a rebase, from one sketch or merged from two.
func TestDistinctDecayedError(t *testing.T) {
	const registers, trials = 64, 150
	theory := 1.0367 / math.Sqrt(registers)
	for _, things := range []int{30, 50, 100, 400, 2000} {
		reads := []Tick{0, hour + 7, 40 * hour}
		whole, merged := make([]errorsOf, len(reads)), errorsOf{}
		var stated float64
		for seed := range trials {
			r := rng(seed)
			all := newDistinctDecayed(t, registers)
			parts := []DistinctDecayed{newDistinctDecayed(t, registers), newDistinctDecayed(t, registers)}
			seen, now := crowd{}, epoch
			for range things {
				now += Tick(r.below(2 * 20 * int(hour) / things))
				at, who := now, r.below(things)
				if r.below(10) == 0 {
					at -= Tick(r.below(int(hour)))
				}
				all.Add(now, at, hashOf(seed, who))
				parts[r.below(2)].Add(now, at, hashOf(seed, who))
				seen[who] = max(seen[who], at)
			}
			if err := parts[0].Merge(&parts[1]); err != nil {
				t.Fatal(err)
			}
			for i, later := range reads {
				if i == 2 {
					all.Add(now+later, now-hour, hashOf(seed, 0)) // moves the landmark
					seen[0] = max(seen[0], now-hour)
				}
				n, stdErr := all.Estimate(now + later)
				truth := seen.around(now + later)
				whole[i].add(n, truth, theory*truth)
				if i == 0 {
					stated += stdErr / truth / theory / trials
					n, _ := parts[0].Estimate(now)
					merged.add(n, truth, theory*truth)
				}
			}
		}
		for i, later := range reads {
			whole[i].check(t, fmt.Sprintf("%d things, %d hours later", things, later/hour))
		}
		merged.check(t, fmt.Sprintf("%d things, merged", things))
		if things > 50 && math.Abs(stated-1) > 0.05 {
			t.Errorf("%d things: states %v of theory", things, stated)
		}
	}
}

// TestDistinctDecayedLaws: of a batch with one latest time any order and repetition gives the same bytes, as does any
// grouping; Merge commutes and repeats without effect over any times.
func TestDistinctDecayedLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rng(rapid.Uint64().Draw(t, "seed"))
		make := func() DistinctDecayed {
			d, _ := NewDistinctDecayed(DistinctDecayedParams{Registers: 64, HalfLife: hour})
			return d
		}
		bytes := func(d DistinctDecayed) string { return string(d.AppendBinary(nil)) }
		merge := func(d DistinctDecayed, others ...DistinctDecayed) DistinctDecayed {
			d = d.Clone()
			for _, o := range others {
				before := bytes(o)
				if err := d.Merge(&o); err != nil {
					t.Fatal(err)
				}
				if bytes(o) != before {
					t.Fatal("the other changed")
				}
			}
			return d
		}
		now := epoch
		var parts []DistinctDecayed
		for range 3 {
			d := make()
			for range 1 + r.below(100) {
				now += Tick(r.below(int(hour)))
				d.Add(now, now-Tick(r.below(int(80*hour))), hashOf(1, r.below(200)))
			}
			now += Tick(r.below(2)) * Tick(r.below(int(150*hour)))
			parts = append(parts, d)
		}
		a, b := parts[0], parts[r.below(3)]
		if bytes(merge(a, b)) != bytes(merge(b, a)) || bytes(merge(a, b, b, a)) != bytes(merge(a, b)) || bytes(merge(a, a)) != bytes(a) {
			t.Fatal("does not commute, or not repeat without effect")
		}

		type event struct {
			t    Tick
			hash uint64
		}
		var events []event
		whole := make()
		for range r.below(100) {
			e := event{now - Tick(r.below(int(100*hour))), hashOf(1, r.below(80))}
			events = append(events, e)
			whole.Add(now, e.t, e.hash)
		}
		again, half := make(), make()
		again.Add(now, 0, 0) // tells the time and adds nothing
		half.Add(now, 0, 0)
		whole.Add(now, 0, 0)
		for len(events) > 0 {
			i := r.below(len(events))
			again.Add(now, events[i].t, events[i].hash)
			if r.below(3) == 0 {
				half.Add(now, events[i].t, events[i].hash)
				continue
			}
			events[i] = events[len(events)-1]
			events = events[:len(events)-1]
		}
		if bytes(again) != bytes(whole) || bytes(merge(half, again)) != bytes(whole) {
			t.Fatal("the order matters")
		}
	})
}

func TestDistinctDecayedMergeRefuses(t *testing.T) {
	d := newDistinctDecayed(t, 64)
	d.Add(epoch, epoch, 1)
	before := string(d.AppendBinary(nil))
	for _, p := range []DistinctDecayedParams{
		{Registers: 128, HalfLife: hour},
		{Registers: 64, HalfLife: hour + 1},
		{Registers: 64, HalfLife: hour, Hash: Hash{Seed: 1}},
	} {
		o, err := NewDistinctDecayed(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Merge(&o); !errors.Is(err, ErrIncompatible) || string(d.AppendBinary(nil)) != before {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// TestSpreading: one thing's values are as many exponential variables in rising order, and each register has one.
func TestSpreading(t *testing.T) {
	const registers = 200
	var least, mean errorsOf
	first := make([]float64, registers)
	for seed := range 2000 {
		s := spreading{seed: hashOf(1, seed), left: registers}
		seen, sum := [registers]bool{}, 0.0
		for i := range registers {
			last := s.x
			s.rise()
			if s.x <= last {
				t.Fatal("does not rise")
			}
			r := s.next(registers)
			if seen[r] {
				t.Fatalf("register %d twice", r)
			}
			seen[r] = true
			if i == 0 {
				least.add(s.x, 1./registers, 1./registers)
				first[r]++
			}
			sum += s.x
		}
		mean.add(sum/registers, 1, 1/math.Sqrt(registers))
	}
	least.check(t, "the least")
	mean.check(t, "the mean")
	for r, n := range first {
		if math.Abs(n-10) > 4.5*math.Sqrt(10)+1 {
			t.Errorf("register %d came first %v times of 2000", r, n)
		}
	}
}

func decayedSamples(t testing.TB) (all []*DistinctDecayed) {
	for _, n := range []int{0, 1, 20, 32, 33, 500} {
		d := newDistinctDecayed(t, 64)
		for i := range n {
			d.Add(epoch+Tick(i)*hour/10, epoch+Tick(i)*hour/20, hashOf(1, i))
		}
		all = append(all, &d)
	}
	return all
}

func useDistinctDecayed(d *DistinctDecayed) {
	if n, stdErr := d.Estimate(d.latest); !(n >= 0) || !(stdErr >= 0) {
		panic(fmt.Sprint(n, stdErr))
	}
	d.Death(0.001)
	c := d.Clone()
	for i := range 100 {
		c.Add(d.latest, d.latest, hashOf(2, i))
	}
	if err := c.Merge(d); err != nil {
		panic(err)
	}
	if _, err := new(DistinctDecayed).Decode(c.AppendBinary(nil)); err != nil {
		panic(err)
	}
}

func TestDistinctDecayedCodec(t *testing.T) { checkCodec(t, decayedSamples(t), useDistinctDecayed) }

func FuzzDistinctDecayedDecode(f *testing.F) { fuzzCodec(f, decayedSamples(f), useDistinctDecayed) }

// TestGoldenDistinctDecayed: every machine computes the same bits, estimates included.
func TestGoldenDistinctDecayed(t *testing.T) {
	var b strings.Builder
	hash := fnv.New64a()
	d, other, now, r := newDistinctDecayed(t, 64), newDistinctDecayed(t, 64), epoch, rng(1)
	for i := range 2000 {
		now += Tick(r.below(int(hour) / 10))
		d.Add(now, now-Tick(r.below(int(hour)*3)), hashOf(1, r.below(1000)))
		other.Add(now, now, hashOf(1, r.below(1000)))
		if i%100 == 0 {
			m := d.Clone()
			if err := m.Merge(&other); err != nil {
				t.Fatal(err)
			}
			n, stdErr := m.Estimate(now + hour/3)
			fmt.Fprintf(&b, "after %d: %x +- %x, dies %d\n", i+1, n, stdErr, m.Death(0.001))
			fmt.Fprintf(hash, "%x %x", d.AppendBinary(nil), m.AppendBinary(nil))
		}
	}
	fmt.Fprintf(&b, "bytes %x\nhash %016x\n", d.AppendBinary(nil), hash.Sum64())
	golden(t, "golden_distinctdecayed.txt", []byte(b.String()))
}

func BenchmarkDistinctDecayedAdd(b *testing.B) {
	for _, things := range []int{1000, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("things=%d", things), func(b *testing.B) {
			d, r, now := newDistinctDecayed(b, 0), rng(1), epoch
			add := func() {
				now += hour / Tick(things)
				d.Add(now, now, hashOf(1, r.below(things)))
			}
			for range 4 * things {
				add()
			}
			for b.Loop() {
				add()
			}
			b.ReportMetric(float64(d.Size()), "B")
		})
	}
}

func BenchmarkDistinctDecayedEstimate(b *testing.B) {
	d := newDistinctDecayed(b, 0)
	for i := range 100_000 {
		d.Add(epoch, epoch, hashOf(1, i))
	}
	for b.Loop() {
		d.Estimate(epoch + hour)
	}
}
