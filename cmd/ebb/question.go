package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// questionFlags are the flags that all questions about distributions share.
type questionFlags struct {
	asOf        string
	confidence  float64
	consistency string
	staleness   time.Duration
	partial     bool
	strict      bool
	watch       time.Duration
}

func (q *questionFlags) add(cmd *cobra.Command) {
	q.addAsking(cmd)
	cmd.Flags().Float64Var(&q.confidence, "confidence", proto.DefaultConfidence, "of the intervals, 0.5 to 0.9999")
}

// addAsking adds the flags of questions without intervals.
func (q *questionFlags) addAsking(cmd *cobra.Command) {
	cmd.Flags().StringVar(&q.asOf, "as-of", "", "evaluate at this `time` ("+timeForms+") instead of now; the past before a shard's clock is not kept, and answered at that clock")
	q.addReading(cmd)
}

// addReading adds the flags of questions about data that does not fade.
func (q *questionFlags) addReading(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&q.consistency, "consistency", "linearizable", "linearizable, bounded (see --max-staleness) or any")
	durationVar(f, &q.staleness, "max-staleness", 10*time.Second, time.Microsecond, "of bounded consistency")
	f.BoolVar(&q.partial, "allow-partial", false, "answer from the shards that can, and say which could not")
	f.BoolVar(&q.strict, "strict", false,
		"refuse to answer (exit code 3) where a key that is named is not there; "+
			"otherwise it counts as empty, and is named")
	durationVar(f, &q.watch, "watch", 0, 0, "ask again at this interval until interrupted")
}

// options reads the flags; given reports whether --max-staleness is on the command line.
func (q *questionFlags) options(given bool) ([]client.AskOption, error) {
	var opts []client.AskOption
	switch q.consistency {
	case "linearizable":
	case "bounded":
		opts = append(opts, client.Bounded(q.staleness))
	case "any":
		opts = append(opts, client.Any())
	default:
		return nil, noneOf("--consistency", q.consistency, consistencies)
	}
	if given && q.consistency != "bounded" {
		return nil, usagef("--max-staleness is of --consistency bounded, and this is %s", q.consistency)
	}
	if q.partial {
		opts = append(opts, client.AllowPartial())
	}
	if q.strict {
		opts = append(opts, client.Strict())
	}
	return opts, nil
}

// ask asks one question about distributions, and prints the answer.
func (s *session) ask(cmd *cobra.Command, q *questionFlags, dq *ebbv1.DistributionQuestion) error {
	var err error
	if dq.AsOfUs, err = instant(q.asOf); err != nil {
		return err
	}
	dq.Confidence = q.confidence
	if key, twice := repeated(dq.GetKeys()); twice {
		return usagef("key %s is named twice, and would be counted twice", printable(key))
	}
	question := &ebbv1.Question{Namespace: s.namespace, Ask: &ebbv1.Question_Distribution{Distribution: dq}}
	return s.put(cmd, q, question, func(a *ebbv1.Answer) error {
		s.noteAsOf(dq.GetAsOfUs(), a.GetDistribution().GetAsOfUs())
		if !a.GetDistribution().GetFound() {
			for _, key := range dq.GetKeys() {
				s.notePattern(string(key))
			}
		}
		return s.printDistribution(a, dq.GetBins() != nil)
	})
}

// put asks a question as often as the flags say, and shows each answer.
func (s *session) put(cmd *cobra.Command, q *questionFlags, question *ebbv1.Question, show func(*ebbv1.Answer) error) error {
	if e := proto.CheckQuestion(question); e != nil {
		return e
	}
	opts, err := q.options(s.given["max-staleness"])
	if err != nil {
		return err
	}
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	return s.repeat(cmd.Context(), q.watch, func() error {
		ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
		defer cancel()
		answers, err := c.Ask(ctx, []*ebbv1.Question{question}, opts...)
		if err != nil {
			return err
		}
		if e := proto.FromWire(answers[0].GetError()); e != nil {
			return e
		}
		s.noteMissing(answers[0])
		return show(answers[0])
	})
}

// noteAsOf prints a note if an answer is for a later time than was asked for.
func (s *session) noteAsOf(asked, answered int64) {
	if asked != 0 && answered > asked {
		fmt.Fprintf(s.term.err, "note: asked as of %s, answered as of %s: the past before a shard's clock is not kept\n", when(asked), when(answered))
	}
}

// repeat runs f once, or at an interval until ctx ends. A transient error does not end it; it is printed with the age
// of the last answer.
func (s *session) repeat(ctx context.Context, interval time.Duration, f func() error) error {
	var answered time.Time
	for {
		err := f()
		if ctx.Err() != nil && interval > 0 {
			return nil // an interrupt is the normal end
		}
		switch {
		case interval <= 0:
			return err
		case err == nil:
			answered = time.Now()
		case codeOf(err) != exitUnreachable:
			return err
		default:
			fmt.Fprintf(s.term.err, "error: %v; %s\n", err, ageText(answered))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
			if s.output == "table" && err == nil {
				fmt.Fprintln(s.term.out)
			}
		}
	}
}

func ageText(answered time.Time) string {
	if answered.IsZero() {
		return "no answer yet"
	}
	return fmt.Sprintf("the last answer is %.1f s old", time.Since(answered).Seconds())
}

// repeated returns the first key that occurs twice.
func repeated(keys [][]byte) (key []byte, twice bool) {
	seen := make(map[string]bool, len(keys))
	for _, key := range keys {
		if seen[string(key)] {
			return key, true
		}
		seen[string(key)] = true
	}
	return nil, false
}

func keysOf(args []string) [][]byte {
	keys := make([][]byte, len(args))
	for i, a := range args {
		keys[i] = []byte(a)
	}
	return keys
}

func newGet(s *session) *cobra.Command {
	var q questionFlags
	cmd := &cobra.Command{
		Use: "get KEY BIN...", Short: "Counts and probabilities of bins", Args: argsBetween(2, -1, "KEY BIN..."),
		Example: "  ebb get clicks/country US BR",
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.ask(cmd, &q, &ebbv1.DistributionQuestion{
				Keys:   keysOf(args[:1]),
				Select: &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: keysOf(args[1:])}},
			})
		},
	}
	q.add(cmd)
	return cmd
}

func newTop(s *session) *cobra.Command {
	var q questionFlags
	var n int64
	cmd := &cobra.Command{
		Use: "top KEY...", Short: "The most probable bins; several keys, or those that match a pattern, are merged", Args: argsBetween(1, -1, "KEY..."),
		Long:    "The most probable bins of a distribution, or of several taken as one.\n\n" + patternHelp,
		Example: "  ebb top clicks/country\n  ebb top clicks/link/a clicks/link/b --n 3\n  ebb top 'clicks/link/*'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if e := proto.CheckTop(n); e != nil {
				return e
			}
			keys, patterns := splitPatternBytes(args)
			err := s.ask(cmd, &q, &ebbv1.DistributionQuestion{Keys: keys, Patterns: patterns, Select: &ebbv1.DistributionQuestion_Top{Top: uint32(n)}})
			if _, e := strconv.Atoi(s.namespace); e == nil && errors.Is(err, proto.ErrNamespaceNotFound) {
				return proto.ErrNamespaceNotFound.Errorf("namespace %s does not exist", s.namespace).
					WithHint("--n " + s.namespace + " is the number of bins; -n names the namespace")
			}
			return err
		},
	}
	q.add(cmd)
	cmd.Flags().Int64Var(&n, "n", 10, "how many bins (-n, with one dash, is the namespace)")
	return cmd
}

func newDist(s *session) *cobra.Command {
	var q questionFlags
	cmd := &cobra.Command{
		Use: "dist KEY...", Short: "A whole distribution; several keys, or those that match a pattern, are merged", Args: argsBetween(1, -1, "KEY..."),
		Example: "  ebb dist clicks/country --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, patterns := splitPatternBytes(args)
			return s.ask(cmd, &q, &ebbv1.DistributionQuestion{Keys: keys, Patterns: patterns, Select: &ebbv1.DistributionQuestion_All{All: true}})
		},
	}
	q.add(cmd)
	return cmd
}
