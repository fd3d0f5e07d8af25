package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pseudoTerminal opens a terminal of 60 by 12 and returns its two ends: what a person sees and types at, and what a
// program reads and writes.
func pseudoTerminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	number, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 60}); err != nil {
		t.Fatal(err)
	}
	return person, program
}

// shownUntil reads what the terminal shows until it holds text.
func shownUntil(t *testing.T, person *os.File, text string) string {
	t.Helper()
	var shown bytes.Buffer
	part := make([]byte, 4096)
	for !strings.Contains(shown.String(), text) {
		n, err := person.Read(part)
		if err != nil {
			t.Fatalf("no %q: %v: %q", text, err, &shown)
		}
		shown.Write(part[:n])
	}
	return shown.String()
}

// TestDemoScreen: frames are drawn in place and cut to the size of the terminal, keys arrive, and at the end the
// terminal is as it was.
func TestDemoScreen(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	person, program := pseudoTerminal(t)
	before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	frames, keys, ended := make(chan frame), make(chan string, 1), make(chan error, 1)
	s := screen{in: program, out: program, frames: frames, keys: keys}
	go func() { ended <- s.run(ctx) }()

	frames <- frame{answer: answerOf(demoTop, 7), grpc: "127.0.0.1:1", last: "the \x1b]0;title\a line"}
	shown := shownUntil(t, person, screenEnd)
	for _, want := range []string{
		screenOpen + screenHome, bold.of("clicks by country, now"), "\x1b[36m████\x1b[m", lineEnd + "\r\n",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in %q", want, shown)
		}
	}
	lines := strings.Split(shown, "\r\n")
	if len(lines) != 12 {
		t.Errorf("%d lines on a terminal of 12: %q", len(lines), shown)
	}
	for _, line := range lines[1:] {
		if line := strings.TrimSuffix(strings.TrimSuffix(line, screenEnd), lineEnd); clipped(line, 60) != line {
			t.Errorf("wider than 60: %q", line)
		}
	}
	for _, typed := range []string{"\x1b[Ak", "\x03"} { // an arrow, which is no key of the demo, k and ctrl+c
		if _, err := person.WriteString(typed); err != nil {
			t.Fatal(err)
		}
		select {
		case key := <-keys:
			if want := map[string]string{"\x1b[Ak": "k", "\x03": "q"}[typed]; key != want {
				t.Errorf("%q arrives as %q", typed, key)
			}
		case <-ctx.Done():
			t.Fatalf("%q never arrived", typed)
		}
	}
	close(frames)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	shownUntil(t, person, screenClose)
	after, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal was %+v and is %+v, %v", before, after, err)
	}
}

// TestDemoScreenShowsNoControls: what would control the terminal is shown escaped.
func TestDemoScreenShowsNoControls(t *testing.T) {
	person, program := pseudoTerminal(t)
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{}); err != nil { // of no known size
		t.Fatal(err)
	}
	s := screen{in: program, out: program}
	if err := s.draw(frame{last: "the \x1b]0;title\a line"}); err != nil {
		t.Fatal(err)
	}
	shown := shownUntil(t, person, screenEnd)
	if !strings.Contains(shown, `the \x1b]0;title\a line`) || strings.Contains(shown, "\x1b]") {
		t.Errorf("%q", shown)
	}
}

// TestClipped: a line is cut after its columns, and keeps its styles.
func TestClipped(t *testing.T) {
	for _, c := range []struct {
		line, want string
		width      int
	}{
		{"plain", "plain", 5},
		{"plain", "pla", 3},
		{"±██", "±█", 2},
		{bold.of("bold") + " and " + faint.of("faint"), "\x1b[1mbold\x1b[m an\x1b[2m\x1b[m", 7},
		{"", "", 0},
	} {
		if got := clipped(c.line, c.width); got != c.want {
			t.Errorf("clipped(%q, %d) = %q, not %q", c.line, c.width, got, c.want)
		}
	}
}

// TestTypedKeys: keys that send sequences are left out, wherever they stand.
func TestTypedKeys(t *testing.T) {
	for typed, want := range map[string][]string{
		"": nil, "k": {"k"}, "kc": {"k", "c"}, "\x03": {"q"}, "ä": {"ä"},
		"\x1b[Ak": {"k"}, "h\x1bOPp": {"h", "p"}, "\x1b[15;2~q": {"q"}, "\x1bk": nil, "\x1b": nil, "\x1b[1": nil,
	} {
		if got := typedKeys(typed); !slices.Equal(got, want) {
			t.Errorf("typedKeys(%q) = %q, not %q", typed, got, want)
		}
	}
}
