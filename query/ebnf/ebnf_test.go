package ebnf

import (
	"math/rand/v2"
	"strings"
	"testing"
)

const sums = `
// A sum of numbers,
// or of others.
sum = part { ( "+" | "-" ) part } [ "!" ] .
part = "(" sum ")" | NUMBER .
`

func matcherOf(words []string) *Matcher {
	return &Matcher{
		Tokens:   len(words),
		Terminal: func(at int, text string) bool { return words[at] == text },
		Class: func(at int, name string) []int {
			if name == "NUMBER" && strings.Trim(words[at], "0123456789") == "" {
				return []int{1}
			}
			return nil
		},
	}
}

func TestMatches(t *testing.T) {
	g := Parse(sums)
	for _, c := range []struct {
		text string
		want bool
	}{
		{"1", true},
		{"1 + 2 - 3", true},
		{"( 1 + 2 ) - ( 3 ! ) !", true},
		{"( ( 1 ) )", true},
		{"", false},
		{"1 +", false},
		{"( 1", false},
		{"1 2", false},
		{"1 ! !", false},
	} {
		if got := matcherOf(strings.Fields(c.text)).Matches(g); got != c.want {
			t.Errorf("%q matches: %v", c.text, got)
		}
	}
}

// What is said is understood.
func TestSentences(t *testing.T) {
	g := Parse(sums)
	rng := rand.New(rand.NewPCG(1, 2))
	longest := 0
	for range 1000 {
		s := Generator{Pick: rng.IntN, Class: func(string) string { return "7" }, Depth: 9, Words: 100}
		words := s.Sentence(g)
		longest = max(longest, len(words))
		if !matcherOf(words).Matches(g) {
			t.Fatalf("%q is not understood", words)
		}
	}
	if longest < 20 {
		t.Errorf("the longest of 1,000 sentences has %d words", longest)
	}
}

func TestRailroad(t *testing.T) {
	g := Parse(sums)
	want := strings.TrimPrefix(`
── <part> ─┬──────────────────┬─┬─────┬──
           ╰◂ <part> ─┬─ + ─┬◂╯ ╰─ ! ─╯
                      ╰─ - ─╯
`, "\n")
	if got := g.Rules[0].Railroad(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := g.Rules[0].Comment; got != "A sum of numbers, or of others." {
		t.Errorf("comment %q", got)
	}
}
