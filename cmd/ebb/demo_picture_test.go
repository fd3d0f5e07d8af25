package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	demoPicture = "../../docs/demo.svg"
	cellWidth   = 8.4 // of a character, in pixels
	cellHeight  = 18
	cellMargin  = 16
)

// docs/demo.svg is what the demo draws of a recorded moment: `make pictures` writes it.
func TestDemoPictureIsCommitted(t *testing.T) {
	want := picture(recordedFrame(t).render())
	if *update {
		if err := os.WriteFile(demoPicture, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(demoPicture)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: make pictures writes it", demoPicture)
	}
	if err := xml.Unmarshal(want, new(struct{})); err != nil {
		t.Error(err)
	}
}

// recordedFrame is a moment of `ebb demo` that was written down from its screen: a surprise, with one node of three
// dead.
func recordedFrame(t *testing.T) frame {
	t.Helper()
	raw, err := os.ReadFile("testdata/demo/frame.json")
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		HalfLife    int `json:"half_life_s"`
		Sent, Acked uint64
		Rate        float64
		GRPC, HTTP  string
		Bins        []struct {
			Bin, Mark                string
			Count, Percent, Interval float64
		}
		Z          float64
		EffectiveN float64 `json:"effective_n"`
		Entropy    float64 `json:"entropy_bits"`
		Nodes      []struct {
			Name, State string
			Leads       int
		}
		Surprise struct{ Code, Name string }
		Last     string
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	d := &ebbv1.Distribution{Found: true, Z: r.Z, EffectiveN: r.EffectiveN, EntropyBits: r.Entropy}
	f := frame{
		answer:   &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: d}},
		halfLife: time.Duration(r.HalfLife) * time.Second, sent: r.Sent, acked: r.Acked, rate: r.Rate,
		grpc: r.GRPC, http: r.HTTP, last: r.Last, colour: true, marks: map[string]string{},
		surprise: surprise{code: r.Surprise.Code, name: r.Surprise.Name},
	}
	for _, b := range r.Bins {
		p, half := b.Percent/100, b.Interval/100
		d.Bins = append(d.Bins, &ebbv1.Bin{Bin: []byte(b.Bin), Count: b.Count, P: p, PLow: p - half, PHigh: p + half})
		f.marks[b.Bin] = b.Mark
	}
	for _, n := range r.Nodes {
		f.nodes = append(f.nodes, nodeFrame{n.Name, n.State, n.Leads})
	}
	return f
}

// picture is a terminal's screen as SVG. Each run of text has its place and its length, so that columns stand below one
// another in any font, and bars are drawn.
func picture(screen string) []byte {
	lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
	width, height := 80*cellWidth+2*cellMargin, len(lines)*cellHeight+2*cellMargin
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %d" width="%g" height="%d">`+"\n",
		width, height, width, height)
	b.WriteString(`<title>ebb demo: counts of clicks by country, a burst, and a dead node</title>
<style>
  text { font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d8dee9; white-space: pre }
  .s1 { font-weight: bold } .s2 { fill: #8a93a0 } .s33 { fill: #f0b429 } .s36 { fill: #4cc3d9 }
</style>
<rect width="100%" height="100%" rx="8" fill="#16191d"/>
`)
	for i, line := range lines {
		column := 0
		for _, run := range runsOf(line) {
			drawRun(&b, i, column, run)
			column += utf8.RuneCountInString(run.text)
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// styledRun is text in one style, or a bar.
type styledRun struct {
	style style
	text  string
}

// runsOf cuts a line of the demo at its styles.
func runsOf(line string) (runs []styledRun) {
	now := plain
	for line != "" {
		if rest, is := strings.CutPrefix(line, "\x1b["); is {
			s, after, _ := strings.Cut(rest, "m")
			now, line = style(s), after
			continue
		}
		text, _, _ := strings.Cut(line, "\x1b")
		runs, line = append(runs, styledRun{now, text}), line[len(text):]
	}
	return runs
}

func drawRun(b *bytes.Buffer, row, column int, r styledRun) {
	class := ""
	if r.style != plain {
		class = fmt.Sprintf(` class="s%s"`, r.style)
	}
	at := func(column int) float64 { return cellMargin + float64(column)*cellWidth }
	n := utf8.RuneCountInString(r.text)
	if strings.Trim(r.text, "█") == "" {
		fmt.Fprintf(b, `<rect%s x="%.1f" y="%d" width="%.1f" height="%d"/>`+"\n",
			class, at(column), cellMargin+row*cellHeight+3, float64(n)*cellWidth, cellHeight-6)
		return
	}
	text := strings.TrimLeft(r.text, " ")
	column += n - utf8.RuneCountInString(text)
	text = strings.TrimRight(text, " ")
	if text == "" {
		return
	}
	var escaped bytes.Buffer
	_ = xml.EscapeText(&escaped, []byte(text)) // a buffer takes all
	fmt.Fprintf(b, `<text%s x="%.1f" y="%d" textLength="%.1f" xml:space="preserve">%s</text>`+"\n",
		class, at(column), cellMargin+(row+1)*cellHeight-4, float64(utf8.RuneCountInString(text))*cellWidth, &escaped)
}
