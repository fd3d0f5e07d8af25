package shard

import (
	"fmt"
	"math"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// halfLifeOf is the half-life that a body was made with, 0 for none.
func halfLifeOf(b body) sketch.Tick {
	switch b := b.(type) {
	case *distinctDecayed:
		return b.Params().HalfLife
	case *countMin:
		return b.Params().HalfLife
	case *quantile:
		return b.Params().HalfLife
	case *topK:
		return b.Params().HalfLife
	case *morris:
		return b.Params().HalfLife
	case *linear:
		return b.halfLife
	case *setDecayed:
		return b.Params().HalfLife
	case *bloomExpiring:
		return b.Params().Window
	case *bloomTimed:
		return b.Params().Window
	}
	return 0
}

// halving says whether the total of a body halves in a half-life.
func halving(b body) bool {
	switch b.(type) {
	case *linear, *bloomExpiring, *bloomTimed:
		return false
	}
	return halfLifeOf(b) > 0
}

func property(name string, value float64) *ebbv1.Property {
	return &ebbv1.Property{Name: name, Value: value}
}

func distributionProperties(p *sketch.Params) []*ebbv1.Property {
	width := 64.0
	if p.Compact {
		width = 32
	}
	out := []*ebbv1.Property{property("bins_max", float64(p.BinsMax)), property("value_bits", width)}
	if p.Decay != sketch.None {
		out = append(out, property("threshold", p.Threshold))
	}
	return out
}

// countsAccuracy describes the error of the counts of a key that holds a distribution, at a time.
func (f *frame) countsAccuracy(ns *namespace, sum *summary, at sketch.Tick) string {
	lost := 0.0
	if d := f.present(ns, sum, at); d != nil {
		lost = d.Lost(ns.params(), at)
	}
	return distributionAccuracy(ns.params(), lost)
}

// distributionAccuracy describes the error of counts when so much is lost.
func distributionAccuracy(p *sketch.Params, lost float64) string {
	const sampled = "; probabilities have the interval of their sample"
	text := "counts are exact but for rounding (1e-9)"
	if p.Compact {
		text = "counts are within 1e-5 of themselves"
	}
	switch {
	case lost == 0:
	case p.AllowNegative:
		text += ", and off by at most " + lostText(lost)
	default:
		text += ", and too low by at most " + lostText(lost)
	}
	return text + sampled
}

// lostText writes the most that may be lost.
func lostText(lost float64) string { return fmt.Sprintf("%.2g, whatever order events came in", lost) }

// sumText describes the error of the sum of a body.
func sumText(lost float64) string {
	if lost == 0 {
		return "the sum is exact; a bin is never too low, and"
	}
	return fmt.Sprintf("the sum and a bin are too low by at most %s; a bin is", lostText(lost))
}

// orLost adds to a text how much too low a count may be.
func orLost(text string, lost float64) string {
	if lost == 0 {
		return text
	}
	return text + ", and too low by at most " + lostText(lost)
}

// valuesText describes the error of quantiles, and of the number of values behind them.
func valuesText(accuracy, lost float64) string {
	text := fmt.Sprintf("quantiles are within %.2g%% of a value that was measured", 100*accuracy)
	if lost == 0 {
		return text
	}
	return text + ", and the number of values is too low by at most " + lostText(lost)
}

// exactError is a standard error: up to it, the whole number nearest to a count is almost always the true count.
const exactError = 0.125

// distinctText describes the error of a count of different bins: while there are few bins, the count is exact.
func distinctText(d *distinct) string {
	err := distinctError(d.Params().Precision)
	if _, stdErr := d.Estimate(); stdErr > exactError {
		return fmt.Sprintf("standard error %.2g%%", 100*err)
	}
	return fmt.Sprintf("exact but for equal hashes, as long as there are so few bins; "+
		"of many the standard error is %.2g%%", 100*err)
}

// fewText describes the error of a count that is exact while it is small.
func fewText(stdErr float64) string {
	return fmt.Sprintf("exact but for equal hashes while there are few bins, then standard error %.2g%%", 100*stdErr)
}

// properties returns the sizes of a body, and describes the error of its answers.
func properties(b body, at sketch.Tick) (out []*ebbv1.Property, accuracy string) {
	lost := lostBy(b, at)
	switch b := b.(type) {
	case *distinct:
		p := b.Params()
		err := distinctError(p.Precision)
		return []*ebbv1.Property{property("precision", float64(p.Precision)), property("standard_error", err)},
			distinctText(b)
	case *distinctWindow:
		p := b.Params()
		err := distinctError(p.Distinct.Precision)
		return []*ebbv1.Property{
			property("precision", float64(p.Distinct.Precision)), property("window_us", float64(b.window())),
			property("slice_us", float64(p.Slice)), property("standard_error", err),
		}, fewText(err)
	case *distinctSliding:
		p := b.Params()
		err := distinctError(p.Distinct.Precision)
		return []*ebbv1.Property{
			property("precision", float64(p.Distinct.Precision)), property("window_us", float64(p.Window)),
			property("slice_us", float64(b.Slice())), property("standard_error", err),
		}, fewText(err)
	case *distinctDecayed:
		err := 1.04 / math.Sqrt(float64(b.Params().Registers))
		return []*ebbv1.Property{property("registers", float64(b.Params().Registers)), property("standard_error", err)},
			orLost(fmt.Sprintf("standard error %.2g%%", 100*err), lost)
	case *set:
		return setProperties(b.Params().K)
	case *setDecayed:
		out, accuracy = setProperties(b.Params().K)
		return out, orLost(accuracy, lost)
	case *countMin:
		p := b.Params()
		return []*ebbv1.Property{property("epsilon", p.Epsilon), property("delta", p.Delta)},
			fmt.Sprintf("%s at most %.2g%% of the sum too high in %.4g%% of cases", sumText(lost), 100*p.Epsilon, 100*(1-p.Delta))
	case *quantile:
		p := b.Params()
		return []*ebbv1.Property{property("relative_error", p.Accuracy), property("buckets_max", float64(p.BucketsMax))},
			valuesText(p.Accuracy, lost)
	case *topK:
		p := b.Params()
		return []*ebbv1.Property{property("k", float64(p.K)), property("entries", float64(p.Entries))},
			fmt.Sprintf("%s at most 1/%d of the sum too high", sumText(lost), p.Entries)
	case *linear:
		p := b.Params()
		accuracy = fmt.Sprintf("exact up to %d bins, then standard error %.2g%% up to %d",
			sketch.LinearExactMax, 100*p.StandardError, p.Capacity)
		if b.halfLife > 0 {
			accuracy += "; it counts all bins that come until the key fades as a whole"
		}
		return []*ebbv1.Property{
			property("capacity", float64(p.Capacity)), property("exact_max", sketch.LinearExactMax),
			property("standard_error", p.StandardError),
		}, accuracy
	case *morris:
		p := b.Params()
		err := math.Sqrt(p.A / 2)
		out = []*ebbv1.Property{property("bits", float64(p.Bits)), property("standard_error", err)}
		if !p.Measured {
			return out, fmt.Sprintf("standard error %.2g%%, and more where events come late", 100*err)
		}
		out = append(out, property("present_error", b.Estimate(at).StandardError))
		return out, fmt.Sprintf("standard error about %.2g%%; answers have that of what was rounded, whatever order events came in", 100*err)
	case *bloom:
		p := b.Params()
		return []*ebbv1.Property{property("capacity", float64(p.Capacity)), property("false_rate", p.FalseRate)}, bloomAccuracy(p.FalseRate)
	case *bloomExpiring:
		p := b.Params()
		return []*ebbv1.Property{property("capacity", float64(p.Capacity)), property("false_rate", p.FalseRate)}, bloomAccuracy(p.FalseRate)
	case *bloomTimed:
		p := b.Params()
		return []*ebbv1.Property{
			property("capacity", float64(p.Capacity)), property("false_rate", p.FalseRate),
		}, bloomAccuracy(p.FalseRate)
	case *bitmapValue:
		slices := b.slices()
		return []*ebbv1.Property{
			property("ids", float64(b.head.ids)), property("slices", float64(slices.all())), property("arrays", float64(slices.arrays)),
			property("dense", float64(slices.dense)), property("runs", float64(slices.runs)),
		}, "exact"
	case *stringValue:
		return []*ebbv1.Property{property("value_bytes", float64(len(b.value))), property("value_bytes_max", proto.TextLenMax)}, "the value is as it was written"
	case *phrases:
		return []*ebbv1.Property{property("phrases_max", sketch.PhrasesMax), property("phrase_bytes", float64(b.Bytes())), property("phrase_bytes_max", sketch.PhrasesBytesMax)},
			"all phrases that stand in a text are found, and no others"
	}
	return nil, ""
}

// distinctError is the relative standard error of a sketch.Distinct.
func distinctError(precision int) float64 { return 0.3437 / math.Sqrt(float64(uint64(1)<<precision)) }

func setProperties(k int) ([]*ebbv1.Property, string) {
	err := 1 / math.Sqrt(float64(k-1))
	return []*ebbv1.Property{property("k", float64(k)), property("standard_error", err)}, fmt.Sprintf("exact up to %d bins, then standard error %.2g%%", k, 100*err)
}

func bloomAccuracy(falseRate float64) string {
	return fmt.Sprintf("a no is certain; a yes is wrong for at most %.2g%% of the bins that were not there", 100*falseRate)
}
