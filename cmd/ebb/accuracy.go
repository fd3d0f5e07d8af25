package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/bench/accuracy"
)

// accuracyFlags are the flags of ebb accuracy: which kinds are tried, and how often.
type accuracyFlags struct {
	kinds   stringsValue
	dir     string
	max     float64 // a float, so that 1e9 is accepted
	figures int
	o       accuracy.Options
}

func newAccuracy(s *session) *cobra.Command {
	var af accuracyFlags
	cmd := &cobra.Command{
		Use: "accuracy", Short: "Measure the bias and error of sketches on this machine, and compare them with theory", Args: noArgs,
		Long: `Tries each kind many times from fixed seeds, over sizes from 1 to --max, and compares the bias and root mean
square of the relative errors with theory. It writes accuracy.csv, figures.csv and two plots of each kind to --out; the
table printed has the size of each kind at which the error is the largest part of theory. loglog, superloglog and
hyperloglog are published estimators to compare with, and no kinds of ebb. Two more tables have the figures that the
origins published, measured again, and the hard bounds of countmin, topk, quantile and bloom. The last table says for each
kind, with and without decay, with late events and bursts, how many 95% intervals contain the truth. No cluster is asked.

It fails when a kind of ebb is outside of theory: an error of more than 1.05 of it, or a bias of more than 4.5 standard
errors, beyond what chance allows so few trials, when a bound does not hold, or when too few intervals contain the
truth, or too many.`,
		Example: `  ebb accuracy --kind distinct --kind set
  ebb accuracy --trials 100000 --per-decade 4 --max 1e12 --workers 8   # hours`,
		RunE: func(cmd *cobra.Command, _ []string) error { return af.run(cmd.Context(), s) },
	}
	f := cmd.Flags()
	f.Var(&af.kinds, "kind", "`name` of a kind; may be repeated; all, and the figures and bounds, if none")
	f.StringVar(&af.dir, "out", "accuracy", "`directory` for CSV and plots; empty writes none")
	f.IntVar(&af.o.Trials, "trials", 200, "how often each kind is tried")
	f.Float64Var(&af.max, "max", 1e9, "the largest `size`, up to 1e18; some kinds end earlier")
	f.IntVar(&af.o.PerDecade, "per-decade", 3, "sizes in each power of ten")
	f.Uint64Var(&af.o.Exact, "exact", 1_000_000, "up to this `size` all things are really added, beyond only those that change a sketch")
	f.Uint64Var(&af.o.Seed, "seed", 0, "another one draws other trials")
	f.IntVar(&af.o.Workers, "workers", 1, "cores to use")
	f.IntVar(&af.figures, "figures", 1, "`seeds` of the streams with which the figures of the origins and the bounds of kinds are measured; 0 leaves them out")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(accuracyKinds(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func accuracyKinds() (names []string) {
	for _, k := range accuracy.Kinds() {
		names = append(names, k.Name)
	}
	return names
}

// settle checks the flags, and returns the kinds that they name.
func (af *accuracyFlags) settle() ([]accuracy.Kind, error) {
	for _, c := range []struct {
		name       string
		value      float64
		least, top float64
	}{
		{"trials", float64(af.o.Trials), 2, 1e7},
		{"max", af.max, 1, 1e18},
		{"per-decade", float64(af.o.PerDecade), 1, 100},
		{"exact", float64(af.o.Exact), 1, 1e12},
		{"workers", float64(af.o.Workers), 1, 1e4},
		{"figures", float64(af.figures), 0, 1e6},
	} {
		if !(c.value >= c.least && c.value <= c.top) {
			return nil, usagef("--%s %g: it must be from %g to %g", c.name, c.value, c.least, c.top)
		}
	}
	af.o.Max = uint64(af.max)
	all := accuracy.Kinds()
	if len(af.kinds) == 0 {
		return all, nil
	}
	var kinds []accuracy.Kind
	for _, name := range af.kinds {
		i := slices.IndexFunc(all, func(k accuracy.Kind) bool { return k.Name == name })
		if i < 0 {
			return nil, noneOf("--kind", name, accuracyKinds())
		}
		kinds = append(kinds, all[i])
	}
	return kinds, nil
}

// kindResult is the result of one kind.
type kindResult struct {
	Name      string         `json:"name"`
	About     string         `json:"about"`
	Reference bool           `json:"reference"`
	Rows      []accuracy.Row `json:"rows"`
}

func (af *accuracyFlags) run(ctx context.Context, s *session) error {
	kinds, err := af.settle()
	if err != nil {
		return err
	}
	if af.dir != "" {
		if err := os.MkdirAll(af.dir, 0o755); err != nil {
			return err
		}
	}
	var results []kindResult
	for _, k := range kinds {
		start := time.Now()
		rows, err := accuracy.Run(ctx, k, af.watched(s, k.Name))
		if err != nil {
			return err
		}
		say(s, "%s: %d trials of %d sizes in %v", k.Name, af.o.Trials, len(rows), time.Since(start).Round(time.Millisecond))
		results = append(results, kindResult{k.Name, k.About, k.Reference, rows})
	}
	figures, err := af.measureFigures(ctx, s)
	if err != nil {
		return err
	}
	var bounds []accuracy.Bound
	var coverages []accuracy.Coverage
	if figures != nil {
		bounds = accuracy.Bounds(af.figures)
		say(s, "intervals ...")
		coverages = accuracy.Coverages(max(coverageTrials, af.o.Trials))
	}
	if err := af.write(results, figures); err != nil {
		return err
	}
	if err := printAccuracy(s, results, figures, bounds, coverages); err != nil {
		return err
	}
	return outsideOf(results, bounds, coverages)
}

// coverageTrials is how often the intervals of a kind are tried at least. So many trials measure 95% to half a per
// cent.
const coverageTrials = 2000

// watched returns the options, with a line of progress every five seconds.
func (af *accuracyFlags) watched(s *session, kind string) accuracy.Options {
	o := af.o
	o.Done = paced(5*time.Second, func(trials int) { say(s, "%s: %d of %d trials", kind, trials, o.Trials) })
	return o
}

// paced returns a function that calls f at most once in the time every. Concurrent callers do not wait.
func paced(every time.Duration, f func(int)) func(int) {
	due := make(chan time.Time, 1)
	due <- time.Now().Add(every)
	return func(n int) {
		select {
		case at := <-due:
			if now := time.Now(); now.After(at) {
				f(n)
				at = now.Add(every)
			}
			due <- at
		default:
		}
	}
}

// measureFigures measures the figures that the origins published, unless kinds were named.
func (af *accuracyFlags) measureFigures(ctx context.Context, s *session) ([]accuracy.Figure, error) {
	if len(af.kinds) > 0 || af.figures == 0 {
		return nil, nil
	}
	say(s, "figures of the origins ...")
	start := time.Now()
	figures, err := accuracy.Words(ctx, af.figures, paced(5*time.Second, func(seeds int) { say(s, "different words: %d of %d seeds", seeds, af.figures) }))
	if err != nil {
		return nil, err
	}
	registers, err := accuracy.Registers(ctx, af.o.Trials)
	if err != nil {
		return nil, err
	}
	figures = slices.Concat(figures, registers, accuracy.Overlaps(af.o.Trials), accuracy.Messages(af.o.Trials))
	say(s, "figures: %d seeds in %v", af.figures, time.Since(start).Round(time.Millisecond))
	return figures, nil
}

// write writes the files of --out.
func (af *accuracyFlags) write(results []kindResult, figures []accuracy.Figure) error {
	if af.dir == "" {
		return nil
	}
	var all []accuracy.Row
	for _, k := range results {
		all = append(all, k.Rows...)
		title := k.Name + ": " + k.About
		if err := writeFile(filepath.Join(af.dir, k.Name+"-rmse.svg"), func(w io.Writer) error { return accuracy.PlotRMSE(w, title, k.Rows) }); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(af.dir, k.Name+"-bias.svg"), func(w io.Writer) error { return accuracy.PlotBias(w, title, k.Rows) }); err != nil {
			return err
		}
	}
	if err := writeFile(filepath.Join(af.dir, "accuracy.csv"), func(w io.Writer) error { return accuracy.WriteCSV(w, all) }); err != nil || figures == nil {
		return err
	}
	return writeFile(filepath.Join(af.dir, "figures.csv"), func(w io.Writer) error {
		out := csv.NewWriter(w)
		return out.WriteAll(append([][]string{{"what", "structure", "origin", "bias", "rmse", "worst", "theory", "bytes", "seeds"}}, figureRows(figures, exactPart)...))
	})
}

func writeFile(name string, f func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(f(file), file.Close())
}

func printAccuracy(
	s *session, results []kindResult, figures []accuracy.Figure, bounds []accuracy.Bound, coverages []accuracy.Coverage,
) error {
	switch s.output {
	case "json":
		return printJSON(s.term.out, map[string]any{
			"kinds": results, "figures": figures, "bounds": bounds, "coverage": coverages,
		})
	case "tsv":
		var rows [][]string
		for _, k := range results {
			for _, r := range k.Rows {
				rows = append(rows, accuracyRow(r, exactPart))
			}
		}
		return s.printTable("", slices.Concat(
			rows, figureRows(figures, exactPart), boundRows(bounds, exactPart), coverageRows(coverages, exactPart)))
	}
	var rows [][]string
	for _, k := range results {
		rows = append(rows, accuracyRow(worst(k.Rows), percent))
	}
	if err := s.printTable("KIND\tTHINGS\tBIAS\tRMSE\tTHEORY\tRMSE/THEORY\tBYTES\tTRIALS", rows); err != nil || figures == nil {
		return err
	}
	fmt.Fprintln(s.term.out)
	if err := s.printTable("WHAT\tSTRUCTURE\tORIGIN\tBIAS\tRMSE\tWORST\tTHEORY\tBYTES\tSEEDS", figureRows(figures, percent)); err != nil {
		return err
	}
	fmt.Fprintln(s.term.out)
	if err := s.printTable("KIND\tPROMISE\tLIMIT\tMEASURED\tCHECKS", boundRows(bounds, percent)); err != nil || coverages == nil {
		return err
	}
	fmt.Fprintln(s.term.out)
	return s.printTable("INTERVALS OF\tEVENTS\tTO BE\tCONTAIN THE TRUTH\tCHECKS", coverageRows(coverages, percent))
}

func coverageRows(coverages []accuracy.Coverage, part func(float64) string) (rows [][]string) {
	for _, c := range coverages {
		rows = append(rows, []string{c.Kind, c.Stream, coverageGoal(c), part(c.Inside), strconv.Itoa(c.Checks)})
	}
	return rows
}

// coverageGoal returns which share of the intervals should contain the truth.
func coverageGoal(c accuracy.Coverage) string {
	if c.Statistical {
		return fmt.Sprintf("%g%% to %g%%", 100*accuracy.CoverageLeast, 100*accuracy.CoverageMost)
	}
	return fmt.Sprintf("%g%% or more", 100*accuracy.CoverageLeast)
}

func boundRows(bounds []accuracy.Bound, part func(float64) string) (rows [][]string) {
	for _, b := range bounds {
		rows = append(rows, []string{b.Kind, b.Promise, part(b.Limit), part(b.Measured), strconv.Itoa(b.Checks)})
	}
	return rows
}

// worst returns the row with the largest error relative to theory.
func worst(rows []accuracy.Row) accuracy.Row {
	return slices.MaxFunc(rows, func(a, b accuracy.Row) int {
		x, y := ofTheory(a), ofTheory(b)
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
}

// ofTheory returns the error relative to theory; 0 if no theory is known or all is exact.
func ofTheory(r accuracy.Row) float64 {
	if r.Theory == nil || *r.Theory == 0 {
		return 0
	}
	return r.RMSE / *r.Theory
}

func accuracyRow(r accuracy.Row, part func(float64) string) []string {
	theory := "-"
	if r.Theory != nil {
		theory = part(*r.Theory)
	}
	return []string{
		r.Kind, strconv.FormatUint(r.N, 10), part(r.Bias), part(r.RMSE), theory, strconv.FormatFloat(ofTheory(r), 'f', 3, 64),
		strconv.Itoa(r.Encoded), strconv.Itoa(r.Trials),
	}
}

func figureRows(figures []accuracy.Figure, part func(float64) string) (rows [][]string) {
	for _, f := range figures {
		theory, origin := "-", "-"
		if f.Theory > 0 {
			theory = part(f.Theory)
		}
		if f.Origin != "" {
			origin = f.Origin
		}
		rows = append(rows, []string{
			f.What, f.Structure, origin, part(f.Bias), part(f.RMSE), part(f.Worst), theory, strconv.Itoa(f.Bytes), strconv.Itoa(f.Seeds),
		})
	}
	return rows
}

func exactPart(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

func percent(v float64) string {
	if math.Abs(v) < 5e-6 { // prints as 0, without a sign
		v = 0
	}
	return strconv.FormatFloat(100*v, 'f', 3, 64) + "%"
}

// outsideOf returns an error that names the kinds of ebb whose results were outside of theory or of their bounds; nil
// if there are none.
func outsideOf(results []kindResult, bounds []accuracy.Bound, coverages []accuracy.Coverage) error {
	var errs []error
	for _, k := range results {
		for _, r := range k.Rows {
			if !r.Within && !k.Reference {
				errs = append(errs, fmt.Errorf("%s at %d: bias %s, rmse %s, theory %s", r.Kind, r.N, percent(r.Bias), percent(r.RMSE), percent(*r.Theory)))
			}
		}
	}
	for _, b := range bounds {
		if !b.Within {
			errs = append(errs, fmt.Errorf("%s: %s: %s, limit %s", b.Kind, b.Promise, percent(b.Measured), percent(b.Limit)))
		}
	}
	for _, c := range coverages {
		if !c.Within {
			errs = append(errs, fmt.Errorf("%s, %s: %s of the intervals contain the truth, to be %s",
				c.Kind, c.Stream, percent(c.Inside), coverageGoal(c)))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("outside of theory: %w", errors.Join(errs...))
}
