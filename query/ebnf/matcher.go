package ebnf

// Matcher recognises sentences in a list of tokens. The caller provides the functions that match single tokens.
type Matcher struct {
	Tokens   int                             // the number of tokens
	Terminal func(at int, text string) bool  // whether the token matches the terminal
	Class    func(at int, name string) []int // the possible lengths, in tokens from this one on, of a class
	seen     map[place][]int
}

type place struct {
	node *Node
	at   int
}

// Matches says whether all tokens together are a sentence of the grammar.
func (l *Matcher) Matches(g *Grammar) bool {
	l.seen = map[place][]int{}
	for _, end := range l.ends(g, g.Rules[0].Node, 0) {
		if end == l.Tokens {
			return true
		}
	}
	return false
}

// ends returns the positions at which a match of the node that begins at a token may end.
func (l *Matcher) ends(g *Grammar, n *Node, at int) []int {
	where := place{n, at}
	if known, ok := l.seen[where]; ok {
		return known
	}
	l.seen[where] = nil // a rule that begins with itself never matches
	found := l.find(g, n, at)
	l.seen[where] = found
	return found
}

func (l *Matcher) find(g *Grammar, n *Node, at int) []int {
	switch n.Kind {
	case Terminal:
		if at < l.Tokens && l.Terminal(at, n.Text) {
			return []int{at + 1}
		}
		return nil
	case Class:
		if at == l.Tokens {
			return nil
		}
		var out []int
		for _, n := range l.Class(at, n.Text) {
			out = add(out, at+n)
		}
		return out
	case Reference:
		return l.ends(g, g.named[n.Text], at)
	case Sequence:
		out := []int{at}
		for _, part := range n.Parts {
			out = l.after(g, part, out)
		}
		return out
	case Choice:
		var out []int
		for _, part := range n.Parts {
			out = add(out, l.ends(g, part, at)...)
		}
		return out
	case Optional:
		return add([]int{at}, l.ends(g, n.Parts[0], at)...)
	}
	out := []int{at}
	for i := 0; i < len(out); i++ { // out grows
		out = add(out, l.ends(g, n.Parts[0], out[i])...)
	}
	return out
}

func (l *Matcher) after(g *Grammar, n *Node, begins []int) []int {
	var out []int
	for _, at := range begins {
		out = add(out, l.ends(g, n, at)...)
	}
	return out
}

// add appends the values that the list does not have yet.
func add(list []int, more ...int) []int {
next:
	for _, v := range more {
		for _, w := range list {
			if v == w {
				continue next
			}
		}
		list = append(list, v)
	}
	return list
}
