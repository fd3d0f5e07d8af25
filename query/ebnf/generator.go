package ebnf

// Generator makes random sentences.
type Generator struct {
	Pick  func(n int) int          // 0 to n-1
	Class func(name string) string // a token of the class
	// Depth is about how deep rules may be nested. Below that depth a choice takes its last part, and optional and
	// repeated parts are left out. So the last parts of the grammar's choices must not recurse without end.
	Depth int
	// Words is the number of words after which the same rule applies.
	Words int
	words []string
}

// Sentence returns the tokens of a sentence of the grammar.
func (s *Generator) Sentence(g *Grammar) []string {
	s.words = nil
	s.generate(g, g.Rules[0].Node, s.Depth)
	return s.words
}

func (s *Generator) generate(g *Grammar, n *Node, depth int) {
	if len(s.words) >= s.Words {
		depth = 0
	}
	switch n.Kind {
	case Terminal:
		s.words = append(s.words, n.Text)
	case Class:
		s.words = append(s.words, s.Class(n.Text))
	case Reference:
		s.generate(g, g.named[n.Text], depth-1)
	case Sequence:
		for _, part := range n.Parts {
			s.generate(g, part, depth)
		}
	case Choice:
		at := len(n.Parts) - 1
		if depth > 0 {
			at = s.Pick(len(n.Parts))
		}
		s.generate(g, n.Parts[at], depth)
	case Optional:
		if depth > 0 && s.Pick(2) == 0 {
			s.generate(g, n.Parts[0], depth)
		}
	case Repeat:
		for depth > 0 && s.Pick(2) == 0 {
			s.generate(g, n.Parts[0], depth)
		}
	}
}
