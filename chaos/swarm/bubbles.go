package swarm

import (
	"errors"
	"flag"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
)

// Main is the main function of a worker. It runs the plans that it reads from in, each in a bubble, and writes their
// verdicts to out. It ends the process with status 0, or with 1 after an error, which it writes to err. Bubbles need a
// test, so Main runs as one: package testing gets no arguments, and writes PASS after the last verdict.
func Main(in io.Reader, out, err io.Writer, logger *slog.Logger) {
	testing.Init()
	failed := flag.CommandLine.Parse(nil) // otherwise testing would parse the process's arguments
	run := func(t *testing.T) {
		failed = errors.Join(failed, Work(func(f func()) { synctest.Test(t, func(*testing.T) { f() }) }, in, out, logger))
		if failed != nil {
			t.Error(failed)
			_, _ = io.WriteString(err, failed.Error()+"\n")
		}
	}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "swarm", F: run}}, nil, nil)
}
