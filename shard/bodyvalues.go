package shard

import (
	"math"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// quantile keeps the distribution of values.
type quantile struct{ sketch.Quantile }

func (d *quantile) form() form                      { return formQuantile }
func (d *quantile) last() sketch.Tick               { return d.Last() }
func (d *quantile) death(float64) sketch.Tick       { return d.Death() }
func (d *quantile) suits(*namespace) bool           { return true }
func (d *quantile) clone() body                     { return &quantile{d.Clone()} }
func (d *quantile) appendBinary(b []byte) []byte    { return d.AppendBinary(b) }
func (d *quantile) decode(b []byte) ([]byte, error) { return d.Decode(b) }

func (d *quantile) add(e *event) error {
	if e.all {
		d.CountAll()
	}
	return d.Add(e.now, e.at, e.value, e.amount)
}

func (d *quantile) merge(o body) error {
	return mergeAs(o, func(other *quantile) error { return d.Merge(&other.Quantile) })
}

func (d *quantile) answer(q *ebbv1.SummaryQuestion, at sketch.Tick, out *ebbv1.Summary) {
	d.answerWithout(q, at, 0, out)
}

// answerWithout answers where keys that are gone may have held up to missing values, whatever the values were.
func (d *quantile) answerWithout(q *ebbv1.SummaryQuestion, at sketch.Tick, missing float64, out *ebbv1.Summary) {
	r := d.At(at)
	r.Lost += missing
	out.Total = upTo(r.Sum, r.Lost)
	if r.N == 0 {
		return // every value has faded: there is nothing to answer
	}
	for _, part := range q.GetQuantiles() {
		// a value v stands for the values of its bucket: v/(1+a) to v/(1-a)
		v := r.Quantile(part)
		from, to := r.Bracket(part)
		out.Quantiles = append(out.Quantiles, &ebbv1.Estimate{
			Value:      v,
			Low:        max(-math.MaxFloat64, min(from/(1+r.Accuracy), from/(1-r.Accuracy))),
			High:       min(math.MaxFloat64, max(to/(1+r.Accuracy), to/(1-r.Accuracy))),
			Confidence: certain,
		})
	}
}
