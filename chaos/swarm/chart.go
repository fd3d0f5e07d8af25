package swarm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// chart is a run drawn to scale.
type chart struct {
	Height int
	Lanes  []lane
	Boxes  []box
	Marks  []mark
	Ticks  []mark
}

// lane is a row with a name.
type lane struct {
	Name string
	Y    int
}

// box is an interval in a lane.
type box struct {
	X, Y, W, H float64
	Class      string
	Title      string
	Text       string
}

// mark is a point in time.
type mark struct {
	X     float64
	Title string
}

const (
	chartLeft, chartWidth = 90.0, 900.0
	laneHeight            = 18
	barsHeight            = 60
	barsMax               = 300 // a longer run has several seconds in each bar
)

// shade returns the CSS class of a node, the same in all charts.
func shade(node string) string {
	_, number, _ := strings.Cut(node, "-")
	n, _ := strconv.Atoi(number) // a name without a number has the first class
	return fmt.Sprintf("n%d", n%8)
}

// mean returns the mean counts of some seconds.
func mean(some []Second) (m Second) {
	for _, s := range some {
		m.Acked += s.Acked
		m.Reads += s.Reads
	}
	return Second{m.Acked / len(some), m.Reads / len(some)}
}

// chartOf draws a run.
func chartOf(v *Verdict) chart {
	var c chart
	whole := max(v.Virtual, time.Second)
	for _, s := range v.Spans {
		whole = max(whole, s.To)
	}
	x := func(at time.Duration) float64 { return chartLeft + chartWidth*float64(at)/float64(whole) }
	y := 4
	row := func(name string) int {
		c.Lanes = append(c.Lanes, lane{name, y + 13})
		y += laneHeight
		return y - laneHeight
	}
	add := func(at int, from, to time.Duration, class, title, text string) {
		c.Boxes = append(c.Boxes, box{x(from), float64(at + 2), max(2, x(to)-x(from)), laneHeight - 4, class, title, text})
	}
	for i, s := range v.Spans {
		name := ""
		if i == 0 {
			name = "faults"
		}
		to := s.To
		if to == 0 {
			to = v.Virtual
		}
		add(row(name), s.From, to, "fault", fmt.Sprintf("%s, %v to %v", s.Fault, s.From.Round(time.Millisecond), to.Round(time.Millisecond)), s.Fault)
	}
	for shard := uint32(1); shard <= v.Plan.Shards; shard++ {
		at := row(fmt.Sprintf("shard %d", shard))
		for _, r := range v.Reigns {
			if r.Shard != shard {
				continue
			}
			add(at, r.From, r.To, shade(r.Node), fmt.Sprintf("%s leads shard %d in term %d", r.Node, shard, r.Term), r.Node)
		}
	}
	c.Lanes = append(c.Lanes, lane{"per second", y + 13})
	most, each := 1, (len(v.Seconds)+barsMax-1)/barsMax
	bars := make([]Second, 0, barsMax)
	for some := range slices.Chunk(v.Seconds, max(1, each)) {
		bar := mean(some)
		bars, most = append(bars, bar), max(most, bar.Acked+bar.Reads)
	}
	for i, s := range bars {
		first := i * each
		next := min(first+each, len(v.Seconds))
		from, to := x(time.Duration(first)*time.Second), x(time.Duration(next)*time.Second)
		title := fmt.Sprintf("second %d: %d commands acknowledged, %d reads answered", first, s.Acked, s.Reads)
		if each > 1 {
			title = fmt.Sprintf("seconds %d to %d: %d commands acknowledged a second, %d reads answered", first, next-1, s.Acked, s.Reads)
		}
		low := float64(barsHeight) * float64(s.Acked) / float64(most)
		high := float64(barsHeight) * float64(s.Reads) / float64(most)
		bottom, wide := float64(y+barsHeight), max(0.5, to-from-1)
		c.Boxes = append(c.Boxes, box{from, bottom - low, wide, low, "acked", title, ""}, box{from, bottom - low - high, wide, high, "reads", title, ""})
	}
	y += barsHeight + 4
	step := max(time.Second, (whole / 20).Round(time.Second))
	for at := time.Duration(0); at <= whole; at += step {
		c.Ticks = append(c.Ticks, mark{x(at), fmt.Sprintf("%ds", int(at.Seconds()))})
	}
	for _, b := range v.Breaches {
		c.Marks = append(c.Marks, mark{x(b.At), b.String()})
	}
	c.Height = y + 16
	return c
}
