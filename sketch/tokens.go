package sketch

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// A text in tokens. A token is
//
//   - a run of letters, numbers and marks, or
//   - one character of a script that is written without spaces (Han, Hiragana, Katakana, Thai, Lao,
//     Khmer, Myanmar), with its marks, or
//   - one symbol, such as an emoji, with its marks.
//
// Everything else separates: spaces, punctuation, control characters, and bytes that are not UTF-8. Case is folded,
// character by character (Unicode's simple folding: "STRASSE" is "strasse", and not "straße"), and variation selectors
// make no difference. Characters are not decomposed: "é" in one character is not "é" in two.

// token is a part of a text that is compared as one unit.
type token struct {
	begin, end int
	hash       uint64 // of the folded characters
}

// tokens reads a text token by token.
type tokens struct {
	text []byte
	at   int
}

// class is the role of a character in tokens.
type class uint8

const (
	separator class = iota
	within          // part of a word
	alone           // a token by itself
	mark            // part of the token before it, or of a word
)

var spaceless = []*unicode.RangeTable{unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar}

func classOf(r rune) class {
	switch {
	case r < utf8.RuneSelf:
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' {
			return within
		}
		return separator
	case unicode.IsMark(r):
		return mark
	case unicode.IsLetter(r) || unicode.IsNumber(r):
		if r >= 0xe00 && unicode.In(r, spaceless...) {
			return alone
		}
		return within
	case unicode.In(r, unicode.So, unicode.Sk):
		if r == utf8.RuneError {
			return separator // decoders write it for bytes that are not UTF-8
		}
		return alone
	}
	return separator
}

// fold is the least of all characters that differ only in case.
func fold(r rune) rune {
	if r < utf8.RuneSelf {
		if 'a' <= r && r <= 'z' {
			r -= 'a' - 'A'
		}
		return r
	}
	least := r
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		least = min(least, f)
	}
	return least
}

// silent says whether a character is ignored: a variation selector.
func silent(r rune) bool { return r >= 0xfe00 && r <= 0xfe0f }

// next returns the next token; ok is false at the end.
func (s *tokens) next(seed uint64) (t token, ok bool) {
	kind := separator
	for s.at < len(s.text) {
		r, n := utf8.DecodeRune(s.text[s.at:])
		c := classOf(r)
		switch { // at the beginning of a token a mark is a letter
		case kind == separator && silent(r):
			c = separator
		case kind == separator && c == mark:
			c = within
		}
		switch {
		case kind == separator && c != separator:
			t, kind = token{begin: s.at, hash: seed}, c
		case kind == separator:
			s.at += n
			continue
		case c == separator || c == alone || c == within && kind == alone:
			t.hash = remix(t.hash, 0)
			return t, true
		}
		if !silent(r) {
			t.hash = (t.hash ^ uint64(fold(r))) * 0x9e3779b97f4a7c15
			t.hash ^= t.hash >> 29
		}
		s.at += n
		t.end = s.at
	}
	t.hash = remix(t.hash, 0)
	return t, kind != separator
}

func tokensOf(text []byte, seed uint64) []token {
	var all []token
	for s := (tokens{text: text}); ; {
		t, ok := s.next(seed)
		if !ok {
			return all
		}
		if all == nil {
			all = make([]token, 0, 1+len(text)/6)
		}
		all = append(all, t)
	}
}

// readsAs says whether a phrase consists of exactly these tokens of a text.
func readsAs(phrase, text []byte, run []token) bool {
	if bytes.Equal(phrase, text[run[0].begin:run[len(run)-1].end]) {
		return true
	}
	s := tokens{text: phrase}
	for _, want := range run {
		got, ok := s.next(0)
		if !ok || !sameToken(phrase[got.begin:got.end], text[want.begin:want.end]) {
			return false
		}
	}
	_, more := s.next(0)
	return !more
}

func sameToken(a, b []byte) bool {
	for {
		x, m := heard(a)
		y, n := heard(b)
		switch {
		case x != y:
			return false
		case m == 0:
			return true
		}
		a, b = a[m:], b[n:]
	}
}

// heard is the next character that is not silent, folded, and the bytes up to its end, silent ones included; n is 0 at
// the end.
func heard(b []byte) (r rune, n int) {
	for n < len(b) {
		r, size := utf8.DecodeRune(b[n:])
		n += size
		if !silent(r) {
			return fold(r), n
		}
	}
	return -1, 0
}
