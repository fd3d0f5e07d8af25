package rpc

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ebbdb/ebb/proto"
)

// lexer reads JSON (RFC 8259) token by token. Unlike encoding/json it refuses
// what is not UTF-8 instead of replacing it: a key must never silently become
// another key.
type lexer struct {
	b []byte
	i int
}

// newLexer refuses documents that are not UTF-8.
func newLexer(b []byte) (*lexer, *proto.Error) {
	if at := invalidUTF8(b); at >= 0 {
		return nil, proto.ErrNotUTF8.Errorf("the document is not UTF-8 at byte %d: %s", at, hexHead(b[at:min(len(b), at+4)])).
			WithHint("keys and bins that are not UTF-8 can be sent over gRPC")
	}
	return &lexer{b: b}, nil
}

// invalidUTF8 is the position of the first byte that is not UTF-8, or -1.
func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

func (l *lexer) errorf(format string, args ...any) *proto.Error {
	e := proto.ErrBadRequest.Errorf(format, args...)
	e.Message = "malformed JSON at byte " + strconv.Itoa(l.i) + ": " + e.Message
	return e
}

func (l *lexer) space() {
	for l.i < len(l.b) {
		switch l.b[l.i] {
		case ' ', '\t', '\r', '\n':
			l.i++
		default:
			return
		}
	}
}

// peek is the first byte of the next token, 0 at the end.
func (l *lexer) peek() byte {
	l.space()
	if l.i == len(l.b) {
		return 0
	}
	return l.b[l.i]
}

// take consumes c if it comes next.
func (l *lexer) take(c byte) bool {
	if l.peek() != c {
		return false
	}
	l.i++
	return true
}

func (l *lexer) expect(c byte) *proto.Error {
	if !l.take(c) {
		return l.unexpected(strconv.QuoteRune(rune(c)))
	}
	return nil
}

func (l *lexer) unexpected(want string) *proto.Error {
	if l.peek() == 0 && l.i == len(l.b) {
		return l.errorf("it ends where %s should be", want)
	}
	r, _ := utf8.DecodeRune(l.b[l.i:])
	return l.errorf("%s should be here, not %s", want, strconv.QuoteRune(r))
}

// end refuses anything after the document.
func (l *lexer) end() *proto.Error {
	if l.space(); l.i < len(l.b) {
		return l.unexpected("the end")
	}
	return nil
}

// keyword consumes true, false or null.
func (l *lexer) keyword(word string) *proto.Error {
	l.space()
	if len(l.b)-l.i < len(word) || string(l.b[l.i:l.i+len(word)]) != word {
		return l.unexpected(word)
	}
	l.i += len(word)
	return nil
}

// str consumes a string.
func (l *lexer) str() (string, *proto.Error) {
	if err := l.expect('"'); err != nil {
		return "", err
	}
	start := l.i
	for l.i < len(l.b) {
		switch c := l.b[l.i]; {
		case c == '"':
			l.i++
			return string(l.b[start : l.i-1]), nil
		case c == '\\':
			return l.escapedString(append([]byte(nil), l.b[start:l.i]...))
		case c < 0x20:
			return "", l.errorf("control character %#02x in a string", c)
		default:
			l.i++
		}
	}
	return "", l.errorf("a string without end")
}

// escapedString continues from the first escape of a string that began with b.
func (l *lexer) escapedString(b []byte) (string, *proto.Error) {
	for l.i < len(l.b) {
		switch c := l.b[l.i]; {
		case c == '"':
			l.i++
			return string(b), nil
		case c == '\\':
			r, err := l.escape()
			if err != nil {
				return "", err
			}
			b = utf8.AppendRune(b, r)
		case c < 0x20:
			return "", l.errorf("control character %#02x in a string", c)
		default:
			b = append(b, c)
			l.i++
		}
	}
	return "", l.errorf("a string without end")
}

// escape consumes one escape (or a pair of surrogates).
func (l *lexer) escape() (rune, *proto.Error) {
	if l.i+1 >= len(l.b) {
		return 0, l.errorf("a string without end")
	}
	c := l.b[l.i+1]
	if c == 'u' {
		return l.unicodeEscape()
	}
	const from, to = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	for k := range len(from) {
		if c == from[k] {
			l.i += 2
			return rune(to[k]), nil
		}
	}
	return 0, l.errorf(`unknown escape \%c`, c)
}

func (l *lexer) unicodeEscape() (rune, *proto.Error) {
	hi, ok := l.hex4()
	if !ok {
		return 0, l.errorf(`\u needs four hexadecimal digits`)
	}
	if !utf16.IsSurrogate(hi) {
		return hi, nil
	}
	lo, ok := l.hex4()
	if r := utf16.DecodeRune(hi, lo); ok && r != utf8.RuneError {
		return r, nil
	}
	return 0, proto.ErrNotUTF8.Errorf(`half of a surrogate pair (\u%04x) before byte %d of the document`, hi, l.i)
}

// hex4 consumes \uXXXX.
func (l *lexer) hex4() (rune, bool) {
	if len(l.b)-l.i < 6 || l.b[l.i] != '\\' || l.b[l.i+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range l.b[l.i+2 : l.i+6] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	l.i += 6
	return r, true
}

// number consumes a number and returns its text.
func (l *lexer) number() (string, *proto.Error) {
	l.space()
	start := l.i
	l.skip('-')
	if !l.skip('0') && l.digits() == 0 {
		return "", l.unexpected("a digit")
	}
	if l.skip('.') && l.digits() == 0 {
		return "", l.unexpected("a digit")
	}
	if l.skip('e') || l.skip('E') {
		_ = l.skip('+') || l.skip('-')
		if l.digits() == 0 {
			return "", l.unexpected("a digit")
		}
	}
	return string(l.b[start:l.i]), nil
}

// skip consumes c if it is the very next byte.
func (l *lexer) skip(c byte) bool {
	if l.i < len(l.b) && l.b[l.i] == c {
		l.i++
		return true
	}
	return false
}

func (l *lexer) digits() (n int) {
	for l.i < len(l.b) && l.b[l.i] >= '0' && l.b[l.i] <= '9' {
		l.i++
		n++
	}
	return n
}
