package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/query"
)

func newEstimate(s *session) *cobra.Command {
	var q questionFlags
	var bins stringsValue
	var quantiles floatsValue
	var top int64
	var members bool
	var window string
	var limit int64
	cmd := &cobra.Command{
		Use: "estimate KEY...", Short: "What a key of another kind than a distribution knows; several keys, or those that match a pattern, are merged", Args: argsBetween(1, -1, "KEY..."),
		Example: "  ebb estimate visitors/today visitors/yesterday\n  ebb estimate hits --bin /index.html\n  ebb estimate latency --quantile 0.5,0.99\n" +
			"  ebb estimate searches --top 10\n  ebb estimate seen --bin ann --bin bob\n  ebb estimate players --members\n" +
			"  ebb estimate fans --members --limit 10\n  ebb estimate visitors --window 10m -n hourly\n  ebb estimate 'visitors/*'",
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, patterns := splitPatternBytes(args)
			counted, err := bins.bins(cmd)
			if err != nil {
				return err
			}
			sq := &ebbv1.SummaryQuestion{Keys: keys, Patterns: patterns, Bins: counted, Quantiles: quantiles, Members: members, Confidence: q.confidence}
			if cmd.Flags().Changed("top") {
				if e := proto.CheckTop(top); e != nil {
					return e
				}
				sq.Top = uint32(top)
			}
			if window != "" {
				us, err := query.ParseDuration(window)
				if err != nil || us <= 0 {
					return usagef("--window %q: write it as 30s, 10m or 7d", window)
				}
				sq.WindowUs = us
			}
			if cmd.Flags().Changed("limit") {
				if !members {
					return usagef("--limit is one of --members")
				}
				if limit < 1 || limit > proto.TopMax {
					return usagef("--limit %d: it must be from 1 to %d", limit, proto.TopMax)
				}
				sq.Limit = uint32(limit)
			}
			if sq.AsOfUs, err = instant(q.asOf); err != nil {
				return err
			}
			if key, twice := repeated(sq.GetKeys()); twice {
				return usagef("key %s is named twice, and might be counted twice", printable(key))
			}
			question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Summary{Summary: sq}}
			return s.put(cmd, &q, question, func(a *ebbv1.Answer) error {
				s.noteAsOf(sq.GetAsOfUs(), a.GetSummary().GetAsOfUs())
				return s.printSummary(a, sq)
			})
		},
	}
	q.add(cmd)
	cmd.Flags().Var(&bins, "bin", "count this `bin` of a countmin or a topk, or look for it in a bloom (repeatable)")
	cmd.Flags().Var(&quantiles, "quantile", "these `quantiles` of the values, each from 0 to 1, separated by commas")
	cmd.Flags().Int64Var(&top, "top", 0, "the `n` bins that a topk has counted most")
	cmd.Flags().StringVar(&window, "window", "", "what a distinct saw in the last `10m`, in a namespace with at least such a window")
	cmd.Flags().BoolVar(&members, "members", false, "the members of a linear by name, as long as they are at most 250, or a sample of those of a set")
	cmd.Flags().Int64Var(&limit, "limit", 100, "of the --members of a set, at most so many")
	return cmd
}

// estimateJSON is one estimate, and what it estimates.
type estimateJSON struct {
	Of string `json:"of"` // total, bin, quantile or item
	binName
	Quantile *float64 `json:"quantile,omitempty"`
	// each single value has faded, so the quantile may be any value
	NothingKnown bool    `json:"nothing_known,omitempty"`
	Value        float64 `json:"value"`
	StdError     float64 `json:"std_error"`
	Low          float64 `json:"low"`
	High         float64 `json:"high"`
	// of the interval; 1 when the interval is certain
	Confidence float64 `json:"confidence"`
}

// memberJSON reports whether a bloom contains a bin.
type memberJSON struct {
	binName
	Contained bool    `json:"contained"`
	FalseRate float64 `json:"false_rate"`
}

// summaryJSON is the answer to ebb estimate as JSON.
type summaryJSON struct {
	Namespace   string         `json:"namespace"`
	Keys        []listedName   `json:"keys"`
	Matched     uint64         `json:"matched,omitempty"` // keys that the patterns found
	Found       bool           `json:"found"`
	Kind        string         `json:"kind,omitempty"`
	Estimates   []estimateJSON `json:"estimates"`
	Memberships []memberJSON   `json:"memberships,omitempty"`
	Members     []listedName   `json:"members,omitempty"`
	Over        bool           `json:"over,omitempty"`
	SpanUS      int64          `json:"span_us,omitempty"` // of a window: the time that the answer covers
	Confidence  float64        `json:"confidence"`
	AsOfUS      int64          `json:"as_of_us"`
	Coverage    coverageJSON   `json:"coverage"`
}

func (s *session) printSummary(a *ebbv1.Answer, q *ebbv1.SummaryQuestion) error {
	w, c := a.GetSummary(), a.GetCoverage()
	out := summaryJSON{
		Namespace: s.namespace, Keys: append([]listedName{}, listedNames(q.GetKeys())...), Matched: w.GetMatched(), Found: w.GetFound(), Over: w.GetOver(),
		SpanUS: w.GetSpanUs(), Confidence: w.GetConfidence(), AsOfUS: w.GetAsOfUs(),
		Coverage: coverageOf(c),
	}
	if out.Found {
		out.Kind = proto.KindName(w.GetKind())
	}
	add := func(e estimateJSON, w *ebbv1.Estimate) {
		e.Value, e.StdError, e.Low, e.High, e.Confidence = w.GetValue(), w.GetStdError(), w.GetLow(), w.GetHigh(), w.GetConfidence()
		out.Estimates = append(out.Estimates, e)
	}
	add(estimateJSON{Of: "total"}, w.GetTotal())
	for i, e := range w.GetBins() {
		add(estimateJSON{Of: "bin", binName: binNameOf(q.GetBins()[i])}, e)
	}
	for i := range q.GetQuantiles() {
		e := estimateJSON{Of: "quantile", Quantile: &q.GetQuantiles()[i]}
		switch {
		case i < len(w.GetQuantiles()):
			add(e, w.GetQuantiles()[i])
		case out.Found: // the key is there, but each single value has faded
			e.NothingKnown = true
			add(e, &ebbv1.Estimate{Low: -math.MaxFloat64, High: math.MaxFloat64, Confidence: 1})
		}
	}
	for _, item := range w.GetItems() {
		add(estimateJSON{Of: "item", binName: binNameOf(item.GetBin())}, item.GetCount())
	}
	for i, m := range w.GetMemberships() {
		out.Memberships = append(out.Memberships, memberJSON{binNameOf(q.GetBins()[i]), m.GetContained(), m.GetFalseRate()})
	}
	out.Members = listedNames(w.GetMembers())
	if q.GetMembers() && out.Found && len(out.Members) == 0 {
		fmt.Fprintln(s.term.err, "note: of so many members no names are kept")
	}
	if n := len(out.Members); n > 0 && w.GetKind() == client.KindSet && float64(n) < w.GetTotal().GetValue() {
		fmt.Fprintf(s.term.err, "note: a sample of %d members of about %s: --limit names more\n", n, figure(w.GetTotal().GetValue(), 4))
	}
	if out.Over {
		fmt.Fprintln(s.term.err, "note: more was added than this kind is made for: errors are larger than it promises")
	}
	switch s.output {
	case "json":
		return printJSON(s.term.out, out)
	case "tsv":
		for _, e := range out.Estimates {
			if e.NothingKnown {
				fmt.Fprintf(s.term.err, "note: quantile %s: nothing known (each value has faded)\n", e.name())
				continue
			}
			fmt.Fprintf(s.term.out, "%s\t%s\t%s\t%s\t%s\n", e.name(), exact(e.Value), exact(e.StdError), exact(e.Low), exact(e.High))
		}
		for _, m := range out.Memberships {
			fmt.Fprintf(s.term.out, "%s\t%t\t%s\n", m.shown(), m.Contained, exact(m.FalseRate))
		}
		for _, m := range out.Members {
			fmt.Fprintln(s.term.out, printable([]byte(m)))
		}
		return nil
	}
	return printSummaryTable(s.term.out, out, a)
}

func (e *estimateJSON) name() string {
	switch {
	case e.Quantile != nil:
		return exact(*e.Quantile)
	case !e.none():
		return e.shown()
	}
	return e.Of
}

// confidenceText describes the confidence of an interval in words.
func confidenceText(confidence float64) string {
	if confidence == 1 {
		return "certain"
	}
	return fmt.Sprintf("%g%%", 100*confidence)
}

func printSummaryTable(w io.Writer, out summaryJSON, a *ebbv1.Answer) error {
	if !out.Found {
		return printNothing(w, a, "nothing known", whyFaded, out.AsOfUS)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "%s\tVALUE\tSTD ERROR\tINTERVAL\tCONFIDENCE\n", strings.ToUpper(out.Kind))
	for _, e := range out.Estimates {
		if e.NothingKnown {
			fmt.Fprintf(tw, "%s\tnothing known\t\teach value has faded\t\n", e.name())
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s to %s\t%s\n", e.name(), figure(e.Value, 6), figure(e.StdError, 3),
			figure(e.Low, 6), figure(e.High, 6), confidenceText(e.Confidence))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if err := printMembers(w, out); err != nil {
		return err
	}
	notes := ""
	if out.Matched > 0 {
		notes = matching(out.Matched) + ", "
	}
	if out.SpanUS > 0 {
		notes += fmt.Sprintf("of the last %v, ", spanText(out.SpanUS))
	}
	_, err := fmt.Fprintf(w, "\n%s%s", notes, asOfText(a, out.AsOfUS))
	return err
}

// spanText returns the time that an answer covers, rounded to milliseconds.
func spanText(us int64) string {
	return (time.Duration(us) * time.Microsecond).Round(time.Millisecond).String()
}

// printMembers prints what the answer says about single members, if anything.
func printMembers(w io.Writer, out summaryJSON) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(out.Memberships) > 0 {
		fmt.Fprint(tw, "\nBIN\tCONTAINED\tWRONG OF OTHERS\n")
	}
	for _, m := range out.Memberships {
		said := map[bool]string{true: "yes", false: "no"}[m.Contained]
		fmt.Fprintf(tw, "%s\t%s\t%s%%\n", m.shown(), said, figure(100*m.FalseRate, 2))
	}
	if len(out.Members) > 0 {
		fmt.Fprintln(tw)
		for _, m := range out.Members {
			fmt.Fprintln(tw, printable([]byte(m)))
		}
	}
	return tw.Flush()
}
