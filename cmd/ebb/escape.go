package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"unicode"
	"unicode/utf8"
)

// terminalEscaper writes to a terminal, and escapes what would control it: \x1b, \u202e. Others wrote what the cluster
// holds. A name with an escape sequence could otherwise change the screen, the title or what the next command reads.
type terminalEscaper struct {
	file    *os.File // not embedded: its other methods would write as they are
	colours bool     // sequences that set colours pass, and no others

	mu  sync.Mutex // guards what follows
	cut []byte     // the beginning of a character, or of a sequence that sets colours; the rest has not come
}

// newTerminalEscaper returns a writer for f, which escapes if f is a terminal.
func newTerminalEscaper(f *os.File) io.Writer {
	if !interactive(f) {
		return f
	}
	return &terminalEscaper{file: f}
}

// rawTerminal returns w without its terminalEscaper, for output that controls the terminal and holds no foreign text.
func rawTerminal(w io.Writer) io.Writer {
	if d, ok := w.(*terminalEscaper); ok {
		return d.file
	}
	return w
}

// coloured is w for a writer of lines that sets colours.
func coloured(w io.Writer) io.Writer {
	if d, ok := w.(*terminalEscaper); ok {
		return &terminalEscaper{file: d.file, colours: true}
	}
	return w
}

// Write implements io.Writer. It reports p as written also where less or more goes to the terminal.
func (d *terminalEscaper) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	in := p
	if len(d.cut) > 0 {
		in = append(d.cut, p...)
	}
	out, cut := appendShown(make([]byte, 0, len(in)), in, d.colours)
	d.cut = bytes.Clone(cut)
	if _, err := d.file.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close shows what was cut off, and leaves the terminal open.
func (d *terminalEscaper) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.file.Write(appendEscaped(nil, d.cut))
	d.cut = nil
	return err
}

// colourMax bounds the sequence that sets a colour.
const colourMax = 32

// appendShown appends in as a terminal may have it. What is left over as cut may be understood when more has come.
func appendShown(out, in []byte, colours bool) (shown, cut []byte) {
	for len(in) > 0 {
		r, size := utf8.DecodeRune(in)
		switch {
		case colours && r == '\x1b':
			n, whole := colourSequence(in)
			if n > 0 && !whole {
				return out, in
			}
			if n > 0 {
				out, in = append(out, in[:n]...), in[n:]
				continue
			}
			out = appendEscaped(out, in[:1])
		case r == utf8.RuneError && size == 1 && !utf8.FullRune(in):
			return out, in
		case r == utf8.RuneError && size == 1, controls(r):
			out = appendEscaped(out, in[:size])
		default:
			out = append(out, in[:size]...)
		}
		in = in[size:]
	}
	return out, nil
}

// controls reports whether a terminal does something else with a character than show it, but for the end of a line and
// a tab.
func controls(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// colourSequence is how long the sequence is that in begins with, if it sets colours; it is not whole if its end is
// missing.
func colourSequence(in []byte) (n int, whole bool) {
	for n = 1; n < len(in) && n < colourMax; n++ {
		switch c := in[n]; {
		case n == 1 && c == '[', n > 1 && (c == ';' || c >= '0' && c <= '9'):
		case n > 1 && c == 'm':
			return n + 1, true
		default:
			return 0, true
		}
	}
	if n == colourMax {
		return 0, true
	}
	return n, false
}

// appendEscaped appends characters as Go writes them, and bytes that are none as \x9b.
func appendEscaped(out, in []byte) []byte {
	for len(in) > 0 {
		r, size := utf8.DecodeRune(in)
		if r == utf8.RuneError && size == 1 {
			out = fmt.Appendf(out, `\x%02x`, in[0])
		} else {
			quoted := strconv.QuoteRuneToASCII(r)
			out = append(out, quoted[1:len(quoted)-1]...)
		}
		in = in[size:]
	}
	return out
}

// formulaEscaper writes lines of TSV in which a spreadsheet finds no formula. A cell that begins with =, +, -, @, a tab
// or a carriage return, and is no number, gets a ' in front.
type formulaEscaper struct {
	to   io.Writer
	cell []byte // the beginning of the cell that is being written
}

// Write implements io.Writer.
func (f *formulaEscaper) Write(p []byte) (int, error) {
	var out []byte
	for _, c := range p {
		if c != '\t' && c != '\n' {
			f.cell = append(f.cell, c)
			continue
		}
		out = append(appendCell(out, f.cell), c)
		f.cell = f.cell[:0]
	}
	if len(out) > 0 {
		if _, err := f.to.Write(out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Close writes what no end of a line has followed.
func (f *formulaEscaper) Close() error {
	_, err := f.to.Write(appendCell(nil, f.cell))
	f.cell = nil
	return err
}

// appendCell appends a cell of a table so that a spreadsheet takes it for what it is.
func appendCell(out, cell []byte) []byte {
	if len(cell) > 0 && bytes.IndexByte([]byte("=+-@\t\r"), cell[0]) >= 0 {
		if _, err := strconv.ParseFloat(string(cell), 64); err != nil {
			out = append(out, '\'')
		}
	}
	return append(out, cell...)
}
