package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/museum"
	"github.com/ebbdb/ebb/chaos/mutants"
)

func newMuseum(s *session) *cobra.Command {
	var runs bool
	cmd := &cobra.Command{
		Use: "museum [NAME]", Args: atMost(1),
		Short: "The bugs that were found: what was seen, why, and the test that fails if one comes back",
		Long: `Each piece is a bug that ebb had, or one of a library that it contains. With a name the command tells its
story. With --run it runs the piece's tests; and where a mutant puts the bug back, they must fail with it. Without a
name --run tries all pieces, which takes many minutes.`,
		Example: `  go run ./chaos/bugs museum
  go run ./chaos/bugs museum disk-lost-at-birth --run`,
		RunE: func(cmd *cobra.Command, args []string) error { return showMuseum(cmd.Context(), s, args, runs) },
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			all, err := museum.All()
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return pieceNames(all), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&runs, "run", false, "run the tests, and see that they notice the mutant")
	return cmd
}

// pieceJSON is a piece, and with --run its result.
type pieceJSON struct {
	museum.Piece
	Result *pieceResult `json:"result,omitempty"`
}

type pieceResult struct {
	Passes bool            `json:"passes"`           // whether its tests pass on the source as it is
	Error  string          `json:"error,omitempty"`  // why they do not pass, or could not be run
	Mutant *mutants.Result `json:"mutant,omitempty"` // of the run with the bug put back
}

func (r *pieceResult) good() bool { return r.Error == "" && (r.Mutant == nil || r.Mutant.Caught) }

// say describes the result in a few words.
func (r *pieceResult) say() string {
	switch {
	case r.Error != "":
		return "FAILS: " + r.Error
	case r.Mutant == nil:
		return "passes"
	case !r.Mutant.Caught:
		return fmt.Sprintf("passes, but also with %s", r.Mutant.Mutant)
	}
	said := cmp.Or(r.Mutant.Said, "it says nothing")
	return fmt.Sprintf("passes; with %s %s fails: %s", r.Mutant.Mutant, r.Mutant.By, said)
}

func pieceNames(all []museum.Piece) []string {
	names := make([]string, 0, len(all))
	for _, p := range all {
		names = append(names, p.Name)
	}
	return names
}

func showMuseum(ctx context.Context, s *session, args []string, runs bool) error {
	all, err := museum.All()
	if err != nil {
		return err
	}
	if len(args) > 0 {
		i := slices.Index(pieceNames(all), args[0])
		if i < 0 {
			return noneOf("piece", args[0], pieceNames(all))
		}
		all = all[i : i+1]
	}
	var r *mutants.Runner
	if runs {
		if r, err = s.runner(); err != nil {
			return err
		}
		defer r.Close() //nolint:errcheck // what is left lies in the system's directory for such
	}
	out, bad := make([]pieceJSON, 0, len(all)), 0
	for _, p := range all {
		row := pieceJSON{Piece: p}
		if runs {
			if row.Result, err = runPiece(ctx, r, &p); err != nil {
				return err
			}
			if !row.Result.good() {
				bad++
			}
			if len(args) == 0 {
				s.say("%s: %s", p.Name, row.Result.say())
			}
		}
		out = append(out, row)
	}
	switch {
	case s.json:
		err = s.printJSON(out)
	case len(args) > 0:
		err = s.tellPiece(&out[0])
	default:
		err = s.printPieces(out)
	}
	if err == nil && bad > 0 {
		return fmt.Errorf("%d of %d pieces do not show what they are to", bad, len(out))
	}
	return err
}

// runPiece runs the tests of a piece without its mutant, and with it. It returns an error only if ctx ends.
func runPiece(ctx context.Context, r *mutants.Runner, p *museum.Piece) (*pieceResult, error) {
	m, planted, err := p.Planted()
	if err != nil {
		return nil, err
	}
	var out pieceResult
	err = r.Sound(ctx, m.Checker)
	if out.Passes = err == nil; err == nil && planted {
		var res mutants.Result
		res, err = r.Try(ctx, &m)
		out.Mutant = &res
	}
	if err != nil {
		out.Error = err.Error()
	}
	return &out, ctx.Err()
}

func (s *session) printPieces(all []pieceJSON) error {
	head, rows := "PIECE\tFOUND\tMENDED\tTEST\tWHAT WAS SEEN", make([][]string, 0, len(all))
	for _, p := range all {
		row := []string{p.Name, p.Found, p.Mended, p.Package + " " + p.Run, p.Symptom}
		if p.Result != nil {
			head = "PIECE\tRESULT\tFOUND\tMENDED\tTEST\tWHAT WAS SEEN"
			row = slices.Insert(row, 1, p.Result.say())
		}
		rows = append(rows, row)
	}
	return s.printTable(head, rows)
}

// tellPiece prints a piece with its story.
func (s *session) tellPiece(p *pieceJSON) error {
	rows := [][2]string{
		{"found", p.Found},
		{"mended", p.Mended},
		{"test", fmt.Sprintf("go test %s -run '^(%s)$'", p.Package, p.Run)},
		{"input", p.Corpus},
		{"mutant", p.Mutant},
	}
	if p.Result != nil {
		rows = append(rows, [2]string{"result", p.Result.say()})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", p.Symptom)
	for _, row := range rows {
		if row[1] != "" {
			fmt.Fprintf(&b, "%-9s %s\n", row[0], row[1])
		}
	}
	_, err := fmt.Fprintf(s.out, "%s\n%s\n", &b, p.Story)
	return err
}
