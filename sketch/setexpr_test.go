package sketch

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// holds says whether a thing is in the set, given the leaves that have it. No thing is in a set of nothing.
func (e *SetExpr) holds(in []bool) bool {
	switch e.Op {
	case SetLeaf:
		return in[e.Leaf]
	case SetMinus:
		return e.Of[0].holds(in) && !anyHolds(e.Of[1:], in)
	case SetOr:
		return anyHolds(e.Of, in)
	}
	n := 0
	for i := range e.Of {
		if e.Of[i].holds(in) {
			n++
		}
	}
	switch e.Op {
	case SetAnd:
		return n > 0 && n == len(e.Of)
	case SetXor:
		return n%2 == 1
	}
	return n >= max(1, e.Leaf)
}

func anyHolds(of []SetExpr, in []bool) bool {
	return slices.ContainsFunc(of, func(e SetExpr) bool { return e.holds(in) })
}

// randomExpr is a tree over n sets.
func randomExpr(r *rand.Rand, n, depth int) SetExpr {
	if depth == 0 || r.IntN(4) == 0 {
		return LeafExpr(r.IntN(n))
	}
	e := SetExpr{Op: SetOr + SetOp(r.IntN(5))}
	for range 2 + r.IntN(2) {
		e.Of = append(e.Of, randomExpr(r, n, depth-1))
	}
	if e.Op == SetLeast {
		e.Leaf = 1 + r.IntN(len(e.Of))
	}
	return e
}

// TestSetProgram compares programs with their expressions, read anew for each thing.
func TestSetProgram(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 63))
	for range 300 {
		n := 1 + r.IntN(6)
		exprs := []SetExpr{randomExpr(r, n, 5), randomExpr(r, n, 3), {Op: SetOr}}
		p := compile(exprs, n)
		in := make([]bool, n)
		for range 40 {
			i := r.IntN(n)
			in[i] = !in[i]
			p.toggle(i)
			for e := range exprs {
				if got, want := p.holds(e), exprs[e].holds(in); got != want {
					t.Fatalf("%+v of %v: %v, want %v", exprs[e], in, got, want)
				}
			}
		}
	}
}

// TestWalk: a walk goes over all hashes in their order, and says which lists have each.
func TestWalk(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 63))
	for range 200 {
		lists, want := make([][]uint64, r.IntN(9)), map[uint64][]int{}
		for i := range lists {
			for range r.IntN(20) {
				lists[i] = append(lists[i], r.Uint64N(40))
			}
			slices.Sort(lists[i])
			lists[i] = slices.Compact(lists[i])
			for _, h := range lists[i] {
				want[h] = append(want[h], i)
			}
		}
		last := -1
		for w := newWalk(lists); w.next(); {
			if int(w.hash) <= last || !slices.Equal(w.have, want[w.hash]) {
				t.Fatalf("%d after %d in %v, want %v", w.hash, last, w.have, want[w.hash])
			}
			for i, at := range w.in {
				if in := slices.Contains(w.have, i); in != (at >= 0) || in && lists[i][at] != w.hash {
					t.Fatalf("%d in list %d at %d", w.hash, i, at)
				}
			}
			last = int(w.hash)
			delete(want, w.hash)
		}
		if len(want) > 0 {
			t.Fatalf("not seen: %v", want)
		}
	}
}

// world is sets that overlap at random, and their truth.
type world struct {
	plain   []*Set
	decayed []*SetDecayed
	decays  bool
	weights [][]float64 // of each thing in each set; 1 or 0 without decay
}

// members says which of some sets a thing is in: each thing leans to some of them.
func membersOf(r *rand.Rand, chances []float64) []bool {
	lean, in := r.Float64(), make([]bool, len(chances))
	for i := range in {
		in[i] = r.Float64() < chances[i]*lean*1.5
	}
	return in
}

func newWorld(t *testing.T, r *rand.Rand, decays bool) *world {
	const half = hour
	sets, things := 2+r.IntN(4), 200+r.IntN(6000)
	k := 32 << r.IntN(5)
	w := &world{decays: decays}
	chances := make([]float64, sets)
	for i := range sets {
		chances[i] = math.Pow(r.Float64(), 1.5)
		plain, err := NewSet(SetParams{K: k << r.IntN(2)})
		if err != nil {
			t.Fatal(err)
		}
		ebbing, err := NewSetDecayed(SetDecayedParams{K: k, HalfLife: half})
		if err != nil {
			t.Fatal(err)
		}
		w.plain, w.decayed = append(w.plain, &plain), append(w.decayed, &ebbing)
	}
	for range things {
		hash, weights := r.Uint64(), make([]float64, sets)
		for i, in := range membersOf(r, chances) {
			if !in {
				continue
			}
			weights[i] = 1
			if !decays {
				w.plain[i].Add(hash, nil)
				continue
			}
			age := Tick(r.Int64N(6 * int64(half)))
			weights[i] = math.Exp2(-float64(age) / float64(half))
			w.decayed[i].Add(epoch, epoch-age, hash, nil)
		}
		w.weights = append(w.weights, weights)
	}
	return w
}

// truth is what an expression weighs: for each thing, level by level.
func (w *world) truth(e *SetExpr) (sum float64) {
	for _, weights := range w.weights {
		in, last := make([]bool, len(weights)), 0.0
		for {
			next := math.Inf(1)
			for i, x := range weights {
				in[i] = x > last
				if x > last {
					next = min(next, x)
				}
			}
			if math.IsInf(next, 1) {
				break
			}
			if e.holds(in) {
				sum += next - last
			}
			last = next
		}
	}
	return sum
}

// overlap is the truth of an Overlap, as union, intersection, difference, jaccard.
func (w *world) overlap(exprs []SetExpr) [4]float64 {
	var out [4]float64
	for i, e := range overlapExprs(exprs) {
		out[i] = w.truth(&e)
	}
	if out[0] > 0 {
		out[3] = out[1] / out[0]
	}
	return out
}

// coverage counts how often intervals contain the truth.
type coverage struct{ in, of int }

func (c *coverage) see(t *testing.T, e SetEstimate, truth float64, share bool) {
	t.Helper()
	if e.StdErr == 0 {
		if math.Abs(e.Value-truth) > 1e-6*max(1, truth) {
			t.Errorf("%v is said to be exact, and the truth is %v", e.Value, truth)
		}
		return
	}
	low, high := e.Interval(0.95)
	if share {
		low, high = e.ShareInterval(0.95)
	}
	c.of++
	if truth >= low-1e-9 && truth <= high+1e-9 {
		c.in++
	}
}

// TestSetExprCoverage: of the 95% intervals of random expressions over random sets at least 93% contain the truth, and
// no estimate that is said to be exact is anything else.
func TestSetExprCoverage(t *testing.T) {
	for _, decays := range []bool{false, true} {
		t.Run(fmt.Sprintf("decays=%v", decays), func(t *testing.T) {
			r := rand.New(rand.NewPCG(20, 63))
			var sizes, parts [4]coverage
			for range 500 {
				w := newWorld(t, r, decays)
				exprs := make([]SetExpr, 2+r.IntN(2))
				for i := range exprs {
					exprs[i] = randomExpr(r, len(w.plain), 3)
				}
				found, o := w.ask(t, exprs)
				for i, e := range found {
					sizes[0].see(t, e, w.truth(&exprs[i]), false)
				}
				truth := w.overlap(exprs)
				for i, e := range []SetEstimate{o.Union, o.Intersection, o.Difference, o.Jaccard} {
					parts[i].see(t, e, truth[i], i == 3)
				}
			}
			for i, c := range append(parts[:], sizes[0]) {
				part := float64(c.in) / float64(c.of)
				t.Logf("%s: %.1f%% of %d", [...]string{"union", "intersection", "difference", "jaccard", "size"}[i],
					100*part, c.of)
				if part < 0.93 {
					t.Errorf("only %.1f%% of the intervals contain the truth", 100*part)
				}
			}
		})
	}
}

func (w *world) ask(t *testing.T, exprs []SetExpr) ([]SetEstimate, SetsOverlap) {
	t.Helper()
	var sizes []SetEstimate
	var o SetsOverlap
	var err, err2 error
	if w.decays {
		sizes, err = SizesOfDecayed(w.decayed, exprs, epoch)
		o, err2 = OverlapOfDecayed(w.decayed, exprs, epoch)
	} else {
		sizes, err = SizesOf(w.plain, exprs)
		o, err2 = OverlapOf(w.plain, exprs)
	}
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	return sizes, o
}

// TestOneEstimateOfAUnion: a union is estimated alike by Overlap, by an expression, and by SetUnion, in any order and
// after the wire.
func TestOneEstimateOfAUnion(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	for range 60 {
		w := newWorld(t, r, false)
		all := SetExpr{Op: SetOr, Of: leafExprs(len(w.plain))}
		sizes, o := w.ask(t, []SetExpr{all})
		overlap, err := Overlap(w.plain)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			u := NewSetUnion(0)
			r.Shuffle(len(w.plain), func(i, j int) { w.plain[i], w.plain[j] = w.plain[j], w.plain[i] })
			for _, s := range w.plain {
				if err := u.Add(s); err != nil {
					t.Fatal(err)
				}
			}
			s, again := u.Set(), Set{}
			if rest, err := again.Decode(s.AppendBinary(nil)); err != nil || len(rest) > 0 {
				t.Fatal(err)
			}
			for _, e := range []SetEstimate{s.Estimate(), again.Estimate(), o.Union, overlap.Union} {
				if e != sizes[0] {
					t.Fatalf("%+v and %+v", e, sizes[0])
				}
			}
		}
		d := newWorld(t, r, true)
		all = SetExpr{Op: SetOr, Of: leafExprs(len(d.decayed))}
		sizes, o = d.ask(t, []SetExpr{all})
		s, err := UniteDecayed(d.decayed, 0)
		if err != nil {
			t.Fatal(err)
		}
		again := SetDecayed{}
		if rest, err := again.Decode(s.AppendBinary(nil)); err != nil || len(rest) > 0 {
			t.Fatal(err, len(s.hashes), s.p.K)
		}
		for _, e := range []SetEstimate{s.Estimate(epoch), again.Estimate(epoch), o.Union} {
			if math.Abs(e.Value-sizes[0].Value) > 1e-9*e.Value || math.Abs(e.StdErr-sizes[0].StdErr) > 1e-9*e.StdErr {
				t.Fatalf("%+v and %+v", e, sizes[0])
			}
		}
	}
}

// TestUnionEstimators compares the two estimates that a union of sets had: of the k least hashes of a merge, and of all
// hashes below the least theta. docs/adr/0063-sets.md has the figures.
func TestUnionEstimators(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const k, trials = 256, 1500
	for _, n := range []int{2, 8} {
		var merged, united struct{ bias, square float64 }
		for range trials {
			const each = 4000
			sets := make([]Set, n)
			u := NewSetUnion(0)
			for i := range sets {
				sets[i], _ = NewSet(SetParams{K: k, Signature: -1})
				for range each {
					sets[i].Add(r.Uint64(), nil)
				}
				if err := u.Add(&sets[i]); err != nil {
					t.Fatal(err)
				}
			}
			for i := range sets[1:] {
				if err := sets[0].Merge(&sets[i+1]); err != nil {
					t.Fatal(err)
				}
			}
			s := u.Set()
			truth := float64(n * each)
			a, b := sets[0].Estimate().Value/truth-1, s.Estimate().Value/truth-1
			merged.bias, merged.square = merged.bias+a, merged.square+a*a
			united.bias, united.square = united.bias+b, united.square+b*b
		}
		rmse := func(square float64) float64 { return math.Sqrt(square / trials) }
		t.Logf("%d sets, k %d: merged bias %+.4f rmse %.4f; below theta bias %+.4f rmse %.4f", n, k,
			merged.bias/trials, rmse(merged.square), united.bias/trials, rmse(united.square))
		if rmse(united.square) > 0.85*rmse(merged.square) {
			t.Errorf("rmse %.4f is not smaller than %.4f", rmse(united.square), rmse(merged.square))
		}
		if bias := math.Abs(united.bias / trials); bias > 4*rmse(united.square)/math.Sqrt(trials) {
			t.Errorf("bias of %.4f", bias)
		}
	}
}

// TestSetUnionMembers: the members of the least hashes are those of all sets together.
func TestSetUnionMembers(t *testing.T) {
	u, whole := NewSetUnion(20), Set{}
	for i := range 5 {
		s, err := NewSet(SetParams{K: 100, Members: true})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			whole = s.Clone()
		}
		for j := i * 50; j < i*50+90; j++ {
			s.Add(hashOf(0, j), fmt.Appendf(nil, "m%d", j))
			whole.Add(hashOf(0, j), fmt.Appendf(nil, "m%d", j))
		}
		if err := u.Add(&s); err != nil {
			t.Fatal(err)
		}
	}
	s := u.Set()
	if got, want := fmt.Sprint(s.Members(20)), fmt.Sprint(whole.Members(20)); got != want {
		t.Errorf("%s\n%s", got, want)
	}
	if !s.Exact() || s.Len() != 290 {
		t.Errorf("%d things, exact %v", s.Len(), s.Exact())
	}
}

// TestSetUnionOfMany: no more than SetSampleMax things stay, in whatever order sets come.
func TestSetUnionOfMany(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	var sets []*Set
	for range 40 {
		s, err := NewSet(SetParams{K: 4096, Signature: -1})
		if err != nil {
			t.Fatal(err)
		}
		for range 5000 + r.IntN(4000) {
			s.Add(r.Uint64(), nil)
		}
		sets = append(sets, &s)
	}
	overlap, err := Overlap(sets)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.Shuffle(len(sets), func(i, j int) { sets[i], sets[j] = sets[j], sets[i] })
		u := NewSetUnion(0)
		for _, s := range sets {
			if err := u.Add(s); err != nil {
				t.Fatal(err)
			}
		}
		s := u.Set()
		if s.Len() != SetSampleMax || s.Estimate() != overlap.Union {
			t.Errorf("%d things, %+v and %+v", s.Len(), s.Estimate(), overlap.Union)
		}
	}
}

// TestSetDecayedUnionOfMany is the same for sets that forget, which are united once in a while.
func TestSetDecayedUnionOfMany(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	var sets []*SetDecayed
	for range 40 {
		s, err := NewSetDecayed(SetDecayedParams{K: SetDecayedKMax, HalfLife: hour})
		if err != nil {
			t.Fatal(err)
		}
		for range 4500 + r.IntN(500) {
			s.Add(epoch, epoch-Tick(r.Int64N(3*int64(hour))), r.Uint64(), nil)
		}
		s.Born(epoch, 0.008/7)
		sets = append(sets, &s)
	}
	overlap, err := OverlapDecayed(sets, epoch)
	if err != nil {
		t.Fatal(err)
	}
	before := sets[0].AppendBinary(nil)
	for range 2 {
		r.Shuffle(len(sets)-1, func(i, j int) { sets[i+1], sets[j+1] = sets[j+1], sets[i+1] })
		u := NewSetDecayedUnion(0)
		for _, s := range sets {
			if err := u.Add(s); err != nil {
				t.Fatal(err)
			}
			if u.things > 2*SetSampleMax {
				t.Fatalf("%d things wait", u.things)
			}
		}
		s := u.Set()
		got, want := s.Estimate(epoch), overlap.Union
		if s.Len() != SetSampleMax || math.Abs(got.Value-want.Value) > 1e-9*want.Value ||
			math.Abs(got.StdErr-want.StdErr) > 1e-6*want.StdErr {
			t.Errorf("%d things, %+v and %+v", s.Len(), got, want)
		}
		if lost := 40 * sets[0].Lost(epoch); s.Lost(epoch) < lost*(1-1e-9) || s.Lost(epoch) > lost*1.001 {
			t.Errorf("%v may be lost, want %v", s.Lost(epoch), lost)
		}
	}
	if !slices.Equal(before, sets[0].AppendBinary(nil)) {
		t.Error("a set has changed")
	}
	other, err := NewSetDecayed(SetDecayedParams{K: 64, HalfLife: 2 * hour})
	if err != nil {
		t.Fatal(err)
	}
	u := NewSetDecayedUnion(0)
	if err := errors.Join(u.Add(sets[0]), u.Add(&other)); !errors.Is(err, ErrIncompatible) {
		t.Errorf("another half-life: %v", err)
	}
}
