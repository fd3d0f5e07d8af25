package sketch

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newSet(t testing.TB, p SetParams) Set {
	t.Helper()
	s, err := NewSet(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSetParams(t *testing.T) {
	for _, c := range []struct {
		p     SetParams
		names string
	}{
		{SetParams{}, ""},
		{SetParams{K: 16, Signature: 64}, ""},
		{SetParams{K: 65536, Signature: 65536, Members: true, Hash: Hash{ID: HashSip, Seed: 1}}, ""},
		{SetParams{Signature: -5}, ""},
		{SetParams{K: 15}, "k of 15"},
		{SetParams{K: 65537}, "k of 65537"},
		{SetParams{Signature: 32}, "32 registers"},
		{SetParams{Signature: 1000}, "1000 registers"},
		{SetParams{Signature: 1 << 17}, "131072 registers"},
		{SetParams{Hash: Hash{ID: 4}}, "hash 4"},
	} {
		_, err := NewSet(c.p)
		wantParams(t, err, c.names)
	}
}

// TestSetIsExactWhileSmall: up to k things all answers are exact.
func TestSetIsExactWhileSmall(t *testing.T) {
	a, b := newSet(t, SetParams{K: 100}), newSet(t, SetParams{K: 64})
	for i := range 60 {
		a.Add(hashOf(1, i), nil)
		b.Add(hashOf(1, i+40), nil)
	}
	got, err := a.Compare(&b)
	if err != nil {
		t.Fatal(err)
	}
	exact := func(v float64) SetEstimate { return SetEstimate{Value: v} }
	want := SetOverlap{Union: exact(100), Intersection: exact(20), OnlyA: exact(40), OnlyB: exact(40), Jaccard: exact(0.2)}
	if got != want || !a.Exact() || a.Estimate() != exact(60) {
		t.Errorf("%+v, want %+v", got, want)
	}
	empty := newSet(t, SetParams{})
	if got, err := empty.Compare(&empty); got != (SetOverlap{}) || err != nil {
		t.Errorf("two empty sets: %+v, %v", got, err)
	}
}

// TestSetIsAFunctionOfTheSet: whatever the order, the repetition, the grouping into parts of any k and the order of
// their merging, the bytes are those of one set of the lowest k that saw each thing once.
func TestSetIsAFunctionOfTheSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rng(rapid.Uint64().Draw(t, "seed"))
		p := SetParams{Members: r.below(2) == 0, Signature: []int{-1, 64, 128}[r.below(3)]}
		lowest := SetKMax
		var parts []Set
		for range 1 + r.below(5) {
			p.K = 16 + r.below(100)
			lowest = min(lowest, p.K)
			s, _ := NewSet(p)
			parts = append(parts, s)
		}
		p.K = lowest
		whole, _ := NewSet(p)
		for i := range r.below(300) {
			member := []byte(fmt.Sprint(i, r.below(2))) // now and then two members of one hash
			whole.Add(hashOf(1, i/2), member)
			for range 1 + r.below(2) {
				parts[r.below(len(parts))].Add(hashOf(1, i/2), member)
			}
		}
		for len(parts) > 1 {
			i, last := r.below(len(parts)-1), parts[len(parts)-1]
			before := string(last.AppendBinary(nil))
			a, b := parts[i].Clone(), last.Clone()
			for _, err := range []error{parts[i].Merge(&last), b.Merge(&a), b.Merge(&a), b.Merge(&b)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if string(parts[i].AppendBinary(nil)) != string(b.AppendBinary(nil)) || string(last.AppendBinary(nil)) != before {
				t.Fatal("does not commute, does not repeat without effect, or the other changed")
			}
			parts = parts[:len(parts)-1]
		}
		if a, b := parts[0].AppendBinary(nil), whole.AppendBinary(nil); string(a) != string(b) {
			t.Fatalf("%x\nwant %x", a, b)
		}
	})
}

func TestSetRefuses(t *testing.T) {
	a := newSet(t, SetParams{K: 20})
	for i := range 100 {
		a.Add(hashOf(1, i), nil)
	}
	before := string(a.AppendBinary(nil))
	for _, c := range []struct {
		p        SetParams
		names    string
		compares bool
	}{
		{SetParams{Hash: Hash{Seed: 0xbeef}}, "0xbeef", false},
		{SetParams{Hash: Hash{ID: HashSip}}, "hash 2", false},
		{SetParams{Signature: 64}, "1024 and 64", false},
		{SetParams{Signature: -1}, "1024 and -1", false},
		{SetParams{Members: true}, "members", true},
	} {
		b := newSet(t, c.p)
		errs := []error{a.Merge(&b)}
		if !c.compares {
			_, err1 := a.Compare(&b)
			_, err2 := a.Resemblance(&b)
			_, err3 := SimilarityGraph([]*Set{&a, &b}, 1)
			errs = append(errs, err1, err2, err3)
		}
		for _, err := range errs {
			if !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), c.names) {
				t.Errorf("%+v: %v", c.p, err)
			}
		}
		if string(a.AppendBinary(nil)) != before {
			t.Fatal("it changed something")
		}
	}
	b := newSet(t, SetParams{Signature: -1})
	if _, err := b.Resemblance(&b); !errors.Is(err, ErrIncompatible) {
		t.Errorf("without signatures: %v", err)
	}
	if _, err := SimilarityGraph([]*Set{&b}, 1); !errors.Is(err, ErrIncompatible) {
		t.Errorf("without signatures: %v", err)
	}
}

// TestSetError: counts against theory, up to a thousand times k, merged from two halves of another k or not.
func TestSetError(t *testing.T) {
	for _, other := range []int{256, 300} {
		grid := []int{256, 257, 300, 1000, 5000, 30_000}
		errs, stated := make([]errorsOf, len(grid)), make([]float64, len(grid))
		for seed := range 400 {
			a, b, n := newSet(t, SetParams{K: 256, Signature: -1}), newSet(t, SetParams{K: other, Signature: -1}), 0
			for i, to := range grid {
				for ; n < to; n++ {
					if other != 256 && n%3 == 0 {
						b.Add(hashOf(seed, n), nil)
						continue
					}
					a.Add(hashOf(seed, n), nil)
				}
				c := a.Clone()
				if err := c.Merge(&b); err != nil {
					t.Fatal(err)
				}
				e := c.Estimate()
				errs[i].add(e.Value, float64(n), float64(n)/math.Sqrt(255))
				stated[i] += e.StdErr / float64(n) * math.Sqrt(255) / 400
			}
		}
		for i, n := range grid {
			errs[i].check(t, fmt.Sprintf("%d things", n))
			if n > 4000 && math.Abs(stated[i]/math.Sqrt(1-256/float64(n))-1) > 0.03 {
				t.Errorf("%d things: states %v of theory", n, stated[i])
			}
		}
	}
}

// pair makes two sets of these sizes, with so many things in both.
func pair(t testing.TB, p SetParams, seed, sizeA, sizeB, both int) (a, b Set) {
	a, b = newSet(t, p), newSet(t, p)
	for i := range sizeA {
		a.Add(hashOf(seed, i), nil)
	}
	for i := range sizeB {
		b.Add(hashOf(seed, sizeA-both+i), nil)
	}
	return a, b
}

// overlaps are pairs of sets over sizes and similarities.
var overlaps = []struct{ a, b, both int }{
	{50, 50, 0},
	{50, 80, 20},
	{500, 500, 400},
	{2000, 2000, 0},
	{2000, 2000, 200},
	{2000, 2000, 1000},
	{2000, 2000, 1900},
	{2000, 8000, 500},
	{10_000, 10_000, 3333},
	{20_000, 1000, 1000},
	{20_000, 5000, 0},
	{5000, 5000, 5000},
}

// TestSetOverlap: a Jaccard similarity is within 0.016 at k = 1024, and everything else within what it states.
func TestSetOverlap(t *testing.T) {
	t.Parallel()
	const trials = 150
	for _, c := range overlaps {
		var worst, square float64
		errs := make([]errorsOf, 5)
		union := c.a + c.b - c.both
		jaccard := float64(c.both) / float64(union)
		for seed := range trials {
			a, b := pair(t, SetParams{Signature: -1}, seed, c.a, c.b, c.both)
			got, err := a.Compare(&b)
			if err != nil {
				t.Fatal(err)
			}
			for i, e := range []struct {
				got  SetEstimate
				want int
			}{{got.Union, union}, {got.Intersection, c.both}, {got.OnlyA, c.a - c.both}, {got.OnlyB, c.b - c.both}} {
				share := min(1, 1024/float64(max(c.a, c.b)))
				if e.want == 0 || share == 1 {
					if e.got.Value != float64(e.want) {
						t.Errorf("%+v: %v, want %d", c, e.got, e.want)
					}
					continue
				}
				sd := math.Sqrt(float64(e.want) * (1 - share) / share)
				errs[i].add(e.got.Value, float64(e.want), sd)
			}
			off := got.Jaccard.Value - jaccard
			worst, square = max(worst, math.Abs(off)), square+off*off
			if got.Jaccard.StdErr > 0 {
				errs[4].add(got.Jaccard.Value, jaccard, max(got.Jaccard.StdErr, 0.001))
			}
		}
		t.Logf("%+v: J %.3f, rms error %.4f, worst %.4f", c, jaccard, math.Sqrt(square/trials), worst)
		if math.Sqrt(square/trials) > 0.016 {
			t.Errorf("%+v: rms error of the similarity %v", c, math.Sqrt(square/trials))
		}
		for i, e := range errs {
			if e.n > 0 {
				e.check(t, fmt.Sprintf("%+v: %s", c, []string{"union", "intersection", "only a", "only b", "similarity"}[i]))
			}
		}
	}
}

// TestSetResemblance: signatures alone tell a similarity nearly as well.
func TestSetResemblance(t *testing.T) {
	t.Parallel()
	const trials = 150
	for _, c := range overlaps {
		jaccard := float64(c.both) / float64(c.a+c.b-c.both)
		var sum, square, stated float64
		for seed := range trials {
			a, b := pair(t, SetParams{}, seed, c.a, c.b, c.both)
			got, err := a.Resemblance(&b)
			if err != nil {
				t.Fatal(err)
			}
			off := got.Value - jaccard
			sum, square, stated = sum+off, square+off*off, stated+got.StdErr
		}
		bias, rms := sum/trials, math.Sqrt(square/trials)
		t.Logf("%+v: J %.3f, bias %+.4f, rms error %.4f, stated %.4f", c, jaccard, bias, rms, stated/trials)
		if rms > 0.0175 || rms > 1.05*(1+3/math.Sqrt(2*trials))*stated/trials+0.001 {
			t.Errorf("%+v: rms error %v, states %v", c, rms, stated/trials)
		}
		// what is below 0 is cut off; two thousandths are what the first order leaves
		if math.Abs(bias) > 4.5*rms/math.Sqrt(trials)+0.002 && jaccard > 0 {
			t.Errorf("%+v: bias %v", c, bias)
		}
	}
}

// TestSetSample: members are a uniform sample, and those of the smallest hashes come first.
func TestSetSample(t *testing.T) {
	s := newSet(t, SetParams{K: 100, Members: true})
	for i := range 1000 {
		s.Add(hashOf(3, i), fmt.Append(nil, i))
	}
	odd, n, last := 0, 0, uint64(0)
	s.Sample(100, func(hash uint64, member string) {
		var i int
		fmt.Sscan(member, &i)
		if hash != hashOf(3, i) || hash <= last {
			t.Errorf("%x of %s", hash, member)
		}
		odd, n, last = odd+i%2, n+1, hash
	})
	if n != 100 || odd < 30 || odd > 70 {
		t.Errorf("%d sampled, %d odd", n, odd)
	}
	s.Sample(3, func(uint64, string) { n++ })
	s.Sample(-1, func(uint64, string) { n++ })
	if n != 103 {
		t.Errorf("%d sampled", n)
	}
}

// TestSimilarityGraph: each node's links are the strongest of all pairs compared one by one.
func TestSimilarityGraph(t *testing.T) {
	for _, p := range []SetParams{{K: 64, Signature: 64}, {K: 128}} {
		var sets []*Set
		r := rng(1)
		for i := range 60 {
			s := newSet(t, p)
			from, size := r.below(1000), []int{0, 5, 40, 700, 3000}[i%5]
			for j := range size {
				s.Add(hashOf(1, from+j), nil)
			}
			sets = append(sets, &s)
		}
		for _, links := range []int{0, 1, 5, 100} {
			graph, err := SimilarityGraph(sets, links)
			if err != nil || len(graph) != len(sets) {
				t.Fatalf("%d nodes, %v", len(graph), err)
			}
			for i, got := range graph {
				want := strongestBySearch(t, sets, i, links)
				if fmt.Sprint(bare(got)) != fmt.Sprint(bare(want)) {
					t.Errorf("%d links of %d: %v\nwant %v", links, i, got, want)
				}
			}
		}
	}
	if graph, err := SimilarityGraph(nil, 5); len(graph) != 0 || err != nil {
		t.Errorf("of nothing: %v, %v", graph, err)
	}
}

func strongestBySearch(t *testing.T, sets []*Set, i, links int) (all []SetLink) {
	for j := range sets {
		if j == i || links == 0 {
			continue
		}
		e, err := sets[min(i, j)].Resemblance(sets[max(i, j)])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, SetLink{To: j, Jaccard: e})
	}
	all = strongestLinks(all, links+4)
	for k, l := range all {
		if s, o := sets[i], sets[l.To]; s.Exact() && o.Exact() { // these are compared by their hashes
			overlap, err := s.Compare(o)
			if err != nil {
				t.Fatal(err)
			}
			all[k].Jaccard = overlap.Jaccard
		}
	}
	return strongestLinks(all, links)
}

func setSamples(t testing.TB) (all []*Set) {
	for _, p := range []SetParams{{K: 16, Signature: -1}, {K: 16, Signature: 64}, {K: 20, Signature: 64, Members: true, Hash: Hash{ID: HashSip, Seed: 5}}} {
		for _, n := range []int{0, 1, 16, 17, 200} {
			s := newSet(t, p)
			for i := range n {
				s.Add(hashOf(1, i), fmt.Append(nil, i))
			}
			all = append(all, &s)
		}
	}
	return all
}

func useSet(s *Set) {
	s.Estimate()
	c := s.Clone()
	if err := c.Merge(s); err != nil || string(c.AppendBinary(nil)) != string(s.AppendBinary(nil)) {
		panic("merging itself is not without effect")
	}
	for i := range 50 {
		c.Add(hashOf(2, i), []byte("x"))
	}
	if _, err := s.Compare(&c); err != nil {
		panic(err)
	}
	if s.p.Signature > 0 {
		if _, err := s.Resemblance(&c); err != nil {
			panic(err)
		}
	}
	if _, err := new(Set).Decode(c.AppendBinary(nil)); err != nil {
		panic(err)
	}
}

func TestSetCodec(t *testing.T) { checkCodec(t, setSamples(t), useSet) }

func FuzzSetDecode(f *testing.F) { fuzzCodec(f, setSamples(f), useSet) }

// TestSetDecodeRefuses what no flipped bit makes.
func TestSetDecodeRefuses(t *testing.T) {
	s := newSet(t, SetParams{K: 16, Signature: 64})
	for i := range 30 {
		s.Add(hashOf(1, i), nil)
	}
	good := s.AppendBinary(nil)
	const hashes = 1 + 1 + 9 + 1 + 1 + 1 + 8
	for name, change := range map[string]func([]byte){
		"two hashes alike":             func(b []byte) { copy(b[hashes+8:], b[hashes:hashes+8]) },
		"a hash beyond theta":          func(b []byte) { b[hashes+8*15+7] = 0xff },
		"no theta":                     func(b []byte) { clear(b[hashes-8 : hashes]) },
		"registers that saw no hashes": func(b []byte) { clear(b[hashes+8*16:]) },
		"fewer hashes than k":          func(b []byte) { b[hashes-9] = 15 },
	} {
		bad := append([]byte(nil), good...)
		change(bad)
		if rest, err := s.Decode(bad); !errors.Is(err, ErrCorrupt) || rest != nil || string(s.AppendBinary(nil)) != string(good) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGoldenSet: every machine computes the same bits, estimates included.
func TestGoldenSet(t *testing.T) {
	var b strings.Builder
	var sets []*Set
	for i := range 20 {
		s := newSet(t, SetParams{K: 64, Signature: 256, Members: true})
		for j := range 10 << (i % 10) {
			s.Add(hashOf(1, i*50+j), fmt.Append(nil, j))
		}
		sets = append(sets, &s)
		hash := fnv.New64a()
		hash.Write(s.AppendBinary(nil))
		overlap, err := sets[0].Compare(&s)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "set %d hash %016x estimate %x overlap %x\n", i, hash.Sum64(), s.Estimate(), overlap)
	}
	graph, err := SimilarityGraph(sets, 4)
	if err != nil {
		t.Fatal(err)
	}
	for i, links := range graph {
		fmt.Fprintf(&b, "links of %d: %x\n", i, bare(links))
	}
	for _, s := range sets[1:] {
		if err := sets[0].Merge(s); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintf(&b, "merged %x\n", sets[0].AppendBinary(nil))
	golden(t, "golden_set.txt", []byte(b.String()))
}

func BenchmarkSetAdd(b *testing.B) {
	for _, k := range []int{1024, 65536} {
		b.Run(fmt.Sprintf("k=%d", k), func(b *testing.B) {
			s := newSet(b, SetParams{K: k})
			i := 0
			for b.Loop() {
				s.Add(hashOf(1, i%5_000_000), nil)
				i++
			}
		})
	}
}

func BenchmarkSetPair(b *testing.B) {
	x, y := pair(b, SetParams{}, 1, 100_000, 100_000, 30_000)
	b.Run("compare", func(b *testing.B) {
		for b.Loop() {
			if _, err := x.Compare(&y); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bytes", func(b *testing.B) {
		for b.Loop() {
			differing(x.signature, y.signature)
		}
	})
	n, o := newGraphNode(&x, 5), newGraphNode(&y, 5)
	b.Run("planes", func(b *testing.B) {
		for b.Loop() {
			n.match(&o)
		}
	})
}

func BenchmarkSimilarityGraph(b *testing.B) {
	var sets []*Set
	r := rng(1)
	for range 1000 {
		s := newSet(b, SetParams{})
		from := r.below(200_000)
		for j := range 1000 + r.below(10_000) {
			s.Add(hashOf(1, from+j), nil)
		}
		sets = append(sets, &s)
	}
	for _, links := range []int{2, 10} {
		b.Run(fmt.Sprintf("links=%d", links), func(b *testing.B) {
			for b.Loop() {
				if _, err := SimilarityGraph(sets, links); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// bareLink is a link without how it was found.
type bareLink struct {
	To      int
	Jaccard SetEstimate
}

func bare(links []SetLink) (out []bareLink) {
	for _, l := range links {
		out = append(out, bareLink{l.To, l.Jaccard})
	}
	return out
}

// The intervals of the links that a graph shows contain the truth, though it shows those that chance makes the
// strongest: of sets that have nothing in common, and of some that share a part.
func TestIntervalsOfChosenLinks(t *testing.T) {
	const sets, links, members, runs = 30, 3, 3000, 8
	for _, common := range []int{0, 300, 1500} {
		inside, all := 0, 0
		for run := range runs {
			r := rand.New(rand.NewPCG(uint64(run), uint64(common)))
			shared := make([]uint64, common)
			for i := range shared {
				shared[i] = r.Uint64()
			}
			list := make([]*Set, sets)
			for i := range list {
				s, err := NewSet(SetParams{K: 1024, Signature: 1024})
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range shared {
					s.Add(h, nil)
				}
				for range members - common {
					s.Add(r.Uint64(), nil)
				}
				list[i] = &s
			}
			graph, err := SimilarityGraph(list, links)
			if err != nil {
				t.Fatal(err)
			}
			truth := float64(common) / float64(2*members-common)
			for _, found := range graph {
				for _, l := range found {
					low, high := l.Interval(1 - 0.05/float64(sets-1))
					if all++; low <= truth && truth <= high {
						inside++
					}
				}
			}
		}
		if part := float64(inside) / float64(all); part < 0.95 {
			t.Errorf("%d of %d members in common: %.3f of %d intervals contain the truth", common, members, part, all)
		}
	}
}
