package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

func newIncr(s *session) *cobra.Command {
	var at, by, kindName string
	var values floatsValue
	cmd := &cobra.Command{
		Use: "incr KEY BIN...", Short: "Count something", Args: argsBetween(1, -1, "KEY BIN..."),
		Example: "  ebb incr clicks/country US\n  ebb incr clicks/country US BR --by 2.5 --at 2013-05-17T21:04:00Z\n" +
			"  ebb incr visitors/today ann bob --kind distinct\n  ebb incr fans/go ann bob --kind set\n  ebb incr latency --kind quantile --value 0.25,0.31",
		RunE: func(cmd *cobra.Command, args []string) error {
			amount, err := proto.ParseNumber(by)
			if err != nil && !math.IsInf(amount, 0) {
				return usagef("--by %q: %v", by, err)
			}
			if e := proto.CheckAmount(amount); e != nil {
				return e
			}
			happened, err := instantTime(at)
			if err != nil {
				return err
			}
			kind, err := kindOf(kindName, len(args)-1, len(values))
			if err != nil {
				return err
			}
			var batch []client.Increment
			for _, bin := range args[1:] {
				batch = append(batch, client.Increment{Key: args[0], Bin: bin, Amount: amount, Time: happened, Kind: kind})
			}
			for _, v := range values {
				batch = append(batch, client.Increment{Key: args[0], Amount: amount, Time: happened, Kind: kind, Value: v})
			}
			return s.incr(cmd, batch)
		},
	}
	cmd.Flags().StringVar(&by, "by", "1", "`amount` to add to each bin")
	cmd.Flags().StringVar(&kindName, "kind", "", "`kind` of the key: "+proto.KindNames()+
		" (what it is, or its namespace makes, if not given; --value needs --kind quantile)")
	cmd.Flags().Var(&values, "value", "with --kind quantile: measured `values`, separated by commas, instead of bins")
	cmd.Flags().StringVar(&at, "at", "", "`time` of the event ("+timeForms+") instead of now")
	return cmd
}

// kindOf reads --kind, and checks that it matches the bins and values.
func kindOf(name string, bins, values int) (client.Kind, error) {
	kind, known := proto.KindNamed(name)
	switch {
	case name != "" && !known:
		return 0, noneOf("--kind", name, strings.Split(proto.KindNames(), ", "))
	case kind == client.KindQuantile && (bins > 0 || values == 0):
		return 0, usagef("a quantile takes --value, and no bins")
	case kind == client.KindString:
		return 0, usagef("--kind string: incr counts; ebb string set writes a value")
	case kind != client.KindQuantile && values > 0:
		return 0, usagef("--value goes with --kind quantile, also where the key or the namespace is of that kind")
	case kind != client.KindQuantile && bins == 0:
		return 0, usagef("which bins? incr wants KEY BIN...")
	}
	return kind, nil
}

func (s *session) incr(cmd *cobra.Command, batch []client.Increment) error {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	if err := c.Increment(ctx, s.namespace, batch...); err != nil {
		return partly(len(batch), err)
	}
	s.noteFaded(ctx, c, batch[0])
	if s.output == "json" {
		return printJSON(s.term.out, map[string]int{"applied": len(batch)})
	}
	if s.output == "tsv" {
		_, err = fmt.Fprintln(s.term.out, len(batch))
		return err
	}
	_, err = fmt.Fprintf(s.term.out, "counted %d\n", len(batch))
	return err
}

// partlyCounted is the error of several increments if only some of them failed.
type partlyCounted struct {
	counted int64
	failed  *client.Undelivered
}

func partly(sent int, err error) error {
	var u *client.Undelivered
	if !errors.As(err, &u) {
		return err
	}
	return &partlyCounted{int64(sent) - u.Lost - u.Unknown - u.Refused, u}
}

func (p *partlyCounted) Error() string {
	text := fmt.Sprintf("%d counted", p.counted)
	for _, part := range []struct {
		n    int64
		what string
	}{{p.failed.Refused, "refused"}, {p.failed.Lost, "not counted"}, {p.failed.Unknown, "of unknown outcome"}} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.what)
		}
	}
	return fmt.Sprintf("%s: %v", text, p.failed.Err)
}

func (p *partlyCounted) Unwrap() error { return p.failed }

// noteFaded prints a note if an event is so old that nothing is left of it.
func (s *session) noteFaded(ctx context.Context, c *client.Client, in client.Increment) {
	if in.Time.IsZero() {
		return
	}
	all, err := c.Namespaces(ctx)
	if err != nil {
		return // the event is counted; only the note is missing
	}
	ns := client.Namespace{
		Name: s.namespace, Decay: client.DecayHalfLife, HalfLife: proto.DefaultHalfLifeUS * time.Microsecond, Clock: client.ClockWall, Threshold: proto.DefaultThreshold,
	}
	for _, known := range all {
		if known.Name == s.namespace {
			ns = known
		}
	}
	if !fadesByWeight(cmp.Or(in.Kind, ns.Kind)) {
		return
	}
	if note := fadedNote(ns, time.Since(in.Time), in.Amount); note != "" {
		fmt.Fprintln(s.term.err, "note:", note)
	}
}

// fadesByWeight reports whether an older event of a kind counts less. A linear counts everything fully while it lives,
// and strings and phrases do not fade.
func fadesByWeight(kind client.Kind) bool {
	return kind != client.KindLinear && kind != client.KindString && kind != client.KindPhrases
}

// fadedNote returns a note if an event of this age weighs less than the threshold of the namespace; else "".
func fadedNote(ns client.Namespace, age time.Duration, amount float64) string {
	if ns.Clock != client.ClockWall || ns.Decay != client.DecayHalfLife || ns.HalfLife <= 0 || age <= 0 || amount == 0 {
		return ""
	}
	halfLives := age.Seconds() / ns.HalfLife.Seconds()
	if math.Abs(amount)*math.Exp2(-halfLives) >= ns.Threshold {
		return ""
	}
	return fmt.Sprintf("this event is %s half-lives old in namespace %s and weighs less than its threshold; history is replayed in a namespace with --clock event",
		figure(halfLives, 3), ns.Name)
}
