package mutants

import (
	"bufio"
	_ "embed" // the style
	"fmt"
	"html"
	"io"
	"time"
)

//go:embed page.css
var pageStyle string

// Page is a page about a run.
type Page struct {
	Command string
	Rows    []PageRow
}

// PageRow is a mutant of a run.
type PageRow struct {
	Outcome
	What  string // what the mutant breaks
	Error string // why the mutant has no verdict
}

// missed reports whether a mutant is not known to be caught.
func (r *PageRow) missed() bool { return !r.Caught || r.Error != "" }

// HTML writes the page, which needs no other files.
func (p *Page) HTML(to io.Writer) error {
	w := bufio.NewWriter(to)
	missed := 0
	for i := range p.Rows {
		if p.Rows[i].missed() {
			missed++
		}
	}
	fmt.Fprintf(w, "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>ebb: mutants</title>\n<style>\n%s</style>\n", pageStyle)
	verdict := "<span class=\"good\">all were caught</span>"
	if missed > 0 {
		verdict = fmt.Sprintf("<span class=\"bad\">%d were not caught</span>", missed)
	}
	fmt.Fprintf(w, "<h1>%d mutants: %s</h1>\n<pre>%s</pre>\n", len(p.Rows), verdict, html.EscapeString(p.Command))
	fmt.Fprint(w, "<table><tr><th>mutant<th>what it breaks<th>checker<th>caught by<th>seeds<th>took<th>commit<th>what the checker said\n")
	for i := range p.Rows {
		p.Rows[i].html(w)
	}
	fmt.Fprint(w, "</table>\n</html>\n")
	return w.Flush()
}

// html writes the row. Errors of w are returned by its Flush.
func (r *PageRow) html(w *bufio.Writer) {
	class, by, said := "good", r.By, r.Said
	switch {
	case r.Error != "":
		class, by, said = "bad", "no verdict", r.Error
	case !r.Caught:
		class, by = "bad", "not caught"
	}
	seeds := "-"
	if r.Seeds > 0 {
		seeds = fmt.Sprint(r.Seeds)
	}
	fmt.Fprint(w, "<tr>")
	for _, cell := range []string{r.Mutant, r.What, r.Checker} {
		fmt.Fprintf(w, "<td>%s", html.EscapeString(cell))
	}
	fmt.Fprintf(w, "<td class=\"%s\">%s<td>%s<td>%s<td>%s<td><code>%s</code>\n", class, html.EscapeString(by), seeds, r.Took.Round(time.Millisecond*10), html.EscapeString(r.Commit), html.EscapeString(said))
}
