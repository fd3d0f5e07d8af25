package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func newTrend(s *session) *cobra.Command {
	var q questionFlags
	var bins stringsValue
	var n int64
	cmd := &cobra.Command{
		Use: "trend KEY...", Short: "Which bins come more or less often than usual; several keys are merged", Args: argsBetween(1, -1, "KEY..."),
		Long: "Which bins come more or less often than usual: their rates under the namespace's half-life, compared with those under its second one\n" +
			"(ebb namespace create NAME --half-life 10m --slow-half-life 6h).\n\n" +
			"KEY is a name, and no pattern: of keys that match one ask ebb query 'trend(clicks/*)', which merges them.\n\n" +
			"Under an event clock rates begin with the earliest event of the namespace, whichever shards its keys lie in.\n" +
			"Keys of another namespace (ebb namespace copy, ebb sketch import) bring when rates began there, if that is\n" +
			"earlier. Under a wall clock rates of a key begin when its shard first heard of the namespace.",
		Example: "  ebb trend clicks/country -n clicks\n  ebb trend clicks/country -n clicks --bin MY --n 3 --watch 2s",
		RunE: func(cmd *cobra.Command, args []string) error {
			if e := proto.CheckTop(n); e != nil {
				return e
			}
			named, err := bins.bins(cmd)
			if err != nil {
				return err
			}
			tq := &ebbv1.TrendQuestion{Keys: keysOf(args), Bins: named, Top: uint32(n), Confidence: q.confidence}
			if tq.AsOfUs, err = instant(q.asOf); err != nil {
				return err
			}
			if key, twice := repeated(tq.GetKeys()); twice {
				return usagef("key %s is named twice, and would be counted twice", printable(key))
			}
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Trend{Trend: tq}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error {
				s.noteAsOf(tq.GetAsOfUs(), a.GetTrend().GetAsOfUs())
				if !a.GetTrend().GetFound() {
					s.notePattern(args...)
				}
				return s.printTrend(a)
			})
		},
	}
	q.add(cmd)
	cmd.Flags().Var(&bins, "bin", "report on this `bin`, too (repeatable)")
	cmd.Flags().Int64Var(&n, "n", 10, "how many bins that rise, and how many that fall (-n, with one dash, is the namespace)")
	return cmd
}

// trendJSON is the answer to ebb trend as JSON.
type trendJSON struct {
	Namespace     string       `json:"namespace"`
	Found         bool         `json:"found"`
	Warming       bool         `json:"warming"`
	FastHalfLifeS float64      `json:"fast_half_life_s"`
	SlowHalfLifeS float64      `json:"slow_half_life_s"`
	SinceUS       int64        `json:"since_us"`
	Total         *changeJSON  `json:"total,omitempty"` // of what was asked for; nil if keys are ranked
	Rising        []changeJSON `json:"rising"`
	Falling       []changeJSON `json:"falling"`
	Bins          []changeJSON `json:"bins"`
	Confidence    float64      `json:"confidence"`
	AsOfUS        int64        `json:"as_of_us"`
	Coverage      coverageJSON `json:"coverage"`
}

type changeJSON struct {
	binName
	FastRate     float64 `json:"fast_rate"`
	SlowRate     float64 `json:"slow_rate"`
	Bits         float64 `json:"bits"`
	StdErrorBits float64 `json:"std_error_bits"`
	LowBits      float64 `json:"low_bits"`
	HighBits     float64 `json:"high_bits"`
	ZScore       float64 `json:"z_score"`
	PValue       float64 `json:"p_value"`
}

func (s *session) changesJSON(changes []*ebbv1.Change) []changeJSON {
	out := []changeJSON{}
	for _, c := range changes {
		out = append(out, changeJSON{
			binNameOf(c.GetBin()), c.GetFastRate(), c.GetSlowRate(), c.GetBits(), c.GetStdErrorBits(), c.GetLowBits(), c.GetHighBits(), c.GetZScore(), c.GetPValue(),
		})
	}
	return out
}

func (s *session) printTrend(a *ebbv1.Answer) error {
	w := a.GetTrend()
	out := trendJSON{
		Namespace: s.namespace, Found: w.GetFound(), Warming: w.GetWarming(), FastHalfLifeS: float64(w.GetFastHalfLifeUs()) / 1e6, SlowHalfLifeS: float64(w.GetSlowHalfLifeUs()) / 1e6,
		SinceUS: w.GetSinceUs(), Rising: s.changesJSON(w.GetRising()), Falling: s.changesJSON(w.GetFalling()),
		Bins: s.changesJSON(w.GetBins()), Confidence: w.GetConfidence(), AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage()),
	}
	if total := w.GetTotal(); total != nil {
		out.Total = &s.changesJSON([]*ebbv1.Change{total})[0]
	}
	switch s.output {
	case "json":
		return printJSON(s.term.out, out)
	case "tsv":
		for _, c := range slices.Concat(out.Bins, out.Rising, out.Falling) {
			fmt.Fprintln(s.term.out, strings.Join([]string{c.shown(), exact(c.FastRate), exact(c.SlowRate), exact(c.Bits), exact(c.LowBits), exact(c.HighBits), exact(c.PValue)}, "\t"))
		}
		return nil
	}
	return s.printTrendTable(a, &out)
}

func (s *session) printTrendTable(a *ebbv1.Answer, out *trendJSON) error {
	term := s.term.out
	if !out.Found {
		return printNothing(term, a, "nothing known", whyFaded, out.AsOfUS)
	}
	tw := tabwriter.NewWriter(term, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "BIN\tNOW\tUSUALLY\tCHANGE\t%g%% INTERVAL\tCHANCE\n", 100*out.Confidence)
	for _, c := range slices.Concat(out.Bins, out.Rising, out.Falling) {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%+.2f bits\t%+.2f to %+.2f\t%.2g\n", c.shown(), rateText(c.FastRate), rateText(c.SlowRate), c.Bits, c.LowBits, c.HighBits, c.PValue)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	lives := fmt.Sprintf("half-life %v against %v", seconds(out.FastHalfLifeS), seconds(out.SlowHalfLifeS))
	_, err := fmt.Fprintf(term, "\n%s%s%s, as of %s\n%s\n", totalText(out), lives, sinceText(out), when(out.AsOfUS),
		coverageText(a.GetCoverage()))
	return err
}

// totalText returns a line about all bins of a trend; if keys are ranked, there is no such total.
func totalText(out *trendJSON) string {
	switch t := out.Total; {
	case t == nil && out.Warming:
		return "warming up: of some keys there is too little past to compare with yet\n"
	case t == nil:
		return ""
	case out.Warming:
		return "warming up: too little past to compare with yet; all bins " + rateText(t.FastRate) + "\n"
	default:
		return fmt.Sprintf("all bins %s, usually %s (%+.2f bits, %s)\n",
			rateText(t.FastRate), rateText(t.SlowRate), t.Bits, chanceText(t.PValue))
	}
}

// sinceText returns since when both rates are counted. Keys that are ranked are in shards with different times, so
// there is none.
func sinceText(out *trendJSON) string {
	if out.Total == nil {
		return ""
	}
	return ", both since " + when(out.SinceUS)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// rateText formats events a second in a unit that suits the rate.
func rateText(perSecond float64) string {
	switch {
	case perSecond >= 1 || perSecond == 0:
		return figure(perSecond, 3) + "/s"
	case perSecond*60 >= 1:
		return figure(perSecond*60, 3) + "/min"
	case perSecond*3600 >= 1:
		return figure(perSecond*3600, 3) + "/h"
	}
	return figure(perSecond*86400, 3) + "/day"
}
