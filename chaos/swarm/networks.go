package swarm

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ebbdb/ebb/chaos/sim"
)

// networkFamilies break the links between nodes, and between nodes and clients.
var networkFamilies = []Family{
	{
		Name: "leader-cut", What: "the leader of a shard and the other nodes do not hear each other; clients hear all", Cuts: true,
		inject: func(w *world, d Dose) string {
			leader := w.leader(d)
			w.c.Isolate(leader)
			return w.named(leader)
		},
		mend: healed,
	},
	{
		Name: "halves", What: "the nodes fall into two halves", Cuts: true,
		inject: func(w *world, d Dose) string {
			order := w.order(d)
			left, right := order[:len(order)/2], order[len(order)/2:]
			w.between(left, right, w.c.Cut)
			return w.named(left...) + " | " + w.named(right...)
		},
		mend: healed,
	},
	{
		Name: "ring", What: "each node hears two neighbours only; of three nodes, two do not hear each other", Cuts: true,
		inject: func(w *world, d Dose) string {
			order := w.order(d)
			n := len(order)
			for i := range order {
				for j := range i {
					if i-j != 1 && i-j != n-1 || n == 3 && i-j == 2 {
						w.c.Cut(order[i], order[j])
					}
				}
			}
			return w.named(order...)
		},
		mend: healed,
	},
	{
		Name: "bridge", What: "two halves hear each other through one node only", Cuts: true,
		inject: func(w *world, d Dose) string {
			order := w.order(d)
			bridge, rest := order[0], order[1:]
			w.between(rest[:len(rest)/2], rest[len(rest)/2:], w.c.Cut)
			return "through " + w.named(bridge)
		},
		mend: healed,
	},
	{
		Name: "one-way", What: "a leader hears nobody, or nobody hears it", Cuts: true, Dose: "deaf or mute",
		draw: oneOf("deaf", "mute"),
		inject: func(w *world, d Dose) string {
			leader := w.leader(d)
			for _, i := range w.living() {
				switch {
				case i == leader:
				case d.Way == "deaf":
					w.c.CutOneWay(i, leader)
				default:
					w.c.CutOneWay(leader, i)
				}
			}
			return w.named(leader)
		},
		mend: healed,
	},
	{
		Name: "pair", What: "two nodes do not hear each other", Cuts: true,
		inject: func(w *world, d Dose) string {
			order := w.order(d)
			w.c.Cut(order[0], order[1])
			return w.named(order[:2]...)
		},
		mend: healed,
	},
	{
		Name: "swizzle", What: "nodes are cut off one after the other, and come back in another order", Dose: "50 to 400 ms between two",
		draw: func(rng *rand.Rand, d *Dose) { d.Time = millis(rng, 50, 400) },
		inject: func(w *world, d Dose) string {
			order := w.order(d)
			all := w.named(order...)
			for _, i := range order {
				w.c.Isolate(i)
				time.Sleep(d.Time)
			}
			for len(order) > 1 { // the others stay cut off
				w.c.Heal()
				back := int(d.Pick) % len(order)
				order = append(order[:back], order[back+1:]...)
				for _, i := range order {
					w.c.Isolate(i)
				}
				time.Sleep(d.Time)
			}
			return all
		},
		mend: healed,
	},
	{
		Name: "clients-cut", What: "clients do not hear the leader, whose other links work", Cuts: true,
		inject: func(w *world, d Dose) string {
			leader := w.leader(d)
			for i := range clientHosts {
				w.c.Net.CutOneWay(w.c.IP(leader), clientIP(i))
			}
			return w.named(leader)
		},
		mend: healed,
	},
	{
		Name: "loss", What: "packets are lost, and segments come 200 ms late", Dose: "1 to 30% of them",
		draw: func(rng *rand.Rand, d *Dose) { d.Part = 0.01 + 0.29*rng.Float64() },
		inject: func(w *world, d Dose) string {
			return w.links(sim.Link{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: d.Part})
		},
		mend: usual,
	},
	{
		Name: "duplicates", What: "packets come twice and in another order", Dose: "5 to 50% of them, up to 80 ms later",
		draw: func(rng *rand.Rand, d *Dose) { d.Part = 0.05 + 0.45*rng.Float64() },
		inject: func(w *world, d Dose) string {
			return w.links(sim.Link{Delay: time.Millisecond, Jitter: 80 * time.Millisecond, Dup: d.Part})
		},
		mend: usual,
	},
	{
		Name: "damage", What: "a bit of a packet of gossip, or of a segment from node to node, is inverted on its way", Dose: "1 to 20% of packets, a twentieth as many of segments",
		draw: func(rng *rand.Rand, d *Dose) { d.Part = 0.01 + 0.19*rng.Float64() },
		inject: func(w *world, d Dose) string {
			l := sim.UsualLink
			l.Flip, l.Spoil = d.Part, d.Part/20
			return w.links(l)
		},
		mend: usual,
	},
	{
		Name: "delay", What: "everything is late", Dose: "5 to 120 ms, in one case of eight 0.5 to 2.5 s; and up to as much again",
		draw: func(rng *rand.Rand, d *Dose) {
			d.Time = millis(rng, 5, 120)
			if rng.IntN(longOne) == 0 {
				d.Time = millis(rng, 500, 2500)
			}
		},
		inject: func(w *world, d Dose) string {
			w.latest = max(w.latest, 2*d.Time)
			return w.links(sim.Link{Delay: d.Time, Jitter: d.Time})
		},
		mend: func(w *world) {
			usual(w)
			time.Sleep(w.latest) // late messages are still on their way, and others wait behind them
			w.latest = 0
		},
	},
	{
		Name: "late-leader", What: "what is said to the leader comes late, what it says does not", Dose: "50 to 900 ms",
		draw: func(rng *rand.Rand, d *Dose) { d.Time = millis(rng, 50, 900) },
		inject: func(w *world, d Dose) string {
			leader := w.leader(d)
			for _, i := range w.living() {
				if i != leader {
					w.c.Net.SetLink(w.c.IP(i), w.c.IP(leader), sim.Link{Delay: d.Time, Jitter: 50 * time.Millisecond})
				}
			}
			return w.named(leader)
		},
		mend: healed,
	},
}

func healed(w *world) { w.c.Heal() }

func usual(w *world) { w.c.Net.SetUsual(sim.UsualLink) }

// between calls do for each pair of nodes from the two groups.
func (w *world) between(left, right []int, do func(i, j int)) {
	for _, i := range left {
		for _, j := range right {
			do(i, j)
		}
	}
}

// links makes this the usual link.
func (w *world) links(l sim.Link) string {
	w.c.Net.SetUsual(l)
	return fmt.Sprintf("delay %v + %v, loss %.0f%%, twice %.0f%%, damaged %.0f%%", l.Delay, l.Jitter, 100*l.Loss, 100*l.Dup, 100*l.Flip)
}
