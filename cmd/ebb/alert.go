package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// alertFlags are the thresholds of an alert, and how to wait for it.
type alertFlags struct {
	questionFlags
	against     stringsValue
	p, distance float64
	interval    time.Duration
	until       bool
}

func newAlert(s *session) *cobra.Command {
	var f alertFlags
	cmd := &cobra.Command{
		Use: "alert KEY...", Short: "Say when a distribution drifts from a baseline, and when it is back", Args: argsBetween(1, -1, "KEY..."),
		Long: "Say when a distribution drifts from a baseline, and when it is back. A line is printed at first and whenever the alert is raised or cleared; it is cleared at\n" +
			"ten times the p-value, or four fifths of the distance, that raise it.",
		Example: "  ebb alert clicks/today --against clicks/usual\n  ebb alert clicks/today --against clicks/usual --p 1e-6 --distance 0.1 --until-raised && page-on-call",
		RunE:    func(cmd *cobra.Command, args []string) error { return s.watchDrift(cmd, args, &f) },
	}
	flags := cmd.Flags()
	flags.Var(&f.against, "against", "`key` of the baseline, or a pattern (repeatable: several are taken as one)")
	flags.Float64Var(&f.p, "p", 0.001, "raise it when such a difference has this probability by chance, or less; 0 for any")
	flags.Float64Var(&f.distance, "distance", 0, "raise it at this Jensen-Shannon distance in bits, 0 to 1, or more; 0 for any")
	durationVar(flags, &f.interval, "interval", time.Second, 100*time.Millisecond, "how often to look")
	flags.BoolVar(&f.until, "until-raised", false, "end when it is raised, with exit code 0")
	flags.StringVar(&f.consistency, "consistency", "linearizable", "linearizable, bounded (see --max-staleness) or any")
	durationVar(flags, &f.staleness, "max-staleness", 10*time.Second, time.Microsecond, "of bounded consistency")
	flags.BoolVar(&f.partial, "allow-partial", false, "go on when shards are missing: the alert stays what it is until all answer")
	return cmd
}

func (s *session) watchDrift(cmd *cobra.Command, args []string, f *alertFlags) error {
	if len(f.against) == 0 {
		return usagef("--against which baseline? name a key that knows what is usual")
	}
	for _, keys := range [][]string{args, f.against} {
		if key, twice := repeated(keysOf(keys)); twice {
			return usagef("key %s is named twice, and would be counted twice", printable(key))
		}
	}
	opts, err := f.options(s.given["max-staleness"])
	if err != nil {
		return err
	}
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	query := client.SurpriseQuery{}
	query.Keys, query.Patterns = splitPatterns(args)
	query.Against, query.AgainstPatterns = splitPatterns(f.against)
	watch := client.WatchOptions{Interval: f.interval, Alert: &client.Alert{PValue: f.p, JensenShannon: f.distance}}
	for e, err := range c.WatchSurprise(cmd.Context(), s.namespace, query, watch, opts...) {
		switch {
		case cmd.Context().Err() != nil && f.until:
			return cmd.Context().Err() // without an error, this would look like an alert to a script that waits
		case cmd.Context().Err() != nil:
			return nil // an interrupt is the normal end
		case err != nil:
			return err
		}
		if err := s.printAlert(e); err != nil || f.until && e.Raised {
			return err
		}
	}
	return nil
}

// alertJSON is one line of ebb alert as JSON.
type alertJSON struct {
	Alert         string  `json:"alert"` // quiet, raised, cleared or failing
	Error         string  `json:"error,omitempty"`
	Found         bool    `json:"found"`
	JensenShannon float64 `json:"jensen_shannon_bits"`
	PValue        float64 `json:"p_value"`
	// of the bins whose share has risen, the one that contributes most to the difference
	binName
	LiftBits float64      `json:"lift_bits,omitempty"`
	AsOfUS   int64        `json:"as_of_us"`
	Coverage coverageJSON `json:"coverage"`
}

func (s *session) printAlert(e client.Event) error {
	w := e.Answer.GetSurprise()
	out := alertJSON{
		Alert: "quiet", Found: w.GetFound(), JensenShannon: w.GetJensenShannonBits(), PValue: w.GetPValue(), AsOfUS: w.GetAsOfUs(), Coverage: coverageOf(e.Answer.GetCoverage()),
	}
	switch err := e.Err(); {
	case err != nil:
		out.Alert, out.Error = "failing", err.Error()
	case e.Raised:
		out.Alert = "raised"
	case e.Crossed:
		out.Alert = "cleared"
	}
	if more := slices.IndexFunc(w.GetBins(), func(b *ebbv1.SurprisingBin) bool { return b.GetLiftBits() > 0 }); more >= 0 && e.Raised {
		out.binName, out.LiftBits = binNameOf(w.GetBins()[more].GetBin()), w.GetBins()[more].GetLiftBits()
	}
	if s.output == "json" {
		return json.NewEncoder(s.term.out).Encode(out)
	}
	if s.output == "tsv" {
		_, err := fmt.Fprintf(s.term.out, "%s\t%d\t%s\t%s\t%s\n", out.Alert, out.AsOfUS, exact(out.JensenShannon), exact(out.PValue), out.shown())
		return err
	}
	return s.printAlertLine(&out)
}

func (s *session) printAlertLine(out *alertJSON) error {
	text := fmt.Sprintf("distance %.4f of 1 bit, %s", out.JensenShannon, chanceText(out.PValue))
	switch {
	case out.Error != "":
		text = out.Error
	case !out.Found:
		text = "nothing to compare (no such key, or all of it has faded)"
	case !out.none():
		text += fmt.Sprintf("; more of %s (%+.2f bits)", out.shown(), out.LiftBits)
	}
	if c := out.Coverage; len(c.ShardsFailed) > 0 {
		text += fmt.Sprintf(" (of %d of %d shards: not judged)", c.ShardsAnswered, c.ShardsTotal)
	}
	_, err := fmt.Fprintf(s.term.out, "%s  %-7s  %s\n", when(out.AsOfUS), out.Alert, text)
	return err
}
