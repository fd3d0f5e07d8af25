package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/mutants"
)

// mutantLimit is how long a checker may take with one mutant: it takes seconds, and one that hangs has noticed.
const mutantLimit = 5 * time.Minute

func newChaosMutants(s *session) *cobra.Command {
	var dir, pattern string
	cmd := &cobra.Command{
		Use: "mutants", Short: "Plant bugs in the source of ebb, and see that its tests catch them", Args: noArgs,
		Long: `Each mutant is a bug that is laid over the source while a test is built: retries that count again, syncs that do nothing, a leader that reads as if it still led. The source must be here, and
the go command. A checker must pass without a mutant before it counts as having caught anything. All of them take minutes.`,
		Example: `  ebb chaos mutants
  ebb chaos mutants --only 'sync|retry' --json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return chaosMutants(cmd.Context(), s, dir, pattern) },
	}
	cmd.Flags().StringVar(&dir, "source", ".", "`directory` in a clone of the source")
	cmd.Flags().StringVar(&pattern, "only", "", "those whose names match this regular `expression`")
	return cmd
}

// mutantJSON is what became of a mutant.
type mutantJSON struct {
	mutants.Result
	What  string `json:"what"`
	Error string `json:"error,omitempty"` // why it could not be tried
}

func chaosMutants(ctx context.Context, s *session, dir, pattern string) error {
	names, err := regexp.Compile(pattern)
	if err != nil {
		return usagef("--only %q: %w", pattern, err)
	}
	if _, err := exec.LookPath("go"); err != nil {
		return usagef("the go command is not here, and mutants are built with it: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	root, err := mutants.Root(dir)
	if err != nil {
		return usagef("%w; --source says where one is", err)
	}
	all, err := mutants.All()
	if err != nil {
		return err
	}
	r := &mutants.Runner{Root: root, Limit: mutantLimit}
	sound := make(map[mutants.Checker]error)
	var out []mutantJSON
	missed := 0
	for i := range all {
		m := &all[i]
		if !names.MatchString(m.Name) {
			continue
		}
		say(s, "%s: %s", m.Name, m.What)
		if _, known := sound[m.Checker]; !known {
			sound[m.Checker] = r.Sound(ctx, m.Checker)
		}
		row := mutantJSON{What: m.What}
		if err = sound[m.Checker]; err == nil {
			row.Result, err = r.Try(ctx, m)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if row.Mutant = m.Name; err != nil {
			row.Error = err.Error()
		}
		if !row.Caught {
			missed++
		}
		out = append(out, row)
	}
	if len(out) == 0 {
		return usagef("--only %q: no mutant is called so", pattern)
	}
	if err := printMutants(s, out); err != nil {
		return err
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d mutants were not caught", missed, len(out))
	}
	return nil
}

func printMutants(s *session, all []mutantJSON) error {
	if s.output == "json" {
		return printJSON(s.term.out, all)
	}
	var rows [][]string
	for _, m := range all {
		by, said := m.By, m.Said
		switch {
		case m.Error != "":
			by, said = "NOT TRIED", m.Error
		case !m.Caught:
			by = "NOT CAUGHT"
		}
		rows = append(rows, []string{m.Mutant, by, m.Seeds, fmt.Sprintf("%.1f s", m.Took.Seconds()), m.What, said})
	}
	return s.printTable("MUTANT\tCAUGHT BY\tFIRST SEED\tTOOK\tWHAT IT BREAKS\tWHAT THE CHECKER SAID", rows)
}
