package swarm

import (
	"math/rand/v2"
	"time"
)

// clockFamilies set clocks wrong. A shard's clock must not follow a minority of clocks.
var clockFamilies = []Family{
	{
		Name: "clock-jump", What: "the clock of a node jumps", Dose: "2 s, 1 h or 10 years, ahead or back",
		draw: func(rng *rand.Rand, d *Dose) {
			d.Time = []time.Duration{2 * time.Second, time.Hour, 10 * 365 * 24 * time.Hour}[rng.IntN(3)]
			if rng.IntN(2) == 0 {
				d.Time = -d.Time
			}
		},
		inject: func(w *world, d Dose) string {
			i := w.victim(d)
			w.c.Clock(i).Set(d.Time)
			w.skew(i)
			return w.named(i)
		},
		mend: rightClocks,
	},
	{
		Name: "clock-rate", What: "the clock of a node is fast or slow", Dose: "0.5 to 2 times the usual rate",
		draw: func(rng *rand.Rand, d *Dose) { d.Part = 0.5 + 1.5*rng.Float64() },
		inject: func(w *world, d Dose) string {
			i := w.victim(d)
			w.c.Clock(i).SetRate(d.Part)
			w.skew(i)
			return w.named(i)
		},
		mend: rightClocks,
	},
}

func rightClocks(w *world) {
	for i := range w.c.Nodes() {
		w.c.Clock(i).Set(0)
	}
	clear(w.skewed)
}

// skew records that a node's clock is wrong. Once no majority is right, the shards' clocks may be wrong too.
func (w *world) skew(i int) {
	w.skewed[i] = true
	w.everSkewed.Store(true)
	w.manySkewed = w.manySkewed || 2*len(w.skewed) >= w.c.Nodes()
}
