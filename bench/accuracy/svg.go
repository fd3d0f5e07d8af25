package accuracy

import (
	"fmt"
	"html"
	"strings"
)

// Size of a chart and of the margins around its plot area, in SVG user units.
const (
	chartWidth, chartHeight        = 720, 360
	marginLeft, marginRight        = 64, 16
	marginTop, marginBottom        = 48, 44
	plotWidth                      = chartWidth - marginLeft - marginRight
	plotHeight                     = chartHeight - marginTop - marginBottom
	legendWidth, legendY, keyWidth = 170, 36, 24
)

// lineChart is the content of one SVG. A chart library would add a font renderer of 0.7 MB to the binary.
type lineChart struct {
	title, xName, yName string
	xMax, yMin, yMax    float64 // ranges of the axes; the x axis begins at 0
	x, y                []tick
	lines               []line
}

// tick is a labelled value of an axis.
type tick struct {
	value float64
	label string
}

// line is a series of points, in the units of the axes.
type line struct {
	name   string // in the legend; empty: not in the legend
	stroke string // SVG attributes
	points []point
}

type point struct{ x, y float64 }

// place returns the position of a point in the chart.
func (c *lineChart) place(p point) (x, y float64) {
	return marginLeft + plotWidth*p.x/c.xMax, marginTop + plotHeight*(c.yMax-p.y)/(c.yMax-c.yMin)
}

// svg draws the chart. The same chart always gives the same bytes.
func (c *lineChart) svg() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d"`, chartWidth, chartHeight)
	b.WriteString(` font-family="sans-serif" font-size="12" fill="#333">` + "\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", chartWidth, chartHeight)
	text(&b, chartWidth/2, 18, "middle", c.title)
	c.axes(&b)
	legend := float64(marginLeft)
	for _, l := range c.lines {
		c.curve(&b, l)
		if l.name != "" {
			fmt.Fprintf(&b, `<path d="M%g %dh%d" fill="none" %s/>`+"\n", legend, legendY-4, keyWidth, l.stroke)
			text(&b, legend+keyWidth+6, legendY, "start", l.name)
			legend += legendWidth
		}
	}
	return b.String() + "</svg>\n"
}

// axes draws the grid, the labels of the ticks and the names of the axes.
func (c *lineChart) axes(b *strings.Builder) {
	const bottom = marginTop + plotHeight
	var grid strings.Builder
	for _, t := range c.y {
		_, y := c.place(point{0, t.value})
		fmt.Fprintf(&grid, "M%d %.1fh%d", marginLeft, y, plotWidth)
		text(b, marginLeft-6, y+4, "end", t.label)
	}
	for _, t := range c.x {
		x, _ := c.place(point{t.value, c.yMin})
		fmt.Fprintf(&grid, "M%.1f %dv%d", x, marginTop, plotHeight)
		text(b, x, bottom+16, "middle", t.label)
	}
	fmt.Fprintf(b, `<path d="%s" stroke="#ddd" stroke-width="0.5"/>`+"\n", grid.String())
	text(b, marginLeft+plotWidth/2, chartHeight-8, "middle", c.xName)
	fmt.Fprintf(b, `<g transform="rotate(-90 14 %[1]d)">`, marginTop+plotHeight/2)
	text(b, 14, marginTop+plotHeight/2, "middle", c.yName)
	b.WriteString("</g>\n")
}

func (c *lineChart) curve(b *strings.Builder, l line) {
	var at strings.Builder
	for i, p := range l.points {
		x, y := c.place(p)
		fmt.Fprintf(&at, "%c%.1f %.1f", "ML"[min(i, 1)], x, y)
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" %s/>`+"\n", at.String(), l.stroke)
}

// text writes one line of text; anchor is start, middle or end.
func text(b *strings.Builder, x, y float64, anchor, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
}
