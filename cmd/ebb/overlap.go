package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

func newOverlap(s *session) *cobra.Command {
	var q questionFlags
	cmd := &cobra.Command{
		Use: "overlap KEY KEY...", Short: "What sets have in common", Args: argsBetween(2, -1, "KEY KEY..."),
		Long: `What keys of kind set have in common: all of them (union), what is in each (intersection), what the first has and no other
(difference), and their Jaccard similarity, intersection / union.

Up to 1,024 bins each, or as many as the namespace keeps of a set (--size set.members), it is exact. In a namespace with half-life a bin weighs 2^(-age/h), by the age of its latest
event: in the union the most of all sets, in the intersection the least.`,
		Example: "  ebb overlap visitors/monday visitors/tuesday\n  ebb overlap players/all players/paying players/banned --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			oq := &ebbv1.OverlapQuestion{Keys: keysOf(args), Confidence: q.confidence}
			var err error
			if oq.AsOfUs, err = instant(q.asOf); err != nil {
				return err
			}
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Overlap{Overlap: oq}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error {
				s.noteAsOf(oq.GetAsOfUs(), a.GetOverlap().GetAsOfUs())
				return s.printOverlap(a)
			})
		},
	}
	q.add(cmd)
	return cmd
}

// overlapJSON is the answer to ebb overlap as JSON.
type overlapJSON struct {
	Namespace  string         `json:"namespace"`
	Sets       []sizedJSON    `json:"sets"`
	Estimates  []estimateJSON `json:"estimates"`
	Confidence float64        `json:"confidence"`
	AsOfUS     int64          `json:"as_of_us"`
	Coverage   coverageJSON   `json:"coverage"`
}

// sizedJSON is a set and its number of bins.
type sizedJSON struct {
	keyName
	Found bool         `json:"found"`
	Size  estimateJSON `json:"size"`
}

func estimateOf(of string, w *ebbv1.Estimate) estimateJSON {
	return estimateJSON{Of: of, Value: w.GetValue(), StdError: w.GetStdError(), Low: w.GetLow(), High: w.GetHigh(), Confidence: w.GetConfidence()}
}

func sizedOf(w *ebbv1.SizedSet) sizedJSON {
	name := keyNameOf(w.GetKey())
	if len(w.GetKey()) == 0 {
		name = keyNameOf([]byte(w.GetOf()))
	}
	return sizedJSON{name, w.GetFound(), estimateOf("size", w.GetSize())}
}

func (s *session) printOverlap(a *ebbv1.Answer) error {
	w := a.GetOverlap()
	out := overlapJSON{Namespace: s.namespace, Confidence: w.GetConfidence(), AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage())}
	for _, set := range w.GetSets() {
		if !set.GetFound() && len(set.GetKey()) > 0 {
			s.notePattern(string(set.GetKey()))
		}
		out.Sets = append(out.Sets, sizedOf(set))
	}
	out.Estimates = []estimateJSON{
		estimateOf("union", w.GetUnion()), estimateOf("intersection", w.GetIntersection()),
		estimateOf("difference", w.GetDifference()), estimateOf("jaccard", w.GetJaccard()),
	}
	term := s.term.out
	switch s.output {
	case "json":
		return printJSON(term, out)
	case "tsv":
		for _, e := range out.Estimates {
			fmt.Fprintf(term, "%s\t%s\t%s\t%s\t%s\n", e.Of, exact(e.Value), exact(e.StdError), exact(e.Low), exact(e.High))
		}
		return nil
	}
	tw := tabwriter.NewWriter(term, 0, 0, 2, ' ', 0)
	line := func(name string, e estimateJSON) {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s to %s\n", name, figure(e.Value, 6), figure(e.StdError, 3), figure(e.Low, 6), figure(e.High, 6))
	}
	fmt.Fprintln(tw, "SET\tVALUE\tSTD ERROR\tINTERVAL")
	for _, set := range out.Sets {
		if !set.Found {
			fmt.Fprintf(tw, "%s\tnothing known\t\t\n", set.shown())
			continue
		}
		line(set.shown(), set.Size)
	}
	fmt.Fprintln(tw, "\t\t\t")
	for _, e := range out.Estimates {
		line(e.Of, e)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(term, "\n", asOfText(a, out.AsOfUS))
	return err
}
