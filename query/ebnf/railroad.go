package ebnf

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Railroad draws a rule: every path through the lines from left to right is a sentence of the rule. Lines with arrows
// lead back.
//
//	──top──INTEGER──<merged>──┬──────────────────┬──
//	                          ╰──by──<halflives>─╯
func (r *Rule) Railroad() string {
	b := inLine([]drawing{track(2), draw(r.Node, false), track(2)})
	var out strings.Builder
	for _, line := range b.lines {
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
}

// drawing is a rectangle of characters; line is the row of the main track.
type drawing struct {
	lines []string // of one width
	line  int
}

func track(width int) drawing { return drawing{lines: []string{strings.Repeat("─", width)}} }

func (d *drawing) width() int { return utf8.RuneCountInString(d.lines[0]) }

// draw draws a node; if back, for a track that is followed from right to left.
func draw(n *Node, back bool) drawing {
	switch n.Kind {
	case Terminal, Class:
		return drawing{lines: []string{" " + n.Text + " "}}
	case Reference:
		return drawing{lines: []string{" <" + n.Text + "> "}}
	case Sequence:
		var parts []drawing
		for i, part := range n.Parts {
			if i > 0 {
				parts = append(parts, track(1))
			}
			parts = append(parts, draw(part, back))
		}
		if back {
			slices.Reverse(parts)
		}
		return inLine(parts)
	case Choice:
		var parts []drawing
		for _, part := range n.Parts {
			parts = append(parts, draw(part, back))
		}
		return below(parts, "─")
	case Optional:
		return below([]drawing{track(1), draw(n.Parts[0], back)}, "─")
	}
	return below([]drawing{track(1), draw(n.Parts[0], !back)}, "◂")
}

// inLine draws one after the other, on one line.
func inLine(parts []drawing) drawing {
	above, under := 0, 0
	for _, p := range parts {
		above, under = max(above, p.line), max(under, len(p.lines)-p.line)
	}
	out := drawing{lines: make([]string, above+under), line: above}
	for i := range out.lines {
		for _, p := range parts {
			at := i - above + p.line
			if at < 0 || at >= len(p.lines) {
				out.lines[i] += strings.Repeat(" ", p.width())
				continue
			}
			out.lines[i] += p.lines[at]
		}
	}
	return out
}

// below draws parts below each other, with switches at both sides. mark begins and ends the tracks of all parts but the
// first.
func below(parts []drawing, mark string) drawing {
	width := 0
	for _, p := range parts {
		width = max(width, p.width())
	}
	var out drawing
	for i, p := range parts {
		for j, line := range p.lines {
			fill, left, right := " ", "│ ", " │"
			switch {
			case i == 0 && j < p.line, i == len(parts)-1 && j > p.line:
				left, right = "  ", "  "
			case j == p.line && i == 0:
				out.line = len(out.lines)
				fill, left, right = "─", "┬─", "─┬"
			case j == p.line && i == len(parts)-1:
				fill, left, right = "─", "╰"+mark, mark+"╯"
			case j == p.line:
				fill, left, right = "─", "├"+mark, mark+"┤"
			}
			out.lines = append(out.lines, left+line+strings.Repeat(fill, width-p.width())+right)
		}
	}
	return out
}
