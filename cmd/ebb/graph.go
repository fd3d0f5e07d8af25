package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func newGraph(s *session) *cobra.Command {
	var q questionFlags
	var links int64
	var least float64
	cmd := &cobra.Command{
		Use:   "graph KEY...",
		Short: "Which sets are alike: for each of some keys, or those that match a pattern, some that are most similar",
		Args:  argsBetween(1, -1, "KEY..."),
		Long: `Compares keys of kind set, up to 3,000, and lists for each the most similar ones that it finds, with their
Jaccard similarity, intersection / union.

A link is exact, with standard error 0, if both its sets are: if each has no more things than its namespace keeps of
a set, 1,024 unless --size set.members says otherwise, and fits into what a set may take on the way to the node that compares: 3 MiB for all together, 16 KiB for one. Of 1,000 sets those fit
that have up to about 390 things, of 3,000 up to 130; of sets that forget, those with up to 220 and 70. The interval
of sets that forget also covers what has faded. Any other link is an estimate.

Sets that do not forget are compared closely where their signatures, summaries of 1 KiB, are alike. So a stronger
link may be left out, the more easily the less its sets share, and by an estimate sets that have nothing in common
may be linked: the interval of such a link mostly begins at 0. Each of the first 16 keys that are named is compared
with all the others, so that no stronger link of theirs is left out where sets are exact. So is the key of
similar(KEY, PATTERN) of ebb query. Of sets that forget, all pairs are compared by the things that are sent.

For two sets, or a few, ebb overlap and jaccard(a, b) of ebb query compare all that they keep: exact while each
has up to 1,024 things.

` + patternHelp,
		Example: "  ebb graph stars/go stars/rust stars/python --links 1\n  ebb graph 'stars/*' --min-jaccard 0.1 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if links < 1 || links > proto.LinksMax {
				return usagef("--links %d: it must be from 1 to %d", links, proto.LinksMax)
			}
			keys, patterns := splitPatternBytes(args)
			gq := &ebbv1.GraphQuestion{Keys: keys, Patterns: patterns, Links: uint32(links), MinJaccard: least, Confidence: q.confidence}
			var err error
			if gq.AsOfUs, err = instant(q.asOf); err != nil {
				return err
			}
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Graph{Graph: gq}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error {
				s.noteAsOf(gq.GetAsOfUs(), a.GetGraph().GetAsOfUs())
				return s.printGraph(a)
			})
		},
	}
	q.add(cmd)
	cmd.Flags().Int64Var(&links, "links", 2, "how many `links` of each set, 1 to 100")
	cmd.Flags().Float64Var(&least, "min-jaccard", 0, "leave out links of a smaller `similarity`, 0 to 1")
	return cmd
}

// graphJSON is the answer to ebb graph as JSON.
type graphJSON struct {
	Namespace  string          `json:"namespace"`
	Nodes      []graphNodeJSON `json:"nodes"`
	Confidence float64         `json:"confidence"`
	AsOfUS     int64           `json:"as_of_us"`
	Coverage   coverageJSON    `json:"coverage"`
}

type graphNodeJSON struct {
	sizedJSON
	Links []graphLinkJSON `json:"links"`
}

type graphLinkJSON struct {
	keyName
	Jaccard estimateJSON `json:"jaccard"`
}

func (s *session) printGraph(a *ebbv1.Answer) error {
	w := a.GetGraph()
	out := graphJSON{Namespace: s.namespace, Nodes: []graphNodeJSON{}, Confidence: w.GetConfidence(), AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(a.GetCoverage())}
	for _, n := range w.GetNodes() {
		node := graphNodeJSON{sizedOf(n.GetSet()), []graphLinkJSON{}}
		for _, l := range n.GetLinks() {
			node.Links = append(node.Links, graphLinkJSON{keyNameOf(w.GetNodes()[l.GetTo()].GetSet().GetKey()), estimateOf("jaccard", l.GetJaccard())})
		}
		out.Nodes = append(out.Nodes, node)
	}
	term := s.term.out
	switch s.output {
	case "json":
		return printJSON(term, out)
	case "tsv":
		for _, n := range out.Nodes {
			for _, l := range n.Links {
				fmt.Fprintf(term, "%s\t%s\t%s\t%s\n", n.shown(), l.shown(), exact(l.Jaccard.Value), exact(l.Jaccard.StdError))
			}
		}
		return nil
	}
	if len(out.Nodes) == 0 {
		_, err := fmt.Fprint(term, "no key of kind set matches\n\n", asOfText(a, out.AsOfUS))
		return err
	}
	tw := tabwriter.NewWriter(term, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tSIZE\tNEIGHBOUR\tJACCARD\tSTD ERROR")
	for _, n := range out.Nodes {
		switch {
		case !n.Found:
			fmt.Fprintf(tw, "%s\tnothing known\n", n.shown())
		case len(n.Links) == 0:
			fmt.Fprintf(tw, "%s\t%s\tnone\n", n.shown(), figure(n.Size.Value, 6))
		}
		for _, l := range n.Links {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%.4f\t%.4f\n", n.shown(), figure(n.Size.Value, 6), l.shown(), l.Jaccard.Value, l.Jaccard.StdError)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(term, "\n", asOfText(a, out.AsOfUS))
	return err
}
