package swarm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Verdict is the result of running a plan.
type Verdict struct {
	Plan     Plan           `json:"plan"`
	Breaches []Breach       `json:"breaches,omitempty"` // empty if every invariant held
	Faults   map[string]int `json:"faults"`             // how often each family was injected
	Checks   map[string]int `json:"checks"`             // how often each invariant was evaluated
	Tally    Tally          `json:"tally"`
	// Points are the failpoints at which a process was to die.
	Points map[string]*PointCount `json:"failpoints,omitempty"`
	// Outages are the times from cutting off a leader to the first acknowledgement of the majority.
	Outages []time.Duration `json:"outages_ns,omitempty"`
	Virtual time.Duration   `json:"virtual_ns"`
	Real    time.Duration   `json:"real_ns"`
	// Trace is a hash of every segment and packet that was sent, with its time. Two runs that took the same course have
	// the same hash.
	Trace string `json:"trace,omitempty"`
	// Story lists what happened, in order. Seconds counts the answers in each second of virtual time. Reigns says which
	// node led which shard when; Spans says how long each fault lasted.
	Story   []Line   `json:"story,omitempty"`
	Seconds []Second `json:"seconds,omitempty"`
	Reigns  []Reign  `json:"reigns,omitempty"`
	Spans   []Span   `json:"spans,omitempty"`
}

// Span is the time from the beginning of a fault until all was mended.
type Span struct {
	Fault string        `json:"act"`
	From  time.Duration `json:"from_ns"`
	To    time.Duration `json:"to_ns"`
}

// Tally counts the operations of clients by outcome.
type Tally struct {
	Acked   int `json:"acked"`   // commands
	Unknown int `json:"unknown"` // commands whose outcome is not known
	Failed  int `json:"failed"`  // commands that were not applied, according to the SDK
	Reads   int `json:"reads"`
	Unread  int `json:"unread"`  // reads that were refused
	Ordered int `json:"ordered"` // writes and reads of strings that porcupine has found an order for
}

// Add adds the counts of another run.
func (t *Tally) Add(o Tally) {
	t.Acked += o.Acked
	t.Unknown += o.Unknown
	t.Failed += o.Failed
	t.Reads += o.Reads
	t.Unread += o.Unread
	t.Ordered += o.Ordered
}

func (t Tally) String() string {
	return fmt.Sprintf("%d commands acknowledged, %d unknown, %d failed, %d reads answered, %d refused, %d operations put in order by porcupine",
		t.Acked, t.Unknown, t.Failed, t.Reads, t.Unread, t.Ordered)
}

// Line is one sentence of the story.
type Line struct {
	At   time.Duration `json:"at_ns"`
	Kind LineKind      `json:"kind"`
	Text string        `json:"text"`
}

// LineKind says what a line is about.
type LineKind string

// The kinds of lines.
const (
	LineFault     LineKind = "fault"
	LineMend      LineKind = "mend"
	LineNode      LineKind = "node"
	LineLeader    LineKind = "leader"
	LineOperation LineKind = "operation"
	LineNote      LineKind = "note"
	LineBreach    LineKind = "breach"
)

// Second is what was answered in one second of virtual time.
type Second struct {
	Acked int `json:"acked"`
	Reads int `json:"reads"`
}

// Reign is a time in which a node was seen to lead a shard.
type Reign struct {
	Shard uint32        `json:"shard"`
	Node  string        `json:"node"`
	Term  uint64        `json:"term"`
	From  time.Duration `json:"from_ns"`
	To    time.Duration `json:"to_ns"`
}

// bare returns a copy of the verdict without its story and timelines.
func (v *Verdict) bare() *Verdict {
	b := *v
	b.Story, b.Seconds, b.Reigns, b.Spans = nil, nil, nil, nil
	return &b
}

// Failed reports whether any invariant did not hold.
func (v *Verdict) Failed() bool { return len(v.Breaches) > 0 }

// Tell returns the story of a run as text.
func (v *Verdict) Tell() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %d nodes, %d shards: %s\n", v.Plan.Seed, v.Plan.Nodes, v.Plan.Shards, v.Plan)
	fmt.Fprintf(&b, "%s\n", v.Plan.knobWords())
	for _, l := range v.Story {
		mark := " "
		if l.Kind == LineBreach {
			mark = "!"
		}
		fmt.Fprintf(&b, "%s %9.3fs  %-9s  %s\n", mark, l.At.Seconds(), l.Kind, l.Text)
	}
	if v.Trace != "" {
		fmt.Fprintf(&b, "  trace of all that was sent: %s\n", v.Trace)
	}
	return b.String()
}

// point returns the count of a failpoint.
func (v *Verdict) point(name string) *PointCount {
	if v.Points == nil {
		v.Points = map[string]*PointCount{}
	}
	if v.Points[name] == nil {
		v.Points[name] = &PointCount{}
	}
	return v.Points[name]
}

// Sum is the total of many verdicts.
type Sum struct {
	Seeds  int            `json:"seeds"`
	Faults map[string]int `json:"faults"`
	Checks map[string]int `json:"checks"`
	Tally  Tally          `json:"tally"`
	// Points are all failpoints at which plans kill.
	Points map[string]PointCount `json:"failpoints"`
	// Knobs counts the values of each limit that seeds draw.
	Knobs map[string]KnobCount `json:"knobs"`
	// Members is how many seeds had a node come or go.
	Members int           `json:"seeds_with_members_changed"`
	Outage  Outage        `json:"majority_serves"`
	Virtual time.Duration `json:"virtual_ns"`
	Real    time.Duration `json:"real_ns"` // of all seeds, one after the other
}

// Add adds one verdict.
func (s *Sum) Add(v *Verdict) {
	if s.Faults == nil {
		s.Faults, s.Checks, s.Points = map[string]int{}, map[string]int{}, map[string]PointCount{}
		for _, name := range Failpoints() {
			s.Points[name] = PointCount{}
		}
		s.Knobs = map[string]KnobCount{}
	}
	for i := range Knobs {
		k := &Knobs[i]
		s.Knobs[k.Name] = s.Knobs[k.Name].add(k, &v.Plan)
	}
	if slices.ContainsFunc(membership, func(f Family) bool { return v.Faults[f.Name] > 0 }) {
		s.Members++
	}
	for name, n := range v.Points {
		sum := s.Points[name]
		s.Points[name] = PointCount{sum.Armed + n.Armed, sum.Killed + n.Killed}
	}
	s.Outage.add(v.Outages...)
	s.Seeds++
	for name, n := range v.Faults {
		s.Faults[name] += n
	}
	for name, n := range v.Checks {
		s.Checks[name] += n
	}
	s.Tally.Add(v.Tally)
	s.Virtual += v.Virtual
	s.Real += v.Real
}

// Unused names the families never injected and the invariants never evaluated.
func (s *Sum) Unused() (families, invariants []string) {
	for _, f := range Families {
		if s.Faults[f.Name] == 0 {
			families = append(families, f.Name)
		}
	}
	for _, i := range Invariants {
		if s.Checks[i.Name] == 0 {
			invariants = append(invariants, i.Name)
		}
	}
	return families, invariants
}

// breached names the invariants that did not hold, each once, sorted.
func (v *Verdict) breached() []string {
	names := map[string]bool{}
	for _, b := range v.Breaches {
		names[b.Invariant] = true
	}
	return slices.Sorted(maps.Keys(names))
}
