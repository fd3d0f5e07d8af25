package shard

import (
	"bytes"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Kinds that count how often bins have occurred.

// countMin counts bins, however many there are.
type countMin struct{ sketch.CountMin }

func (c *countMin) form() form                          { return formCountMin }
func (c *countMin) add(e *event) error                  { return c.Add(e.now, e.at, e.hash(), e.amount) }
func (c *countMin) last() sketch.Tick                   { return c.Last() }
func (c *countMin) death(threshold float64) sketch.Tick { return c.Death(threshold) }
func (c *countMin) suits(ns *namespace) bool            { return c.Params().Hash.Seed == ns.seed }
func (c *countMin) clone() body                         { return &countMin{c.Clone()} }
func (c *countMin) appendBinary(b []byte) []byte        { return c.AppendBinary(b) }
func (c *countMin) decode(b []byte) ([]byte, error)     { return c.Decode(b) }

func (c *countMin) decodeWithin(b []byte, room int) ([]byte, error) { return c.DecodeWithin(b, room) }

func (c *countMin) merge(o body) error {
	return mergeAs(o, func(other *countMin) error { return c.Merge(&other.CountMin) })
}

func (c *countMin) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	lost := c.Lost(at)
	out.Total = upTo(c.Estimate(at, 0).Z, lost)
	for _, bin := range q.GetBins() {
		e := c.Estimate(at, hashOf(bin, c.Params().Hash.Seed))
		out.Bins = append(out.Bins, atMost(e.Count, e.Err, lost, 1-c.Params().Delta))
	}
}

// topK keeps the bins with the largest counts.
type topK struct{ sketch.TopK }

func (k *topK) form() form                          { return formTopK }
func (k *topK) add(e *event) error                  { return k.Add(e.now, e.at, e.bin, e.amount) }
func (k *topK) last() sketch.Tick                   { return k.Last() }
func (k *topK) death(threshold float64) sketch.Tick { return k.Death(threshold) }
func (k *topK) suits(ns *namespace) bool            { return k.Params().Hash.Seed == ns.seed }
func (k *topK) clone() body                         { return &topK{k.Clone()} }
func (k *topK) appendBinary(b []byte) []byte        { return k.AppendBinary(b) }
func (k *topK) decode(b []byte) ([]byte, error)     { return k.Decode(b) }

func (k *topK) merge(o body) error {
	return mergeAs(o, func(other *topK) error { return k.Merge(&other.TopK) })
}

func (k *topK) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	lost := k.Lost(at)
	out.Total = upTo(k.Z(at), lost)
	for _, bin := range q.GetBins() {
		item := k.Item(at, bin)
		out.Bins = append(out.Bins, atMost(item.Count, item.Err, lost, certain))
	}
	for _, item := range k.Top(at, int(q.GetTop()), nil) {
		count := atMost(item.Count, item.Err, lost, certain)
		out.Items = append(out.Items, &ebbv1.Item{Bin: bytes.Clone(item.Name), Count: count})
	}
}

// morris keeps the approximate sum of all amounts.
type morris struct{ sketch.Morris }

// newMorris makes a counter; counters are measured since BehaviourMorris.
func newMorris(halfLife sketch.Tick, size *ebbv1.Sizes, measured bool) *morris {
	m, err := sketch.NewMorris(sketch.MorrisParams{
		Bits: int(size.GetMorrisBits()), A: size.GetMorrisBase(), HalfLife: halfLife, Measured: measured,
	})
	if err != nil {
		panic("shard: " + err.Error()) // sizes are in range
	}
	return &morris{m}
}

// emptyMorris returns an empty counter of a form, to be decoded into.
func emptyMorris(measured bool) *morris {
	m, _ := sketch.NewMorris(sketch.MorrisParams{Bits: 16, Measured: measured})
	return &morris{m}
}

func (m *morris) form() form {
	if m.Params().Measured {
		return formMorrisMeasured
	}
	return formMorris
}

func (m *morris) add(e *event) error                  { return m.Add(e.now, e.at, e.amount, e.chance) }
func (m *morris) last() sketch.Tick                   { return m.Last() }
func (m *morris) death(threshold float64) sketch.Tick { return m.Death(threshold) }
func (m *morris) suits(*namespace) bool               { return true }
func (m *morris) clone() body                         { return &morris{m.Morris} }
func (m *morris) appendBinary(b []byte) []byte        { return m.AppendBinary(b) }

// decode refuses a counter of the other form.
func (m *morris) decode(b []byte) ([]byte, error) {
	f := m.form()
	rest, err := m.Decode(b)
	if err == nil && m.form() != f {
		return nil, sketch.ErrCorrupt
	}
	return rest, err
}

// merge rounds by a hash of both counters. So the same question about the same counters has the same answer, in either
// order of the two.
func (m *morris) merge(o body) error {
	return mergeAs(o, func(other *morris) error {
		return m.Merge(&other.Morris, xxh3.Hash(m.AppendBinary(nil))+xxh3.Hash(other.AppendBinary(nil)))
	})
}

func (m *morris) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	e := m.Estimate(at)
	if out.Over = e.Saturated; e.Saturated {
		out.Total = atLeast(q, e.Count)
		return
	}
	out.Total = &ebbv1.Estimate{Value: e.Count, StdError: e.StandardError, Confidence: sureness(q)}
	out.Total.Low, out.Total.High = m.Interval(at, out.Total.Confidence)
}
