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

func newSetDecayed(t testing.TB, k int, members bool) SetDecayed {
	t.Helper()
	s, err := NewSetDecayed(SetDecayedParams{K: k, HalfLife: hour, Members: members})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSetDecayedParams(t *testing.T) {
	for _, c := range []struct {
		p     SetDecayedParams
		names string
	}{
		{SetDecayedParams{HalfLife: 1}, ""},
		{SetDecayedParams{HalfLife: HalfLifeMax, K: 4096, Members: true, Hash: Hash{ID: HashSip}}, ""},
		{SetDecayedParams{}, "half-life of 0"},
		{SetDecayedParams{HalfLife: HalfLifeMax + 1}, "half-life"},
		{SetDecayedParams{HalfLife: 1, K: 15}, "k of 15"},
		{SetDecayedParams{HalfLife: 1, K: 4097}, "k of 4097"},
		{SetDecayedParams{HalfLife: 1, Hash: Hash{ID: 4}}, "hash 4"},
	} {
		_, err := NewSetDecayed(c.p)
		wantParams(t, err, c.names)
	}
}

// TestSetDecayedIsExactWhileSmall: each thing weighs what its latest time says; of two sets the union takes the larger
// weight, the intersection the smaller.
func TestSetDecayedIsExactWhileSmall(t *testing.T) {
	a, b := newSetDecayed(t, 16, true), newSetDecayed(t, 20, true)
	for _, e := range []struct {
		s      *SetDecayed
		now, t Tick
		who    string
	}{
		{&a, 0, 0, "ann"},
		{&a, 2, 2, "bob"},
		{&a, 2, 1, "ann"},
		{&a, 2, 0, "ann"}, // seen later already
		{&b, 2, 1, "bob"},
		{&b, 2, 2, "eve"},
	} {
		e.s.Add(epoch+e.now*hour, epoch+e.t*hour, hashOf(1, int(e.who[0])), []byte(e.who))
	}
	near := func(what string, got SetEstimate, want float64) {
		t.Helper()
		if math.Abs(got.Value-want) > 1e-12 || got.StdErr > 1e-12 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("a", a.Estimate(epoch+2*hour), 1.5)
	near("a later", a.Estimate(epoch+4*hour), 1.5/4)
	got, err := a.Compare(&b, epoch+2*hour)
	if err != nil {
		t.Fatal(err)
	}
	near("union", got.Union, 2.5)
	near("intersection", got.Intersection, 0.5)
	near("similarity", got.Jaccard, 0.2)
	var seen []string
	a.Sample(epoch+2*hour, func(_ uint64, member string, weight float64) {
		seen = append(seen, fmt.Sprintf("%s %.2f", member, weight))
	})
	if len(seen) != 2 || !strings.Contains(fmt.Sprint(seen), "ann 0.50") || !strings.Contains(fmt.Sprint(seen), "bob 1.00") {
		t.Errorf("sample %v", seen)
	}
	empty := newSetDecayed(t, 16, true)
	if got, err := empty.Compare(&empty, epoch); got != (SetsOverlap{}) || err != nil {
		t.Errorf("two empty sets: %+v, %v", got, err)
	}
}

// TestSetDecayedForgets: after a long silence, or when what is left out has faded, everything is exact again.
func TestSetDecayedForgets(t *testing.T) {
	for _, silence := range []Tick{140, 200, 1e6} {
		s := newSetDecayed(t, 16, false)
		for i := range 100 {
			s.Add(epoch, epoch, hashOf(1, i), nil)
		}
		if e := s.Estimate(epoch); e.StdErr == 0 {
			t.Error("a hundred are exact")
		}
		now := epoch + silence*hour
		for i := range 16 {
			s.Add(now, now, hashOf(2, i), nil)
		}
		if e := s.Estimate(now); math.Abs(e.Value-16) > 1e-9 || e.StdErr != 0 {
			t.Errorf("after %d hours: %+v", silence, e)
		}
		s.Add(now, now-64*hour, hashOf(3, 1), nil)
		if e := s.Estimate(now); math.Abs(e.Value-16) > 1e-9 || e.StdErr != 0 {
			t.Errorf("something too old counts: %+v", e)
		}
	}
}

// answers are estimates of many truths, with what they state as their errors.
type answers []struct{ got, truth, stated float64 }

func (a *answers) add(e SetEstimate, truth float64) {
	*a = append(*a, struct{ got, truth, stated float64 }{e.Value, truth, e.StdErr})
}

// check holds the errors against the mean of what is stated. Each against its own would seem biased: what comes out too
// low states too small an error.
func (a answers) check(t *testing.T, what string) {
	t.Helper()
	square := 0.0
	for _, x := range a {
		square += x.stated * x.stated / (x.truth * x.truth) / float64(len(a))
	}
	var errs errorsOf
	for _, x := range a {
		errs.add(x.got, x.truth, x.truth*max(math.Sqrt(square), 1e-9))
	}
	errs.check(t, what)
}

// TestSetDecayedError: sums over all things, over a part of them, and over two sets, with standard errors as stated.
func TestSetDecayedError(t *testing.T) {
	const k, trials = 128, 150
	for _, things := range []int{100, 500, 1000, 3000} {
		var sum, part, union, both, alike answers
		var stated float64
		for seed := range trials {
			r := rng(seed)
			a, b := newSetDecayed(t, k, false), newSetDecayed(t, k, false)
			inA, inB, now := crowd{}, crowd{}, epoch
			for range things {
				now += Tick(r.below(2 * 10 * int(hour) / things))
				at, who := now, r.below(things)
				if r.below(10) == 0 {
					at -= Tick(r.below(int(hour)))
				}
				if who%3 != 0 {
					a.Add(now, at, hashOf(seed, who), nil)
					inA[who] = max(inA[who], at)
				}
				if who%3 != 1 {
					at -= Tick(r.below(int(hour)))
					b.Add(now, at, hashOf(seed, who), nil)
					inB[who] = max(inB[who], at)
				}
			}
			at := now + hour/2
			e := a.Estimate(at)
			truth := inA.around(at)
			sum.add(e, truth)
			stated += e.StdErr / truth / trials
			odd, oddTruth, share := 0.0, crowd{}, map[uint64]bool{}
			for who, t := range inA {
				if who%2 == 1 {
					oddTruth[who] = t
					share[hashOf(seed, who)] = true
				}
			}
			a.Sample(at, func(hash uint64, _ string, weight float64) {
				if share[hash] {
					odd += weight
				}
			})
			part.add(SetEstimate{odd, truth / math.Sqrt(2*k)}, oddTruth.around(at))
			got, err := a.Compare(&b, at)
			if err != nil {
				t.Fatal(err)
			}
			more, less := crowd{}, crowd{}
			for who, t := range inA {
				more[who] = max(t, inB[who])
				if inB[who] > 0 {
					less[who] = min(t, inB[who])
				}
			}
			for who, t := range inB {
				more[who] = max(t, inA[who])
			}
			u, i := more.around(at), less.around(at)
			union.add(got.Union, u)
			both.add(got.Intersection, i)
			alike.add(got.Jaccard, i/u)
		}
		for _, c := range []struct {
			what string
			e    answers
		}{{"all", sum}, {"a part", part}, {"union", union}, {"intersection", both}, {"similarity", alike}} {
			c.e.check(t, fmt.Sprintf("%d things, %s", things, c.what))
		}
		if stated > 1/math.Sqrt(k-1) {
			t.Errorf("%d things: states an error of %v", things, stated)
		}
	}
}

// TestSetDecayedLaws: of a batch with one latest time any order, repetition and grouping, into sets of any k, gives the
// same bytes; Merge commutes and repeats without effect over any times.
func TestSetDecayedLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rng(rapid.Uint64().Draw(t, "seed"))
		members := r.below(2) == 0
		make := func(k int) SetDecayed {
			s, _ := NewSetDecayed(SetDecayedParams{K: k, HalfLife: hour, Members: members})
			return s
		}
		bytes := func(s SetDecayed) string { return string(s.AppendBinary(nil)) }
		merge := func(s SetDecayed, others ...SetDecayed) SetDecayed {
			s = s.Clone()
			for _, o := range others {
				before := bytes(o)
				if err := s.Merge(&o); err != nil {
					t.Fatal(err)
				}
				if bytes(o) != before {
					t.Fatal("the other changed")
				}
			}
			return s
		}
		now := epoch
		var parts []SetDecayed
		for range 3 {
			s := make(16 + r.below(20))
			for range 1 + r.below(100) {
				now += Tick(r.below(int(hour)))
				who := r.below(100)
				s.Add(now, now-Tick(r.below(int(80*hour))), hashOf(1, who), fmt.Append(nil, who))
			}
			now += Tick(r.below(2)) * Tick(r.below(int(150*hour)))
			parts = append(parts, s)
		}
		a, b := parts[0], parts[r.below(3)]
		twice := merge(a, a) // without what came late below the threshold, which counts nowhere
		if bytes(merge(a, b)) != bytes(merge(b, a)) || bytes(merge(a, b, b, a)) != bytes(merge(a, b)) ||
			bytes(merge(twice, a)) != bytes(twice) || twice.Estimate(now) != a.Estimate(now) {
			t.Fatal("does not commute, or not repeat without effect")
		}

		type event struct {
			t   Tick
			who int
		}
		var events []event
		for range r.below(150) {
			events = append(events, event{now - Tick(r.below(int(70*hour))), r.below(80)})
		}
		k := 16 + r.below(10)
		whole, groups := make(k), []SetDecayed{make(k), make(k + r.below(20)), make(k + r.below(20))}
		for i := range groups {
			groups[i].Add(now, 0, 0, nil) // tells the time and adds nothing
		}
		for _, e := range events {
			whole.Add(now, e.t, hashOf(1, e.who), fmt.Append(nil, e.who))
		}
		for len(events) > 0 {
			i := r.below(len(events))
			e := events[i]
			groups[r.below(3)].Add(now, e.t, hashOf(1, e.who), fmt.Append(nil, e.who))
			if r.below(3) > 0 {
				events[i] = events[len(events)-1]
				events = events[:len(events)-1]
			}
		}
		whole.Add(now, 0, 0, nil)
		if got := merge(groups[0], groups[1], groups[2]); bytes(got) != bytes(whole) {
			t.Fatalf("one after the other:\n%x\nwant\n%x", bytes(got), bytes(whole))
		}
		if got := merge(groups[0], merge(groups[2], groups[1])); bytes(got) != bytes(whole) {
			t.Fatal("does not associate")
		}
	})
}

func TestSetDecayedRefuses(t *testing.T) {
	s := newSetDecayed(t, 16, false)
	s.Add(epoch, epoch, 1, nil)
	before := string(s.AppendBinary(nil))
	for _, c := range []struct {
		p        SetDecayedParams
		compares bool
	}{
		{SetDecayedParams{HalfLife: hour + 1}, false},
		{SetDecayedParams{HalfLife: hour, Hash: Hash{Seed: 1}}, false},
		{SetDecayedParams{HalfLife: hour, Members: true}, true},
	} {
		o, err := NewSetDecayed(c.p)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Merge(&o); !errors.Is(err, ErrIncompatible) || string(s.AppendBinary(nil)) != before {
			t.Errorf("%+v: %v", c.p, err)
		}
		if _, err := s.Compare(&o, epoch); errors.Is(err, ErrIncompatible) == c.compares {
			t.Errorf("%+v compares with %v", c.p, err)
		}
	}
}

func setDecayedSamples(t testing.TB) (all []*SetDecayed) {
	for _, members := range []bool{false, true} {
		for _, n := range []int{0, 1, 16, 17, 300} {
			s := newSetDecayed(t, 16, members)
			for i := range n {
				s.Add(epoch+Tick(i)*hour/10, epoch+Tick(i)*hour/10, hashOf(1, i), fmt.Append(nil, i))
			}
			all = append(all, &s)
		}
	}
	return all
}

func useSetDecayed(s *SetDecayed) {
	if e := s.Estimate(s.latest); !(e.Value >= 0) || !(e.StdErr >= 0) {
		panic(fmt.Sprint(e))
	}
	c := s.Clone()
	for i := range 30 {
		c.Add(s.latest, s.latest, hashOf(2, i), []byte("x"))
	}
	if err := c.Merge(s); err != nil {
		panic(err)
	}
	if _, err := c.Compare(s, s.latest); err != nil {
		panic(err)
	}
	if _, err := new(SetDecayed).Decode(c.AppendBinary(nil)); err != nil {
		panic(err)
	}
}

func TestSetDecayedCodec(t *testing.T) { checkCodec(t, setDecayedSamples(t), useSetDecayed) }

func FuzzSetDecayedDecode(f *testing.F) { fuzzCodec(f, setDecayedSamples(f), useSetDecayed) }

// TestGoldenSetDecayed: every machine computes the same bits, estimates included.
func TestGoldenSetDecayed(t *testing.T) {
	var b strings.Builder
	hash := fnv.New64a()
	a, other, now, r := newSetDecayed(t, 32, false), newSetDecayed(t, 40, false), epoch, rng(1)
	for i := range 2000 {
		now += Tick(r.below(int(hour) / 10))
		a.Add(now, now-Tick(r.below(int(hour)*3)), hashOf(1, r.below(1000)), nil)
		other.Add(now, now, hashOf(1, r.below(1000)), nil)
		if i%100 == 0 {
			overlap, err := a.Compare(&other, now)
			if err != nil {
				t.Fatal(err)
			}
			m := a.Clone()
			if err := m.Merge(&other); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "after %d: %x overlap %x\n", i+1, m.Estimate(now+hour/3), overlap)
			fmt.Fprintf(hash, "%x %x", a.AppendBinary(nil), m.AppendBinary(nil))
		}
	}
	fmt.Fprintf(&b, "bytes %x\nhash %016x\n", a.AppendBinary(nil), hash.Sum64())
	golden(t, "golden_setdecayed.txt", []byte(b.String()))
}

func BenchmarkSetDecayedAdd(b *testing.B) {
	for _, things := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("things=%d", things), func(b *testing.B) {
			s, r, now := newSetDecayed(b, 0, false), rng(1), epoch
			for b.Loop() {
				now += hour / Tick(things)
				s.Add(now, now, hashOf(1, r.below(things)), nil)
			}
		})
	}
}

// TestSetDecayedOverAThousandHalfLives: against an exact oracle, with everyday traffic, bursts, silences of up to a
// hundred half-lives and events that are late by up to three. The bias stays below 1%, the error is as stated, and what
// was once there leaves nothing behind.
func TestSetDecayedOverAThousandHalfLives(t *testing.T) {
	const k, trials, people = 128, 40, 2000
	var around, sums answers
	for seed := range trials {
		r := rng(seed)
		s, seen := newSetDecayed(t, k, false), crowd{}
		for now := epoch; now < epoch+1000*hour; {
			events, step := 60, hour
			switch r.below(20) {
			case 0: // silence
				now += Tick(r.below(100)) * hour
			case 1: // a burst
				events, step = 1500, hour/10
			}
			for range events {
				now += Tick(r.below(2 * int(step) / events))
				at := now
				if r.below(5) == 0 {
					at -= Tick(r.below(3 * int(hour)))
				}
				who := r.below(people)
				s.Add(now, at, hashOf(seed, who), nil)
				seen[who] = max(seen[who], at)
			}
			if r.below(8) == 0 {
				e, truth := s.Estimate(now), seen.around(now)
				around.add(e, truth)
				odd, oddTruth, hashes := 0.0, crowd{}, map[uint64]bool{}
				for who, t := range seen {
					if who%2 == 1 {
						oddTruth[who], hashes[hashOf(seed, who)] = t, true
					}
				}
				s.Sample(now, func(hash uint64, _ string, weight float64) {
					if hashes[hash] {
						odd += weight
					}
				})
				sums.add(SetEstimate{Value: odd, StdErr: truth / math.Sqrt(2*k)}, oddTruth.around(now))
			}
		}
	}
	for what, a := range map[string]answers{"all": around, "half of them": sums} {
		a.check(t, what)
		bias := 0.0
		for _, x := range a {
			bias += (x.got - x.truth) / x.truth / float64(len(a))
		}
		t.Logf("%s: %d readings, bias %.3f%%", what, len(a), 100*bias)
		if math.Abs(bias) > 0.01 {
			t.Errorf("%s: bias of %.2f%%", what, 100*bias)
		}
	}
}
