package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/chaos/swarm"
	"github.com/ebbdb/ebb/internal/outfile"
)

// procFlags are the flags of `ebb chaos proc` and `ebb chaos soak`.
type procFlags struct {
	trial    proc.Trial
	page     string
	families []string
	seeds    string // first-last; empty: only trial.Seed
}

const procLong = `Nodes are processes of this very binary, under a load of increments with a ledger: each is sent under one identity until its outcome is known, and half of them through
one node after the other. All the time keys are read in four ways, also at nodes that are cut off or stopped, and no read may say less than was acknowledged, or read, before it was asked.
After each fault all is mended, and the load must be acknowledged again; at the end every key must count what was acknowledged, and no more than that and what has an unknown outcome, and all
replicas must be equal.

Networks that are cut and disks that lose what was not synced need Linux and root: namespaces with TUN devices, and ext4 on loop devices, which end with this process. Calls for one file fail
by strace, and a cgroup limits memory. What a machine cannot do is left out, and said. A seed decides which faults come when, and for how long; not what processes do during it.`

func newChaosProc(s *session) *cobra.Command {
	var pf procFlags
	cmd := &cobra.Command{
		Use: "proc", Short: "Break real processes of this binary under load, and count every increment", Args: noArgs, Long: procLong,
		Example: `  ebb chaos proc --for 5m --report proc.html
  ebb chaos proc --cycles 100 --faults kill-all
  ebb chaos proc --cycles 20 --seeds 1-10
  ebb chaos proc --cycles 100 --faults power-all`,
		RunE: func(cmd *cobra.Command, _ []string) error { return chaosProcs(cmd.Context(), s, pf) },
	}
	pf.add(cmd, 2_000, 2*time.Minute)
	cmd.Flags().IntVar(&pf.trial.Cycles, "cycles", 0, "so many faults, instead of --for")
	return cmd
}

func newChaosSoak(s *session) *cobra.Command {
	var pf procFlags
	cmd := &cobra.Command{
		Use: "soak", Short: "Break real processes for long, and see that what they hold does not grow", Args: noArgs,
		Long: procLong + `

The process of the first node is never ended, so that its goroutines, open descriptors and memory can be watched all the time: over the second half they must be flat. That
takes 4 minutes of it at least: of a run of less than 8 minutes growth is not judged, which its last line says. Between faults there are some seconds of calm, in which --rate must be
reached: ` + "`ebb chaos list`" + ` says how nearly, and what may grow.`,
		Example: "  ebb chaos soak --for 1h --report soak.html",
		RunE: func(cmd *cobra.Command, _ []string) error {
			pf.trial.Soak = true
			return chaosProcs(cmd.Context(), s, pf)
		},
	}
	pf.add(cmd, 20_000, time.Hour)
	return cmd
}

func (pf *procFlags) add(cmd *cobra.Command, perSecond int, long time.Duration) {
	f := cmd.Flags()
	f.StringVar(&pf.seeds, "seeds", "1", "which `seeds`, one run after the other until one fails: one, or first-last")
	f.StringVar(&pf.seeds, "seed", "1", "what --seeds was called")
	_ = f.MarkHidden("seed") // fails only for a flag that does not exist
	durationVar(f, &pf.trial.For, "for", long, time.Second, "begin no fault after this long")
	f.IntVar(&pf.trial.Nodes, "nodes", 3, "how many nodes to start")
	f.Uint32Var(&pf.trial.Shards, "shards", 8, "number of shards")
	f.StringSliceVar(&pf.families, "faults", nil, "of these `families` only: see `ebb chaos list`")
	f.IntVar(&pf.trial.Rate, "rate", perSecond, "increments a second")
	f.StringVar(&pf.trial.Dir, "dir", "", "`directory` for data, disks and logs; a temporary one, removed at the end unless something failed, if empty")
	f.StringVar(&pf.page, "report", "", "write a page with a timeline of faults, leaders and what was acknowledged to this `file`")
	f.StringVar(&pf.page, "html", "", "what --report was called")
	_ = f.MarkHidden("html") // fails only for a flag that does not exist
}

// check checks the flags.
func (pf *procFlags) check(s *session) (err error) {
	t := &pf.trial
	switch {
	case t.Nodes < 3 || t.Nodes > 9:
		return usagef("--nodes %d: from 3 to 9", t.Nodes)
	case int(t.Shards) < t.Nodes || t.Shards > 64:
		return usagef("--shards %d: from one a node to 64", t.Shards)
	case t.Rate < 1 || t.Rate > 1_000_000:
		return usagef("--rate %d: from 1 to 1,000,000 increments a second", t.Rate)
	case t.Cycles < 0:
		return usagef("--cycles %d: a number of faults, or 0 for as many as come in --for", t.Cycles)
	}
	if t.Cycles > 0 && !s.given["for"] {
		t.For = 0
	}
	for _, name := range pf.families {
		if !slices.Contains(proc.FamilyNames(), name) {
			return noneOf("--faults", name, proc.FamilyNames())
		}
	}
	t.Families = pf.families
	if _, _, err := proc.Choose(t.Families); err != nil { // before any file is created
		return err
	}
	if err := unused("--dir", t.Dir); err != nil {
		return err
	}
	t.Binary, err = os.Executable()
	return err
}

// chaosProcs runs a trial for each seed, until one fails. The page shows the last trial.
func chaosProcs(ctx context.Context, s *session, pf procFlags) error {
	if err := pf.check(s); err != nil {
		return err
	}
	first, last, err := seedRange(pf.seeds)
	if err != nil {
		return err
	}
	dir := pf.trial.Dir
	for seed := first; seed <= last; seed++ {
		pf.trial.Seed = seed
		if first < last {
			fmt.Fprintf(s.term.err, "seed %d, to %d\n", seed, last)
			if dir != "" {
				pf.trial.Dir = filepath.Join(dir, fmt.Sprintf("seed-%d", seed))
			}
		}
		if err := unused("--dir", pf.trial.Dir); err != nil {
			return err
		}
		if err := chaosProc(ctx, s, pf); err != nil {
			if first < last {
				return fmt.Errorf("seed %d: %w", seed, err)
			}
			return err
		}
	}
	return nil
}

// chaosProc runs a trial, and fails if an invariant did not hold.
func chaosProc(ctx context.Context, s *session, pf procFlags) (err error) {
	t := &pf.trial
	page, err := outfile.OpenReport(pf.page)
	if err != nil {
		return err
	}
	defer page.Drop()
	temporary := t.Dir == ""
	if temporary {
		if t.Dir, err = os.MkdirTemp("", "ebb-chaos-"); err != nil {
			return err
		}
	} else if err := outfile.MakeDir("--dir", t.Dir); err != nil {
		return err
	}
	t.Progress = func(line string) { fmt.Fprintln(s.term.err, line) }
	r, err := t.Run(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("%w; data and logs are in %s", err, t.Dir)
	case temporary && (err != nil || !r.Failed()):
		removeAll(s, t.Dir)
	}
	if err != nil {
		return err
	}
	r.Command = strings.Join(append([]string{"ebb"}, os.Args[1:]...), " ")
	if err := page.Write(procPage(r).HTML); err != nil {
		return err
	}
	if s.output == "json" {
		err = printJSON(s.term.out, r)
	} else {
		err = printProc(s, r)
	}
	if err == nil && r.Late() {
		return fmt.Errorf("%s something took too long, first %s; %w; data and logs are in %s",
			plural(len(r.Verdict.Breaches), "time", "times"), r.Verdict.Breaches[0].Invariant, errLate, t.Dir)
	}
	if err == nil && r.Failed() {
		return fmt.Errorf("%s something did not hold, first %s; data and logs are in %s", plural(len(r.Verdict.Breaches), "time", "times"), r.Verdict.Breaches[0].Invariant, t.Dir)
	}
	if err == nil && r.Interrupted {
		err = ctx.Err()
	}
	return err
}

// procLead summarizes the result of a trial in a sentence.
func procLead(r *proc.Report) string {
	v, n := r.Verdict, 0
	for _, times := range v.Faults {
		n += times
	}
	open := ""
	if r.Ledger.Open > 0 {
		open = fmt.Sprintf(", %d under way", r.Ledger.Open)
	}
	compared := "no key compared with the ledger"
	if r.Keys > 0 {
		compared = plural(r.Keys, "key", "keys") + " compared with the ledger: " + differences(r.Lost, r.Twice)
	}
	lead := fmt.Sprintf("%s in %v: %d increments acknowledged, %d unknown, %d refused%s; %s", plural(n, "fault", "faults"), v.Real.Round(time.Second),
		r.Ledger.Acknowledged, r.Ledger.Unknown, r.Ledger.Refused, open, compared)
	answered, refused := 0, 0
	for _, of := range r.Reads {
		answered, refused = answered+of.Answered, refused+of.Refused
	}
	lead += fmt.Sprintf("; %d reads answered during it, %d refused, %d wrong", answered, refused, r.Stale)
	if r.Rate != nil && r.Rate.Times > 0 {
		lead += fmt.Sprintf("; %v", r.Rate)
	}
	if r.Interrupted {
		lead += "; interrupted: what was not yet compared with the ledger is not judged"
	}
	return lead
}

// unjudged returns why a soak does not judge whether anything grows; "" if it does.
func unjudged(r *proc.Report) string {
	if r.Rate == nil || r.Interrupted || r.Failed() || len(r.Trends) > 0 {
		return "" // no soak, or one that ended early
	}
	half, enough := r.Verdict.Virtual/2, soakEnough/2
	if half >= enough {
		return "growth is not judged: no process could be watched through the second half"
	}
	return fmt.Sprintf("growth is not judged: it takes %v of the second half of a run, which was %v here; --for %.0fm is long enough", proc.TrendMin, half.Round(time.Second), soakEnough.Minutes())
}

// soakEnough is the shortest soak in which growth is judged; it is judged in the second half.
const soakEnough = 2*proc.TrendMin + 2*time.Minute

// differences describes how many keys differ from the ledger.
func differences(lost, twice int) string {
	if lost+twice == 0 {
		return "0 lost, 0 counted twice"
	}
	return fmt.Sprintf("%s lost increments, %s counted some twice", plural(lost, "key has", "keys have"), plural(twice, "key has", "keys have"))
}

// procTables are the tables of a trial, for the page and the terminal.
func procTables(r *proc.Report) []swarm.PageTable {
	faults := swarm.PageTable{Title: "Faults", Head: []string{"FAMILY", "INJECTED", "HEALED IN (MEDIAN)", "(LONGEST)", "WHAT HAPPENS"}}
	for _, f := range proc.Families {
		row := []string{f.Name, strconv.Itoa(r.Verdict.Faults[f.Name]), "", "", f.What}
		for _, o := range r.Outages {
			if o.Family == f.Name {
				row[2], row[3] = o.Median.Round(10*time.Millisecond).String(), o.Longest.Round(10*time.Millisecond).String()
			}
		}
		for _, no := range r.Skipped {
			if no.Family == f.Name {
				row[1], row[4] = "skipped", no.Why
			}
		}
		if row[1] != "0" {
			faults.Rows = append(faults.Rows, row)
		}
	}
	holds := swarm.PageTable{Title: "Invariants", Head: []string{"INVARIANT", "EVALUATED", "WHAT HOLDS"}}
	for _, i := range proc.Invariants {
		holds.Rows = append(holds.Rows, []string{i.Name, strconv.Itoa(r.Verdict.Checks[i.Name]), i.Holds})
	}
	reads := swarm.PageTable{Title: "Linearizable reads, all the time", Head: []string{"ASKED", "ANSWERED", "REFUSED", "LONGEST", "LAST REFUSED, SINCE"}}
	for _, of := range r.Reads {
		reads.Rows = append(reads.Rows, []string{string(of.Manner), strconv.Itoa(of.Answered), strconv.Itoa(of.Refused), of.Longest.Round(time.Millisecond).String(), of.Why})
	}
	trends := swarm.PageTable{Title: "What processes hold, over the second half", Head: []string{"PROCESS", "WHAT", "MEAN", "CHANGE", "LIMIT", "SAMPLES"}}
	for _, t := range r.Trends {
		trends.Rows = append(trends.Rows, []string{
			t.Node, t.What, fmt.Sprintf("%.0f", t.Mean), fmt.Sprintf("%+.0f", t.Growth), fmt.Sprintf("%+.0f", t.Limit), strconv.Itoa(t.Samples),
		})
	}
	return []swarm.PageTable{faults, holds, reads, trends}
}

func procPage(r *proc.Report) *swarm.RunPage {
	lead := procLead(r)
	if why := unjudged(r); why != "" {
		lead += "; " + why
	}
	title := "ebb chaos proc"
	if r.Soak {
		title = "ebb chaos soak"
	}
	return &swarm.RunPage{
		Title: title, Lead: lead, Command: r.Command, Interrupted: r.Interrupted, Late: r.Late(),
		Verdict: r.Verdict, Tables: procTables(r),
	}
}

func printProc(s *session, r *proc.Report) error {
	for _, b := range r.Verdict.Breaches {
		fmt.Fprintf(s.term.out, "FAILED %v\n", b)
	}
	for _, t := range procTables(r) {
		if len(t.Rows) == 0 {
			continue
		}
		if err := s.printTable(strings.Join(t.Head, "\t"), t.Rows); err != nil {
			return err
		}
		if s.output != "tsv" {
			fmt.Fprintln(s.term.out)
		}
	}
	if s.output == "tsv" {
		return nil
	}
	lines := []string{procLead(r)}
	if why := unjudged(r); why != "" {
		lines = append(lines, why)
	}
	_, err := fmt.Fprintln(s.term.out, strings.Join(lines, "\n"))
	return err
}
