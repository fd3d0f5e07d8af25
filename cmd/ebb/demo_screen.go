package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Escape sequences that all present terminals support. They switch to a second screen and back, hide and show the
// cursor, and redraw a frame in place.
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l"
	screenClose = "\x1b[?25h\x1b[?1049l"
	screenHome  = "\x1b[H"
	lineEnd     = "\x1b[K" // clears the rest of the line from an earlier frame
	screenEnd   = "\x1b[J"
)

// style is the style of a text: the parameters of an escape sequence.
type style string

const (
	plain  style = ""
	bold   style = "1"
	faint  style = "2"
	yellow style = "33"
	cyan   style = "36"
)

// of returns text with the escape sequences of the style.
func (s style) of(text string) string {
	if s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[m"
}

// clipped cuts a line after width columns. Sequences that style the line take no column; any other character takes one.
func clipped(line string, width int) string {
	var b strings.Builder
	for columns := 0; line != ""; {
		if n, _ := colourSequence([]byte(line)); line[0] == '\x1b' && n > 0 {
			b.WriteString(line[:n])
			line = line[n:]
			continue
		}
		_, size := utf8.DecodeRuneInString(line)
		if columns++; columns <= width {
			b.WriteString(line[:size])
		}
		line = line[size:]
	}
	return b.String()
}

// screen shows frames on a terminal, and passes on the keys that are typed.
type screen struct {
	in, out *os.File // the terminal
	frames  <-chan frame
	keys    chan<- string
}

// run draws each frame in place of the last one, until there are no more or ctx ends. It then restores the terminal.
// One read of a key may outlast run, until the process ends.
func (s *screen) run(ctx context.Context) (err error) {
	before, err := term.MakeRaw(int(s.in.Fd()))
	if err != nil {
		return err
	}
	defer func() {
		_, werr := io.WriteString(s.out, screenClose)
		err = errors.Join(err, werr, term.Restore(int(s.in.Fd()), before))
	}()
	if _, err := io.WriteString(s.out, screenOpen); err != nil {
		return err
	}
	go s.readKeys(ctx)
	for {
		select {
		case f, more := <-s.frames:
			if !more {
				return nil
			}
			if err := s.draw(f); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// draw shows as much of a frame as fits. Characters that would control the terminal are escaped.
func (s *screen) draw(f frame) error {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil {
		return err
	}
	if width == 0 || height == 0 { // the terminal does not know its size
		width, height = 80, 24
	}
	f.colour = colourful(s.out)
	lines := strings.Split(strings.TrimSuffix(f.render(), "\n"), "\n")
	lines = lines[:min(len(lines), height)]
	var b strings.Builder
	b.WriteString(screenHome)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		shown, _ := appendShown(nil, []byte(line), true)
		b.WriteString(clipped(string(shown), width) + lineEnd)
	}
	b.WriteString(screenEnd)
	_, err = io.WriteString(s.out, b.String())
	return err
}

// readKeys passes keys on.
func (s *screen) readKeys(ctx context.Context) {
	var typed [64]byte
	for ctx.Err() == nil {
		n, err := s.in.Read(typed[:])
		if err != nil {
			return
		}
		for _, key := range typedKeys(string(typed[:n])) {
			select {
			case s.keys <- key:
			default: // the demo still handles the last key
			}
		}
	}
}

// typedKeys returns the keys in typed; ctrl+c becomes q. It leaves out keys that send an escape sequence, such as
// arrows.
func typedKeys(typed string) (keys []string) {
	for typed != "" {
		r, size := utf8.DecodeRuneInString(typed)
		switch r {
		case '\x1b':
			size = sequenceLen(typed)
		case '\x03': // ctrl+c
			keys = append(keys, "q")
		default:
			keys = append(keys, string(r))
		}
		typed = typed[size:]
	}
	return keys
}

// sequenceLen returns the length in bytes of the escape sequence with which typed begins.
func sequenceLen(typed string) int {
	if len(typed) < 2 || typed[1] != '[' && typed[1] != 'O' {
		return min(len(typed), 2) // escape, or a key with alt
	}
	for i := 2; i < len(typed); i++ {
		if typed[i] >= '@' && typed[i] <= '~' {
			return i + 1
		}
	}
	return len(typed)
}
