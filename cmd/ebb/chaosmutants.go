package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/mutants"
)

// mutantLimit is how long a checker may take with one mutant: it takes seconds, and one that hangs has noticed.
const mutantLimit = 5 * time.Minute

// mutantFlags are what `ebb chaos mutants` can be told.
type mutantFlags struct {
	source   string
	only     string
	parallel int
	list     bool
}

func newChaosMutants(s *session) *cobra.Command {
	var mf mutantFlags
	cmd := &cobra.Command{
		Use: "mutants", Short: "Plant bugs in the source of ebb, and see that its checkers catch them", Args: noArgs,
		Long: `Each mutant is a bug that is laid over the source while a checker of it is built: retries that count again, syncs that do nothing, a leader that reads as if it still led. A checker is
tests of a package, or the swarm of ` + "`ebb chaos sim`" + `, with seeds from 1 on until one shows the mutant. It has caught a mutant only if it passes without it, with as many seeds. The source must be
here, and the go command. Each takes half a minute of a core, most of it to build; docs/reliability.md has the last run.`,
		Example: `  ebb chaos mutants
  ebb chaos mutants --list
  ebb chaos mutants --only 'sync|retry' --json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return chaosMutants(cmd.Context(), s, mf) },
	}
	f := cmd.Flags()
	f.StringVar(&mf.source, "source", ".", "`directory` in a clone of the source")
	f.StringVar(&mf.only, "only", "", "those whose names match this regular `expression`")
	f.IntVar(&mf.parallel, "parallel", 1, "how many at once")
	f.BoolVar(&mf.list, "list", false, "say what there is, and try nothing")
	return cmd
}

// mutantJSON is what became of a mutant.
type mutantJSON struct {
	mutants.Result
	What  string `json:"what"`
	Error string `json:"error,omitempty"` // why nothing came of trying it
}

func chaosMutants(ctx context.Context, s *session, mf mutantFlags) error {
	all, err := mf.chosen()
	if err != nil {
		return err
	}
	if mf.list {
		return listMutants(s, all)
	}
	r, err := sourceRunner(mf.source)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // what is left lies in the system's directory for such
	out := make([]mutantJSON, len(all))
	p := newMutantProgress(s, len(all))
	var wg sync.WaitGroup
	next := make(chan int)
	for range mf.parallel {
		wg.Go(func() {
			for i := range next {
				p.begins(all[i].Name)
				out[i] = tryMutant(ctx, r, &all[i])
				if ctx.Err() == nil {
					p.ends(out[i])
				}
			}
		})
	}
	for i := 0; i < len(all) && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := printMutants(s, out); err != nil {
		return err
	}
	missed := 0
	for _, m := range out {
		if !m.Caught || m.Error != "" {
			missed++
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d of %d mutants were not caught", missed, len(out))
	}
	return nil
}

// chosen are the mutants that are asked for.
func (mf mutantFlags) chosen() ([]mutants.Mutant, error) {
	if mf.parallel < 1 || mf.parallel > 64 {
		return nil, usagef("--parallel %d: from 1 to 64 mutants at once", mf.parallel)
	}
	names, err := regexp.Compile(mf.only)
	if err != nil {
		return nil, usagef("--only %q: %w", mf.only, err)
	}
	all, err := mutants.All()
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(m mutants.Mutant) bool { return !names.MatchString(m.Name) })
	if len(all) == 0 {
		return nil, usagef("--only %q: no mutant is called so; --list says what there is", mf.only)
	}
	return all, nil
}

func tryMutant(ctx context.Context, r *mutants.Runner, m *mutants.Mutant) mutantJSON {
	res, err := r.Try(ctx, m)
	row := mutantJSON{Result: res, What: m.What}
	if err != nil {
		row.Error = err.Error()
	}
	return row
}

// verdict says who caught a mutant.
func (m mutantJSON) verdict() string {
	switch {
	case m.Error != "":
		return "NO VERDICT"
	case !m.Caught:
		return "NOT CAUGHT"
	}
	return m.By
}

// seeds is how many it took.
func (m mutantJSON) seeds() string {
	if m.Seeds == 0 {
		return "-"
	}
	return strconv.FormatUint(m.Seeds, 10)
}

func listMutants(s *session, all []mutants.Mutant) error {
	if s.output == "json" {
		out := []mutantJSON{}
		for _, m := range all {
			out = append(out, mutantJSON{Result: mutants.Result{Mutant: m.Name, Checker: m.Checker.String()}, What: m.What})
		}
		return printJSON(s.term.out, out)
	}
	var rows [][]string
	for _, m := range all {
		rows = append(rows, []string{m.Name, m.What, m.Checker.String()})
	}
	return s.printTable("MUTANT\tWHAT IT BREAKS\tCHECKER", rows)
}

func printMutants(s *session, all []mutantJSON) error {
	if s.output == "json" {
		return printJSON(s.term.out, all)
	}
	var rows [][]string
	for _, m := range all {
		rows = append(rows, []string{m.Mutant, m.What, m.Checker, m.verdict(), m.seeds(), fmt.Sprintf("%.1f s", m.Took.Seconds())})
	}
	return s.printTable("MUTANT\tWHAT IT BREAKS\tCHECKER\tCAUGHT BY\tSEEDS\tTOOK", rows)
}

// saidMax is how much of what a checker said is shown; JSON has it all.
const saidMax = 160

// mutantProgress says what became of each mutant as soon as it is known, and on a terminal which are under way.
type mutantProgress struct {
	out  io.Writer
	live bool
	of   int

	mu    sync.Mutex // guards what follows
	done  int
	under []string
}

func newMutantProgress(s *session, of int) *mutantProgress {
	return &mutantProgress{out: s.term.err, live: interactive(s.term.err), of: of}
}

func (p *mutantProgress) begins(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.under = append(p.under, name)
	p.show()
}

func (p *mutantProgress) ends(m mutantJSON) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.under = slices.DeleteFunc(p.under, func(name string) bool { return name == m.Mutant })
	if p.live {
		fmt.Fprint(p.out, "\r\033[K")
	}
	said := m.Said
	if m.Error != "" {
		said = m.Error
	}
	if room := []rune(said); m.Error == "" && len(room) > saidMax {
		said = string(room[:saidMax]) + "..."
	}
	fmt.Fprintf(p.out, "%d of %d: %s: %s: %s, seeds %s: %s\n", p.done, p.of, m.Mutant, m.Checker, m.verdict(), m.seeds(), strings.TrimSpace(said))
	p.show()
}

// show draws the line of what is under way. p.mu is held.
func (p *mutantProgress) show() {
	if p.live && len(p.under) > 0 {
		fmt.Fprintf(p.out, "\r\033[K%d of %d, under way: %s", p.done, p.of, strings.Join(p.under, ", "))
	}
}
