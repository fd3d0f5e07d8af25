package sketch

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// inRing says whether a thing is in the i-th of three sets. Each has two thirds of all, so that a third is in any two
// and none in all three. What is divisible by four is in each besides.
func inRing(i, who int) bool { return who%3 != i || who%4 == 0 }

// TestOverlap: of three sets, union, intersection, what the first has alone, and similarity: exactly while they are
// small, and within what is stated beyond.
func TestOverlap(t *testing.T) {
	for _, things := range []int{60, 20_000} {
		const trials = 100
		union, all, first := 0.0, 0.0, 0.0
		for who := range things {
			a, b, c := inRing(0, who), inRing(1, who), inRing(2, who)
			union += one(a || b || c)
			all += one(a && b && c)
			first += one(a && !b && !c)
		}
		errs := make([]answers, 4)
		for seed := range trials {
			var sets []*Set
			for i := range 3 {
				s := newSet(t, SetParams{K: 256, Signature: -1})
				for who := range things {
					if inRing(i, who) {
						s.Add(hashOf(seed, who), nil)
					}
				}
				sets = append(sets, &s)
			}
			got, err := Overlap(sets)
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range []struct {
				got  SetEstimate
				want float64
			}{{got.Union, union}, {got.Intersection, all}, {got.Difference, first}, {got.Jaccard, all / union}} {
				if things == 60 && e.got != (SetEstimate{Value: e.want}) {
					t.Fatalf("%d: %+v, want %v", i, e.got, e.want)
				}
				if e.want > 0 {
					errs[i].add(e.got, e.want)
				}
			}
		}
		for i, e := range errs {
			if things > 60 && len(e) > 0 {
				e.check(t, fmt.Sprintf("%d things: %s", things, []string{"union", "intersection", "difference", "similarity"}[i]))
			}
		}
	}
	if got, err := Overlap(nil); got != (SetsOverlap{}) || err != nil {
		t.Errorf("of nothing: %+v, %v", got, err)
	}
	a, b := newSet(t, SetParams{}), newSet(t, SetParams{Hash: Hash{Seed: 1}})
	if _, err := Overlap([]*Set{&a, &a, &b}); !errors.Is(err, ErrIncompatible) {
		t.Errorf("of two seeds: %v", err)
	}
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// TestOverlapDecayed: the same of three that forget, whose events are late, repeated and of all ages.
func TestOverlapDecayed(t *testing.T) {
	for _, things := range []int{40, 3000} {
		const trials = 150
		errs := make([]answers, 4)
		for seed := range trials {
			r := rng(seed)
			sets, crowds, now := make([]*SetDecayed, 3), []crowd{{}, {}, {}}, epoch
			for i := range sets {
				s := newSetDecayed(t, 128, false)
				sets[i] = &s
			}
			for range 3 * things {
				now += Tick(r.below(10 * int(hour) / things))
				i, who := r.below(3), r.below(things)
				if !inRing(i, who) {
					continue
				}
				at := now - Tick(r.below(int(2*hour)))
				sets[i].Add(now, at, hashOf(seed, who), nil)
				crowds[i][who] = max(crowds[i][who], at)
			}
			at := now + hour/2
			var union, all, first float64
			for who := range things {
				w := make([]float64, 3)
				for i, c := range crowds {
					if seen, was := c[who]; was {
						w[i] = math.Exp2(-float64(at-seen) / float64(hour))
					}
				}
				union += slices.Max(w)
				all += slices.Min(w)
				first += max(0, w[0]-max(w[1], w[2]))
			}
			got, err := OverlapDecayed(sets, at)
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range []struct {
				got  SetEstimate
				want float64
			}{{got.Union, union}, {got.Intersection, all}, {got.Difference, first}, {got.Jaccard, all / union}} {
				if things == 40 && (math.Abs(e.got.Value-e.want) > 1e-9 || e.got.StdErr > 1e-9) {
					t.Fatalf("%d: %+v, want %v", i, e.got, e.want)
				}
				errs[i].add(e.got, e.want)
			}
		}
		for i, e := range errs {
			if things > 40 {
				e.check(t, fmt.Sprintf("%d things: %s", things, []string{"union", "intersection", "difference", "similarity"}[i]))
			}
		}
	}
	a, b := newSetDecayed(t, 16, false), newSetDecayed(t, 16, false)
	b.p.HalfLife++
	if _, err := OverlapDecayed([]*SetDecayed{&a, &b}, epoch); !errors.Is(err, ErrIncompatible) {
		t.Errorf("of two half-lives: %v", err)
	}
}

// TestOverlapOfStrangers: where two large samples have nothing in common the overlap is not known to be nothing.
func TestOverlapOfStrangers(t *testing.T) {
	a, b := newSetDecayed(t, 16, false), newSetDecayed(t, 16, false)
	for i := range 1000 {
		a.Add(epoch, epoch, hashOf(1, i), nil)
		b.Add(epoch, epoch, hashOf(2, i), nil)
	}
	got, err := a.Compare(&b, epoch)
	if err != nil || got.Intersection.Value != 0 || got.Intersection.StdErr < 30 || got.Jaccard.StdErr < 0.015 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSetsReduced: a reduced set is what a merge with one of a lower k leaves, and the members of a sample are those of
// the least hashes, or of the largest priority.
func TestSetsReduced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rng(rapid.Uint64().Draw(t, "seed"))
		k := 16 + r.below(60)
		plain, _ := NewSet(SetParams{K: 64, Signature: []int{-1, 64}[r.below(2)]})
		named, _ := NewSet(SetParams{K: 64, Signature: plain.p.Signature, Members: true})
		ebbing, _ := NewSetDecayed(SetDecayedParams{K: 64, HalfLife: hour})
		known, _ := NewSetDecayed(SetDecayedParams{K: 64, HalfLife: hour, Members: true})
		now := epoch
		for range r.below(300) {
			now += Tick(r.below(int(hour / 4)))
			who := r.below(200)
			plain.Add(hashOf(1, who), nil)
			named.Add(hashOf(1, who), fmt.Append(nil, who))
			ebbing.Add(now, now, hashOf(1, who), nil)
			known.Add(now, now, hashOf(1, who), fmt.Append(nil, who))
		}
		small, _ := NewSet(SetParams{K: min(k, 64), Signature: plain.p.Signature})
		faded, _ := NewSetDecayed(SetDecayedParams{K: min(k, 64), HalfLife: hour})
		if err := errors.Join(small.Merge(&plain), faded.Merge(&ebbing)); err != nil {
			t.Fatal(err)
		}
		for _, s := range []Set{plain.Reduced(k), named.Reduced(k)} {
			if string(s.AppendBinary(nil)) != string(small.AppendBinary(nil)) {
				t.Fatalf("%x\nwant %x", s.AppendBinary(nil), small.AppendBinary(nil))
			}
		}
		for _, s := range []SetDecayed{ebbing.Reduced(k), known.Reduced(k)} {
			m, _ := NewSetDecayed(SetDecayedParams{K: 64, HalfLife: hour}) // brings it to the same landmark
			if err := m.Merge(&s); err != nil || string(m.AppendBinary(nil)) != string(faded.AppendBinary(nil)) || s.Estimate(now) != faded.Estimate(now) {
				t.Fatalf("%v %x\nwant %x", err, m.AppendBinary(nil), faded.AppendBinary(nil))
			}
		}
		var first []string
		named.Sample(k, func(_ uint64, member string) { first = append(first, member) })
		if got := named.Members(k); !slices.Equal(got, first) {
			t.Fatalf("members %v, want %v", got, first)
		}
		sampled := known.Members(k)
		if len(sampled) != min(k, len(faded.hashes)) {
			t.Fatalf("%d members of %d", len(sampled), len(faded.hashes))
		}
		for _, member := range sampled {
			var who int
			fmt.Sscan(member, &who)
			if _, in := slices.BinarySearch(faded.hashes, hashOf(1, who)); !in {
				t.Fatalf("member %s is not among those of the largest priority", member)
			}
		}
		if plain.Members(5) != nil || ebbing.Members(5) != nil {
			t.Fatal("members that are not kept")
		}
	})
}

// TestSetDecayedDeath: a set that is left alone counts the threshold when it is said to.
func TestSetDecayedDeath(t *testing.T) {
	s := newSetDecayed(t, 16, false)
	if s.Death(0.001) != 0 || s.Last() != 0 {
		t.Errorf("nothing dies at %d", s.Death(0.001))
	}
	for i := range 100 {
		s.Add(epoch, epoch-Tick(i)*hour/10, hashOf(1, i), nil)
	}
	at := s.Death(0.001)
	if e := s.Estimate(at); s.Last() != epoch || e.Value >= 0.001 || e.Value < 0.00099 {
		t.Errorf("%+v at %d", e, at)
	}
}

// TestSimilarityGraphDecayed: the links are those that comparing all pairs finds.
func TestSimilarityGraphDecayed(t *testing.T) {
	var sets []*SetDecayed
	r, now := rng(1), epoch
	for i := range 50 {
		s := newSetDecayed(t, 32+8*(i%3), false)
		from := r.below(300)
		for range []int{0, 3, 30, 200, 900}[i%5] {
			now += Tick(r.below(int(hour) / 500))
			s.Add(now, now-Tick(r.below(int(hour))), hashOf(1, from+r.below(300)), nil)
		}
		sets = append(sets, &s)
	}
	for _, links := range []int{0, 1, 3, 100} {
		graph, err := SimilarityGraphDecayed(sets, links)
		if err != nil || len(graph) != len(sets) {
			t.Fatalf("%d nodes, %v", len(graph), err)
		}
		found := 0
		for i := range sets {
			var want []SetLink
			for j := range sets {
				if i == j {
					continue
				}
				o, err := sets[min(i, j)].Compare(sets[max(i, j)], now)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, SetLink{To: j, Jaccard: o.Jaccard})
			}
			want = strongestLinks(want, links)
			found += len(want)
			for k, l := range graph[i] {
				if len(graph[i]) != len(want) || l.To != want[k].To || math.Abs(l.Jaccard.Value-want[k].Jaccard.Value) > 1e-12 ||
					math.Abs(l.Jaccard.StdErr-want[k].Jaccard.StdErr) > 1e-9 {
					t.Fatalf("%d links of %d: %v\nwant %v", links, i, graph[i], want)
				}
			}
		}
		if (found > 0) != (links > 0) {
			t.Errorf("%d links in all", found)
		}
	}
	if graph, err := SimilarityGraphDecayed(nil, 5); len(graph) != 0 || err != nil {
		t.Errorf("of nothing: %v, %v", graph, err)
	}
	other := newSetDecayed(t, 16, false)
	other.p.Hash.Seed = 7
	if _, err := SimilarityGraphDecayed([]*SetDecayed{sets[0], &other}, 1); !errors.Is(err, ErrIncompatible) {
		t.Errorf("of two seeds: %v", err)
	}
}

func BenchmarkSimilarityGraphDecayed(b *testing.B) {
	for _, alike := range []int{200_000, 2_000} { // how many things there are: pairs share a few, or most
		b.Run(fmt.Sprintf("things=%d", alike), func(b *testing.B) {
			var sets []*SetDecayed
			r, now := rng(1), epoch
			for range 1000 {
				s := newSetDecayed(b, 224, false)
				for range 1000 {
					s.Add(now, now-Tick(r.below(int(4*hour))), hashOf(1, r.below(alike)), nil)
				}
				sets = append(sets, &s)
			}
			for b.Loop() {
				if _, err := SimilarityGraphDecayed(sets, 2); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
