package proc

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Rate is how fast the load was acknowledged while nothing was broken.
type Rate struct {
	Asked  int     `json:"asked"`  // increments a second
	Median float64 `json:"median"` // acknowledged increments a second, over the pauses between faults
	Least  float64 `json:"least"`
	Times  int     `json:"times"`
	// CPU is how many cores the processes of the nodes have used on average. Loader is the same for this process, which
	// makes the load and forwards all packets.
	CPU    float64 `json:"cores_nodes"`
	Loader float64 `json:"cores_loader"`
}

// Missed reports whether Median is below the rate that must be reached.
func (r Rate) Missed() bool { return r.Median < rateShare*float64(r.Asked) }

func (r Rate) String() string {
	return fmt.Sprintf("%.0f increments a second were acknowledged at the median of %d times between faults (%.0f at least), and %d were asked for; nodes used %.2f cores, the load and its network %.2f",
		r.Median, r.Times, r.Least, r.Asked, r.CPU, r.Loader)
}

// measureQuiet waits for a while in which nothing is broken and all has healed, and records the rate of the load.
func (w *world) measureQuiet(ctx context.Context) {
	from, before := time.Now(), w.load.Acked()
	w.pass(ctx, w.between(quietMin, quietMax))
	if took := time.Since(from); took >= quietMin {
		w.quietRates = append(w.quietRates, float64(w.load.Acked()-before)/took.Seconds())
	}
}

// rateReached sums up what measureQuiet has recorded.
func (w *world) rateReached() *Rate {
	r := &Rate{Asked: w.t.Rate, Times: len(w.quietRates)}
	if all := slices.Sorted(slices.Values(w.quietRates)); len(all) > 0 {
		r.Median, r.Least = all[len(all)/2], all[0]
	}
	if passed := w.now().Seconds(); passed > 0 {
		r.CPU, r.Loader = w.cpu.Seconds()/passed, ownCPU().Seconds()/passed
	}
	return r
}

// judgeRate evaluates the invariant of the rate. The nodes must still run, because it reads their CPU time.
func (w *world) judgeRate() {
	ctx, cancel := context.WithTimeout(context.Background(), lookMax)
	defer cancel()
	w.cpu, _ = w.f.CPU(ctx) // reported, not judged
	if r := w.rateReached(); r.Times > 0 {
		w.hold("rate", !r.Missed(), "%v", r)
	}
}
