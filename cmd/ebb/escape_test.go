package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// What would control a terminal is shown, wherever it is cut in two; text of any language passes.
func TestTerminalsShowWhatWouldControlThem(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n": "plain\ttext\n",
		"grün 日本 \U0001f469\u200d\U0001f680": "grün 日本 \U0001f469\u200d\U0001f680",
		"\x1b[2J\x1b]0;title\a":              `\x1b[2J\x1b]0;title\a`,
		"a\rb\bc\x7f\x00":                    `a\rb\bc\x7f\x00`,
		"\x9b31m":                            `\x9b31m`,
		"\u009b31m":                          `\u009b31m`,
		"user\u202egnp.exe\u2066":            `user\u202egnp.exe\u2066`,
		"\xff\xfe\xc3":                       `\xff\xfe\xc3`,
		"\u2028":                             `\u2028`,
		"\x1b[31mred":                        `\x1b[31mred`,
	} {
		for cut := range len(in) + 1 {
			if got := shownIn(t, false, in[:cut], in[cut:]); got != want {
				t.Errorf("%q cut at %d is shown as %q, want %q", in, cut, got, want)
			}
		}
	}
}

// A writer of coloured lines may set colours, and nothing else.
func TestColoursPass(t *testing.T) {
	for in, want := range map[string]string{
		"\x1b[92mINF\x1b[0m \x1b[2;31mx\x1b[0m": "\x1b[92mINF\x1b[0m \x1b[2;31mx\x1b[0m",
		"\x1b[2J\x1b[1;":                        `\x1b[2J\x1b[1;`,
		"\x1b]0;t\a\x1b":                        `\x1b]0;t\a\x1b`,
		"\x1b[" + strings.Repeat("1", 99) + "m": `\x1b[` + strings.Repeat("1", 99) + "m",
	} {
		for cut := range len(in) + 1 {
			if got := shownIn(t, true, in[:cut], in[cut:]); got != want {
				t.Errorf("%q cut at %d is shown as %q, want %q", in, cut, got, want)
			}
		}
	}
}

// shownIn is what a terminal gets of some writes.
func shownIn(t *testing.T, colours bool, writes ...string) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d := &terminalEscaper{file: w, colours: colours}
	for _, text := range writes {
		if n, err := io.WriteString(d, text); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := errors.Join(d.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// Nothing that is shown controls a terminal.
func FuzzEscape(f *testing.F) {
	f.Add("\x1b[2J", uint8(1), false)
	f.Add("\x1b[31mred\x1b[0m\u202e\xff", uint8(3), true)
	f.Fuzz(func(t *testing.T, in string, cut uint8, colours bool) {
		at := min(int(cut), len(in))
		shown, rest := appendShown(nil, []byte(in[:at]), colours)
		shown, rest = appendShown(shown, append(rest, in[at:]...), colours)
		shown = appendEscaped(shown, rest)
		if !utf8.Valid(shown) {
			t.Fatalf("%q is not UTF-8", shown)
		}
		for len(shown) > 0 {
			if n, whole := colourSequence(shown); colours && shown[0] == '\x1b' && whole && n > 0 {
				shown = shown[n:]
				continue
			}
			r, size := utf8.DecodeRune(shown)
			if controls(r) {
				t.Fatalf("%q is shown of %q", r, in)
			}
			shown = shown[size:]
		}
	})
}

// No cell of TSV is a formula, numbers stay what they are, and the rest too.
func TestFormulasAreQuoted(t *testing.T) {
	const in = "=cmd|'/C calc'!A0\t-5\t+1e3\n@SUM(A1)\tplain=1\t\n-x\t\r=1\n+=2\t-Inf\tend"
	const want = "'=cmd|'/C calc'!A0\t-5\t+1e3\n'@SUM(A1)\tplain=1\t\n'-x\t'\r=1\n'+=2\t-Inf\tend"
	for cut := range len(in) + 1 {
		var out bytes.Buffer
		f := &formulaEscaper{to: &out}
		for _, text := range []string{in[:cut], in[cut:]} {
			if n, err := io.WriteString(f, text); n != len(text) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := f.Close(); err != nil || out.String() != want {
			t.Errorf("cut at %d: %q, want %q (%v)", cut, out.String(), want, err)
		}
	}
}
