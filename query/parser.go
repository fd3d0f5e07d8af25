package query

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ebbdb/ebb/internal/spell"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Parse reads a question of at most TextBytesMax bytes. Its error is an *Error.
func Parse(text string) (*ebbv1.Plan, error) {
	p := &parser{lex: lexer{text: text, at: position{line: 1, column: 1}}}
	if len(text) > TextBytesMax {
		p.fail(token{at: p.lex.at}, fmt.Sprintf("a question of %d bytes: the limit is %d", len(text), TextBytesMax), "store parts of it under keys, and ask about these")
		return nil, p.err
	}
	p.token, p.ahead = p.lex.next(), p.lex.next()
	plan := &ebbv1.Plan{}
	p.question(plan)
	p.clauses(plan)
	if p.token.class != end {
		p.unexpected("the end of the question, or in, as of, with or allow partial")
	}
	if p.err != nil {
		return nil, p.err
	}
	return plan, nil
}

// parser has a method for each rule of the grammar. After the first error it sees only the end of the text, so that the
// rules need not check for errors.
type parser struct {
	lex   lexer
	token token // the next token
	ahead token // the one after that
	last  token // taken last
	terms int
	depth int
	err   *Error
}

// advance consumes the next token and returns it.
func (p *parser) advance() token {
	t := p.token
	if p.err == nil {
		p.last, p.token, p.ahead = p.token, p.ahead, p.lex.next()
	}
	return t
}

// accept consumes this word or sign, if it comes next, and reports whether it did.
func (p *parser) accept(text string) bool {
	if p.err != nil || !p.token.is(text) {
		return false
	}
	p.advance()
	return true
}

// expect consumes this word or sign, or fails.
func (p *parser) expect(text string) {
	if !p.accept(text) {
		p.unexpected(strconv.Quote(text))
	}
}

// fail stores the first error, and ends the text.
func (p *parser) fail(t token, message, hint string) {
	if p.err != nil {
		return
	}
	p.err = &Error{Offset: t.at.offset, Line: t.at.line, Column: t.at.column, Message: message, Hint: hint}
	p.token, p.ahead = token{at: t.at}, token{at: t.at}
}

// unexpected fails at the next token, and names what was expected instead.
func (p *parser) unexpected(expected string) { p.refuse(p.token, expected) }

func (p *parser) refuse(t token, expected string) {
	p.fail(t, fmt.Sprintf("found %s, expected %s", p.found(t), expected), p.hint(t))
}

// foundMax is how many characters of a token an error shows.
const foundMax = 40

// found describes a token for errors, as it is written in the text.
func (p *parser) found(t token) string {
	if t.class == end {
		return "the end"
	}
	switch t.class {
	case broken:
		return t.value
	case sign:
		return strconv.Quote(t.value)
	}
	text := p.lex.text[t.at.offset : t.at.offset+t.width]
	if utf8.RuneCountInString(text) > foundMax {
		text = string([]rune(text)[:foundMax]) + "..."
	}
	return text
}

// hint returns a hint for users who write the syntax of other languages.
func (p *parser) hint(t token) string {
	switch {
	case t.class == word && slices.Contains([]string{"and", "AND"}, t.value):
		return "and is written &, and without is written - or and not"
	case t.class == word && slices.Contains([]string{"or", "OR"}, t.value):
		return "or is written |"
	case t.class == word && slices.Contains([]string{"not", "NOT"}, t.value):
		return "everything but a is written ~a, and a without b is written a - b"
	case t.class == word && t.value != strings.ToLower(t.value) && reserved(strings.ToLower(t.value)):
		return "words of the language are written in small letters"
	case t.is("from"):
		return "from stands before limit"
	case p.last.class == word && strings.HasSuffix(p.last.value, "-"):
		return "a - b is written with blanks, for names have - in them"
	}
	return ""
}

// nearest returns a hint with the word that is nearest to text; otherwise, if none is near.
func nearest(text string, words []string, otherwise string) string {
	if near := spell.Nearest(text, words); near != "" {
		return "did you mean " + near + "?"
	}
	return otherwise
}

// deeper enters one level of nesting; false if there are too many. After true, the caller must do p.depth--.
func (p *parser) deeper() bool {
	if p.depth == DepthMax {
		p.fail(p.token, fmt.Sprintf("more than %d levels of parentheses and operators, which is the limit", DepthMax), "store parts of it under keys, and ask about these")
		return false
	}
	p.depth++
	return true
}

// count adds the keys, patterns and periods of a term to those of the question, and fails if there are too many.
func (p *parser) count(t token, terms int64) {
	if p.terms += int(min(terms, TermsMax+1)); p.terms > TermsMax {
		p.fail(t, fmt.Sprintf("more than %d keys, patterns and periods of ranges, which is the limit", TermsMax), "take longer periods, a pattern, or store parts of it under keys")
	}
}

// integer consumes a whole number within limits.
func (p *parser) integer(what string, least, most uint64) uint64 {
	t := p.token
	expected := fmt.Sprintf("%s: a whole number from %d to %d", what, least, most)
	if t.class != word || t.namespace != "" {
		p.unexpected(expected)
		return 0
	}
	n, err := strconv.ParseUint(t.value, 10, 64)
	if err != nil || n < least || n > most {
		p.unexpected(expected)
		return 0
	}
	p.advance()
	return n
}

// fraction consumes a number within limits.
func (p *parser) fraction(what string, least, most float64) float64 {
	t := p.token
	f, err := strconv.ParseFloat(t.value, 64)
	digit := t.class == word && t.namespace == "" && t.value[0] >= '0' && t.value[0] <= '9' && !strings.ContainsAny(t.value, "xX_")
	if !digit || err != nil || !(f >= least && f <= most) {
		p.unexpected(fmt.Sprintf("%s: a number from %v to %v", what, least, most))
		return 0
	}
	p.advance()
	return f
}

// text consumes a text in quotes of at most most bytes. Unless empty is set, it must have at least one byte.
func (p *parser) text(what string, most int, empty bool) []byte {
	t := p.token
	switch {
	case t.class == word && p.err == nil:
		p.fail(t, fmt.Sprintf("found %s, expected a %s in quotes", p.found(t), what), fmt.Sprintf("write %q, as keys stand without quotes and %ss with", t.value, what))
	case t.class != quoted || t.namespace != "":
		p.unexpected("a " + what + " in quotes")
	case len(t.value) > most:
		p.fail(t, fmt.Sprintf("a %s of %d bytes: the limit is %d", what, len(t.value), most), "")
	case t.value == "" && !empty:
		p.fail(t, "a "+what+" without any bytes", "")
	default:
		p.advance()
		return []byte(t.value)
	}
	return nil
}
