package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func newSurprise(s *session) *cobra.Command {
	var q questionFlags
	var against, bins stringsValue
	var n int64
	cmd := &cobra.Command{
		Use: "surprise KEY...", Short: "How a distribution differs from a baseline, and whether that may be chance", Args: argsBetween(1, -1, "KEY..."),
		Long: `Compares the distribution of KEY with that of --against, and lists the bins that the difference is made of.

  P        the probability of the bin in KEY
  USUALLY  its probability in the baseline
  LIFT     log2 of P over USUALLY: +1 for twice as probable, -1 for half, 0 for the same. Both are smoothed by half
           an event in the bin, so that LIFT is finite where one is 0, and small where there are few events
  SHARE    the part of the bin in the distance of the two distributions

What is compared is what the bins have left, also of those below the threshold, which ebb top does not list. Bins that
were removed since are compared with nothing: a line says what part of each side they had, other_p and
baseline_other_p in JSON. Under linear decay that is not known, and not told.

p is the probability of such a difference, or a larger one, by chance. It is that of the G-test of all bins, where
rare bins are taken together, or that of the most unlikely single bin, whichever is smaller. The text says which;
JSON has p_of_single_bin. The p of single bins allows for the number of tests.`,
		Example: "  ebb surprise clicks/link/A6qOVH --against clicks/country\n  ebb surprise clicks/today --against clicks/usual --bin MY\n  ebb surprise clicks/link/A6qOVH --against 'clicks/link/*'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(against) == 0 {
				return usagef("--against which baseline? name a key that knows what is usual")
			}
			if e := proto.CheckTop(n); e != nil {
				return e
			}
			keys, patterns := splitPatternBytes(args)
			base, basePatterns := splitPatternBytes(against)
			ofBins, err := bins.bins(cmd)
			if err != nil {
				return err
			}
			sq := &ebbv1.SurpriseQuestion{Keys: keys, Patterns: patterns, Against: base, AgainstPatterns: basePatterns, Bins: ofBins, Top: uint32(n)}
			if sq.AsOfUs, err = instant(q.asOf); err != nil {
				return err
			}
			for _, keys := range [][][]byte{sq.GetKeys(), sq.GetAgainst()} {
				if key, twice := repeated(keys); twice {
					return usagef("key %s is named twice, and would be counted twice", printable(key))
				}
			}
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Surprise{Surprise: sq}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error {
				s.noteAsOf(sq.GetAsOfUs(), a.GetSurprise().GetAsOfUs())
				return s.printSurprise(a, sq)
			})
		},
	}
	q.addAsking(cmd)
	cmd.Flags().Var(&against, "against", "`key` of the baseline, or a pattern (repeatable: several are taken as one)")
	cmd.Flags().Var(&bins, "bin", "say how surprising an event in this `bin` is, by the baseline (repeatable)")
	cmd.Flags().Int64Var(&n, "n", 10, "how many bins of the difference (-n, with one dash, is the namespace)")
	return cmd
}

// surpriseJSON is the answer to ebb surprise as JSON.
type surpriseJSON struct {
	Namespace     string         `json:"namespace"`
	Found         bool           `json:"found"`
	EffectiveN    float64        `json:"effective_n"`
	BaselineN     float64        `json:"baseline_effective_n"`
	JensenShannon float64        `json:"jensen_shannon_bits"`
	G             float64        `json:"g"`
	Freedom       uint32         `json:"freedom"`
	PValue        float64        `json:"p_value"`
	POfSingleBin  bool           `json:"p_of_single_bin"`
	OtherP        float64        `json:"other_p"`
	BaselineOther float64        `json:"baseline_other_p"`
	Bins          []surprisedBin `json:"bins"`
	Events        []eventJSON    `json:"events"`
	AsOfUS        int64          `json:"as_of_us"`
	Coverage      coverageJSON   `json:"coverage"`
}

type surprisedBin struct {
	binName
	P         float64 `json:"p"`
	BaselineP float64 `json:"baseline_p"`
	LiftBits  float64 `json:"lift_bits"`
	ShareBits float64 `json:"share_bits"`
}

type eventJSON struct {
	binName
	SurpriseBits float64 `json:"surprise_bits"`
}

func (s *session) printSurprise(a *ebbv1.Answer, q *ebbv1.SurpriseQuestion) error {
	w, c := a.GetSurprise(), a.GetCoverage()
	out := surpriseJSON{
		Namespace: s.namespace, Found: w.GetFound(), EffectiveN: w.GetEffectiveN(), BaselineN: w.GetBaselineEffectiveN(),
		JensenShannon: w.GetJensenShannonBits(), G: w.GetG(), Freedom: w.GetFreedom(), PValue: w.GetPValue(), POfSingleBin: w.GetPOfSingleBin(),
		OtherP: w.GetOtherP(), BaselineOther: w.GetBaselineOtherP(),
		Bins: []surprisedBin{}, Events: []eventJSON{}, AsOfUS: w.GetAsOfUs(),
		Coverage: coverageOf(c),
	}
	for _, b := range w.GetBins() {
		out.Bins = append(out.Bins, surprisedBin{binNameOf(b.GetBin()), b.GetP(), b.GetBaselineP(), b.GetLiftBits(), b.GetShareBits()})
	}
	for i, bits := range w.GetSurpriseBits() {
		out.Events = append(out.Events, eventJSON{binNameOf(q.GetBins()[i]), bits})
	}
	term := s.term.out
	switch s.output {
	case "json":
		return printJSON(term, out)
	case "tsv":
		for _, b := range out.Bins {
			fmt.Fprintf(term, "%s\t%s\t%s\t%s\t%s\n", b.shown(), exact(b.P), exact(b.BaselineP), exact(b.LiftBits), exact(b.ShareBits))
		}
		return nil
	}
	for _, e := range out.Events {
		fmt.Fprintf(term, "an event in %s: %.2f bits\n", e.shown(), e.SurpriseBits)
	}
	if !out.Found {
		return printNothing(term, a, "nothing to compare", whyFaded, out.AsOfUS)
	}
	tw := tabwriter.NewWriter(term, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "BIN\tP\tUSUALLY\tLIFT\tSHARE")
	for _, b := range out.Bins {
		fmt.Fprintf(tw, "%s\t%.4f\t%.4f\t%+.2f bits\t%.4f bits\n", b.shown(), b.P, b.BaselineP, b.LiftBits, b.ShareBits)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(term, "\ndistance %.4f of 1 bit, %s, effective n %s against %s, as of %s\n%s%s\n",
		out.JensenShannon, out.testText(), figure(out.EffectiveN, 4), figure(out.BaselineN, 4), when(out.AsOfUS),
		out.otherText(), coverageText(c))
	return err
}

// otherText returns a line about the bins that are compared with nothing; "" if there are none.
func (o *surpriseJSON) otherText() string {
	if o.OtherP == 0 && o.BaselineOther == 0 {
		return ""
	}
	return fmt.Sprintf("compared with nothing, as it is in bins that were removed: P %.4f, USUALLY %.4f\n",
		o.OtherP, o.BaselineOther)
}

// testText describes the p-value and the test that gave it.
func (o *surpriseJSON) testText() string {
	g := fmt.Sprintf("G %.4g with %s of freedom", o.G, plural(int(o.Freedom), "degree", "degrees"))
	if o.POfSingleBin {
		return fmt.Sprintf("%s by the test of single bins (G-test of all bins: %s)", chanceText(o.PValue), g)
	}
	return fmt.Sprintf("%s by the G-test (%s)", chanceText(o.PValue), g)
}

// chanceText describes what a p-value means.
func chanceText(p float64) string {
	switch {
	case p == 0: // too small for a float64
		return "hardly chance: p < 1e-300"
	case p < 0.001:
		return fmt.Sprintf("hardly chance: p = %.2g", p)
	case p < 0.05:
		return fmt.Sprintf("perhaps chance: p = %.2g", p)
	}
	return fmt.Sprintf("may be chance: p = %.2g", p)
}
