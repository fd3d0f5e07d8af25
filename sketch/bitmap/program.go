package bitmap

import (
	"errors"
	"fmt"
)

// Expr is an expression over bitmaps, as one writes it down: Compile makes a Program of it.
type Expr struct {
	Op   Logic
	Leaf int    // of a Leaf: which bitmap, from 0
	T    int    // of AtLeast: how many of Args
	Args []Expr // none of a Leaf and Universe, one of Not, one or more of the others
}

// Logic is what an expression does with its arguments.
type Logic uint8

// The operations. Not is what is in the universe and not in its argument; AndNot what is in the first argument and in
// no other; AtLeast what is in T arguments or more, one that is there twice counting twice; Xor what is in an odd
// number of them.
const (
	Leaf Logic = iota
	Universe
	Or
	And
	AndNot
	Xor
	Not
	AtLeast
)

func (l Logic) String() string {
	if names := [...]string{"leaf", "universe", "or", "and", "and-not", "xor", "not", "at-least"}; int(l) < len(names) {
		return names[l]
	}
	return fmt.Sprintf("operation %d", uint8(l))
}

// Limits of an expression.
const (
	MaxDepth = 256     // arguments of arguments
	MaxTerms = 1 << 16 // expressions in it, all told
)

// ErrExpr is wrapped by what is said of an expression that cannot be compiled.
var ErrExpr = errors.New("expression over bitmaps")

// Program is an expression that is ready to be evaluated on one slice after the other. It is not written to by
// evaluating it.
type Program struct {
	nodes  []node
	root   int
	leaves int
}

// node is an operation of a program. Not and AndNot have become And with arguments that are taken out; nested unions
// have become one, and nested intersections.
type node struct {
	op     Logic // Leaf, Or, And, Xor, AtLeast
	leaf   int   // the universe is the leaf behind the last one
	t      int
	args   []int // nodes: of And those that intersect
	out    []int // of And those that are taken out
	weight int   // leaves below it
}

// Compile makes a program of an expression over this many bitmaps.
func Compile(e Expr, leaves int) (*Program, error) {
	c := compiler{p: &Program{leaves: leaves, nodes: make([]node, 0, leaves+2)}}
	root, err := c.node(&e, 0)
	if err != nil {
		return nil, err
	}
	c.p.root = root
	return c.p, nil
}

// MustCompile is Compile for expressions that are known to be right. It panics otherwise.
func MustCompile(e Expr, leaves int) *Program {
	p, err := Compile(e, leaves)
	if err != nil {
		panic(err)
	}
	return p
}

type compiler struct {
	p     *Program
	terms int
}

func (c *compiler) node(e *Expr, depth int) (int, error) {
	if c.terms++; c.terms > MaxTerms {
		return 0, fmt.Errorf("%w: more than %d terms", ErrExpr, MaxTerms)
	}
	if depth > MaxDepth {
		return 0, fmt.Errorf("%w: nested more than %d times", ErrExpr, MaxDepth)
	}
	if err := c.check(e); err != nil {
		return 0, err
	}
	switch e.Op {
	case Leaf:
		return c.leaf(e.Leaf), nil
	case Universe:
		return c.leaf(c.p.leaves), nil
	}
	args := make([]int, len(e.Args))
	for i := range e.Args {
		arg, err := c.node(&e.Args[i], depth+1)
		if err != nil {
			return 0, err
		}
		args[i] = arg
	}
	switch e.Op {
	case Not:
		return c.and([]int{c.leaf(c.p.leaves)}, args), nil
	case And:
		return c.and(args, nil), nil
	case AndNot:
		return c.and(args[:1], args[1:]), nil
	case AtLeast:
		return c.atLeast(args, e.T), nil
	}
	return c.join(e.Op, args), nil
}

func (c *compiler) check(e *Expr) error {
	n := len(e.Args)
	switch {
	case e.Op > AtLeast:
		return fmt.Errorf("%w: unknown %s", ErrExpr, e.Op)
	case e.Op == Leaf && (e.Leaf < 0 || e.Leaf >= c.p.leaves):
		return fmt.Errorf("%w: bitmap %d of %d", ErrExpr, e.Leaf, c.p.leaves)
	case e.Op <= Universe && n > 0, e.Op == Not && n != 1, e.Op > Universe && n == 0:
		return fmt.Errorf("%w: %s of %d arguments", ErrExpr, e.Op, n)
	case e.Op == AtLeast && (e.T < 1 || e.T > n):
		return fmt.Errorf("%w: at least %d of %d", ErrExpr, e.T, n)
	}
	return nil
}

func (c *compiler) add(n node) int {
	for _, list := range [][]int{n.args, n.out} {
		for _, arg := range list {
			n.weight += c.p.nodes[arg].weight
		}
	}
	c.p.nodes = append(c.p.nodes, n)
	return len(c.p.nodes) - 1
}

func (c *compiler) leaf(i int) int { return c.add(node{op: Leaf, leaf: i, weight: 1}) }

// join is a union or a symmetric difference: what is of its own kind among the arguments becomes a part of it.
func (c *compiler) join(op Logic, args []int) int {
	if len(args) == 1 {
		return args[0]
	}
	return c.add(node{op: op, args: c.flat(op, args)})
}

// flat is a list of arguments, with the arguments of those that have the operation itself in their place.
func (c *compiler) flat(op Logic, args []int) []int {
	var out []int
	for _, arg := range args {
		if a := &c.p.nodes[arg]; a.op == op {
			out = append(out, a.args...)
		} else {
			out = append(out, arg)
		}
	}
	return out
}

// and intersects args and takes out those of out: unions among them one by one, and those that an argument takes out
// itself as well.
func (c *compiler) and(args, out []int) int {
	if len(args) == 1 && len(out) == 0 {
		return args[0]
	}
	out = c.flat(Or, out)
	for _, arg := range args {
		if a := &c.p.nodes[arg]; a.op == And {
			out = append(out, a.out...)
		}
	}
	return c.add(node{op: And, args: c.flat(And, args), out: out})
}

func (c *compiler) atLeast(args []int, t int) int {
	switch t {
	case 1:
		return c.join(Or, args)
	case len(args):
		return c.and(args, nil)
	}
	return c.add(node{op: AtLeast, t: t, args: args})
}
