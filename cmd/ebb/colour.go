package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// colourful reports whether w is a terminal on which colours are allowed.
func colourful(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && interactive(w)
}

// removeAll removes a temporary directory, and prints an error if it cannot.
func removeAll(s *session, dir string) {
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(s.term.err, "left behind:", err)
	}
}

// interactive reports whether v is a terminal.
func interactive(v any) bool {
	if d, ok := v.(*terminalEscaper); ok {
		return interactive(d.file)
	}
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
