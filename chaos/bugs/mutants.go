package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/mutants"
	"github.com/ebbdb/ebb/internal/outfile"
)

// mutantFlags are the flags of the command mutants.
type mutantFlags struct {
	only     string
	parallel int
	list     bool
	report   string
	resume   string
}

func newMutants(s *session) *cobra.Command {
	var mf mutantFlags
	cmd := &cobra.Command{
		Use: "mutants", Short: "Plant bugs in the source of ebb, and see that its checkers catch them", Args: atMost(0),
		Long: `Each mutant is a bug that is laid over the source while a checker of it is built: retries that count again,
syncs that do nothing, a leader that reads as if it still led. A checker is tests of a package, or the swarm of
` + "`ebb chaos sim`" + `, with seeds from 1 on until one shows the mutant. It has caught a mutant only if it passes without it, with as many
seeds. Each mutant takes half a minute of a core, most of it to build; docs/reliability.md has the last run. With
--resume an interrupted run continues: a mutant whose verdict is in the file is not tried again.`,
		Example: `  go run ./chaos/bugs mutants
  go run ./chaos/bugs mutants --list
  go run ./chaos/bugs mutants --only 'sync|retry' --json
  go run ./chaos/bugs mutants --resume mutants.jsonl --report mutants.html`,
		RunE: func(cmd *cobra.Command, _ []string) error { return tryMutants(cmd.Context(), s, mf) },
	}
	f := cmd.Flags()
	f.StringVar(&mf.only, "only", "", "those whose names match this regular `expression`")
	f.IntVar(&mf.parallel, "parallel", 1, "how many at once")
	f.BoolVar(&mf.list, "list", false, "list the mutants, and try none")
	f.StringVar(&mf.report, "report", "", "write a page with the verdict on each mutant to this `file`")
	f.StringVar(&mf.resume, "resume", "", "append every mutant's verdict to this `file`, and try no mutant that is in it")
	_ = cmd.RegisterFlagCompletionFunc("only", mutantNames) // the flag is there
	return cmd
}

// mutantNames completes --only.
func mutantNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	all, err := mutants.All()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := make([]string, 0, len(all))
	for _, m := range all {
		names = append(names, m.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// mutantJSON is the result of a mutant.
type mutantJSON struct {
	mutants.Outcome
	What  string `json:"what"`
	Error string `json:"error,omitempty"` // why the mutant has no verdict

	known bool // from an earlier run
}

func tryMutants(ctx context.Context, s *session, mf mutantFlags) error {
	all, err := mf.chosen()
	if err != nil {
		return err
	}
	if mf.list {
		return listMutants(s, all)
	}
	r, err := s.runner()
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // what is left lies in the system's directory for such
	page, err := outfile.OpenReport(mf.report)
	if err != nil {
		return err
	}
	defer page.Drop()
	t := mutantTrial{r: r, progress: newMutantProgress(s, len(all))}
	if mf.resume != "" {
		if t.kept, err = mutants.OpenKept(mf.resume); err != nil {
			return outfile.NotResumed(mf.resume, err)
		}
		defer t.kept.Close() //nolint:errcheck // each verdict was written at once
	}
	out, err := t.all(ctx, all, mf.parallel)
	if err != nil {
		return err
	}
	if err := page.Write(pageOf(out).HTML); err != nil {
		return err
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

// chosen returns the mutants that the flags select. It is a usage error if there are none.
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

// mutantTrial tries mutants.
type mutantTrial struct {
	r        *mutants.Runner
	kept     *mutants.Kept
	progress *mutantProgress

	mu     sync.Mutex // guards what follows, and kept
	failed error      // why a verdict could not be kept
}

// all tries as many mutants at once as parallel says. It returns an error if a verdict cannot be kept, or if ctx ends.
func (t *mutantTrial) all(ctx context.Context, all []mutants.Mutant, parallel int) ([]mutantJSON, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := make([]mutantJSON, len(all))
	var wg sync.WaitGroup
	next := make(chan int)
	for range parallel {
		wg.Go(func() {
			for i := range next {
				if out[i] = t.one(ctx, &all[i]); t.keep(ctx, &out[i]) != nil {
					cancel()
				}
			}
		})
	}
	for i := 0; i < len(all) && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	if t.failed != nil {
		return out, t.failed
	}
	return out, ctx.Err()
}

// one tries a mutant, unless its result is known from an earlier run.
func (t *mutantTrial) one(ctx context.Context, m *mutants.Mutant) mutantJSON {
	row := mutantJSON{What: m.What}
	known := false
	if row.Outcome, known = t.kept.Of(m.Name); known && row.Checker == m.Checker.String() {
		row.known = true
		return row
	}
	t.progress.begins(m.Name)
	res, err := t.r.Try(ctx, m)
	row.Outcome = mutants.Outcome{Result: res, Commit: t.r.Commit(ctx), Ended: time.Now().UTC().Truncate(time.Second)}
	if err != nil {
		row.Error = err.Error()
	}
	return row
}

// keep prints the result of a mutant, and records its verdict.
func (t *mutantTrial) keep(ctx context.Context, row *mutantJSON) (err error) {
	if ctx.Err() != nil {
		return nil
	}
	t.progress.ends(*row)
	if row.known || row.Error != "" {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err = t.kept.Keep(row.Outcome); err != nil {
		t.failed = errors.Join(t.failed, err)
	}
	return err
}

// pageOf returns the page about a run.
func pageOf(all []mutantJSON) *mutants.Page {
	p := mutants.Page{Command: strings.Join(append([]string{"go run ./chaos/bugs"}, os.Args[1:]...), " ")}
	for _, m := range all {
		p.Rows = append(p.Rows, mutants.PageRow{Outcome: m.Outcome, What: m.What, Error: m.Error})
	}
	return &p
}

// verdict returns what caught a mutant, or that it was not caught or has no verdict.
func (m mutantJSON) verdict() string {
	switch {
	case m.Error != "":
		return "NO VERDICT"
	case !m.Caught:
		return "NOT CAUGHT"
	}
	return m.By
}

// seeds returns how many seeds were tried; "-" for a checker without seeds.
func (m mutantJSON) seeds() string {
	if m.Seeds == 0 {
		return "-"
	}
	return strconv.FormatUint(m.Seeds, 10)
}

// listedMutant is a mutant in the output of --list.
type listedMutant struct {
	Mutant  string `json:"mutant"`
	Checker string `json:"checker"`
	What    string `json:"what"`
}

func listMutants(s *session, all []mutants.Mutant) error {
	if s.json {
		out := []listedMutant{}
		for _, m := range all {
			out = append(out, listedMutant{m.Name, m.Checker.String(), m.What})
		}
		return s.printJSON(out)
	}
	var rows [][]string
	for _, m := range all {
		rows = append(rows, []string{m.Name, m.What, m.Checker.String()})
	}
	return s.printTable("MUTANT\tWHAT IT BREAKS\tCHECKER", rows)
}

func printMutants(s *session, all []mutantJSON) error {
	if s.json {
		return s.printJSON(all)
	}
	var rows [][]string
	for _, m := range all {
		took := fmt.Sprintf("%.1f s", m.Took.Seconds())
		rows = append(rows, []string{m.Mutant, m.What, m.Checker, m.verdict(), m.seeds(), took})
	}
	return s.printTable("MUTANT\tWHAT IT BREAKS\tCHECKER\tCAUGHT BY\tSEEDS\tTOOK", rows)
}

// saidMax is how many characters of a checker's message are shown; JSON has the whole message.
const saidMax = 160

// mutantProgress prints the result of each mutant as soon as it is known. On a terminal it also prints which mutants
// are being tried.
type mutantProgress struct {
	out  io.Writer
	live bool
	of   int

	mu    sync.Mutex // guards what follows
	done  int
	under []string
}

func newMutantProgress(s *session, of int) *mutantProgress {
	return &mutantProgress{out: s.err, live: interactive(s.err), of: of}
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
	if m.known {
		said = "it was so in " + cmp.Or(m.Commit, "an earlier run")
	}
	if room := []rune(said); m.Error == "" && len(room) > saidMax {
		said = string(room[:saidMax]) + "..."
	}
	fmt.Fprintf(p.out, "%d of %d: %s: %s: %s, seeds %s: %s\n",
		p.done, p.of, m.Mutant, m.Checker, m.verdict(), m.seeds(), strings.TrimSpace(said))
	p.show()
}

// show draws the line of mutants that are being tried. p.mu is held.
func (p *mutantProgress) show() {
	if p.live && len(p.under) > 0 {
		fmt.Fprintf(p.out, "\r\033[K%d of %d, under way: %s", p.done, p.of, strings.Join(p.under, ", "))
	}
}
