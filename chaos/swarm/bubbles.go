package swarm

import (
	"errors"
	"flag"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
)

// Main is a worker's main: it runs the plans that come in, each in a bubble, and ends the process with status 0, or
// with 1 after an error that it has written. Bubbles are for tests, so it does all this as one: package testing parses
// no arguments but none, and writes PASS after the last verdict.
func Main(in io.Reader, out, err io.Writer, logger *slog.Logger) {
	testing.Init()
	failed := flag.CommandLine.Parse(nil) // else testing would parse the process's
	run := func(t *testing.T) {
		failed = errors.Join(failed, Work(func(f func()) { synctest.Test(t, func(*testing.T) { f() }) }, in, out, logger))
		if failed != nil {
			t.Error(failed)
			_, _ = io.WriteString(err, failed.Error()+"\n")
		}
	}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "swarm", F: run}}, nil, nil)
}
