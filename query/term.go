package query

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// words are words of the language that stand where a key can stand: a key with such a name must be quoted.
var words = []string{"top", "keys", "by", "from", "limit", "in", "as", "of", "with", "allow", "against", "and", "or", "not", "like", "store"}

func reserved(text string) bool { return slices.Contains(words, text) }

// The kinds of terms, worded for errors.
const (
	aKey  = "a key"
	aName = "a key or a pattern"
	aTerm = "a key, a pattern or a range"
)

// key parses the name of one key.
func (p *parser) key() *ebbv1.PlanTerm { return p.one(aKey) }

// name parses a key or a pattern.
func (p *parser) name() *ebbv1.PlanTerm { return p.one(aName) }

// one parses a term of the kind may, but no range.
func (p *parser) one(may string) *ebbv1.PlanTerm {
	begin := p.token
	t := p.term(may)
	switch {
	case t.GetRange() != nil:
		p.fail(begin, "found a range, expected "+may, "")
	case t.GetPattern() != nil && may == aKey:
		p.fail(begin, fmt.Sprintf("found the pattern %s, expected a key", p.found(begin)), "a key with a star in its name is written in quotes")
	}
	return t
}

// term parses a key, a pattern or a range.
func (p *parser) term(may string) *ebbv1.PlanTerm {
	t := p.token
	out := &ebbv1.PlanTerm{Namespace: t.namespace}
	switch {
	case p.err != nil:
	case t.is("like"):
		p.like(out)
	case t.class == word && t.namespace == "" && reserved(t.value):
		p.fail(t, fmt.Sprintf("found %s, expected %s", t.value, may), orElse(p.hint(t), fmt.Sprintf("a key of that name is written %q", t.value)))
	case t.class != word && t.class != quoted:
		p.unexpected(may)
	case t.class == word && strings.Contains(t.value, "*"):
		p.pattern(out, t, t.value)
		p.advance()
	case len(t.value) == 0 || len(t.value) > proto.KeyLenMax:
		p.fail(t, fmt.Sprintf("a key of %d bytes: it has 1 to %d", len(t.value), proto.KeyLenMax), "")
	case p.ahead.is(".."):
		p.span(out)
	default:
		p.period(t)
		out.Of = &ebbv1.PlanTerm_Key{Key: []byte(t.value)}
		p.count(t, 1)
		p.advance()
	}
	return out
}

func orElse(text, otherwise string) string {
	if text != "" {
		return text
	}
	return otherwise
}

// period refuses a key that ends in a period which does not exist, such as month 13. A quoted key is not checked.
func (p *parser) period(t token) {
	if t.class == word {
		if _, _, err := ParsePeriod(lastSegment(t.value)); err != nil {
			p.fail(at(t, len(t.value)-len(lastSegment(t.value))), err.Error(), "in quotes it is a key like any other")
		}
	}
}

// at is the token, with its position moved by so many bytes.
func at(t token, bytes int) token {
	bytes += t.width - len(t.value) // skip a namespace before the word
	t.at.offset += bytes
	t.at.column += bytes
	return t
}

func lastSegment(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// like parses a pattern in quotes.
func (p *parser) like(out *ebbv1.PlanTerm) {
	p.advance()
	t := p.token
	if t.class != quoted {
		p.unexpected("a pattern in quotes")
		return
	}
	out.Namespace = t.namespace
	p.pattern(out, t, t.value)
	p.advance()
}

func (p *parser) pattern(out *ebbv1.PlanTerm, t token, text string) {
	if err := proto.CheckPattern([]byte(text)); err != nil {
		p.fail(t, err.Message, "")
	}
	out.Of = &ebbv1.PlanTerm_Pattern{Pattern: []byte(text)}
	p.count(t, 1)
}

// span parses a range: the key of a period, two dots, and another key of the same family, or only its period.
func (p *parser) span(out *ebbv1.PlanTerm) {
	from := p.advance()
	p.advance()
	to := p.token
	if to.class != word && to.class != quoted {
		p.unexpected("the last period of the range")
		return
	}
	if p.absent(from) {
		return
	}
	format, a, ok := ParseKey(from.value)
	if !ok {
		p.noPeriod(from, from.value)
		return
	}
	last, ok := p.lastKey(format, from, to)
	if !ok {
		return
	}
	other, b, ok := ParseKey(last)
	switch {
	case p.absent(keyed(to, last)):
	case !ok || a.Unit == b.Unit && other != format:
		p.noPeriod(to, to.value)
	case a.Unit != b.Unit:
		p.fail(to, fmt.Sprintf("a range from a %s to a %s: both ends are of the same length", unitNames[a.Unit], unitNames[b.Unit]), "")
	case b.Number < a.Number:
		p.fail(to, fmt.Sprintf("a range that ends before it begins: %s is before %s", format.Text(b), format.Text(a)),
			"the earlier one comes first")
	default:
		out.Of = &ebbv1.PlanTerm_Range{Range: &ebbv1.PlanRange{
			Family: []byte(format.Family), First: format.Text(a), Last: format.Text(b), Separator: format.named(),
		}}
		p.count(from, b.Number-a.Number+1)
		p.advance()
	}
}

// named is the separator as a plan stores it: "" for '/'.
func (s KeyFormat) named() string {
	if s.Separator == '/' {
		return ""
	}
	return string(s.Separator)
}

// lastKey is the key of the last period of a range. The text may have the whole key, or only the period.
func (p *parser) lastKey(first KeyFormat, from, to token) (key string, ok bool) {
	stem := first.Family + string(first.Separator)
	if whole := stem + to.value; to.namespace == "" && !strings.Contains(to.value, "/") {
		if s, _, ok := ParseKey(whole); ok && s.Family == first.Family || looksLike(to.value) {
			return whole, true
		}
	}
	if !looksLikeKey(to.value) {
		p.noPeriod(to, to.value)
		return "", false
	}
	elsewhere := to.namespace != "" && to.namespace != from.namespace
	if !strings.HasPrefix(to.value, stem) || looksLikeKey(to.value[len(stem):]) || elsewhere {
		own := &ebbv1.PlanTerm{Namespace: from.namespace, Of: &ebbv1.PlanTerm_Key{Key: []byte(first.Family)}}
		p.fail(to, fmt.Sprintf("found a period of another family than %s: a range is of one", TermText(own)),
			"join several with |")
		return "", false
	}
	return to.value, true
}

// looksLike says whether a text has the shape of a period with dashes, even if there is no such period.
func looksLike(text string) bool {
	_, looks, _ := ParsePeriod(text)
	return looks
}

// looksLikeKey says whether a text is the key of a period, or has the shape of a period after a slash.
func looksLikeKey(key string) bool {
	_, _, ok := ParseKey(key)
	period := lastSegment(key)
	return ok || looksLike(period) && len(period)+1 < len(key)
}

// keyed is the token of a range's last period, with the whole key as its value.
func keyed(t token, key string) token {
	t.value = key
	return t
}

// absent refuses a key whose last segment has the shape of a period if there is no such period, and reports whether it
// did.
func (p *parser) absent(t token) bool {
	period := lastSegment(t.value)
	if _, _, err := ParsePeriod(period); err != nil && len(period) < len(t.value) {
		p.fail(at(t, len(t.value)-len(period)), err.Error(), "")
		return true
	}
	return false
}

func (p *parser) noPeriod(t token, text string) {
	p.fail(t, fmt.Sprintf("%s is no key of a period", Quote([]byte(text))),
		"ranges are of keys that end in /2011, /2011-Q4, /2011-11, /2011-W44, /2011-11-01 "+
			"or /2011-11-01T13; also behind : - . or _, and as 20111101")
}

// Quote writes a key as a question needs it: in quotes only if necessary.
func Quote(key []byte) string {
	if bareKey(key) {
		return string(key)
	}
	return quote(key)
}

func bareKey(key []byte) bool {
	if !bareWord(key) || bytes.ContainsRune(key, '*') || reserved(string(key)) {
		return false
	}
	_, _, err := ParsePeriod(lastSegment(string(key)))
	return err == nil
}

// bareWord says whether the lexer reads these bytes as one word.
func bareWord(text []byte) bool {
	l := lexer{text: string(text), at: position{line: 1, column: 1}}
	t := l.next()
	return t.class == word && t.width == len(text) && t.at.offset == 0
}
