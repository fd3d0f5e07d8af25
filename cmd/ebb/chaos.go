package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/chaos/swarm"
	"github.com/ebbdb/ebb/internal/outfile"
)

// chaosFlags are the flags of `ebb chaos sim`.
type chaosFlags struct {
	seeds    string
	parallel int
	limit    time.Duration
	families []string
	acts     string
	first    bool
	noShrink bool
	report   string
	resume   string
	story    bool
}

// chaosWorker is the name of the hidden command with which the binary runs plans in processes of its own.
const chaosWorker = "worker"

func newChaos(s *session) *cobra.Command {
	var cf chaosFlags
	sim := &cobra.Command{
		Use: "sim", Short: "Break simulated clusters of this build in ways drawn from seeds, and check every answer", Args: noArgs,
		Long: `Each seed is a whole cluster in virtual time, with clients that know what every answer may be, and a plan of faults: what networks, disks, clocks, processes and
operators do. Afterwards all is mended, and the cluster must answer everything, and right. Seeds run in processes of their own; nothing is listened on
and nothing is written to disk. A seed that fails is shrunk to the fewest faults that still fail, and ends in a line that replays it.

With --resume a long run continues where it was broken off, and can be made in parts: with files of several ranges put one behind the other, the last run adds them up.

A seed decides the faults and not how goroutines interleave: replayed, it explores the same neighbourhood, and may need a few tries.`,
		Example: `  ebb chaos sim --seeds 1-1000 --report swarm.html
  ebb chaos sim --for 10m --families leader-cut,power-all,clock-jump
  ebb chaos sim --seeds 1-10000 --resume seeds.jsonl
  ebb chaos sim --seeds 17 --acts outage,2,3 --story`,
		RunE: func(cmd *cobra.Command, _ []string) error { return chaosSim(cmd.Context(), s, cf) },
	}
	f := sim.Flags()
	f.StringVar(&cf.seeds, "seeds", "1-100", "which `seeds`: one, or first-last; with --for, from the first on")
	f.IntVar(&cf.parallel, "parallel", runtime.NumCPU(), "how many seeds at once")
	durationVar(f, &cf.limit, "for", 0, 0, "begin no seed after this long; without --seeds there is no other end")
	f.StringSliceVar(&cf.families, "families", nil, "draw faults from these `families` only: see `ebb chaos list`")
	f.StringVar(&cf.acts, "acts", "", "of each plan only the faults with these `numbers`, with outage its first one and with home the wait for leaders at its end: outage,2,3,home; none for no faults")
	f.BoolVar(&cf.first, "first", false, "end with the first seed that fails")
	f.BoolVar(&cf.noShrink, "no-shrink", false, "do not look for a smaller plan that fails")
	f.StringVar(&cf.report, "report", "", "write a page with timelines of what was broken, who led and what was answered to this `file`")
	f.StringVar(&cf.resume, "resume", "", "append every seed's verdict to this `file`, and run no seed that is in it: what it has is added up")
	f.BoolVar(&cf.story, "story", false, "tell of every seed what happened, not only of those that fail")
	worker := &cobra.Command{
		Use: chaosWorker, Hidden: true, Args: noArgs,
		Run: func(*cobra.Command, []string) { swarm.Main(s.term.in, s.term.out, s.term.err, nil) },
	}
	list := &cobra.Command{
		Use: "list", Short: "The families of faults, and what must hold under all of them", Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return chaosList(s) },
	}
	return children(&cobra.Command{Use: "chaos", Short: "Break clusters of this build on purpose, and see what holds"}, sim, newChaosProc(s), newChaosFailover(s), newChaosSoak(s), list, worker)
}

// chaosSim runs seeds, and fails if one of them does.
func chaosSim(ctx context.Context, s *session, cf chaosFlags) error {
	c, err := cf.campaign(s)
	if err != nil {
		return err
	}
	page, err := outfile.OpenReport(cf.report)
	if err != nil {
		return err
	}
	defer page.Drop()
	if cf.resume != "" {
		if c.Kept, err = swarm.OpenKept(cf.resume, buildName()); err != nil {
			return outfile.NotResumed(cf.resume, err)
		}
		defer c.Kept.Close() //nolint:errcheck // each verdict was already written to the file
	}
	progress := newChaosProgress(s)
	c.Progress = progress.show
	if cf.story {
		c.Each = func(v *swarm.Verdict) { fmt.Fprint(s.term.err, v.Tell()) }
	}
	r, err := c.Run(ctx)
	progress.end()
	if err != nil {
		if errors.Is(err, swarm.ErrAnotherPlan) {
			err = outfile.NotResumed(cf.resume, err)
		}
		return err
	}
	r.Command = strings.Join(append([]string{"ebb"}, os.Args[1:]...), " ")
	if err := page.Write(r.HTML); err != nil {
		return err
	}
	if err := printChaos(s, r); err != nil {
		return err
	}
	switch {
	case len(r.Failures) > 0:
		return fmt.Errorf("%d of %s failed; the first: %s", len(r.Failures), plural(r.Sum.Seeds, "seed", "seeds"), r.FirstFailure.Replay)
	case ctx.Err() != nil:
		return ctx.Err()
	case r.Late != "":
		return errors.New(r.Late)
	case r.Sum.Seeds == 0:
		return fmt.Errorf("no seed ended within %v: give --for more", cf.limit)
	}
	return nil
}

// campaign checks the flags, and makes a campaign of them.
func (cf chaosFlags) campaign(s *session) (*swarm.Campaign, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if cf.parallel < 1 || cf.parallel > 1024 {
		return nil, usagef("--parallel %d: from 1 to 1024 seeds at once", cf.parallel)
	}
	for _, name := range cf.families {
		if _, ok := swarm.FamilyOf(name); !ok {
			return nil, noneOf("--families", name, swarm.FamilyNames())
		}
	}
	c := &swarm.Campaign{
		Fleet: &swarm.Fleet{StuckAfter: chaosStuck, Command: func(ctx context.Context) *exec.Cmd {
			cmd := exec.CommandContext(ctx, binary, "chaos", chaosWorker)
			swarm.Prepare(cmd)
			return cmd
		}},
		For: cf.limit, Workers: cf.parallel, Families: cf.families, StopAtFirst: cf.first, NoShrink: cf.noShrink,
	}
	if c.First, c.Last, err = seedRange(cf.seeds); err != nil {
		return nil, err
	}
	if cf.limit > 0 && !s.given["seeds"] {
		c.Last = 1<<63 - 1
	}
	if cf.acts == "" {
		return c, nil
	}
	choice, err := swarm.ParseChoice(cf.acts)
	if err != nil {
		return nil, usagef("--acts %w", err)
	}
	c.Faults = &choice
	return c, knownActs(c)
}

// actsLooked is for how many seeds knownActs checks that their plans have the requested faults. About every third plan
// has only two.
const actsLooked = 10_000

// knownActs refuses a request for faults that a plan does not have. A run with fewer faults than requested would show
// nothing about the missing ones.
func knownActs(c *swarm.Campaign) error {
	for seed := c.First; seed <= c.Last && seed-c.First < actsLooked; seed++ {
		p := swarm.Draw(seed, c.Families...)
		if lack := c.Faults.Lacks(p); lack != "" {
			return usagef("--acts %s: the plan of seed %d has %s; choose of %s", lack, seed, plural(len(p.Faults), "fault", "faults"), p.Choice())
		}
	}
	return nil
}

// buildName identifies a build: the results of seeds are added up only within one build.
func buildName() string {
	revision, modified := builtFrom()
	if modified {
		revision += " with changes"
	}
	return version + " of " + revision
}

// chaosStuck is how long a seed may take; usually it takes seconds.
const chaosStuck = 5 * time.Minute

// seedRange reads "first-last", or a single seed.
func seedRange(text string) (first, last uint64, err error) {
	a, b, both := strings.Cut(text, "-")
	if !both {
		b = a
	}
	first, err1 := strconv.ParseUint(a, 10, 63)
	last, err2 := strconv.ParseUint(b, 10, 63)
	if err1 != nil || err2 != nil || first > last {
		return 0, 0, usagef("--seeds %q: one seed such as 17, or first-last such as 1-1000", text)
	}
	return first, last, nil
}

// printKnobs prints, for each limit, how many seeds had which value.
func printKnobs(s *session, r *swarm.Report) error {
	var rows [][]string
	for _, k := range swarm.Knobs {
		count := r.Sum.Knobs[k.Name]
		rows = append(rows, []string{
			k.Name, strconv.Itoa(count.First), strconv.Itoa(count.Between), strconv.Itoa(count.Production),
			strconv.FormatInt(k.Values[0], 10), k.What,
		})
	}
	return s.printTable("LIMIT\tTIGHTEST\tBETWEEN\tOF PRODUCTION\tTHE TIGHTEST\tWHAT IT LIMITS", rows)
}

func printChaos(s *session, r *swarm.Report) error {
	if s.output == "json" {
		return printJSON(s.term.out, r)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(s.term.out, "FAILED %s\n  replay: %s\n", f.What, f.Replay)
		fmt.Fprint(s.term.out, f.Verdict.Tell())
	}
	var rows [][]string
	for _, f := range swarm.Families {
		rows = append(rows, []string{f.Name, strconv.Itoa(r.Sum.Faults[f.Name]), f.What})
	}
	if err := s.printTable("FAMILY\tINJECTED\tWHAT HAPPENS", rows); err != nil {
		return err
	}
	rows = nil
	for _, i := range swarm.Invariants {
		rows = append(rows, []string{i.Name, strconv.Itoa(r.Sum.Checks[i.Name]), i.Holds})
	}
	if s.output != "tsv" {
		fmt.Fprintln(s.term.out)
	}
	if err := s.printTable("INVARIANT\tEVALUATED\tWHAT HOLDS", rows); err != nil {
		return err
	}
	if s.output != "tsv" {
		fmt.Fprintln(s.term.out)
	}
	rows = nil
	for _, name := range swarm.Failpoints() {
		rows = append(rows, []string{name, strconv.Itoa(r.Sum.Points[name].Armed), strconv.Itoa(r.Sum.Points[name].Killed)})
	}
	if err := s.printTable("FAILPOINT\tARMED\tKILLED THERE", rows); err != nil {
		return err
	}
	if s.output != "tsv" {
		fmt.Fprintln(s.term.out)
	}
	if err := printKnobs(s, r); err != nil {
		return err
	}
	if s.output == "tsv" {
		return nil
	}
	before := ""
	if r.Before > 0 {
		before = fmt.Sprintf(" (%d of them before)", r.Before)
	}
	faults, checks := 0, 0
	for _, n := range r.Sum.Faults {
		faults += n
	}
	for _, n := range r.Sum.Checks {
		checks += n
	}
	_, err := fmt.Fprintf(s.term.out, "\n%s%s, %d failed; %s, %s; %v of virtual time in %v, %.2f seeds/s; %v one after the other\n%v\n%v; nodes came or went in %s\n%s\n",
		r.Ran(), before, len(r.Failures), plural(faults, "fault", "faults"), plural(checks, "evaluation", "evaluations"), r.Sum.Virtual.Round(time.Second), r.Real.Round(time.Second), r.SeedsPerSecond(), r.Sum.Real.Round(time.Second), r.Sum.Tally, &r.Sum.Outage, plural(r.Sum.Members, "seed", "seeds"), r.Mode)
	return err
}

// chaosList prints the families of faults and the invariants, without counts.
func chaosList(s *session) error {
	if s.output == "json" {
		type row struct {
			Name string `json:"name"`
			What string `json:"what"`
			Dose string `json:"dose,omitempty"`
		}
		var out struct {
			Families   []row `json:"families"`
			Invariants []row `json:"invariants"`
			// for clusters of real processes
			Processes struct {
				Families   []row `json:"families"`
				Invariants []row `json:"invariants"`
			} `json:"processes"`
		}
		for _, f := range swarm.Families {
			out.Families = append(out.Families, row{f.Name, f.What, f.Dose})
		}
		for _, i := range swarm.Invariants {
			out.Invariants = append(out.Invariants, row{i.Name, i.Holds, ""})
		}
		for _, f := range proc.Families {
			out.Processes.Families = append(out.Processes.Families, row{f.Name, f.What, ""})
		}
		for _, i := range proc.Invariants {
			out.Processes.Invariants = append(out.Processes.Invariants, row{i.Name, i.Holds, ""})
		}
		return printJSON(s.term.out, out)
	}
	var rows [][]string
	for _, f := range swarm.Families {
		rows = append(rows, []string{f.Name, f.What, f.Dose})
	}
	for _, i := range swarm.Invariants {
		rows = append(rows, []string{i.Name, i.Holds, ""})
	}
	rows = slices.Insert(rows, len(swarm.Families), []string{"", "", ""}, []string{"INVARIANT", "WHAT HOLDS", ""})
	rows = append(rows, []string{"", "", ""}, []string{"FAMILY OF chaos proc", "WHAT HAPPENS", ""})
	for _, f := range proc.Families {
		rows = append(rows, []string{f.Name, f.What, ""})
	}
	rows = append(rows, []string{"", "", ""}, []string{"INVARIANT OF chaos proc", "WHAT HOLDS", ""})
	for _, i := range proc.Invariants {
		rows = append(rows, []string{i.Name, i.Holds, ""})
	}
	return s.printTable("FAMILY\tWHAT HAPPENS\tDOSE", rows)
}

// chaosProgress shows the progress of a campaign: updated in place on a terminal, else a line every half minute.
type chaosProgress struct {
	s        *session
	live     bool
	last     time.Time
	wrote    bool
	interval time.Duration
}

func newChaosProgress(s *session) *chaosProgress {
	p := &chaosProgress{s: s, live: interactive(s.term.err), interval: 30 * time.Second, last: time.Now()}
	if p.live {
		p.interval = 200 * time.Millisecond
	}
	return p
}

func (p *chaosProgress) show(r *swarm.Report, activity string) {
	if time.Since(p.last) < p.interval && activity == "" {
		return
	}
	p.last, p.wrote = time.Now(), true
	seeds := plural(r.Sum.Seeds, "seed", "seeds")
	if r.Asked > 0 {
		seeds = fmt.Sprintf("%d of %s", r.Sum.Seeds, plural(r.Asked, "seed", "seeds"))
	}
	line := fmt.Sprintf("%s, %d failed, %.2f seeds/s, %v of virtual time", seeds, len(r.Failures), r.SeedsPerSecond(), r.Sum.Virtual.Round(time.Second))
	if activity != "" {
		line += ", " + activity
	}
	if p.live {
		fmt.Fprintf(rawTerminal(p.s.term.err), "\r\033[K%s", line)
		return
	}
	fmt.Fprintln(p.s.term.err, line)
}

func (p *chaosProgress) end() {
	if p.live && p.wrote {
		fmt.Fprintln(p.s.term.err)
	}
}
