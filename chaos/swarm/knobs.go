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

// Knob is a limit that a seed draws: with those of production a run is too short to reach their edges.
type Knob struct {
	Name string
	What string // what it limits, and in which unit
	// Values are what seeds draw, the tightest first. The last is that of production.
	Values []int64

	// with is a knob that has its tightest value where this one is not that of production: without, what this one
	// limits would never become free again in a run.
	with string
	turn func(cfg *node.Config, v int64) // nil: it is not of nodes
	sdk  func(l *ebb.Limits, v int64)    // nil: it is not of what clients send and ask for at once
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

// ticks is a number of ms in shard time.
func ticks(ms int64) sketch.Tick { return sketch.Tick(ms * 1000) }

const (
	// knobsPart is how many seeds have other limits than those of production.
	knobsPart = 0.7
	// knobTurned is how many of the knobs of such a seed are drawn at all, and knobFirst how many of these have the
	// first value.
	knobTurned, knobFirst = 0.7, 0.5
)

// drawKnobs draws the limits of a seed by name; nil for those of production. A knob that is not named has that of
// production.
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

// of is the value of a plan.
func (k *Knob) of(p *Plan) int64 {
	if v, turned := p.Knobs[k.Name]; turned {
		return v
	}
	return k.production()
}

// knob is the value of a knob by its name.
func (p *Plan) knob(name string) int64 { return knobNamed(name).of(p) }

func knobNamed(name string) *Knob {
	for i := range Knobs {
		if Knobs[i].Name == name {
			return &Knobs[i]
		}
	}
	panic("no knob is called " + name)
}

// turned reports whether a knob has another value than that of production.
func (p *Plan) turned(name string) bool {
	_, turned := p.Knobs[name]
	return turned
}

// knobTime is the value of a knob that is a time.
func (p *Plan) knobTime(name string) time.Duration {
	return time.Duration(p.knob(name)) * time.Millisecond
}

// window is how many commands clients may have in one shard at once.
func (p *Plan) window() int { return int(min(p.knob(knobClientWindow), p.knob(knobSessionWindow))) }

// turn gives a node the limits of the plan.
func (p *Plan) turn(cfg *node.Config) {
	cfg.ShardLimits, cfg.ControlLimits = shard.DefaultLimits(), cluster.DefaultControlLimits()
	for _, k := range Knobs {
		if v, turned := p.Knobs[k.Name]; turned && k.turn != nil {
			k.turn(cfg, v)
		}
	}
}

// sdk are the limits of clients.
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

// shardLimits are those of the shards of all nodes.
func (p *Plan) shardLimits() shard.Limits {
	var cfg node.Config
	p.turn(&cfg)
	return cfg.ShardLimits
}

// knobWords names the knobs that are turned, in the order of the table.
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

// KnobCount is how many seeds had the tightest value of a knob, how many that of production, and how many one between.
type KnobCount struct {
	First      int `json:"tightest"`
	Between    int `json:"between"`
	Production int `json:"production"`
}

// add counts the value of a plan.
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
