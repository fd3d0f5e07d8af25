package proc

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Sample is what resources a process uses at one moment.
type Sample struct {
	At   time.Duration `json:"at_ns"`
	Node string        `json:"node"`
	// Since is when the process was started, in Unix seconds. It tells a process from an earlier one of the same node.
	Since       float64 `json:"since"`
	Goroutines  float64 `json:"goroutines"`
	Descriptors float64 `json:"descriptors"`
	Resident    float64 `json:"resident_bytes"`
}

// Sample reads from the metrics of node i what resources its process uses. The caller sets At.
func (f *Fleet) Sample(ctx context.Context, i int) (s Sample, err error) {
	body, err := f.fetch(ctx, "http://"+f.nodes[i].admin+"/metrics")
	if err != nil {
		return s, err
	}
	s.Node = f.Name(i)
	for name, to := range map[string]*float64{
		"process_start_time_seconds": &s.Since, "go_goroutines": &s.Goroutines, "process_open_fds": &s.Descriptors, "process_resident_memory_bytes": &s.Resident,
	} {
		if *to, err = metric(body, name); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Trend is how the use of a resource by a process changed in the second half of a run.
type Trend struct {
	Node    string        `json:"node"`
	What    string        `json:"what"`
	Over    time.Duration `json:"over_ns"`
	Samples int           `json:"samples"`
	Mean    float64       `json:"mean"`
	Growth  float64       `json:"growth"` // from the beginning to the end of the line through the samples
	Limit   float64       `json:"limit"`
}

// Grows reports whether Growth is above Limit.
func (t Trend) Grows() bool { return t.Growth > t.Limit }

func (t Trend) String() string {
	return fmt.Sprintf("%s: %s changed by %+.0f over %v, of %.0f on average (limit %+.0f, %d samples)", t.Node, t.What, t.Growth, t.Over.Round(time.Second), t.Mean, t.Limit, t.Samples)
}

const (
	// trendSamplesMin is the least number of samples for a trend, and TrendMin the least time. The memory of a young
	// process grows for minutes, by up to 60 MB in one, until its logs and windows are full.
	trendSamplesMin = 10
	// TrendMin is the least time that the samples of a trend must span in the second half of a run.
	TrendMin = 4 * time.Minute
	// growthShare is the share by which memory may grow, plus a little more, because caches and windows fill.
	growthShare = 0.1
	// connectionsMore is how many more connections a node may have at the end than in the middle: for a node that
	// joins, and for clients that dial again. gRPC has goroutinesEach goroutines for a connection.
	connectionsMore, goroutinesEach = 4, 4
)

// held lists the resources that must not grow, and the limit of each: a share of its mean, plus more.
var held = []struct {
	what  string
	of    func(Sample) float64
	share float64
	more  float64
	unit  float64 // in which more is printed
	in    string
}{
	{"goroutines", func(s Sample) float64 { return s.Goroutines }, 0, connectionsMore * goroutinesEach, 1, "goroutines"},
	{"open descriptors", func(s Sample) float64 { return s.Descriptors }, 0, connectionsMore + 2, 1, "descriptors"},    // and two of a log's segment and of a snapshot
	{"resident bytes", func(s Sample) float64 { return s.Resident }, growthShare, 8 << 20, 1 << 20, "MiB and a tenth"}, // the heap's goal, which goes up and down with the collector
}

// growthAllowed says how much more is allowed.
func growthAllowed() string {
	var more []string
	for _, h := range held {
		more = append(more, fmt.Sprintf("%.0f %s", h.more/h.unit, h.in))
	}
	last := len(more) - 1
	return fmt.Sprintf("%s and %s more at most", strings.Join(more[:last], ", "), more[last])
}

// Trends judges the processes that have lived through the second half of a run.
func Trends(samples []Sample, whole time.Duration) (trends []Trend) {
	lives := make(map[string][]Sample)
	var order []string
	for _, s := range samples {
		if s.At < whole/2 {
			continue
		}
		old, known := lives[s.Node]
		if !known {
			order = append(order, s.Node)
		}
		if known && len(old) > 0 && old[0].Since != s.Since {
			old = nil // it is another process
		}
		lives[s.Node] = append(old, s)
	}
	for _, node := range order {
		life := lives[node]
		over := life[len(life)-1].At - life[0].At
		if len(life) < trendSamplesMin || over < TrendMin || over < whole/2*8/10 {
			continue
		}
		for _, h := range held {
			mean, slope := line(life, h.of)
			trends = append(trends, Trend{
				Node: node, What: h.what, Over: over, Samples: len(life), Mean: mean,
				Growth: slope * over.Seconds(), Limit: h.share*mean + h.more,
			})
		}
	}
	return trends
}

// line fits a straight line through samples, by least squares. It returns the line's value in the middle, and its slope
// per second.
func line(samples []Sample, of func(Sample) float64) (mean, slope float64) {
	n := float64(len(samples))
	at := 0.0
	for _, s := range samples {
		at += s.At.Seconds() / n
		mean += of(s) / n
	}
	above, below := 0.0, 0.0
	for _, s := range samples {
		d := s.At.Seconds() - at
		above += d * (of(s) - mean)
		below += d * d
	}
	if below == 0 {
		return mean, 0
	}
	return mean, above / below
}
