package spell

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	commands := []string{"create", "list", "set", "show", "import", "incr", "namespace", "top"}
	for _, c := range []struct {
		word, want string
		among      []string
	}{
		{"topp", "top", commands},
		{"crate", "create", commands},
		{"craete", "create", commands},
		{"tpo", "top", commands},
		{"TOP", "top", commands},
		{"name", "namespace", commands},
		{"nmaespcae", "namespace", commands},
		{"bsh", "bash", []string{"bash", "fish", "zsh"}},
		{"hsf", "", []string{"bash", "fish", "zsh"}},
		{"tcsh", "", []string{"bash", "fish", "zsh"}},
		{"sh", "zsh", []string{"bash", "fish", "zsh"}},
		{"x", "", []string{"xml"}},
		{"jsno", "json", []string{"table", "json", "tsv"}},
		{"", "", commands},
		{"top", "", nil},
		{strings.Repeat("p", wordLenMax+1), "", []string{strings.Repeat("p", wordLenMax)}},
	} {
		if got := Nearest(c.word, c.among); got != c.want {
			t.Errorf("%q is %q: want %q", c.word, got, c.want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "abc", 0},
		{"abc", "acb", 1},
		{"abcd", "badc", 2},
		{"crate", "create", 1},
		{"kitten", "sitting", 3},
		{"ca", "abc", 3}, // no byte moves twice
	} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// The distance is the same both ways, 0 only for equal words, and a swap of two
// neighbours is one step.
func TestDistanceProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		b := make([]byte, 2+rng.IntN(6))
		for i := range b {
			b[i] = "abc"[rng.IntN(3)]
		}
		return string(b)
	}
	for range 2000 {
		a, b := word(), word()
		d := distance(a, b)
		if d != distance(b, a) || (d == 0) != (a == b) || d > max(len(a), len(b)) {
			t.Fatalf("%q and %q: %d and %d", a, b, d, distance(b, a))
		}
		i := rng.IntN(len(a) - 1)
		swapped := a[:i] + a[i+1:i+2] + a[i:i+1] + a[i+2:]
		if d := distance(a, swapped); d > 1 {
			t.Fatalf("%q and %q: %d", a, swapped, d)
		}
	}
}
