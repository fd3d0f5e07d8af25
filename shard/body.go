package shard

import (
	"errors"
	"math"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// body is what a key holds that is no distribution: a summary of package
// sketch, made to the size and the half-life that its namespace had then.
type body interface {
	form() form
	// add takes an event.
	add(e *event) error
	// last is the time of the latest event as far as it matters, and death one
	// from which on nothing is left, MaxTick for never.
	last() sketch.Tick
	death(threshold float64) sketch.Tick
	// suits says whether a namespace with this seed may have made it.
	suits(seed uint64) bool
	// merge adds what another of the same form holds.
	merge(o body) error
	clone() body
	appendBinary(b []byte) []byte
	decode(b []byte) (rest []byte, err error)
	// answer fills in an answer to a question that asks for nothing else than it knows.
	answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary)
}

// form tells bodies apart in snapshots and parts: their values never change
// their meaning. A kind has one that forgets and one that does not, where these
// are different things.
type form uint8

const (
	formDistribution form = iota // no body at all
	formDistinct
	formDistinctDecayed
	formCountMin
	formQuantile
)

// forms makes an empty body of each form, to be decoded into.
var forms = map[form]func() body{
	formDistinct:        func() body { return new(distinct) },
	formDistinctDecayed: func() body { return new(distinctDecayed) },
	formCountMin:        func() body { return new(countMin) },
	formQuantile:        func() body { return new(quantile) },
}

// kind is what the outside calls a form.
func (f form) kind() ebbv1.Kind {
	switch f {
	case formDistinct, formDistinctDecayed:
		return ebbv1.Kind_KIND_DISTINCT
	case formCountMin:
		return ebbv1.Kind_KIND_COUNTMIN
	case formQuantile:
		return ebbv1.Kind_KIND_QUANTILE
	}
	return ebbv1.Kind_KIND_DISTRIBUTION
}

// event is an increment on its way into a body.
type event struct {
	now, at sketch.Tick
	hash    uint64 // of the bin, by the namespace's seed
	amount  float64
	value   float64
}

func eventOf(ns *namespace, clock, t sketch.Tick, in *proto.IncrementWire) event {
	return event{now: clock, at: t, hash: xxh3.HashSeed(in.Bin, ns.seed), amount: in.Amount, value: in.Value}
}

// Sizes of new bodies.
const (
	countMinEpsilon = 0.01 // of the sum: 272 counters a row
	countMinDelta   = 0.01 // 5 rows
)

// newBody makes an empty body; nil if the namespace cannot hold the kind: a
// leaky bucket is a thing of distributions.
func newBody(kind ebbv1.Kind, ns *namespace) body {
	p := ns.params()
	hash := sketch.Hash{ID: sketch.HashXXH3, Seed: ns.seed}
	halfLife := p.HalfLife
	switch p.Decay {
	case sketch.Linear:
		return nil
	case sketch.None:
		halfLife = 0
	}
	switch kind {
	case ebbv1.Kind_KIND_DISTINCT:
		if halfLife > 0 {
			d, err := sketch.NewDistinctDecayed(sketch.DistinctDecayedParams{HalfLife: halfLife, Hash: hash})
			return sound(&distinctDecayed{d}, err)
		}
		d, err := sketch.NewDistinct(sketch.DistinctParams{Hash: hash})
		return sound(&distinct{d}, err)
	case ebbv1.Kind_KIND_COUNTMIN:
		c, err := sketch.NewCountMin(sketch.CountMinParams{Epsilon: countMinEpsilon, Delta: countMinDelta, HalfLife: halfLife, Hash: hash})
		return sound(&countMin{c}, err)
	case ebbv1.Kind_KIND_QUANTILE:
		q, err := sketch.NewQuantile(sketch.QuantileParams{HalfLife: halfLife, Threshold: p.Threshold, Compact: p.Compact})
		return sound(&quantile{q}, err)
	}
	return nil
}

// sound is the body, whose parameters are known to be in range.
func sound(b body, err error) body {
	if err != nil {
		panic("shard: " + err.Error())
	}
	return b
}

// kind is what a key holds.
func (sum *summary) kind() ebbv1.Kind {
	if sum.body == nil {
		return ebbv1.Kind_KIND_DISTRIBUTION
	}
	return sum.body.form().kind()
}

// addToBody brings an event to a key that holds another kind than a
// distribution, or is new and shall.
func (s *State) addToBody(ns *namespace, key uint32, created bool, clock, t sketch.Tick, in *proto.IncrementWire) ebbv1.Code {
	sum := s.editSummary(key)
	if created {
		sum.body = newBody(in.Kind, ns)
	}
	code := addEvent(ns, sum.body, clock, t, in)
	switch {
	case created && code != 0:
		s.dropKey(ns, key)
	case created:
		return s.settle(ns, key, sum, clock)
	}
	return code
}

func addEvent(ns *namespace, b body, clock, t sketch.Tick, in *proto.IncrementWire) ebbv1.Code {
	switch {
	case b == nil:
		return ebbv1.Code_CODE_WRONG_KIND
	case in.Amount < 0:
		return ebbv1.Code_CODE_NEGATIVE_AMOUNT
	case b.form() == formQuantile && in.Kind == 0:
		return ebbv1.Code_CODE_WRONG_KIND
	case b.form() == formQuantile && !in.HasValue:
		return ebbv1.Code_CODE_BAD_AMOUNT
	}
	e := eventOf(ns, clock, t, in)
	if err := b.add(&e); err != nil {
		return ebbv1.Code_CODE_BAD_AMOUNT
	}
	return 0
}

// ended says whether nothing is left of a body at a time.
func ended(b body, p *sketch.Params, at sketch.Tick) bool {
	death := b.death(p.Threshold)
	return death != sketch.MaxTick && death <= at
}

// errOtherForm refuses to merge.
var errOtherForm = errors.New("one forgets and the other does not")

func exactly(value float64) *ebbv1.Estimate {
	return &ebbv1.Estimate{Value: value, Low: value, High: value}
}

// about is an estimate with a standard error and the interval of a question's confidence.
func about(q *ebbv1.SummaryQuestion, value, stdErr float64) *ebbv1.Estimate {
	low, high := sketch.Around(value, stdErr, sureness(q))
	return &ebbv1.Estimate{Value: value, StdError: stdErr, Low: low, High: high}
}

func sureness(q *ebbv1.SummaryQuestion) float64 {
	if q.GetConfidence() == 0 {
		return proto.DefaultConfidence
	}
	return q.GetConfidence()
}

// distinct counts what it has seen, for good.
type distinct struct{ sketch.Distinct }

func (d *distinct) form() form { return formDistinct }

func (d *distinct) add(e *event) error {
	d.Add(e.hash)
	return nil
}

func (d *distinct) last() sketch.Tick               { return 0 }
func (d *distinct) death(float64) sketch.Tick       { return sketch.MaxTick }
func (d *distinct) suits(seed uint64) bool          { return d.Params().Hash.Seed == seed }
func (d *distinct) clone() body                     { return &distinct{d.Clone()} }
func (d *distinct) appendBinary(b []byte) []byte    { return d.AppendBinary(b) }
func (d *distinct) decode(b []byte) ([]byte, error) { return d.Decode(b) }

func (d *distinct) merge(o body) error {
	other, ok := o.(*distinct)
	if !ok {
		return errOtherForm
	}
	return d.Merge(&other.Distinct)
}

func (d *distinct) answer(q *ebbv1.SummaryQuestion, _ sketch.Tick, out *ebbv1.Summary) {
	n, stdErr := d.Estimate()
	out.Total = about(q, n, stdErr)
}

// distinctDecayed counts what is around.
type distinctDecayed struct{ sketch.DistinctDecayed }

func (d *distinctDecayed) form() form { return formDistinctDecayed }

func (d *distinctDecayed) add(e *event) error {
	d.Add(e.now, e.at, e.hash)
	return nil
}

func (d *distinctDecayed) last() sketch.Tick                   { return d.Last() }
func (d *distinctDecayed) death(threshold float64) sketch.Tick { return d.Death(threshold) }
func (d *distinctDecayed) suits(seed uint64) bool              { return d.Params().Hash.Seed == seed }

func (d *distinctDecayed) clone() body                     { return &distinctDecayed{d.Clone()} }
func (d *distinctDecayed) appendBinary(b []byte) []byte    { return d.AppendBinary(b) }
func (d *distinctDecayed) decode(b []byte) ([]byte, error) { return d.Decode(b) }

func (d *distinctDecayed) merge(o body) error {
	other, ok := o.(*distinctDecayed)
	if !ok {
		return errOtherForm
	}
	return d.Merge(&other.DistinctDecayed)
}

func (d *distinctDecayed) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	n, stdErr := d.Estimate(at)
	out.Total = about(q, n, stdErr)
}

// countMin counts bins, of which there may be any number.
type countMin struct{ sketch.CountMin }

func (c *countMin) form() form                          { return formCountMin }
func (c *countMin) add(e *event) error                  { return c.Add(e.now, e.at, e.hash, e.amount) }
func (c *countMin) last() sketch.Tick                   { return c.Last() }
func (c *countMin) death(threshold float64) sketch.Tick { return c.Death(threshold) }
func (c *countMin) suits(seed uint64) bool              { return c.Params().Hash.Seed == seed }
func (c *countMin) clone() body                         { return &countMin{c.Clone()} }
func (c *countMin) appendBinary(b []byte) []byte        { return c.AppendBinary(b) }
func (c *countMin) decode(b []byte) ([]byte, error)     { return c.Decode(b) }

func (c *countMin) merge(o body) error {
	other, ok := o.(*countMin)
	if !ok {
		return errOtherForm
	}
	return c.Merge(&other.CountMin)
}

func (c *countMin) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	out.Total = exactly(c.Estimate(at, 0).Z)
	for _, bin := range q.GetBins() {
		e := c.Estimate(at, xxh3.HashSeed(bin, c.Params().Hash.Seed))
		out.Bins = append(out.Bins, &ebbv1.Estimate{Value: e.Count, Low: e.Count - e.Err, High: e.Count})
	}
}

// quantile knows how values are spread.
type quantile struct{ sketch.Quantile }

func (d *quantile) form() form                      { return formQuantile }
func (d *quantile) add(e *event) error              { return d.Add(e.now, e.at, e.value, e.amount) }
func (d *quantile) last() sketch.Tick               { return d.Last() }
func (d *quantile) death(float64) sketch.Tick       { return d.Death() }
func (d *quantile) suits(uint64) bool               { return true }
func (d *quantile) clone() body                     { return &quantile{d.Clone()} }
func (d *quantile) appendBinary(b []byte) []byte    { return d.AppendBinary(b) }
func (d *quantile) decode(b []byte) ([]byte, error) { return d.Decode(b) }

func (d *quantile) merge(o body) error {
	other, ok := o.(*quantile)
	if !ok {
		return errOtherForm
	}
	return d.Merge(&other.Quantile)
}

func (d *quantile) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	r := d.At(at)
	out.Total = exactly(r.N)
	if r.N == 0 {
		return // every value has faded, and there is nothing to tell
	}
	for _, part := range q.GetQuantiles() {
		v := r.Quantile(part)
		off := math.Abs(v) * r.Accuracy
		out.Quantiles = append(out.Quantiles, &ebbv1.Estimate{Value: v, Low: v - off, High: v + off})
	}
}
