package main

import (
	"context"
	"slices"
	"strings"

	"github.com/ebbdb/ebb/bench"
)

// spent is the cost of a load in one window.
type spent struct {
	units   float64 // acknowledged increments, or answers
	seconds float64 // how long the load ran
	cpu     float64 // CPU seconds of all three servers
}

func (s spent) secondsAUnit() float64 { return s.seconds / s.units }

func (s spent) cpuAUnit() float64 { return s.cpu / s.units }

// load is a kind of work, which both clusters get in turn.
type load struct {
	name  string
	reads bool // it needs the data that bench.Read prepares
	run   func(ctx context.Context, t bench.Target, s settings) (spent, error)
}

// costsOf names the costs by which loads are compared, in the order of load.compare.
func costsOf(loads []load) (out []string) {
	for _, l := range loads {
		out = append(out, l.name+": seconds a unit", l.name+": server CPU a unit")
	}
	return out
}

// loadsLike returns the loads that have text in their names.
func loadsLike(text string) (out []load) {
	for _, l := range loads {
		if strings.Contains(l.name, text) {
			out = append(out, l)
		}
	}
	return out
}

var loads = []load{
	{name: "write, batches of 1,000", run: write},
	{name: "read, batches of 32", reads: true, run: read(bench.Read{Batch: 32})},
	{name: "read, single", reads: true, run: read(bench.Read{Workers: 128, Alone: true})},
	{
		name: "read, single in shared requests", reads: true,
		run: read(bench.Read{Workers: 128}),
	},
}

func write(ctx context.Context, t bench.Target, s settings) (spent, error) {
	r, err := bench.Write{Duration: s.window}.Run(ctx, t)
	return spent{units: float64(r.Acknowledged), seconds: r.Seconds, cpu: r.ServerCPU.Seconds()}, err
}

func read(r bench.Read) func(context.Context, bench.Target, settings) (spent, error) {
	return func(ctx context.Context, t bench.Target, s settings) (spent, error) {
		r.Duration = s.window
		got, err := r.Run(ctx, t)
		if err != nil {
			return spent{}, err
		}
		answers := float64(got.Answers)
		return spent{units: answers, seconds: answers / got.PerSecond, cpu: got.ServerCPU.Seconds()}, nil
	}
}

// compare runs the load on both clusters in turn, after one window on each that does not count. It returns the ratio
// TO/FROM of the seconds a unit, and of the server CPU a unit. Each is the median over the windows, because other work
// may disturb a single window. The cluster that goes first changes with each window.
func (l load) compare(ctx context.Context, targets [2]bench.Target, pair int, s settings) ([]float64, error) {
	var seconds, cpu []float64
	for window := range s.windows + 1 {
		var got [2]spent
		for k := range 2 {
			which := (k + window + pair) % 2
			var err error
			if got[which], err = l.run(ctx, targets[which], s); err != nil {
				return nil, err
			}
		}
		if window > 0 {
			seconds = append(seconds, got[1].secondsAUnit()/got[0].secondsAUnit())
			cpu = append(cpu, got[1].cpuAUnit()/got[0].cpuAUnit())
		}
	}
	return []float64{median(seconds), median(cpu)}, nil
}

// median returns the median of a sample, and sorts the sample.
func median(sample []float64) float64 {
	slices.Sort(sample)
	n := len(sample)
	return (sample[(n-1)/2] + sample[n/2]) / 2
}
