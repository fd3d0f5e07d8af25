package sketch

// program evaluates several expressions of the same sets for one thing after another. toggle switches on the sets that
// have the thing, and afterwards switches them off. That takes time proportional to the number of uses of these sets in
// the expressions and to their depth, not to the size of the expressions.
type program struct {
	nodes []exprNode
	named [][]int32 // by set, its nodes
	roots []int32   // of each expression
}

// exprNode is a part of an expression.
type exprNode struct {
	op     SetOp
	on     bool // the thing is in it
	head   bool // of SetMinus: the thing is in the first operand
	first  bool // it is the first operand of its parent
	parent int32
	of     int32 // the number of operands
	least  int32
	count  int32 // the number of operands that have the thing; of SetMinus without the first
}

// compile makes a program of expressions that passed check.
func compile(exprs []SetExpr, sets int) program {
	p := program{named: make([][]int32, sets)}
	for i := range exprs {
		p.roots = append(p.roots, p.place(&exprs[i], -1, false))
	}
	return p
}

// place adds an expression, and returns the position of its node.
func (p *program) place(e *SetExpr, parent int32, first bool) int32 {
	at := int32(len(p.nodes))
	p.nodes = append(p.nodes, exprNode{
		op: e.Op, parent: parent, first: first, of: int32(len(e.Of)),
		least: int32(max(1, e.Leaf)),
	})
	if e.Op == SetLeaf {
		p.named[e.Leaf] = append(p.named[e.Leaf], at)
	}
	for i := range e.Of {
		p.place(&e.Of[i], at, i == 0)
	}
	return at
}

// holds says whether the thing is in an expression.
func (p *program) holds(e int) bool { return p.nodes[p.roots[e]].on }

// toggle switches a set on or off: on means that it has the thing.
func (p *program) toggle(set int) {
	for _, at := range p.named[set] {
		n := &p.nodes[at]
		for n.on = !n.on; n.parent >= 0; {
			part := n
			n = &p.nodes[part.parent]
			if n.operand(part); n.holds() == n.on {
				break
			}
			n.on = !n.on
		}
	}
}

// operand updates the node for an operand that has changed.
func (n *exprNode) operand(part *exprNode) {
	switch {
	case n.op == SetMinus && part.first:
		n.head = part.on
	case part.on:
		n.count++
	default:
		n.count--
	}
}

// holds says whether the thing is in the set, by the operands. A set without operands is empty.
func (n *exprNode) holds() bool {
	switch n.op {
	case SetAnd:
		return n.count > 0 && n.count == n.of
	case SetMinus:
		return n.head && n.count == 0
	case SetXor:
		return n.count%2 == 1
	case SetLeast:
		return n.count >= n.least
	}
	return n.count > 0
}
