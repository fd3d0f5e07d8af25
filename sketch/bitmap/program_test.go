package bitmap

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// holds is the oracle of expressions: whether a low is in one, by looking it up in each bitmap.
func (e Expr) holds(in func(leaf int) bool, universe bool) bool {
	n := 0
	for _, arg := range e.Args {
		if arg.holds(in, universe) {
			n++
		}
	}
	switch e.Op {
	case Leaf:
		return in(e.Leaf)
	case Universe:
		return universe
	case Or:
		return n > 0
	case And:
		return n == len(e.Args)
	case AndNot:
		return n == 1 && e.Args[0].holds(in, universe)
	case Xor:
		return n%2 == 1
	case Not:
		return universe && n == 0
	}
	return n >= e.T
}

func (e Expr) String() string {
	switch e.Op {
	case Leaf:
		return fmt.Sprint(e.Leaf)
	case Universe:
		return "U"
	}
	var args []string
	for _, arg := range e.Args {
		args = append(args, arg.String())
	}
	name := e.Op.String()
	if e.Op == AtLeast {
		name = fmt.Sprintf("%d-of", e.T)
	}
	return name + "(" + strings.Join(args, " ") + ")"
}

func leafs(n int) []Expr {
	out := make([]Expr, n)
	for i := range out {
		out[i] = Expr{Leaf: i}
	}
	return out
}

// draw is a random expression.
func draw(r *rand.Rand, leaves, depth int) Expr {
	op := Logic(r.IntN(int(AtLeast) + 1))
	if depth == 0 || r.IntN(4) == 0 {
		op = Leaf
		if r.IntN(9) == 0 {
			op = Universe
		}
	}
	e := Expr{Op: op}
	switch op {
	case Leaf:
		e.Leaf = r.IntN(leaves)
		return e
	case Universe:
		return e
	}
	n := 1
	if op != Not {
		n += r.IntN(5)
	}
	for range n {
		e.Args = append(e.Args, draw(r, leaves, depth-1))
	}
	if op == AtLeast {
		e.T = 1 + r.IntN(n)
	}
	return e
}

// stock is a container of each shape, and what it holds.
func stock() (containers []Container, oracles []*oracle) {
	for i, s := range shapes {
		var o oracle
		s.fill(&o, rand.New(rand.NewPCG(3, uint64(i))))
		containers = append(containers, o.container())
		oracles = append(oracles, &o)
	}
	return containers, oracles
}

// universes are none, all, a range, and ids here and there.
func universes() (containers []Container, oracles []*oracle) {
	for _, fill := range []func(o *oracle){
		func(*oracle) {},
		func(o *oracle) { o.editRange(Set, 0, SliceLen-1) },
		func(o *oracle) { o.editRange(Set, 20000, 50000) },
		func(o *oracle) { scatter(o, rand.New(rand.NewPCG(4, 0)), 5000) },
	} {
		var o oracle
		fill(&o)
		containers = append(containers, o.container())
		oracles = append(oracles, &o)
	}
	return containers, oracles
}

// checkProgram compares all that a program answers with the oracle.
func checkProgram(t *testing.T, e Expr, s *Scratch, in Inputs, leaves []*oracle, universe *oracle, r *rand.Rand) {
	t.Helper()
	var want oracle
	for low := range want {
		want[low] = e.holds(func(leaf int) bool { return leaves[leaf][low] }, universe[low])
	}
	lows := want.lows()
	p, err := Compile(e, len(leaves))
	if err != nil {
		t.Fatalf("%v: %v", e, err)
	}
	before := make([][]uint64, len(in.Leaves))
	for i, c := range in.Leaves {
		before[i] = slices.Clone(c.Words)
	}
	if got := p.Count(s, in); got != len(lows) {
		t.Fatalf("%v: %d, want %d", e, got, len(lows))
	}
	lo := uint16(r.Uint32())
	hi := max(lo, uint16(r.Uint32()))
	if got, want := p.CountRange(s, in, lo, hi), want.container().CountRange(lo, hi); got != want {
		t.Fatalf("%v: %d from %d to %d, want %d", e, got, lo, hi, want)
	}
	counts := make([]uint64, len(in.Leaves))
	p.CountEach(s, in, in.Leaves, counts)
	for i, o := range leaves {
		n := 0
		for low, is := range want {
			if is && o[low] {
				n++
			}
		}
		if counts[i] != uint64(n) {
			t.Fatalf("%v: %d in common with %d, want %d", e, counts[i], i, n)
		}
	}
	got := p.Eval(s, in)
	want.check(t, got)
	for i, c := range in.Leaves {
		if !slices.Equal(before[i], c.Words) {
			t.Fatalf("%v wrote to leaf %d", e, i)
		}
	}
	seen := map[any]bool{}
	for _, b := range s.free {
		if seen[b] {
			t.Fatalf("%v: a block was given back twice", e)
		}
		seen[b] = true
	}
}

// TestPrograms: random expressions over containers of all shapes have the lows that the oracle says.
func TestPrograms(t *testing.T) {
	stocked, oracles := stock()
	us, uos := universes()
	r := rand.New(rand.NewPCG(5, 0))
	var s Scratch
	for range rounds(500) {
		n := 1 + r.IntN(6)
		in := Inputs{Leaves: make([]Container, n)}
		leaves := make([]*oracle, n)
		for i := range in.Leaves {
			k := r.IntN(len(stocked))
			in.Leaves[i], leaves[i] = stocked[k], oracles[k]
		}
		u := r.IntN(len(us))
		in.Universe = us[u]
		checkProgram(t, draw(r, n, 3), &s, in, leaves, uos[u], r)
	}
	if len(s.free) > 40 {
		t.Errorf("%d blocks of scratch for expressions of depth 3", len(s.free))
	}
}

// TestFlatPrograms: each operation on each pair of shapes, and on all shapes at once.
func TestFlatPrograms(t *testing.T) {
	stocked, oracles := stock()
	us, uos := universes()
	r := rand.New(rand.NewPCG(6, 0))
	var s Scratch
	for op := Or; op <= AtLeast; op++ {
		for i := range stocked {
			k := r.IntN(len(stocked)) // a different one each time: all pairs would take long
			e := Expr{Op: op, Args: leafs(2), T: 1 + r.IntN(2)}
			if op == Not {
				e.Args = leafs(1)
			}
			in := Inputs{Leaves: []Container{stocked[i], stocked[k]}, Universe: us[2]}
			checkProgram(t, e, &s, in, []*oracle{oracles[i], oracles[k]}, uos[2], r)
		}
		if op == Not {
			continue
		}
		for _, at := range []int{1, 3, 9, len(stocked)} {
			e := Expr{Op: op, Args: leafs(len(stocked)), T: at}
			checkProgram(t, e, &s, Inputs{Leaves: stocked, Universe: us[2]}, oracles, uos[2], r)
		}
	}
}

// TestPartsThatAreLeaves: a part of an expression may come to one of its leaves, an array or runs, or to nothing or all
// lows.
func TestPartsThatAreLeaves(t *testing.T) {
	const empty, few, array, half, full, run = 0, 3, 4, 8, 10, 12
	stocked, oracles := stock()
	us, uos := universes()
	r := rand.New(rand.NewPCG(15, 0))
	var s Scratch
	list := func(op Logic, args ...Expr) Expr { return Expr{Op: op, Args: args} }
	l := func(i int) Expr { return Expr{Leaf: i} }
	turn := 0
	for _, part := range []int{empty, few, array, half, full, run} {
		is := list(Or, l(empty), l(part))
		is2 := list(Or, l(part), l(empty))
		for _, other := range []int{few, half, run, full} {
			for _, e := range []Expr{
				list(And, l(other), is), list(And, is, l(other)), list(And, is, is2, l(other)), list(And, is, list(Xor, l(other), l(7))), list(And, list(Xor, l(other), l(7)), is),
				list(AndNot, l(other), is), list(AndNot, is, l(other)), list(AndNot, l(other), is, list(Xor, l(few), l(7))),
				list(AndNot, list(Xor, l(7), l(other)), list(And, is, l(8))),
				list(Or, is, list(And, l(other), l(9))), list(Or, list(Xor, l(other), l(9)), list(And, is, l(6)), l(7)),
				list(Xor, is, is2), list(Xor, is, list(Or, l(other), l(7))), list(Xor, list(Or, l(other), l(empty)), is),
				{Op: AtLeast, T: 2, Args: []Expr{is, is2, l(other)}},
				{Op: AtLeast, T: 3, Args: []Expr{is, list(AndNot, l(7), is2), l(full), l(other)}},
				list(And, l(few), list(AndNot, is, l(other))), list(And, l(few), Expr{Op: AtLeast, T: 2, Args: []Expr{is, list(Xor, l(7), l(8)), l(other)}}),
				list(AndNot, list(And, l(8), l(other), l(14)), l(7), is), list(AndNot, l(other), l(6), l(7), l(14), is),
				list(Not, is), list(And, list(Not, is), list(Not, l(other))),
			} {
				if turn++; turn%5 == 0 || !testing.Short() { // each of them is met with some of the others
					checkProgram(t, e, &s, Inputs{Leaves: stocked, Universe: us[2]}, oracles, uos[2], r)
				}
			}
		}
	}
}

// TestUnionsThatFill: a union that has all lows before its end is all lows, and so is what is united with it.
func TestUnionsThatFill(t *testing.T) {
	stocked, oracles := stock()
	r := rand.New(rand.NewPCG(16, 0))
	var rest oracle
	for low, in := range oracles[8] {
		rest[low] = !in
	}
	in := Inputs{Leaves: []Container{stocked[8], rest.container(), stocked[7], stocked[6], stocked[14], stocked[3]}}
	leaves := []*oracle{oracles[8], &rest, oracles[7], oracles[6], oracles[14], oracles[3]}
	or := Expr{Op: Or, Args: leafs(5)}
	odd := Expr{Op: Xor, Args: []Expr{{Leaf: 2}, {Leaf: 3}}}
	var s Scratch
	for _, e := range []Expr{
		or,
		{Op: Or, Args: leafs(6)},
		{Op: Or, Args: []Expr{odd, {Leaf: 0}, {Leaf: 1}, {Leaf: 4}, {Leaf: 3}}},
		{Op: Or, Args: []Expr{odd, {Op: AtLeast, T: 1, Args: []Expr{{Leaf: 2}, {Op: AndNot, Args: []Expr{or, odd}}}}}},
		{Op: And, Args: []Expr{or, odd}},
		{Op: And, Args: []Expr{odd, or}},
		{Op: AndNot, Args: []Expr{odd, {Op: And, Args: []Expr{or, or}}}},
		{Op: Xor, Args: []Expr{or, odd}},
		{Op: AtLeast, T: 2, Args: []Expr{or, odd, {Leaf: 5}}},
	} {
		checkProgram(t, e, &s, in, leaves, new(oracle), r)
	}
}

// TestProgramsDoNotAllocate, once their scratch has grown.
func TestProgramsDoNotAllocate(t *testing.T) {
	stocked, _ := stock()
	us, _ := universes()
	in := Inputs{Leaves: stocked, Universe: us[2]}
	every := Expr{Op: Or, Args: leafs(len(stocked) - 8)}
	dense := Expr{Op: Or, Args: []Expr{{Leaf: 6}, {Leaf: 7}, {Leaf: 8}, {Leaf: 14}}}
	for _, e := range []Expr{
		every,
		dense,
		{Op: And, Args: []Expr{{Leaf: 8}, dense}},
		{Op: And, Args: []Expr{{Leaf: 3}, dense, {Op: Xor, Args: leafs(9)}}},
		{Op: AndNot, Args: []Expr{{Leaf: 8}, {Leaf: 7}, {Leaf: 11}, {Leaf: 4}, dense}},
		{Op: Xor, Args: leafs(9)},
		{Op: Not, Args: []Expr{every}},
		{Op: AtLeast, T: 3, Args: append(leafs(9), dense)},
	} {
		p := MustCompile(e, len(stocked))
		var s Scratch
		var counts [20]uint64
		allocs := testing.AllocsPerRun(5, func() {
			p.Count(&s, in)
			p.Eval(&s, in)
			p.CountRange(&s, in, 5, 50000)
			p.CountEach(&s, in, in.Leaves, counts[:])
		})
		if allocs != 0 {
			t.Errorf("%v: %v allocations", e, allocs)
		}
	}
}

func TestCompile(t *testing.T) {
	deep := func(n int) Expr {
		e := Expr{}
		for range n {
			e = Expr{Op: Xor, Args: []Expr{e, {Op: And, Args: leafs(2)}}}
		}
		return e
	}
	for _, c := range []struct {
		e    Expr
		says string
	}{
		{Expr{Leaf: 2}, ""},
		{Expr{Op: AtLeast, T: 3, Args: leafs(3)}, ""},
		{deep(MaxDepth - 1), ""},
		{deep(MaxDepth + 1), "nested more than 256"},
		{Expr{Leaf: 3}, "bitmap 3 of 3"},
		{Expr{Leaf: -1}, "bitmap -1 of 3"},
		{Expr{Leaf: 1, Args: leafs(1)}, "leaf of 1 arguments"},
		{Expr{Op: Universe, Args: leafs(1)}, "universe of 1 arguments"},
		{Expr{Op: Or}, "or of 0 arguments"},
		{Expr{Op: Not, Args: leafs(2)}, "not of 2 arguments"},
		{Expr{Op: AtLeast, Args: leafs(3)}, "at least 0 of 3"},
		{Expr{Op: And, Args: []Expr{{Op: AtLeast, T: 4, Args: leafs(3)}}}, "at least 4 of 3"},
		{Expr{Op: AtLeast + 1, Args: leafs(3)}, "operation 8"},
		{Expr{Op: Or, Args: make([]Expr, MaxTerms)}, "more than 65536 terms"},
	} {
		_, err := Compile(c.e, 3)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}
