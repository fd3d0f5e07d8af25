package swarm

import (
	"bufio"
	"io"
	"time"
)

// RunPage is a page about one run outside the simulation, drawn like a simulated run.
type RunPage struct {
	Title   string // what was run
	Lead    string // the result, in a sentence
	Command string
	Verdict *Verdict
	Tables  []PageTable
	// Interrupted says that the run was cut short.
	Interrupted bool
	Late        bool // only deadlines failed
}

// PageTable is a table of a page.
type PageTable struct {
	Title string
	Head  []string
	Rows  [][]string
}

// HTML writes the page, which needs no other file.
func (r *RunPage) HTML(w io.Writer) error {
	p := &page{w: bufio.NewWriter(w)}
	p.fill("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>%v</title>\n", r.Title)
	p.put("<style>\n" + pageStyle + "</style>\n")
	class := "good"
	if r.Verdict.Failed() {
		class = "bad"
	}
	p.fill("<h1>%v: <span class=\"%v\">%v</span></h1>\n<p>%v</p>\n<pre>%v</pre>\n",
		r.Title, class, r.word(), r.Lead, r.Command)
	if r.Verdict.Failed() {
		p.put("<h2>What failed</h2>\n<table><tr><th>invariant<th>at<th>what\n")
		for _, b := range r.Verdict.Breaches {
			p.row(b.Invariant, b.At.Round(time.Millisecond), b.What)
		}
		p.put("</table>\n")
	}
	p.put("<h2>The run</h2>\n<p>Bars: faults until they were mended, who led each shard where nodes said it, and commands acknowledged a second. Red lines: invariants that did not hold.</p>\n")
	p.draw(chartByFamily(r.Verdict))
	p.story(r.Verdict)
	for _, t := range r.Tables {
		if len(t.Rows) == 0 {
			continue
		}
		p.fill("<h2>%v</h2>\n<table><tr>", t.Title)
		for _, h := range t.Head {
			p.fill("<th>%v", h)
		}
		p.put("\n")
		for _, row := range t.Rows {
			p.put("<tr>")
			for _, cell := range row {
				p.fill("<td>%v", cell)
			}
			p.put("\n")
		}
		p.put("</table>\n")
	}
	p.put("</html>\n")
	return p.w.Flush()
}

// word is the verdict in a word or two.
func (r *RunPage) word() string {
	word := verdictWord(r.Verdict.Failed())
	if r.Late {
		word = "late"
	}
	if r.Interrupted {
		word += " until it was interrupted"
	}
	return word
}

// chartByFamily draws a run with many faults one after the other, with a lane for each family.
func chartByFamily(v *Verdict) chart {
	lanes := map[string]*Span{}
	flat := *v
	flat.Spans = nil
	for i := range v.Spans {
		s := v.Spans[i]
		if lanes[s.Fault] == nil {
			lanes[s.Fault] = &s
			flat.Spans = append(flat.Spans, s)
		}
	}
	c := chartOf(&flat)
	first := map[string]box{} // the box of each family's first fault
	for i, s := range flat.Spans {
		first[s.Fault] = c.Boxes[i]
	}
	if len(v.Spans) == 0 {
		return c
	}
	whole := max(v.Virtual, v.Spans[len(v.Spans)-1].To)
	for _, s := range v.Spans {
		if b := first[s.Fault]; lanes[s.Fault].From != s.From {
			b.X = chartLeft + chartWidth*float64(s.From)/float64(whole)
			b.W = max(2, chartWidth*float64(s.To-s.From)/float64(whole))
			b.Title, b.Text = s.Fault+", "+s.From.Round(time.Millisecond).String()+" to "+s.To.Round(time.Millisecond).String(), ""
			c.Boxes = append(c.Boxes, b)
		}
	}
	return c
}
