// Command ebb is a cluster node, its client and its tools in one binary.
package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	term := terminal{in: os.Stdin, out: newTerminalEscaper(os.Stdout), err: newTerminalEscaper(os.Stderr)}
	code := run(ctx, os.Args[1:], term)
	stop()
	os.Exit(code)
}

// terminal is the input and output of a command: stdout is for data, stderr for progress and logs.
type terminal struct {
	in       io.Reader
	out, err io.Writer
	// completes: a shell asks for completions. Only then are completions registered with cobra, which never frees them.
	completes bool
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, t terminal) int {
	t.completes = len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
	s := &session{term: t}
	root := newRootOf(s)
	root.SetArgs(args)
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.err)
	err := root.ExecuteContext(ctx)
	if s.cells != nil {
		err = cmp.Or(err, s.cells.Close())
	}
	code := exitCode(t.err, err)
	for _, w := range []io.Writer{t.out, t.err} {
		if d, ok := w.(*terminalEscaper); ok {
			_ = d.Close() // an earlier write has already reported the error
		}
	}
	return code
}
