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

// terminalEscaper writes to a terminal, and escapes control characters such as \x1b and \u202e. The text in the cluster
// comes from others. An escape sequence in a name could otherwise change the screen, the title or the input of the next
// command.
type terminalEscaper struct {
	file    *os.File // not embedded, because its other methods do not escape
	colours bool     // sequences that set colours pass, and no others

	mu  sync.Mutex // guards what follows
	cut []byte     // an incomplete character or colour sequence at the end of the last write
}

// newTerminalEscaper returns a writer for f, which escapes if f is a terminal.
func newTerminalEscaper(f *os.File) io.Writer {
	if !interactive(f) {
		return f
	}
	return &terminalEscaper{file: f}
}

// rawTerminal returns w without its terminalEscaper, for output that controls the terminal and has no text from others.
func rawTerminal(w io.Writer) io.Writer {
	if d, ok := w.(*terminalEscaper); ok {
		return d.file
	}
	return w
}

// coloured returns w for a writer of lines with colours.
func coloured(w io.Writer) io.Writer {
	if d, ok := w.(*terminalEscaper); ok {
		return &terminalEscaper{file: d.file, colours: true}
	}
	return w
}

// Write implements io.Writer. It returns len(p) even if the terminal gets more or fewer bytes.
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

// Close writes the incomplete end of the last write, and leaves the terminal open.
func (d *terminalEscaper) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.file.Write(appendEscaped(nil, d.cut))
	d.cut = nil
	return err
}

// colourMax bounds the length of a sequence that sets a colour.
const colourMax = 32

// appendShown appends in, escaped for a terminal. cut is an incomplete end of in, which belongs before the next bytes.
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

// controls reports whether a terminal would not just show a character. Line ends and tabs are allowed.
func controls(r rune) bool {
	if r == '\n' || r == '\t' {
		return false
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// colourSequence returns the length of the colour sequence at the beginning of in; 0 if there is none. whole is false
// if its end is missing.
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

// appendEscaped appends characters with Go's escapes, and invalid bytes as \x9b.
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

// formulaEscaper writes TSV in which a spreadsheet finds no formula. It puts a ' before each cell that begins with =,
// +, -, @, a tab or a carriage return, and is no number.
type formulaEscaper struct {
	to   io.Writer
	cell []byte // the part of the present cell that has come so far
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

// Close writes the last cell if no line end followed it.
func (f *formulaEscaper) Close() error {
	_, err := f.to.Write(appendCell(nil, f.cell))
	f.cell = nil
	return err
}

// appendCell appends a cell, with a ' before it if a spreadsheet would take it for a formula.
func appendCell(out, cell []byte) []byte {
	if len(cell) > 0 && bytes.IndexByte([]byte("=+-@\t\r"), cell[0]) >= 0 {
		if _, err := strconv.ParseFloat(string(cell), 64); err != nil {
			out = append(out, '\'')
		}
	}
	return append(out, cell...)
}
