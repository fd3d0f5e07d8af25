package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// colourful says whether w is a terminal that wants colour.
func colourful(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && interactive(w)
}

// interactive says whether v is a terminal.
func interactive(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
