package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

func newQuery(s *session) *cobra.Command {
	var explain bool
	var strict bool
	var watch time.Duration
	cmd := &cobra.Command{
		Use: "query TEXT", Short: "Ask anything, in the query language", Args: argsBetween(1, 1, "TEXT (in quotes; - reads it from standard input)"),
		Long: "One language for all questions. docs/query.md has its grammar.\n\n" + formsHelp() + `
Several keys are joined with |, and patterns name all that match. These go for the whole question, behind it:

  in NAMESPACE   as of 2013-05-06T12:00:00Z   with confidence 0.99
  with consistency linearizable | bounded 10s | any   allow partial

- reads the question from standard input.`,
		Example: "  ebb query 'top 10 clicks/country'\n  ebb query 'distinct(visits/a | visits/b)' --json\n  ebb query --explain 'top 5 keys link/* by trend(10m, 6h)'\n" +
			"  ebb query --watch 2s 'top 3 clicks/country'\n  ebb query - < question.txt",
		RunE: func(cmd *cobra.Command, args []string) error {
			text := args[0]
			if text == "-" {
				raw, err := io.ReadAll(io.LimitReader(s.term.in, query.TextBytesMax+1))
				if err != nil {
					return err
				}
				text = string(raw)
			}
			if explain && watch > 0 {
				return usagef("--explain asks nothing, so that there is nothing to --watch")
			}
			return pointed(text, s.query(cmd, text, explain, strict, watch))
		},
		ValidArgsFunction: completeQuery,
	}
	cmd.Flags().BoolVar(&strict, "strict", false,
		"refuse to answer (exit code 3) where a key, a pattern or a range means nothing that is there; "+
			"otherwise it counts as empty, and is named")
	cmd.Flags().BoolVar(&explain, "explain", false, "print what would be asked, and which shards, and ask nothing")
	durationVar(cmd.Flags(), &watch, "watch", 0, 0, "ask again at this interval, 100ms to 1h, and print what has changed, until interrupted")
	return cmd
}

// formsHelp lists all forms of questions.
func formsHelp() string {
	var b strings.Builder
	for _, f := range query.Forms() {
		fmt.Fprintf(&b, "  %s\n", f.Usage)
	}
	return b.String()
}

// completeQuery completes the first word of a question.
func completeQuery(_ *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, f := range query.Forms() {
		begin := f.Name + " "
		if f.Call {
			begin = f.Name + "("
		}
		if len(args) == 0 && strings.HasPrefix(begin, start) {
			out = append(out, begin+"\t"+f.Summary)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveKeepOrder
}

func (s *session) query(cmd *cobra.Command, text string, explain, strict bool, watch time.Duration) error {
	var opts []client.QueryOption
	if strict {
		opts = append(opts, client.StrictQuery())
	}
	if s.namespace != proto.DefaultNamespace {
		opts = append(opts, client.InNamespace(s.namespace))
	}
	if watch > 0 {
		return s.watchQuery(cmd, text, client.WatchOptions{Interval: watch}, opts)
	}
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	if explain {
		e, err := c.Explain(ctx, text, opts...)
		if err != nil {
			return err
		}
		return s.printExplanation(e)
	}
	r, err := c.Query(ctx, text, opts...)
	if err != nil {
		return err
	}
	s.noteMissing(r.Answer)
	return s.printResult(r.Text, r.Answer)
}

func (s *session) watchQuery(cmd *cobra.Command, text string, o client.WatchOptions, opts []client.QueryOption) error {
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	for e, err := range c.WatchQuery(cmd.Context(), text, o, opts...) {
		switch {
		case cmd.Context().Err() != nil:
			return nil // an interrupt is the normal end
		case err != nil:
			return err
		}
		if err := e.Err(); err != nil {
			fmt.Fprintf(s.term.err, "error: %v\n", err)
			continue
		}
		s.noteMissing(e.Answer)
		if err := s.printResult(text, e.Answer); err != nil {
			return err
		}
		if s.output == "table" {
			fmt.Fprintln(s.term.out)
		}
	}
	return nil
}

// printResult prints an answer as the command for that question prints it.
func (s *session) printResult(text string, a *ebbv1.Answer) error {
	plan, err := query.Parse(text)
	if err != nil {
		return err
	}
	if ns := query.Namespace(plan); ns != "" {
		s.namespace = ns
	}
	switch a.GetValue().(type) {
	case *ebbv1.Answer_Distribution:
		s.noteAsOf(plan.GetAsOfUs(), a.GetDistribution().GetAsOfUs())
		return s.printDistribution(a, len(plan.GetDistribution().GetBins()) > 0)
	case *ebbv1.Answer_Summary:
		return s.printSummaryOf(plan, a)
	case *ebbv1.Answer_Trend:
		return s.printTrend(a)
	case *ebbv1.Answer_Surprise:
		return s.printSurprise(a, &ebbv1.SurpriseQuestion{Bins: plan.GetSurprise().GetBins()})
	case *ebbv1.Answer_Overlap:
		if plan.GetOverlap().GetJaccard() {
			return s.printJaccard(a)
		}
		return s.printOverlap(a)
	case *ebbv1.Answer_Graph:
		if plan.GetSimilar() != nil && s.output == "table" {
			return s.printSimilar(a)
		}
		return s.printGraph(a)
	case *ebbv1.Answer_Keys:
		return s.printKeys(a, &ebbv1.KeysQuestion{Order: ebbv1.KeyOrder_KEY_ORDER_RECENT, AsOfUs: plan.GetAsOfUs()})
	case *ebbv1.Answer_Describe:
		return s.printDescription(a)
	case *ebbv1.Answer_Match:
		return s.printMatches(a, string(plan.GetMatch().GetPhrases().GetKey()))
	case *ebbv1.Answer_Bitmap:
		return s.printBitmap(a, plan.GetIds() != nil)
	case *ebbv1.Answer_Groups:
		return s.printGroups(a)
	case *ebbv1.Answer_Cohort:
		return s.printCohort(a, plan.GetCohort().GetEveryone())
	}
	return proto.ErrNewerVersion.Errorf("an answer that this version does not know").WithHint("use the binary of the version that the nodes run")
}

func (s *session) printSummaryOf(plan *ebbv1.Plan, a *ebbv1.Answer) error {
	p := plan.GetSummary()
	s.noteAsOf(plan.GetAsOfUs(), a.GetSummary().GetAsOfUs())
	if p.GetFunction() == ebbv1.PlanFunction_PLAN_FUNCTION_GET {
		return s.printString(a, string(p.GetOf()[0].GetKey()))
	}
	return s.printSummary(a, &ebbv1.SummaryQuestion{
		Keys: a.GetSummary().GetKeys(), Bins: p.GetBins(), Quantiles: p.GetQuantiles(), Members: p.GetFunction() == ebbv1.PlanFunction_PLAN_FUNCTION_MEMBERS,
	})
}

// printSimilar prints the links of the first node; the answer has no others.
func (s *session) printSimilar(a *ebbv1.Answer) error {
	g := a.GetGraph()
	if len(g.GetNodes()) == 0 || !g.GetNodes()[0].GetSet().GetFound() {
		return printNothing(s.term.out, a, "nothing known", whyFaded, g.GetAsOfUs())
	}
	var rows [][]string
	for _, l := range g.GetNodes()[0].GetLinks() {
		set := g.GetNodes()[l.GetTo()].GetSet()
		rows = append(rows, []string{printable(set.GetKey()), figure(set.GetSize().GetValue(), 4), figure(l.GetJaccard().GetValue(), 4), figure(l.GetJaccard().GetStdError(), 2)})
	}
	if err := s.printTable("SET\tSIZE\tJACCARD\tSTD ERROR", rows); err != nil {
		return err
	}
	_, err := fmt.Fprint(s.term.out, "\n", asOfText(a, g.GetAsOfUs()))
	return err
}

// jaccardJSON is the answer to jaccard as JSON.
type jaccardJSON struct {
	Namespace string       `json:"namespace"`
	Jaccard   estimateJSON `json:"jaccard"`
	AsOfUS    int64        `json:"as_of_us"`
	Coverage  coverageJSON `json:"coverage"`
}

func (s *session) printJaccard(a *ebbv1.Answer) error {
	e := estimateOf("jaccard", a.GetOverlap().GetJaccard())
	switch s.output {
	case "json":
		return printJSON(s.term.out, jaccardJSON{s.namespace, e, a.GetOverlap().GetAsOfUs(), coverageOf(a.GetCoverage())})
	case "tsv":
		_, err := fmt.Fprintf(s.term.out, "%s\t%s\t%s\t%s\n", exact(e.Value), exact(e.StdError), exact(e.Low), exact(e.High))
		return err
	}
	_, err := fmt.Fprintf(s.term.out, "%s, standard error %s, %s to %s (%s), as of %s\n%s\n", figure(e.Value, 4), figure(e.StdError, 2), figure(e.Low, 4), figure(e.High, 4),
		confidenceText(e.Confidence), when(a.GetOverlap().GetAsOfUs()), coverageText(a.GetCoverage()))
	return err
}

// explanationJSON is the plan of a question and its cost, as JSON.
type explanationJSON struct {
	Plan    stepJSON `json:"plan"`
	Shards  []uint32 `json:"shards"`
	Cost    uint64   `json:"cost"`
	CostMax uint64   `json:"cost_max"`
	Refusal string   `json:"refusal,omitempty"`
}

type stepJSON struct {
	Step   string     `json:"step"`
	Of     string     `json:"of,omitempty"`
	Shards []uint32   `json:"shards,omitempty"`
	Keys   uint64     `json:"keys,omitempty"`
	Steps  []stepJSON `json:"steps,omitempty"`
}

func stepOf(w *ebbv1.ExplainedStep) stepJSON {
	out := stepJSON{Step: w.GetStep(), Of: w.GetOf(), Shards: w.GetShards(), Keys: w.GetKeys()}
	for _, below := range w.GetSteps() {
		out.Steps = append(out.Steps, stepOf(below))
	}
	return out
}

func (s *session) printExplanation(e *ebbv1.Explanation) error {
	out := explanationJSON{Plan: stepOf(e.GetRoot()), Shards: append([]uint32{}, e.GetShards()...), Cost: e.GetCost(), CostMax: e.GetCostMax(), Refusal: e.GetRefusal().GetMessage()}
	if s.output == "json" {
		return printJSON(s.term.out, out)
	}
	printStep(s.term.out, &out.Plan, 0)
	_, err := fmt.Fprintf(s.term.out, "\n%d shards, cost %d of %d\n", len(out.Shards), out.Cost, out.CostMax)
	if refused := proto.FromWire(e.GetRefusal()); refused != nil && err == nil {
		_, err = fmt.Fprintf(s.term.out, "it would be refused: %s\ntry:  %s\n", refused, nextStep(refused))
	}
	return err
}

func printStep(w io.Writer, step *stepJSON, depth int) {
	fmt.Fprint(w, strings.Repeat("  ", depth), step.Step)
	if step.Of != "" {
		fmt.Fprint(w, ": ", step.Of)
	}
	if n := len(step.Shards); n > 0 {
		fmt.Fprintf(w, " (%d shards, %d keys at least)", n, step.Keys)
	}
	fmt.Fprintln(w)
	for i := range step.Steps {
		printStep(w, &step.Steps[i], depth+1)
	}
}

// textError is an error in a text, with the line that contains it.
type textError struct {
	err    error
	line   string
	column int // from 1, in characters
}

func (e *textError) Error() string { return e.err.Error() }
func (e *textError) Unwrap() error { return e.err }

// pointed adds to an error the line of the text that the error names, if it names one.
func pointed(text string, err error) error {
	line, column := errorPosition(err)
	lines := strings.Split(text, "\n")
	if line == 0 || line > len(lines) {
		return err
	}
	return &textError{err: err, line: strings.TrimSuffix(lines[line-1], "\r"), column: column}
}

// show prints the line and a caret under the column. Of a long line it prints only the part around the column.
func (e *textError) show(w io.Writer) {
	const before, most = 60, 120
	runes := []rune(strings.Map(blank, e.line))
	at := min(e.column-1, len(runes))
	from := max(0, at-before)
	to := min(len(runes), from+most)
	fmt.Fprintf(w, "  %s\n  %s^\n", string(runes[from:to]), strings.Repeat(" ", at-from))
}

// blank returns a space for a character that would move the caret.
func blank(r rune) rune {
	if r < ' ' || r == utf8.RuneError {
		return ' '
	}
	return r
}
