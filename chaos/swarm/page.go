package swarm

import (
	"bufio"
	"cmp"
	_ "embed" // the style
	"fmt"
	"html"
	"io"
	"slices"
	"time"
)

//go:embed page.css
var pageStyle string

// HTML writes the report as one page that needs no other file. The page has tables. For each failing seed, and for some
// that held, it shows faults, leaders and answers over time.
func (r *Report) HTML(w io.Writer) error {
	p := &page{w: bufio.NewWriter(w)}
	p.put("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>ebb chaos sim</title>\n<style>\n")
	p.put(pageStyle) // embedded, so it needs no escaping
	p.put("</style>\n")
	p.head(r)
	p.put("<h2>Runs</h2>\n<p>Bars: faults, who led each shard, commands acknowledged (dark) and reads answered (light) in each second of virtual time. " +
		"Red lines: invariants that did not hold.</p>\n")
	for _, f := range r.Failures {
		p.run(f.Verdict, f.Replay)
	}
	slices.SortFunc(r.runs, func(a, b *Verdict) int { return cmp.Compare(a.Plan.Seed, b.Plan.Seed) })
	for _, v := range r.runs {
		p.run(v, "")
	}
	p.put("<h2>Families of faults</h2>\n<table><tr><th>family<th>what happens<th>dose<th>injected\n")
	for _, f := range Families {
		p.row(f.Name, f.What, f.Dose, r.Sum.Faults[f.Name])
	}
	p.put("</table>\n<h2>Invariants</h2>\n<table><tr><th>invariant<th>what holds<th>evaluated\n")
	for _, i := range Invariants {
		p.row(i.Name, i.Holds, r.Sum.Checks[i.Name])
	}
	p.put("</table>\n<h2>Failpoints</h2>\n<table><tr><th>failpoint<th>armed<th>killed there\n")
	for _, name := range Failpoints() {
		p.row(name, r.Sum.Points[name].Armed, r.Sum.Points[name].Killed)
	}
	p.put("</table>\n")
	p.knobs(r)
	p.put("<h2>Seeds</h2>\n<details><summary>all seeds</summary><table><tr><th>seed<th>verdict<th>faults" +
		"<th>virtual time<th>acknowledged<th>unknown<th>reads\n")
	for _, b := range r.all {
		p.row(b.Seed, verdictWord(b.Failed), b.Plan, b.Virtual.Round(time.Second), b.Tally.Acked, b.Tally.Unknown, b.Tally.Reads)
	}
	p.put("</table></details>\n</html>\n")
	return p.w.Flush()
}

// knobs writes the table of limits, with how many seeds had which values.
func (p *page) knobs(r *Report) {
	p.put("<h2>Limits</h2>\n<table><tr><th>limit<th>what it limits<th>the tightest<th>seeds with the tightest" +
		"<th>between<th>with that of production\n")
	for _, k := range Knobs {
		count := r.Sum.Knobs[k.Name]
		p.row(k.Name, k.What, k.Values[0], count.First, count.Between, count.Production)
	}
	p.put("</table>\n")
}

// page writes HTML. It does not use html/template, which finds methods by name: then the linker keeps 4 MB of methods
// that are never called.
type page struct{ w *bufio.Writer }

// put writes markup as it is. Flush returns the error of a failed write.
func (p *page) put(markup string) { _, _ = p.w.WriteString(markup) }

// fill formats markup. It escapes the values that are not numbers.
func (p *page) fill(markup string, values ...any) {
	for i, v := range values {
		switch v := v.(type) {
		case int, uint64, uint32, float64:
		default:
			values[i] = html.EscapeString(fmt.Sprint(v))
		}
	}
	fmt.Fprintf(p.w, markup, values...)
}

func (p *page) row(values ...any) {
	p.put("<tr>")
	for _, v := range values {
		p.fill("<td>%v", v)
	}
	p.put("\n")
}

func verdictWord(failed bool) string {
	if failed {
		return "failed"
	}
	return "held"
}

// head writes the result of the campaign in a few lines.
func (p *page) head(r *Report) {
	if len(r.Failures) > 0 {
		p.fill("<h1>ebb chaos sim: <span class=\"bad\">%d of %v failed</span></h1>\n", len(r.Failures), r.Ran())
	} else {
		p.fill("<h1>ebb chaos sim: <span class=\"good\">%v, all held</span></h1>\n", r.Ran())
	}
	p.fill("<p>%v. %v of virtual time in %v: %.2f seeds a second. %v.</p>\n<pre>%v</pre>\n",
		r.Sum.Tally, r.Sum.Virtual.Round(time.Second), r.Real.Round(time.Second), r.SeedsPerSecond(), r.Mode, r.Command)
	p.fill("<p>%v. Nodes came or went in %d seeds.</p>\n", &r.Sum.Outage, r.Sum.Members)
	if r.Late != "" {
		p.fill("<p class=\"bad\">%v</p>\n", r.Late)
	}
	if len(r.Failures) == 0 {
		return
	}
	p.put("<h2>What failed</h2>\n<table><tr><th>seed<th>invariant<th>what<th>replay\n")
	for _, f := range r.Failures {
		p.row(f.Seed, f.Invariant, f.What, f.Replay)
	}
	p.put("</table>\n")
}

// run writes one run.
func (p *page) run(v *Verdict, replay string) {
	class := "good"
	if v.Failed() {
		class = "bad"
	}
	p.fill("<h3>seed %d: %d nodes, %v: <span class=\"%v\">%v</span></h3>\n", v.Plan.Seed, v.Plan.Nodes, v.Plan, class, verdictWord(v.Failed()))
	p.draw(chartOf(v))
	p.fill("<p>%v.</p>\n", v.Tally)
	if replay != "" {
		p.fill("<p>Replay: <code>%v</code></p>\n", replay)
	}
	p.story(v)
}

// draw writes a chart.
func (p *page) draw(c chart) {
	p.fill("<svg viewBox=\"0 0 1000 %d\" role=\"img\">\n", c.Height)
	for _, t := range c.Ticks {
		p.fill("<line class=\"tick\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%d\"/><text x=\"%.1f\" y=\"%d\" dy=\"-3\">%v</text>\n", t.X, t.X, c.Height, t.X, c.Height, t.Title)
	}
	for _, l := range c.Lanes {
		p.fill("<text x=\"4\" y=\"%d\">%v</text>\n", l.Y, l.Name)
	}
	for _, b := range c.Boxes {
		p.fill("<rect class=\"%v\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%v</title></rect>\n", b.Class, b.X, b.Y, b.W, b.H, b.Title)
		if b.Text != "" && (b.W > 40 || b.Class == "fault") { // a fault has its own lane
			p.fill("<text x=\"%.1f\" y=\"%.1f\" dx=\"3\" dy=\"11\">%v</text>\n", b.X, b.Y, b.Text)
		}
	}
	for _, m := range c.Marks {
		p.fill("<line class=\"breach\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%d\"><title>%v</title></line>\n", m.X, m.X, c.Height, m.Title)
	}
	p.put("</svg>\n")
}

// story writes the story of a run in an element that can be unfolded.
func (p *page) story(v *Verdict) {
	open := ""
	if v.Failed() {
		open = " open"
	}
	p.fill("<details"+open+"><summary>story</summary><pre>%v</pre></details>\n", v.Tell())
}
