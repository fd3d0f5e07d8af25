package accuracy

import (
	"fmt"
	"io"
	"math"
)

// Strokes of curves, in colours that colour-blind readers can tell apart (Okabe and Ito).
const (
	measured = `stroke="#0072b2" stroke-width="2"`
	expected = `stroke="#d55e00" stroke-width="1.5" stroke-dasharray="6 4"`
)

// curve is a series of relative errors over sizes.
type curve struct {
	name   string // in the legend; empty: not in the legend
	y      func(r Row) (v float64, ok bool)
	stroke string // attributes of its line
}

// ofTheory returns f(theory) for rows with a known theory.
func ofTheory(f func(r Row, theory float64) float64) func(r Row) (float64, bool) {
	return func(r Row) (float64, bool) {
		if r.Theory == nil {
			return 0, false
		}
		return f(r, *r.Theory), true
	}
}

// PlotRMSE writes an SVG of the rmse of one kind and of theory, over the logarithm of the size.
func PlotRMSE(w io.Writer, title string, rows []Row) error {
	most, known := 0.0, true
	for _, r := range rows {
		known = known && r.Theory != nil
		if r.Theory != nil {
			most = max(most, r.RMSE, *r.Theory)
		}
	}
	for _, r := range rows { // without theory, values far above the other ones are cut off
		if r.Theory == nil && (most == 0 || r.RMSE < 3*most) {
			most = max(most, r.RMSE)
		}
	}
	return plot(w, title, "rmse, %", 0, 1.1*most, rows, []curve{
		{"rmse", func(r Row) (float64, bool) { return r.RMSE, r.RMSE <= 1.1*most }, measured},
		{"theory", ofTheory(func(_ Row, theory float64) float64 { return theory }), expected},
	})
}

// PlotBias writes an SVG of the bias of one kind. Two lines show 4.5 standard errors of the mean of the trials: an
// unbiased estimate passes them once in 150,000 times.
func PlotBias(w io.Writer, title string, rows []Row) error {
	limit := func(r Row, theory float64) float64 { return doubtful * theory / math.Sqrt(float64(r.Trials)) }
	most := 0.0
	for _, r := range rows {
		if r.Theory != nil {
			most = max(most, math.Abs(r.Bias), limit(r, *r.Theory))
		}
	}
	return plot(w, title, "bias, %", -1.1*most, 1.1*most, rows, []curve{
		{"bias", func(r Row) (float64, bool) { return r.Bias, math.Abs(r.Bias) <= 1.1*most }, measured},
		{"4.5 standard errors", ofTheory(limit), expected},
		{"", ofTheory(func(r Row, theory float64) float64 { return -limit(r, theory) }), expected},
	})
}

// plot draws curves as a line chart; low and high bound the relative errors on its axis.
func plot(w io.Writer, title, axis string, low, high float64, rows []Row, curves []curve) error {
	if high <= low { // every value is exact
		low, high = low-1e-6, high+1e-6
	}
	y := steps(100*low, 100*high)
	decades := math.Ceil(math.Log10(float64(rows[len(rows)-1].N)))
	c := lineChart{title: title, xName: "things", yName: axis, x: powers(int(decades)), y: y}
	c.xMax, c.yMin, c.yMax = max(decades, 1), y[0].value, y[len(y)-1].value
	for _, curve := range curves {
		l := line{name: curve.name, stroke: curve.stroke}
		for _, r := range rows {
			if v, ok := curve.y(r); ok {
				l.points = append(l.points, point{math.Log10(float64(r.N)), 100 * v})
			}
		}
		if len(l.points) > 0 {
			c.lines = append(c.lines, l)
		}
	}
	_, err := io.WriteString(w, c.svg())
	return err
}

// steps returns ticks from low to high. Their distance is 1, 2 or 5 times a power of ten.
func steps(low, high float64) (ticks []tick) {
	const most = 7
	step := math.Pow(10, math.Floor(math.Log10((high-low)/most)))
	for _, factor := range []float64{2, 2.5, 2} { // to 2, 5 and 10
		if (high-low)/step > most {
			step *= factor
		}
	}
	for i := math.Floor(low / step); ; i++ {
		ticks = append(ticks, tick{i * step, fmt.Sprintf("%.4g", i*step)})
		if i*step >= high {
			return ticks
		}
	}
}

// powers returns ticks at 10^0 to 10^end; if there are many, only every second or third.
func powers(end int) (ticks []tick) {
	for i := 0; i <= max(end, 1); i += 1 + end/10 {
		ticks = append(ticks, tick{float64(i), fmt.Sprintf("1e%d", i)})
	}
	return ticks
}
