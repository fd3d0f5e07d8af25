package swarm

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// trender counts under two half-lives, and knows the rates under each. After a command without an answer it takes
// another key.
type trender struct {
	w      *world
	rng    *rand.Rand
	life   int
	events map[string][]timedAmount // by bin
}

func newTrender(w *world) *trender {
	t := &trender{w: w, rng: w.rng(7600)}
	t.move()
	return t
}

func (t *trender) move() {
	t.life++
	t.events = map[string][]timedAmount{}
}

func (t *trender) key() string { return fmt.Sprintf("trend-%d", t.life) }

func (t *trender) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(t.rng, 1000, 6000))
	defer cancel()
	if t.rng.IntN(3) == 0 {
		t.w.read(t.look(ctx, c) == nil)
		return
	}
	in := ebb.Increment{Key: t.key(), Bin: fmt.Sprintf("b%d", t.rng.IntN(3)), Amount: float64(1 + t.rng.IntN(5)), Time: time.Now().Truncate(time.Microsecond)}
	t.events[in.Bin] = append(t.events[in.Bin], timedAmount{in.Time, in.Amount})
	err := c.Increment(ctx, trendNamespace, in)
	t.w.done(outcomeOf(err))
	if err != nil {
		t.move()
	}
}

// rate returns the events a second, from what is left of them and the time for which they were counted.
func rate(events []timedAmount, halfLife time.Duration, since, at time.Time) float64 {
	sum := 0.0
	for _, e := range events {
		sum += e.amount * math.Exp2(-float64(at.Sub(e.at))/float64(halfLife))
	}
	seconds := halfLife.Seconds() / math.Ln2 * (1 - math.Exp2(-float64(at.Sub(since))/float64(halfLife)))
	return sum / seconds
}

func (t *trender) look(ctx context.Context, c *ebb.Client) error {
	if len(t.events) == 0 {
		return nil
	}
	bins := []string{"b0", "b1", "b2"}
	skewed := t.w.everSkewed.Load()
	var got ebb.Trend
	var err error
	if t.rng.IntN(2) == 0 {
		got, err = c.Trend(ctx, trendNamespace, ebb.TrendQuery{Keys: []string{t.key()}, Bins: bins})
	} else {
		var r ebb.Result
		if r, err = c.Query(ctx, fmt.Sprintf(`trend(%s, "b0", "b1", "b2")`, t.key()), ebb.InNamespace(trendNamespace)); err == nil {
			got = r.Trend()
		}
	}
	if err != nil || skewed || t.w.everSkewed.Load() {
		return err
	}
	t.w.complete(got.Coverage, false)
	ok := got.Found && got.Fast == trendFast && got.Slow == trendSlow && len(got.Bins) == len(bins)
	var all []timedAmount
	for i := 0; ok && i < len(bins); i++ {
		all = append(all, t.events[bins[i]]...)
		ok = got.Bins[i].Name == bins[i] && t.rated(got, got.Bins[i], t.events[bins[i]])
	}
	t.w.hold("trend-right", ok && t.rated(got, got.Total, all), "%s says at %v, since %v: %+v of %v", t.key(), got.AsOf, got.Since, got, t.events)
	return nil
}

// rated reports whether a change has the rates of these events, and consistent bounds.
func (t *trender) rated(got ebb.Trend, c ebb.Change, events []timedAmount) bool {
	fast, slow := rate(events, trendFast, got.Since, got.AsOf), rate(events, trendSlow, got.Since, got.AsOf)
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-6*(1+b) }
	return near(c.FastRate, fast) && near(c.SlowRate, slow) && c.Low <= c.Bits && c.Bits <= c.High && c.PValue >= 0 && c.PValue <= 1
}

func (t *trender) settle(ctx context.Context, c *ebb.Client) {
	err := t.look(ctx, c)
	t.w.hold("healed-reads", err == nil, "ask for the trend of %s when all was mended: %v", t.key(), err)
}
