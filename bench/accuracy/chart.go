package accuracy

import (
	"fmt"
	"io"
	"math"

	"github.com/wcharczuk/go-chart/v2"
	"github.com/wcharczuk/go-chart/v2/drawing"
)

// Colours that differ for the colour-blind, too (Okabe and Ito).
var (
	blue   = drawing.ColorFromHex("0072b2")
	orange = drawing.ColorFromHex("d55e00")
)

// curve is a series of percentages over sizes.
type curve struct {
	name string
	y    func(r Row) (v float64, ok bool)
	draw chart.Style
}

func measured() chart.Style { return chart.Style{StrokeColor: blue, StrokeWidth: 2} }
func expected() chart.Style {
	return chart.Style{StrokeColor: orange, StrokeWidth: 1.5, StrokeDashArray: []float64{6, 4}}
}

// ofTheory is f(theory), where a theory is known.
func ofTheory(f func(r Row, theory float64) float64) func(r Row) (float64, bool) {
	return func(r Row) (float64, bool) {
		if r.Theory == nil {
			return 0, false
		}
		return f(r, *r.Theory), true
	}
}

// PlotRMSE writes an SVG of the rmse of one kind beside theory, over the logarithm of the size.
func PlotRMSE(w io.Writer, title string, rows []Row) error {
	most, known := 0.0, true
	for _, r := range rows {
		known = known && r.Theory != nil
		if r.Theory != nil {
			most = max(most, r.RMSE, *r.Theory)
		}
	}
	for _, r := range rows { // where no theory is known, what is far above it elsewhere is cut off
		if r.Theory == nil && (most == 0 || r.RMSE < 3*most) {
			most = max(most, r.RMSE)
		}
	}
	return plot(w, title, "rmse, %", 0, 1.1*most, rows, []curve{
		{"rmse", func(r Row) (float64, bool) { return r.RMSE, r.RMSE <= 1.1*most }, measured()},
		{"theory", ofTheory(func(_ Row, theory float64) float64 { return theory }), expected()},
	})
}

// PlotBias writes an SVG of the bias of one kind, between the lines that an unbiased estimate passes once in 150,000 times: 4.5
// standard errors of a mean of so many trials.
func PlotBias(w io.Writer, title string, rows []Row) error {
	limit := func(r Row, theory float64) float64 { return doubtful * theory / math.Sqrt(float64(r.Trials)) }
	most := 0.0
	for _, r := range rows {
		if r.Theory != nil {
			most = max(most, math.Abs(r.Bias), limit(r, *r.Theory))
		}
	}
	return plot(w, title, "bias, %", -1.1*most, 1.1*most, rows, []curve{
		{"bias", func(r Row) (float64, bool) { return r.Bias, math.Abs(r.Bias) <= 1.1*most }, measured()},
		{"4.5 standard errors", ofTheory(limit), expected()},
		{"", ofTheory(func(r Row, theory float64) float64 { return -limit(r, theory) }), expected()},
	})
}

// plot draws curves of relative errors between two of them.
func plot(w io.Writer, title, axis string, low, high float64, rows []Row, curves []curve) error {
	var series []chart.Series
	for _, c := range curves {
		s := chart.ContinuousSeries{Name: c.name, Style: c.draw}
		for _, r := range rows {
			if y, ok := c.y(r); ok {
				s.XValues = append(s.XValues, math.Log10(float64(r.N)))
				s.YValues = append(s.YValues, 100*y)
			}
		}
		if len(s.XValues) > 0 {
			series = append(series, s)
		}
	}
	end := math.Ceil(math.Log10(float64(rows[len(rows)-1].N)))
	grid := chart.Style{StrokeColor: chart.ColorAlternateLightGray, StrokeWidth: 0.5}
	if high <= low { // all is exact
		low, high = low-1e-6, high+1e-6
	}
	axisTicks := steps(100*low, 100*high)
	g := chart.Chart{
		Title: title, TitleStyle: chart.Style{FontSize: 11}, Width: 720, Height: 360,
		Background: chart.Style{Padding: chart.Box{Top: 76, Left: 20, Right: 20, Bottom: 10}},
		XAxis: chart.XAxis{
			Name: "things", Ticks: powers(int(end)), Range: &chart.ContinuousRange{Min: 0, Max: max(end, 1)}, GridMajorStyle: grid,
		},
		YAxis: chart.YAxis{
			Name: axis, Ticks: axisTicks, GridMajorStyle: grid,
			Range: &chart.ContinuousRange{Min: axisTicks[0].Value, Max: axisTicks[len(axisTicks)-1].Value},
		},
		Series: series,
	}
	g.Elements = []chart.Renderable{chart.LegendThin(&g)}
	return g.Render(chart.SVG, w)
}

// steps are ticks that span low to high, 1, 2 or 5 times a power of ten apart.
func steps(low, high float64) (ticks []chart.Tick) {
	const most = 7
	step := math.Pow(10, math.Floor(math.Log10((high-low)/most)))
	for _, factor := range []float64{2, 2.5, 2} { // to 2, 5 and 10
		if (high-low)/step > most {
			step *= factor
		}
	}
	for i := math.Floor(low / step); ; i++ {
		ticks = append(ticks, chart.Tick{Value: i * step, Label: fmt.Sprintf("%.4g", i*step)})
		if i*step >= high {
			return ticks
		}
	}
}

// powers are ticks at 10^0 to 10^end, every other or third one when there are many.
func powers(end int) (ticks []chart.Tick) {
	for i := 0; i <= max(end, 1); i += 1 + end/10 {
		ticks = append(ticks, chart.Tick{Value: float64(i), Label: fmt.Sprintf("1e%d", i)})
	}
	return ticks
}
