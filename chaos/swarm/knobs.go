package swarm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

// Knob is a limit whose value a seed draws. A run is too short to reach the limits of production.
type Knob struct {
	Name string
	What string // what it limits, and in which unit
	// Values are the values to draw from, the tightest first. The last is that of production.
	Values []int64

	// with names a knob that gets its tightest value when this one differs from production. Otherwise nothing that this
	// knob limits would become free again within a run.
	with string
	turn func(cfg *node.Config, v int64) // sets it for a node; nil if nodes do not have it
	sdk  func(l *ebb.Limits, v int64)    // sets it for a client; nil if it is not in ebb.Limits
}

// Names of knobs that clients and checks look up.
const (
	knobSessionWindow = "session-window"
	knobSessionExpiry = "session-expiry"
	knobKeyWindow     = "key-window"
	knobClientWindow  = "client-window"
	knobNewFile       = "new-file"
	knobSessions      = "sessions"
	knobKeys          = "idempotency-keys"
	knobHalfLives     = "half-life-changes"
	knobTry           = "try"
	knobPause         = "pause"
)

// ticks converts ms to shard time.
func ticks(ms int64) sketch.Tick { return sketch.Tick(ms * 1000) }

const (
	// knobsPart is the share of seeds whose limits differ from production.
	knobsPart = 0.7
	// knobTurned is the chance that such a seed draws a knob at all. knobFirst is the chance that a drawn knob gets its
	// first value; otherwise it gets any of its values.
	knobTurned, knobFirst = 0.7, 0.5
)

// drawKnobs draws the limits of a seed that differ from production, by name; nil if there are none.
func drawKnobs(seed uint64) map[string]int64 {
	rng := rand.New(rand.NewPCG(seed, 0x6b6e6f6273))
	if rng.Float64() >= knobsPart {
		return nil
	}
	values := map[string]int64{}
	for _, k := range Knobs {
		turned, first, at := rng.Float64() < knobTurned, rng.Float64() < knobFirst, rng.IntN(len(k.Values))
		switch {
		case !turned:
			continue
		case first:
			at = 0
		}
		if v := k.Values[at]; v != k.production() {
			values[k.Name] = v
		}
	}
	for _, k := range Knobs {
		if _, turned := values[k.Name]; turned && k.with != "" {
			values[k.with] = knobNamed(k.with).Values[0]
		}
	}
	if len(values) == 0 {
		return nil
	}
	return values
}

func (k *Knob) production() int64 { return k.Values[len(k.Values)-1] }

// of returns the value of the knob in a plan.
func (k *Knob) of(p *Plan) int64 {
	if v, turned := p.Knobs[k.Name]; turned {
		return v
	}
	return k.production()
}

// knob returns the value of the knob with that name.
func (p *Plan) knob(name string) int64 { return knobNamed(name).of(p) }

func knobNamed(name string) *Knob {
	for i := range Knobs {
		if Knobs[i].Name == name {
			return &Knobs[i]
		}
	}
	panic("no knob is called " + name)
}

// turned reports whether a knob differs from production.
func (p *Plan) turned(name string) bool {
	_, turned := p.Knobs[name]
	return turned
}

// knobTime returns the value of a knob in ms as a duration.
func (p *Plan) knobTime(name string) time.Duration {
	return time.Duration(p.knob(name)) * time.Millisecond
}

// window is how many commands a client may have in flight in one shard.
func (p *Plan) window() int { return int(min(p.knob(knobClientWindow), p.knob(knobSessionWindow))) }

// turn sets the limits of the plan in a node's configuration.
func (p *Plan) turn(cfg *node.Config) {
	cfg.ShardLimits, cfg.ControlLimits = shard.DefaultLimits(), cluster.DefaultControlLimits()
	for _, k := range Knobs {
		if v, turned := p.Knobs[k.Name]; turned && k.turn != nil {
			k.turn(cfg, v)
		}
	}
}

// sdk returns the limits of clients.
func (p *Plan) sdk() (l ebb.Limits) {
	for _, k := range Knobs {
		if v, turned := p.Knobs[k.Name]; turned && k.sdk != nil {
			k.sdk(&l, v)
		}
	}
	return l
}

// backoff is how long clients wait between two tries.
func (p *Plan) backoff() ebb.Backoff {
	return ebb.Backoff{Min: min(10*time.Millisecond, p.knobTime(knobPause)), Max: p.knobTime(knobPause)}
}

// shardLimits returns the limits of shards, which are the same on all nodes.
func (p *Plan) shardLimits() shard.Limits {
	var cfg node.Config
	p.turn(&cfg)
	return cfg.ShardLimits
}

// knobWords lists the knobs that differ from production, in the order of Knobs.
func (p *Plan) knobWords() string {
	var words []string
	for _, k := range Knobs {
		if v, turned := p.Knobs[k.Name]; turned {
			words = append(words, fmt.Sprintf("%s %d", k.Name, v))
		}
	}
	if len(words) == 0 {
		return "limits of production"
	}
	return strings.Join(words, ", ")
}

// KnobCount counts seeds by their value of one knob: the tightest, that of production, or one between.
type KnobCount struct {
	First      int `json:"tightest"`
	Between    int `json:"between"`
	Production int `json:"production"`
}

// add counts the value of one plan.
func (c KnobCount) add(k *Knob, p *Plan) KnobCount {
	switch k.of(p) {
	case k.Values[0]:
		c.First++
	case k.production():
		c.Production++
	default:
		c.Between++
	}
	return c
}
