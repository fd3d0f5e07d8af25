package shard

import (
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Kinds that know who was there.

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
