package swarm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Plan is the input of a run. Draw makes a plan from a seed. A plan with some parts removed is a valid plan too.
type Plan struct {
	Seed   uint64 `json:"seed"` // also seeds the network, what a power loss leaves, and the clients
	Nodes  int    `json:"nodes"`
	Shards uint32 `json:"shards"`
	// Segment is the size of a log file in bytes; 0 is the usual size, which a run does not fill.
	Segment int64 `json:"segment,omitempty"`
	// Knobs are the limits that differ from production, by name.
	Knobs    map[string]int64 `json:"knobs,omitempty"`
	Families []string         `json:"families"` // the families that this seed draws from
	// Outage begins the run by cutting off a leader; the majority must continue to serve.
	Outage bool `json:"outage"`
	// Home makes the end of the run wait until every shard is led by the node that the table prefers.
	Home   bool    `json:"home"`
	Faults []Fault `json:"acts"`
}

// Fault is one fault of a plan: a family, when it comes, and how much.
type Fault struct {
	Number int           `json:"number"` // in the plan as it was drawn, from 1
	Family string        `json:"family"`
	Wait   time.Duration `json:"wait_ns"` // before it
	Hold   time.Duration `json:"hold_ns"` // after it
	Mend   bool          `json:"mend"`    // whether all is mended after Hold; otherwise the next fault comes on top
	Dose   Dose          `json:"dose"`
}

// Dose is the extent of a fault, and its victims. A family uses only the fields that it needs.
type Dose struct {
	Shard uint32        `json:"shard"`             // a fault of a leader hits the leader of this shard at that time
	Node  uint64        `json:"node"`              // another victim: an index of living members, modulo their number
	Pick  uint64        `json:"pick"`              // seeds the other random choices of the fault
	Time  time.Duration `json:"time_ns,omitempty"` // a delay, or how far a clock is moved
	Part  float64       `json:"part,omitempty"`    // a probability, or a rate
	Way   string        `json:"way,omitempty"`     // which of a family's variants
}

// String describes the dose in a few words.
func (d Dose) String() string {
	var words []string
	if d.Way != "" {
		words = append(words, d.Way)
	}
	if d.Time != 0 {
		words = append(words, d.Time.String())
	}
	if d.Part != 0 {
		words = append(words, fmt.Sprintf("%.3g", d.Part))
	}
	return strings.Join(words, ", ")
}

func (a Fault) String() string {
	if dose := a.Dose.String(); dose != "" {
		return a.Family + " (" + dose + ")"
	}
	return a.Family
}

const (
	faultsMin, faultsMax = 2, 4
	// familyPart is the chance that a seed draws from a family at all.
	familyPart = 0.4
	// longOne says that one cut in this many lasts long, and that one delay in this many is large.
	longOne = 8
	// membersPart is the share of seeds in which a node joins or leaves. The end of such a run waits for the moves,
	// which takes time, so the share is not larger.
	membersPart = 0.4
	// killPart is the share of seeds whose first fault becomes a death at a failpoint. It adds to the chance of the
	// family, since there are many failpoints.
	killPart = 0.3
	// lyingPart is the share of seeds with a disk that loses what it reports as synced. Seeds in which another fault
	// loses a disk's content, or nodes come or go, have none.
	lyingPart = 0.15
)

// segments are the sizes of log files to draw from, in bytes: for a few batches, for hundreds, and the usual size.
var segments = [...]int64{16 << 10, 64 << 10, 256 << 10, 256 << 10, 256 << 10, 256 << 10, 256 << 10, 0}

// Draw makes the plan of a seed from the named families, or from all families if none is named. Each name must be one
// of FamilyNames.
func Draw(seed uint64, families ...string) Plan {
	rng := rand.New(rand.NewPCG(seed, 0x737761726d))
	p := Plan{Seed: seed, Nodes: 3, Shards: 5, Outage: rng.IntN(2) == 0, Home: rng.IntN(8) == 0}
	if rng.IntN(4) == 0 {
		p.Nodes, p.Shards = 5, 7
	}
	p.Knobs = drawKnobs(seed)
	p.Segment = segments[rand.New(rand.NewPCG(seed, 0x6c6f67)).IntN(len(segments))]
	var all, pool []Family
	for _, f := range Families {
		if f.Name == lyingDisk.Name && !slices.Contains(families, f.Name) {
			continue // drawn below, so that it does not change what other seeds have
		}
		chosen := rng.Float64() < familyPart*f.share()
		if len(families) > 0 && !slices.Contains(families, f.Name) {
			continue
		}
		if f.membership() && len(families) == 0 {
			continue
		}
		all = append(all, f)
		if chosen {
			pool = append(pool, f)
		}
	}
	if len(pool) == 0 {
		pool = append(pool, all[rng.IntN(len(all))])
	}
	for _, f := range pool {
		p.Families = append(p.Families, f.Name)
	}
	lost := false // whether a fault so far loses a disk's content
	for i := range faultsMin + rng.IntN(faultsMax-faultsMin+1) {
		f := pool[rng.IntN(len(pool))]
		a := Fault{
			Number: i + 1, Family: f.Name, Wait: millis(rng, 100, 1500), Hold: millis(rng, 300, 5000), Mend: rng.IntN(3) > 0,
			Dose: Dose{Shard: 1 + uint32(rng.IntN(int(p.Shards))), Node: rng.Uint64() % 1000, Pick: rng.Uint64() % 1_000_000},
		}
		if f.draw != nil {
			f.draw(rng, &a.Dose)
		}
		if f.Cuts && rng.IntN(longOne) == 0 {
			a.Hold, a.Mend = millis(rng, 5000, 16_000), true
		}
		if f.Loses && lost {
			continue // two lost disks can lose acknowledged writes
		}
		lost = lost || f.Loses
		p.Faults = append(p.Faults, a)
	}
	if more := rand.New(rand.NewPCG(seed, 0x6d656d62)); len(families) == 0 {
		if more.Float64() < killPart {
			p.put(more, killAt, 0)
		}
		if more.Float64() < membersPart {
			p.put(more, membership[min(more.IntN(len(membership)+1), len(membership)-1)], len(p.Faults)-1) // the last twice as often: it has many variants
		}
	}
	if lie := rand.New(rand.NewPCG(seed, 0x6c6965)); len(families) == 0 && lie.Float64() < lyingPart && !lost &&
		!slices.ContainsFunc(p.Faults, func(a Fault) bool { f, _ := FamilyOf(a.Family); return f.membership() }) {
		p.put(lie, lyingDisk, len(p.Faults)-1)
	}
	if slices.ContainsFunc(p.Faults, func(a Fault) bool { return ofFiles(a.Dose.Way) }) {
		p.Segment = segments[0] // otherwise the run may not fill a log file
	}
	return p
}

// put replaces the family of a fault.
func (p *Plan) put(rng *rand.Rand, f Family, at int) {
	if !slices.Contains(p.Families, f.Name) {
		p.Families = append(p.Families, f.Name)
	}
	a := &p.Faults[at]
	a.Family, a.Dose.Time, a.Dose.Part, a.Dose.Way = f.Name, 0, 0, ""
	if f.draw != nil {
		f.draw(rng, &a.Dose)
	}
}

func millis(rng *rand.Rand, low, high int) time.Duration {
	return time.Duration(low+rng.IntN(high-low+1)) * time.Millisecond
}

// String names the faults in order.
func (p Plan) String() string {
	var faults []string
	if p.Outage {
		faults = append(faults, "outage")
	}
	for _, a := range p.Faults {
		faults = append(faults, a.String())
	}
	return strings.Join(faults, "; ")
}
