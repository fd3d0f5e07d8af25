package shard

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern  string
		yes, no  []string
		whatItIs string
	}{
		{"link/*", []string{"link/a", "link/", "link/a b"}, []string{"link", "link/a/b", "alink/a"}, "the keys of a directory"},
		{"link/**", []string{"link/a", "link/a/b", "link/"}, []string{"link", "links/a"}, "whatever lies below it"},
		{"**", []string{"", "a", "a/b/c"}, nil, "everything"},
		{"*", []string{"a", "abc"}, []string{"a/b"}, "keys without a directory"},
		{"*/2011-*", []string{"play/2011-11", "x/2011-"}, []string{"a/play/2011-11", "play/2012-11", "play/2011-11/x"}, "a segment with a beginning"},
		{"**/country", []string{"a/country", "a/b/country"}, []string{"country", "a/countryside"}, "a segment at any depth"},
		{"a/**/z", []string{"a/b/z", "a/b/c/z", "a//z"}, []string{"a/z", "a/b/zz"}, "with something between"},
		{"*a*b", []string{"ab", "xaxb", "aabab"}, []string{"a/b", "aba"}, "two stars in a segment"},
		{"**a*b", []string{"ab", "a/ab", "ab/xaxxb"}, []string{"a/b"}, "** goes on where * cannot"},
		{`a\*b`, []string{"a*b"}, []string{"axb", `a\*b`}, "a star that is none"},
		{`a\\*`, []string{`a\`, `a\x`}, []string{"a"}, "a backslash, and then a star"},
		{"plain", []string{"plain"}, []string{"plain2", "plai"}, "no star at all"},
		{"***", []string{"a/b", ""}, nil, "** and *"},
		{"\x00*", []string{"\x00\xff"}, []string{"\xff"}, "any bytes"},
	} {
		p, steps := compilePattern([]byte(c.pattern)), stepsMax
		for _, name := range c.yes {
			if !p.match([]byte(name), &steps) {
				t.Errorf("%s (%s) does not match %q", c.pattern, c.whatItIs, name)
			}
		}
		for _, name := range c.no {
			if p.match([]byte(name), &steps) {
				t.Errorf("%s (%s) matches %q", c.pattern, c.whatItIs, name)
			}
		}
	}
}

// matches is the definition of a pattern, tried out in every way.
func matches(p, s string) bool {
	switch {
	case p == "":
		return s == ""
	case strings.HasPrefix(p, "**"):
		return matches(p[2:], s) || s != "" && matches(p, s[1:])
	case p[0] == '*':
		return matches(p[1:], s) || s != "" && s[0] != '/' && matches(p, s[1:])
	case p[0] == '\\' && len(p) > 1:
		return s != "" && s[0] == p[1] && matches(p[2:], s[1:])
	}
	return s != "" && s[0] == p[0] && matches(p[1:], s[1:])
}

func TestPatternsAsDefined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`([ab/]|\*|\*\*|\\[a*\\]){0,8}`).Draw(t, "pattern")
		name := rapid.StringMatching(`[ab/*\\]{0,10}`).Draw(t, "name")
		p, steps := compilePattern([]byte(text)), stepsMax
		if got, want := p.match([]byte(name), &steps), matches(text, name); got != want {
			t.Fatalf("%q with %q: %v, want %v", text, name, got, want)
		}
	})
}

// A pattern made to take long is given up, and says so.
func TestPatternsEnd(t *testing.T) {
	p := compilePatterns([][]byte{[]byte(strings.Repeat("**a*a", 60) + "b")})
	name := []byte(strings.Repeat("a", 512))
	for range 10_000 {
		if p.match(name) {
			t.Fatal("it matches")
		}
	}
	if p.steps = min(p.steps, 1000); p.match(name) || p.exhausted() == nil {
		t.Errorf("it has %d steps left", p.steps)
	}
}

// What is matched again after a star has moved on counts, however few tries there are: each takes as long as the
// pattern after the star.
func TestPatternsCountWhatTheyRepeat(t *testing.T) {
	const tail = 200
	p := compilePatterns([][]byte{[]byte("**" + strings.Repeat("a", tail) + "b")})
	name := []byte(strings.Repeat("a", 2*tail))
	if p.match(name) {
		t.Fatal("it matches")
	}
	if steps := stepsMax - p.steps; steps < tail*tail {
		t.Errorf("%d steps are counted, of at least %d", steps, tail*tail)
	}
}
