package swarm

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Campaign runs the plans of many seeds, and shrinks the plans that fail.
type Campaign struct {
	Fleet       *Fleet
	First, Last uint64        // the range of seeds, both included
	For         time.Duration // no seed begins after this much real time; 0 is no limit
	Workers     int
	Families    []string // that plans are drawn from; all if empty
	Faults      *Choice  // the parts of each plan to keep; all if nil
	StopAtFirst bool     // begin no more seeds after a failure
	NoShrink    bool
	// Kept has verdicts of earlier runs, whose seeds are not run again. It also stores the verdicts of this run; nil
	// stores none.
	Kept *Kept
	// Each is called with every verdict, one at a time; it may be nil.
	Each func(v *Verdict)
	// Progress is called after every seed, and while a plan is shrunk; it may be nil.
	Progress func(r *Report, doing string)
}

// Report is the result of a campaign.
type Report struct {
	Mode    string        `json:"mode"`
	Command string        `json:"command,omitempty"`
	Sum     Sum           `json:"sum"`
	Real    time.Duration `json:"real_ns"` // of this run
	// Before is the number of seeds whose verdicts come from earlier runs.
	Before int `json:"before,omitempty"`
	// Asked is the number of requested seeds; 0 if only time limits the campaign.
	Asked uint64 `json:"asked,omitempty"`
	// Interrupted says that the run was cut short.
	Interrupted bool `json:"interrupted,omitempty"`
	// FirstFailure is the smallest seed that failed; nil if all held.
	FirstFailure *Failure   `json:"first_failure,omitempty"`
	Failures     []*Failure `json:"failures,omitempty"`
	// Unused families were never injected, unused invariants never evaluated.
	UnusedFamilies   []string `json:"unused_families,omitempty"`
	UnusedInvariants []string `json:"unused_invariants,omitempty"`
	// Late is not empty if majorities took too long to serve again in too many cases.
	Late string `json:"late,omitempty"`

	runs []*Verdict // some whole verdicts, for the timelines of the report
	all  []brief
}

// Failure is a seed that failed.
type Failure struct {
	Seed       uint64   `json:"seed"`
	Invariant  string   `json:"invariant"`  // the first that did not hold
	Invariants []string `json:"invariants"` // all that did not
	What       string   `json:"what"`
	Faults     string   `json:"acts"` // the parts of the smallest plan that failed, as --acts takes them
	Replay     string   `json:"replay"`
	Verdict    *Verdict `json:"verdict"` // of the smallest plan that failed
}

// brief is the line of one seed in the report.
type brief struct {
	Seed    uint64
	Plan    string
	Tally   Tally
	Virtual time.Duration
	Failed  bool
}

const (
	// shownMax is how many seeds that held are drawn in a report.
	shownMax = 12
	// shrunkMax is how many failing seeds are shrunk.
	shrunkMax = 5
	// toldMax is how many failing seeds keep their stories.
	toldMax = 50
)

// Run runs the campaign. An error means that the test machinery failed, or that Kept has a verdict of another plan
// (ErrAnotherPlan). A seed that fails is not an error.
func (c *Campaign) Run(ctx context.Context) (*Report, error) {
	r := &Report{Mode: Mode()}
	if c.Last-c.First < 1<<40 {
		r.Asked = c.Last - c.First + 1
	}
	began := time.Now()
	next, stop := c.First, false
	for _, v := range c.Kept.judged(c.First, c.Last) {
		if err := c.same(v); err != nil {
			return nil, err
		}
		r.add(v)
		r.Before++
		stop = stop || v.Failed() && c.StopAtFirst
	}
	var unkept error
	plans := func() (Plan, bool) {
		for c.Kept.has(next) && next <= c.Last {
			next++
		}
		if unkept != nil || stop || next > c.Last || c.For > 0 && time.Since(began) > c.For {
			return Plan{}, false
		}
		next++
		return c.plan(next - 1), true
	}
	err := c.Fleet.Judge(ctx, max(1, c.Workers), plans, func(v *Verdict) {
		r.add(v)
		unkept = errors.Join(unkept, c.Kept.keep(v))
		if c.Each != nil {
			c.Each(v)
		}
		stop = stop || v.Failed() && c.StopAtFirst
		r.Real = time.Since(began)
		c.progress(r, "")
	})
	if err = errors.Join(err, unkept); err != nil {
		return nil, err
	}
	slices.SortFunc(r.Failures, func(a, b *Failure) int { return int(int64(a.Seed) - int64(b.Seed)) })
	r.Interrupted = ctx.Err() != nil
	if !c.NoShrink {
		for _, f := range r.Failures[:min(len(r.Failures), shrunkMax)] {
			c.progress(r, fmt.Sprintf("shrinking the plan of seed %d", f.Seed))
			f.take(Shrink(f.Verdict, func(p Plan) *Verdict { return c.again(ctx, p, f.Invariants) }), c.Families)
		}
	}
	if len(r.Failures) > 0 {
		r.FirstFailure = r.Failures[0]
	}
	for _, f := range r.Failures {
		f.take(f.Verdict, c.Families)
	}
	r.Real = time.Since(began)
	r.UnusedFamilies, r.UnusedInvariants = r.Sum.Unused()
	r.Late = r.Sum.Outage.Late()
	return r, nil
}

func (c *Campaign) plan(seed uint64) Plan {
	p := Draw(seed, c.Families...)
	if c.Faults != nil {
		p = p.Only(*c.Faults)
	}
	return p
}

// same returns ErrAnotherPlan if a kept verdict is of another plan than this campaign has for that seed.
func (c *Campaign) same(v *Verdict) error {
	if p := c.plan(v.Plan.Seed); !reflect.DeepEqual(p, v.Plan) {
		return fmt.Errorf("%s %w of seed %d (%v) than is asked for (%v), by another build or for other families or faults: name another file", c.Kept.name(), ErrAnotherPlan, v.Plan.Seed, v.Plan, p)
	}
	return nil
}

func (c *Campaign) progress(r *Report, doing string) {
	if c.Progress != nil {
		c.Progress(r, doing)
	}
}

// again runs a plan until one of these invariants does not hold, a few times at most.
func (c *Campaign) again(ctx context.Context, p Plan, invariants []string) (failing *Verdict) {
	tries := 0
	// an error of a worker means that nothing smaller was found
	_ = c.Fleet.Judge(ctx, max(1, c.Workers), func() (Plan, bool) {
		tries++
		return p, tries <= triesMax() && failing == nil
	}, func(v *Verdict) {
		if slices.ContainsFunc(v.breached(), func(name string) bool { return slices.Contains(invariants, name) }) {
			failing = v
		}
	})
	return failing
}

func (r *Report) add(v *Verdict) {
	r.Sum.Add(v)
	r.all = append(r.all, brief{v.Plan.Seed, v.Plan.String(), v.Tally, v.Virtual, v.Failed()})
	if v.Failed() {
		if len(r.Failures) >= toldMax {
			v = v.bare()
		}
		f := &Failure{Seed: v.Plan.Seed}
		f.take(v, nil)
		r.Failures = append(r.Failures, f)
		return
	}
	if len(r.runs) < shownMax {
		r.runs = append(r.runs, v)
	}
}

// take sets the verdict of the failure, and the fields that follow from it.
func (f *Failure) take(v *Verdict, families []string) {
	first := v.Breaches[0]
	f.Verdict, f.Invariant, f.Invariants, f.What, f.Faults = v, first.Invariant, v.breached(), first.String(), v.Plan.Choice().String()
	f.Replay = fmt.Sprintf("%s chaos sim --seeds %d --acts %s", Program(), f.Seed, f.Faults)
	if len(families) > 0 {
		f.Replay += " --families " + strings.Join(families, ",")
	}
}

// SeedsPerSecond returns how many seeds this run judged in a second of real time.
func (r *Report) SeedsPerSecond() float64 {
	if r.Real == 0 {
		return 0
	}
	return float64(r.Sum.Seeds-r.Before) / r.Real.Seconds()
}

// Ran describes how many seeds were run and, if the run was interrupted, how many were requested.
func (r *Report) Ran() string {
	seeds := "seeds"
	if r.Sum.Seeds == 1 {
		seeds = "seed"
	}
	switch {
	case !r.Interrupted:
		return fmt.Sprintf("%d %s", r.Sum.Seeds, seeds)
	case r.Asked == 0:
		return fmt.Sprintf("interrupted after %d %s", r.Sum.Seeds, seeds)
	case r.Asked == 1:
		seeds = "seed"
	default:
		seeds = "seeds"
	}
	return fmt.Sprintf("interrupted after %d of %d %s", r.Sum.Seeds, r.Asked, seeds)
}
