package query

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ebbdb/ebb/proto"
)

// class is the class of a token.
type class uint8

const (
	end    class = iota // of the text
	word                // clicks/country, 10, 2011-11-01: letters, digits and _ / * - . : + inside
	quoted              // "any bytes"
	sign                // ( ) , | & ^ ~ - = ..
	broken              // no valid token; value is the reason
)

// token is a token of a question.
type token struct {
	class     class
	value     string // of quoted, the unquoted text
	namespace string // of @namespace/key
	at        position
	width     int // in bytes
}

// position is where a token begins.
type position struct{ offset, line, column int }

// is says whether the token is this word, or this sign.
func (t token) is(text string) bool {
	return (t.class == word || t.class == sign) && t.value == text && t.namespace == ""
}

// lexer splits a question into tokens. White space and comments, from # to the end of the line, separate tokens.
type lexer struct {
	text string
	at   position
}

// next returns the token that follows.
func (l *lexer) next() token {
	l.skip()
	t := token{at: l.at}
	rest := l.text[l.at.offset:]
	if rest == "" {
		return t
	}
	switch r, size := utf8.DecodeRuneInString(rest); {
	case r == utf8.RuneError && size <= 1:
		t.class, t.value = broken, "a byte that is not UTF-8: write it in quotes as "+strconv.QuoteToASCII(rest[:1])
	case r == '"':
		l.quoted(&t)
	case r == '@':
		l.elsewhere(&t)
	case strings.HasPrefix(rest, ".."):
		t.class, t.value = sign, ".."
		l.advance(len(".."))
	case strings.ContainsRune("(),|&^~-=", r):
		t.class, t.value = sign, rest[:1]
		l.advance(1)
	case startsWord(r):
		t.class, t.value = word, l.word()
	case r == '\'':
		t.class, t.value = broken, "a single quote: text is written in double quotes"
	default:
		t.class, t.value = broken, fmt.Sprintf("%q, which has no meaning here: keys with such characters are written in double quotes", r)
	}
	t.width = l.at.offset - t.at.offset
	return t
}

func (l *lexer) skip() {
	for l.at.offset < len(l.text) {
		switch c := l.text[l.at.offset]; c {
		case ' ', '\t', '\r', '\n':
			l.advance(1)
		case '#':
			length := strings.IndexByte(l.text[l.at.offset:], '\n')
			if length < 0 {
				length = len(l.text) - l.at.offset
			}
			l.advance(length)
		default:
			return
		}
	}
}

// advance moves forward by so many bytes, and counts lines and characters.
func (l *lexer) advance(bytes int) {
	for _, r := range l.text[l.at.offset : l.at.offset+bytes] {
		if r == '\n' {
			l.at.line, l.at.column = l.at.line+1, 0
		}
		l.at.column++
	}
	l.at.offset += bytes
}

func startsWord(r rune) bool {
	return inWord(r) && !strings.ContainsRune("-.:+", r)
}

func inWord(r rune) bool {
	switch {
	case r < utf8.RuneSelf:
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_/*-.:+", r)
	case r == utf8.RuneError:
		return false
	}
	return unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r)
}

// word consumes the characters of a word; it ends before two dots in a row.
func (l *lexer) word() string {
	rest := l.text[l.at.offset:]
	n := len(rest)
	for i, r := range rest {
		if !inWord(r) || strings.HasPrefix(rest[i:], "..") {
			n = i
			break
		}
	}
	l.advance(n)
	return rest[:n]
}

// quoted consumes a string in double quotes, with the escapes of Go.
func (l *lexer) quoted(t *token) {
	rest := l.text[l.at.offset:]
	i := 1
	for i < len(rest) && rest[i] != '"' && rest[i] != '\n' {
		if rest[i] == '\\' && i+1 < len(rest) {
			i++
		}
		i++
	}
	if i >= len(rest) || rest[i] != '"' {
		t.class, t.value = broken, "a quote that is not closed on its line"
		return
	}
	value, err := strconv.Unquote(rest[:i+1])
	if err != nil || !utf8.ValidString(rest[:i+1]) {
		t.class, t.value = broken, `text with an escape or a byte that there is not: \" \\ \n \r \t \xff \u00e9 are some that there are`
		return
	}
	t.class, t.value = quoted, value
	l.advance(i + 1)
}

// elsewhere consumes a key of another namespace: @namespace/key, where the key may be quoted.
func (l *lexer) elsewhere(t *token) {
	rest := l.text[l.at.offset+1:]
	name, _, found := strings.Cut(rest, "/")
	if !found || proto.CheckNamespaceName(name) != nil {
		t.class, t.value = broken, "an @ without a namespace: a key of another namespace is written @namespace/key, a key with an @ in double quotes"
		return
	}
	begin := *l
	l.advance(1 + len(name) + 1)
	r, _ := utf8.DecodeRuneInString(l.text[l.at.offset:])
	switch {
	case r == '"':
		l.quoted(t)
	case startsWord(r):
		t.class, t.value = word, l.word()
	default:
		t.class, t.value = broken, "a namespace without a key: a key of another namespace is written @namespace/key"
	}
	if t.namespace = name; t.class == broken {
		*l, t.namespace = begin, ""
	}
}
