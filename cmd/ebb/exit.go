package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Exit codes, documented in docs/cli.md and `ebb help exit-codes`.
const (
	exitOK          = 0
	exitFailed      = 1 // anything not below
	exitUsage       = 2 // unknown command or flag, or a value that cannot be right (EBB-2001 to 2008)
	exitRefused     = 3 // the cluster refused the request, or rows or keys of an import
	exitUnreachable = 4 // no node could be reached, or none could answer in time
	exitUnknown     = 5 // the outcome of a write is unknown
	exitRemoved     = 6 // the node was removed from its cluster: supervisors must not start it again
	exitLate        = 7 // ebb chaos: nothing was lost, but something took too long
	exitInterrupted = 130
)

// exitMeanings describe the exit codes for people.
var exitMeanings = []struct {
	Code    int    `json:"code"`
	Meaning string `json:"meaning"`
}{
	{exitOK, "done"},
	{exitFailed, "failed: see the message"},
	{exitUsage, "usage: unknown command or flag, or a value that cannot be right (EBB-2001 to 2008), whoever finds it: change the command"},
	{exitRefused, "refused: the cluster refused the request as things are, or rows or keys of an import were refused"},
	{exitUnreachable, "unreachable: no node could be reached, or none could answer in time"},
	{exitUnknown, "unknown outcome: a write may or may not have been applied"},
	{exitRemoved, "removed: the node was removed from its cluster, or its disk was given up as lost; with this data directory it cannot go on however often it is started"},
	{exitLate, "late: of ebb chaos proc and soak, where nothing was lost, counted twice or read stale, " +
		"and something took longer than it may"},
	{exitInterrupted, "interrupted before it was done; --watch, demo and serve, which run until they are interrupted, end with 0"},
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
			if s.output == "tsv" {
				var rows [][]string
				for _, e := range exitMeanings {
					rows = append(rows, []string{strconv.Itoa(e.Code), e.Meaning})
				}
				return s.printTable("", rows)
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

// startError says why a node did not start. Its code may be one with which a cluster refuses requests, but here no
// cluster was asked.
type startError struct{ err error }

func (e startError) Error() string { return e.err.Error() }
func (e startError) Unwrap() error { return e.err }

// errRefusedRows says that an import is complete except for rows that were refused.
var errRefusedRows = errors.New("rows were refused")

// errLate says that nothing was lost in a trial, but something took too long.
var errLate = errors.New("nothing was lost, counted twice or read stale")

// exitCode prints err for people, and returns the exit code.
func exitCode(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(w, "interrupted")
		return exitInterrupted
	}
	fmt.Fprintf(w, "error: %v\n", err)
	var text *textError
	if errors.As(err, &text) {
		text.show(w)
	}
	if hint := nextStep(err); hint != "" {
		fmt.Fprintf(w, "try:  %s\n", hint)
	}
	return codeOf(err)
}

// codeOf returns the exit code of an error. The error's own code decides, whether the command line or the cluster found
// the error.
func codeOf(err error) int {
	var usage usageError
	var start startError
	var removed node.Removed
	code := codeOfError(err)
	switch {
	case errors.As(err, &removed):
		return exitRemoved
	case errors.As(err, &usage), code >= ebbv1.Code_CODE_BAD_REQUEST && code <= ebbv1.Code_CODE_BAD_NAMESPACE, code == ebbv1.Code_CODE_BAD_QUERY:
		return exitUsage
	case errors.As(err, &start):
		return exitFailed
	case errors.Is(err, errRefusedRows), errors.Is(err, errLeftOut):
		return exitRefused
	case errors.Is(err, errLate):
		return exitLate
	case code == ebbv1.Code_CODE_UNKNOWN_OUTCOME:
		return exitUnknown
	case code == ebbv1.Code_CODE_BUDGET_EXCEEDED: // the cluster is reachable, but refuses until something is deleted
		return exitRefused
	case code/1000 == 1:
		return exitUnreachable
	case code/1000 == 2, code/1000 == 3:
		return exitRefused
	}
	return exitFailed
}
