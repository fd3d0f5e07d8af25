package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// repeat TEXT N: sets $LONG to N times TEXT.
func repeat(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Setenv("LONG", strings.Repeat(args[0], n))
}

// bytes: sets $BYTES to two bytes that are not UTF-8.
func notText(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Setenv("BYTES", "\xff\xfe")
}

// cut FROM TO N: copies a file without its last N bytes.
func cutEnd(ts *testscript.TestScript, _ bool, args []string) {
	whole := ts.ReadFile(args[0])
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	ts.Check(os.MkdirAll(filepath.Dir(ts.MkAbs(args[1])), 0o755))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(whole[:len(whole)-n]), 0o644))
}

// zip WHOLE CUT: makes a table of 5,000 different rows as a gzip file, and
// the first half of that file.
func zipTable(ts *testscript.TestScript, _ bool, args []string) {
	var table bytes.Buffer
	z := gzip.NewWriter(&table)
	fmt.Fprint(z, "k\tb\n")
	for i := range 5000 {
		fmt.Fprintf(z, "all\tbin %d\n", i*7919)
	}
	ts.Check(z.Close())
	for name, content := range map[string][]byte{args[0]: table.Bytes(), args[1]: table.Bytes()[:table.Len()/2]} {
		ts.Check(os.MkdirAll(filepath.Dir(ts.MkAbs(name)), 0o755))
		ts.Check(os.WriteFile(ts.MkAbs(name), content, 0o644))
	}
}
