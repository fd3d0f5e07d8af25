// Package ebnf parses a grammar, generates sentences of it, recognises them, and draws its railroad diagrams.
//
//	// a comment of the rule that follows
//	rule = "word" CLASS other ( a | b ) [ optional ] { repeated } .
//
// Words in quotes are terminals, words in capitals are classes of tokens that the caller defines, and other words are
// rules.
package ebnf

import (
	"fmt"
	"strings"
	"unicode"
)

// Grammar is a list of rules. The first rule is the start symbol.
type Grammar struct {
	Rules []Rule
	named map[string]*Node
}

// Rule is a named rule.
type Rule struct {
	Name, Comment string
	Node          *Node
}

// Kind is the kind of a Node.
type Kind uint8

// Kinds of nodes.
const (
	Terminal  Kind = iota // Text, as it is
	Class                 // a token of the class Text
	Reference             // the rule Text
	Sequence              // all Parts, one after the other
	Choice                // one of Parts
	Optional              // Parts[0], or nothing
	Repeat                // Parts[0], any number of times
)

// Node is an expression of a rule.
type Node struct {
	Kind  Kind
	Text  string
	Parts []*Node
}

// Parse parses a grammar. It panics if the grammar is invalid, because the grammar is part of the program.
func Parse(text string) *Grammar {
	r := &reader{tokens: tokens(text)}
	g := &Grammar{named: map[string]*Node{}}
	for len(r.tokens) > 0 {
		var rule Rule
		for strings.HasPrefix(r.peek(), "//") {
			rule.Comment = strings.TrimSpace(rule.Comment + " " + strings.TrimSpace(r.take()[2:]))
		}
		rule.Name = r.take()
		r.want("=")
		rule.Node = r.choice()
		r.want(".")
		g.Rules = append(g.Rules, rule)
		g.named[rule.Name] = rule.Node
	}
	for _, rule := range g.Rules {
		g.known(rule.Node)
	}
	return g
}

// known panics at a reference to a rule that does not exist.
func (g *Grammar) known(n *Node) {
	if n.Kind == Reference && g.named[n.Text] == nil {
		panic("ebnf: there is no rule " + n.Text)
	}
	for _, part := range n.Parts {
		g.known(part)
	}
}

// tokens splits a grammar into words, signs and comments.
func tokens(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		for line != "" {
			n := 1
			switch {
			case strings.HasPrefix(line, "//"):
				n = len(line)
			case line[0] == '"':
				n = 2 + strings.IndexByte(line[1:], '"')
			case unicode.IsLetter(rune(line[0])):
				for n < len(line) && unicode.IsLetter(rune(line[n])) {
					n++
				}
			}
			out = append(out, line[:n])
			line = strings.TrimSpace(line[n:])
		}
	}
	return out
}

type reader struct{ tokens []string }

func (r *reader) peek() string {
	if len(r.tokens) == 0 {
		return ""
	}
	return r.tokens[0]
}

func (r *reader) take() string {
	t := r.peek()
	r.tokens = r.tokens[min(1, len(r.tokens)):]
	return t
}

func (r *reader) want(sign string) {
	if t := r.take(); t != sign {
		panic(fmt.Sprintf("ebnf: %q instead of %q before %q", t, sign, r.tokens[:min(5, len(r.tokens))]))
	}
}

func (r *reader) choice() *Node {
	parts := []*Node{r.sequence()}
	for r.peek() == "|" {
		r.take()
		parts = append(parts, r.sequence())
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return &Node{Kind: Choice, Parts: parts}
}

func (r *reader) sequence() *Node {
	var parts []*Node
	for !strings.Contains("|)]}.", r.peek()) {
		parts = append(parts, r.item())
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return &Node{Kind: Sequence, Parts: parts}
}

func (r *reader) item() *Node {
	switch t := r.take(); {
	case t == "(":
		n := r.choice()
		r.want(")")
		return n
	case t == "[":
		n := r.choice()
		r.want("]")
		return &Node{Kind: Optional, Parts: []*Node{n}}
	case t == "{":
		n := r.choice()
		r.want("}")
		return &Node{Kind: Repeat, Parts: []*Node{n}}
	case t[0] == '"':
		return &Node{Kind: Terminal, Text: t[1 : len(t)-1]}
	case t == strings.ToUpper(t):
		return &Node{Kind: Class, Text: t}
	default:
		return &Node{Kind: Reference, Text: t}
	}
}
