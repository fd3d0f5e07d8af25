package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// frame is the state of the demo at one moment, as the view shows it.
type frame struct {
	at       time.Time
	answer   *ebbv1.Answer // nil before the first
	age      time.Duration // of the answer; 0 if it is fresh
	problem  string        // why there is no newer answer
	nodes    []nodeFrame
	paused   bool
	sent     uint64
	acked    uint64
	rate     float64
	halfLife time.Duration
	grpc     string // address of a running node
	http     string // empty if it has none
	last     string // what the last key did
	colour   bool   // the terminal shows colours
	surprise surprise
	marks    map[string]string // by bin: + if its share rises, - if it falls
}

// bursting reports whether the view shows a burst.
func (f frame) bursting() bool { return f.surprise.bursting() && !f.paused }

// news is the line about the burst; "" if there is none.
func (f frame) news() string {
	if f.paused {
		return ""
	}
	return f.surprise.news(f.halfLife)
}

// mark returns the mark of a bin: ! for a burst, + or - for a share that rises or falls.
func (f frame) mark(bin []byte) string {
	if f.bursting() && string(bin) == f.surprise.code {
		return "!"
	}
	if mark := f.marks[string(bin)]; mark != "" {
		return mark
	}
	return " "
}

type nodeFrame struct {
	name  string
	state string // up, dead, cut off
	leads int
}

const demoKeys = "k kill a node   c cut one off   h heal all   p pause the stream   q quit"

// render draws a frame as text of fixed height, so that a terminal can redraw it in place. The lines contain styles,
// and no other control sequences.
func (f frame) render() string {
	var b strings.Builder
	rate := fmt.Sprintf("%.0f/s", f.rate)
	if f.paused {
		rate = "paused"
	}
	fmt.Fprintf(&b, "%s  half-life %v, %d sent, %d acked, %s\n",
		bold.of("clicks by country, now"), f.halfLife, f.sent, f.acked, rate)
	for _, door := range f.doors() {
		fmt.Fprintln(&b, faint.of(door))
	}
	fmt.Fprintln(&b, faint.of(watchFor))
	b.WriteString(f.table())
	b.WriteString("\n")
	for _, n := range f.nodes {
		fmt.Fprintf(&b, "  %-6s %-8s leads %d\n", n.name, n.state, n.leads)
	}
	fmt.Fprintf(&b, "%s\n%s\n%s\n", bold.of(f.news()), f.last, faint.of(demoKeys))
	return b.String()
}

// doors are commands for another terminal that ask the same question.
func (f frame) doors() []string {
	doors := []string{fmt.Sprintf("try:  ebb --addr %s top %s", f.grpc, demoKey)}
	if f.http != "" {
		doors = append(doors, fmt.Sprintf("try:  curl 'http://%s/nmostprobable?distribution=%s&N=5'", f.http, demoKey))
	}
	return doors
}

func pausedText(paused bool) string {
	if paused {
		return " (paused)"
	}
	return ""
}

func (f frame) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", faint.of(fmt.Sprintf("  %-3s   %9s  %7s %-6s", "bin", "count", "share", "±95%")))
	bins := f.answer.GetDistribution().GetBins()
	usual, burst := plain, plain
	if f.colour {
		usual, burst = cyan, yellow
	}
	for i := range demoTop {
		if i >= len(bins) {
			b.WriteString("\n")
			continue
		}
		width := int(bins[i].GetP()*40 + 0.5)
		note := ""
		if string(bins[i].GetBin()) == load.EmptyBin {
			note = faint.of("  country unknown")
		}
		bar, mark := usual, f.mark(bins[i].GetBin())
		if mark == "!" {
			bar, note = burst, "  surprise"
		}
		fmt.Fprintf(&b, "  %-3s%s  %9.2f  %6.2f%% %-6s %s%s\n", printable(bins[i].GetBin()), mark, bins[i].GetCount(), 100*bins[i].GetP(),
			fmt.Sprintf("±%.2f", 50*(bins[i].GetPHigh()-bins[i].GetPLow())), bar.of(strings.Repeat("█", width)), note)
	}
	fmt.Fprintf(&b, "  %s\n", f.summary())
	return b.String()
}

// summary is the line below the table: the figures of the answer, or why there is no answer.
func (f frame) summary() string {
	switch d := f.answer.GetDistribution(); {
	case f.answer == nil && f.problem == "":
		return "waiting for the first answer"
	case f.answer == nil:
		return "waiting for an answer: " + f.problem
	case f.age > 0:
		return strings.TrimSuffix(fmt.Sprintf("as of %.1f s ago, waiting for an answer: %s", f.age.Seconds(), f.problem), ": ")
	default:
		return fmt.Sprintf("z %.2f, effective n %.0f, entropy %.2f bits", d.GetZ(), d.GetEffectiveN(), d.GetEntropyBits())
	}
}

// lineTop is how many countries a line shows.
const lineTop = 5

// late describes a country that bursts and is not among the first ones yet. It has the country's count, or a bound if
// the answer does not have it.
func (f frame) late() string {
	bins := f.answer.GetDistribution().GetBins()
	for _, bin := range bins {
		if string(bin.GetBin()) == f.surprise.code {
			return fmt.Sprintf("%s %.2f!", f.surprise.code, bin.GetCount())
		}
	}
	if len(bins) == 0 {
		return f.surprise.code + "!"
	}
	return fmt.Sprintf("%s <%.2f!", f.surprise.code, bins[len(bins)-1].GetCount())
}

// line shows a frame as one line, for output that is no terminal.
func (f frame) line() string {
	if f.answer == nil || f.age > 0 {
		return f.at.UTC().Format(time.TimeOnly) + "  " + f.summary()
	}
	var top []string
	for _, bin := range f.answer.GetDistribution().GetBins() {
		text := fmt.Sprintf("%s %.2f%s", printable(bin.GetBin()), bin.GetCount(), f.mark(bin.GetBin()))
		top = append(top, strings.TrimRight(text, " "))
	}
	top = top[:min(len(top), lineTop)]
	if f.bursting() && !slices.ContainsFunc(top, func(text string) bool { return strings.HasSuffix(text, "!") }) {
		top = append(top, f.late())
	}
	var nodes []string
	for _, n := range f.nodes {
		nodes = append(nodes, n.name+" "+n.state)
	}
	return fmt.Sprintf("%s  acked %d%s  z %.3f  %s  [%s]", f.at.UTC().Format(time.TimeOnly), f.acked, pausedText(f.paused),
		f.answer.GetDistribution().GetZ(), strings.Join(top, "  "), strings.Join(nodes, ", "))
}
