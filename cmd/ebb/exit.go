package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Exit codes, documented in docs/cli.md and `ebb help exit-codes`.
const (
	exitOK          = 0
	exitFailed      = 1 // anything not below
	exitUsage       = 2 // unknown command or flag, or a value that cannot be right
	exitRefused     = 3 // the cluster refused the request, or rows of an import
	exitUnreachable = 4 // no node could be reached, or none could answer in time
	exitUnknown     = 5 // the outcome of a write is unknown
	exitInterrupted = 130
)

// exitMeanings is what people are told.
var exitMeanings = []struct {
	Code    int    `json:"code"`
	Meaning string `json:"meaning"`
}{
	{exitOK, "done"},
	{exitFailed, "failed: see the message"},
	{exitUsage, "usage: unknown command or flag, or a value that cannot be right"},
	{exitRefused, "refused: the cluster refused the request, or rows of an import were refused"},
	{exitUnreachable, "unreachable: no node could be reached, or none could answer in time"},
	{exitUnknown, "unknown outcome: a write may or may not have been applied"},
	{exitInterrupted, "interrupted"},
}

func exitCodesHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes of ebb:\n\n")
	for _, e := range exitMeanings {
		fmt.Fprintf(&b, "  %-3d  %s\n", e.Code, e.Meaning)
	}
	return b.String()
}

func newExitCodes(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "exit-codes", Short: "What the exit codes mean", Long: exitCodesHelp(), Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if s.output == "json" {
				return printJSON(s.term.out, exitMeanings)
			}
			_, err := io.WriteString(s.term.out, exitCodesHelp())
			return err
		},
	}
}

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// startError is why a node did not start. Its code may be one that a cluster
// refuses requests with, but no cluster was asked.
type startError struct{ err error }

func (e startError) Error() string { return e.err.Error() }
func (e startError) Unwrap() error { return e.err }

// errRefusedRows says that an import went through but not with every row.
var errRefusedRows = errors.New("rows were refused")

// exitCode prints err as a person wants to read it, and says what to exit with.
func exitCode(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(w, "interrupted")
		return exitInterrupted
	}
	var coded *proto.Error
	hint, shown := "", fmt.Sprintf("error: %v\n", err)
	if errors.As(err, &coded) {
		hint = coded.Hint
	}
	var ce *client.Error
	if errors.As(err, &ce) && ce.Hint != "" {
		hint = ce.Hint
	}
	fmt.Fprint(w, shown)
	if hint != "" {
		fmt.Fprintf(w, "try:  %s\n", hint)
	}
	return codeOf(err, coded)
}

func codeOf(err error, coded *proto.Error) int {
	var usage usageError
	var start startError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &start):
		return exitFailed
	case errors.Is(err, errRefusedRows):
		return exitRefused
	case errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable
	case coded == nil:
		return exitFailed
	case coded.Code == ebbv1.Code_CODE_UNKNOWN_OUTCOME:
		return exitUnknown
	case coded.Code/1000 == 1:
		return exitUnreachable
	case coded.Code/1000 == 2, coded.Code/1000 == 3:
		return exitRefused
	}
	return exitFailed
}
