package main

import (
	"errors"
	"fmt"
	"io"
	"math"
)

// tQuantile is the 95% quantile of Student's t distribution, by degrees of freedom from 1 on. For many degrees it tends
// to 1.645.
var tQuantile = []float64{
	6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
	1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
}

// bound returns the mean of a sample and the upper end of its one-sided 95% interval.
func bound(sample []float64) (mean, upper float64) {
	n := float64(len(sample))
	for _, v := range sample {
		mean += v / n
	}
	squares := 0.0
	for _, v := range sample {
		squares += (v - mean) * (v - mean)
	}
	t := 1.697 // the quantile of 30 degrees; slightly too large for more
	if len(sample) <= len(tQuantile) {
		t = tQuantile[len(sample)-2]
	}
	return mean, mean + t*math.Sqrt(squares/(n-1)/n)
}

// report prints a row for each cost. changes are natural logarithms of ratios. limit is the largest allowed bound in
// percent; 0 is no limit. The error names each cost above the limit.
func report(w io.Writer, costs []string, changes [][]float64, limit float64) (err error) {
	percent := func(log float64) float64 { return 100 * math.Expm1(log) }
	fmt.Fprintf(w, "\n| cost | mean change | upper 95%% bound | smallest | largest |\n| --- | --- | --- | --- | --- |\n")
	for i, name := range costs {
		mean, upper := bound(changes[i])
		low, high := math.Inf(1), math.Inf(-1)
		for _, v := range changes[i] {
			low, high = min(low, v), max(high, v)
		}
		fmt.Fprintf(w, "| %s | %+.1f%% | %+.1f%% | %+.1f%% | %+.1f%% |\n",
			name, percent(mean), percent(upper), percent(low), percent(high))
		if limit > 0 && percent(upper) > limit {
			err = errors.Join(err, fmt.Errorf("%s: the upper bound is %+.1f%%, the limit %+.1f%%", name, percent(upper), limit))
		}
	}
	return err
}
