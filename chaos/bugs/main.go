package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ebbdb/ebb/chaos/mutants"
	"github.com/ebbdb/ebb/internal/spell"
	"github.com/ebbdb/ebb/proto"
)

// The exit statuses are those of the binary ebb.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, out, err io.Writer) int {
	s := &session{out: out, err: err}
	root := &cobra.Command{
		Use: "bugs", Short: "Plant bugs in the source of ebb, and read about those that were found",
		SilenceUsage: true, SilenceErrors: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noneOf("command", args[0], []string{"mutants", "museum"})
			}
			return cmd.Help()
		},
	}
	root.PersistentFlags().BoolVar(&s.json, "json", false, "print JSON")
	root.PersistentFlags().StringVar(&s.source, "source", ".", "`directory` in a clone of the source")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%w", err) })
	root.AddCommand(newMutants(s), newMuseum(s))
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(err)
	return report(err, root.ExecuteContext(ctx))
}

// session is what the commands share: where they print, and the flags of all.
type session struct {
	out, err io.Writer // answers; progress and errors
	json     bool
	source   string
}

// say prints a line of progress.
func (s *session) say(format string, args ...any) { fmt.Fprintf(s.err, format+"\n", args...) }

// printJSON prints v as JSON for programs.
func (s *session) printJSON(v any) error {
	enc := json.NewEncoder(s.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printTable prints rows as columns under a header, whose columns are separated by tabs.
func (s *session) printTable(header string, rows [][]string) error {
	tw := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, header)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// checkerLimit is how long a checker may take with one bug. It normally takes seconds; a checker that hangs counts as
// having noticed the bug.
const checkerLimit = 5 * time.Minute

// runner finds the source, and returns a Runner that plants bugs in it. The caller closes the Runner.
func (s *session) runner() (*mutants.Runner, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return nil, usagef("cannot find the go command, which builds the tests: %w", err)
	}
	dir, err := filepath.Abs(s.source)
	if err != nil {
		return nil, err
	}
	root, err := mutants.Root(dir)
	if err != nil {
		return nil, usagef("%w; --source says where one is", err)
	}
	return mutants.NewRunner(root, checkerLimit)
}

// interactive reports whether w is a terminal.
func interactive(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// atMost refuses more than n arguments.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("%s takes at most %d arguments, but got %q", cmd.CommandPath(), n, args)
		}
		return nil
	}
}

// noneOf returns a usage error for a word that is not among words. The error names the nearest word, or all words if
// none is near.
func noneOf(what, word string, words []string) error {
	if near := spell.Nearest(word, words); near != "" {
		return usagef("%s %q: did you mean %s?", what, word, near)
	}
	return usagef("%s %q: one of %s", what, word, strings.Join(words, ", "))
}

// report prints an error and returns the exit status.
func report(w io.Writer, err error) int {
	var usage usageError
	var coded *proto.Error
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(w, "interrupted")
		return exitInterrupted
	}
	fmt.Fprintf(w, "error: %v\n", err)
	if errors.As(err, &coded) && coded.Hint != "" {
		fmt.Fprintf(w, "try:  %s\n", coded.Hint)
	}
	if errors.As(err, &usage) || errors.Is(err, proto.ErrBadRequest) {
		return exitUsage
	}
	return exitFailed
}
