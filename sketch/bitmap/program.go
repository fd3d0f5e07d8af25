package bitmap

import (
	"errors"
	"fmt"
)

// Expr is an expression over bitmaps as callers write it; Compile makes a Program of it.
type Expr struct {
	Op   Logic
	Leaf int    // of a Leaf: which bitmap, from 0
	T    int    // of AtLeast: how many of Args
	Args []Expr // none for Leaf and Universe, one for Not, one or more for the others
}

// Logic is the operation of an expression.
type Logic uint8

// The operations. Not is the universe without its argument. AndNot is the first argument without all others. AtLeast is
// what is in at least T arguments; an argument given twice counts twice. Xor is what is in an odd number of arguments.
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
	MaxDepth = 256     // levels of arguments
	MaxTerms = 1 << 16 // expressions in it, at all levels
)

// ErrExpr is wrapped by the errors for an expression that cannot be compiled.
var ErrExpr = errors.New("expression over bitmaps")

// Program is a compiled expression, to be evaluated one slice after the other. Evaluations do not write to it.
type Program struct {
	nodes  []node
	root   int
	leaves int
}

// node is an operation of a program. Not and AndNot are compiled to And with arguments to remove. Nested unions are
// merged into one, and so are nested intersections.
type node struct {
	op     Logic // Leaf, Or, And, Xor, AtLeast
	leaf   int   // the universe is the leaf after the last one
	t      int
	args   []int // nodes; for And, those to intersect
	out    []int // for And, those to remove
	weight int   // number of leaves below it
}

// Compile makes a program of an expression over this number of bitmaps. It returns an error that wraps ErrExpr if the
// expression is invalid.
func Compile(e Expr, leaves int) (*Program, error) {
	c := compiler{p: &Program{leaves: leaves, nodes: make([]node, 0, leaves+2)}}
	root, err := c.node(&e, 0)
	if err != nil {
		return nil, err
	}
	c.p.root = root
	return c.p, nil
}

// MustCompile is Compile for expressions that are known to be valid. It panics if they are not.
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

// join is a union or a symmetric difference. Arguments with the same operation are merged into it.
func (c *compiler) join(op Logic, args []int) int {
	if len(args) == 1 {
		return args[0]
	}
	return c.add(node{op: op, args: c.flat(op, args)})
}

// flat is a list of arguments in which each argument with the operation op is replaced by its own arguments.
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

// and intersects args and removes out. Unions in out are removed part by part; what an argument removes itself is added
// to out.
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
