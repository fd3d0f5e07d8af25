package swarm

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// decayClient checks decayed sums. It adds to distributions with the times of events, and computes exactly what is
// left of them at any time. After a command without an answer it takes another key, as an owner does.
type decayClient struct {
	w      *world
	rng    *rand.Rand
	life   int
	key    string
	events []timedAmount
	left   []uncertainKey
}

// timedAmount is one event of a key that decays.
type timedAmount struct {
	at     time.Time
	amount float64
}

// uncertainKey is a key that the client has left: it holds all of its events, or all but the last.
type uncertainKey struct {
	key    string
	events []timedAmount
}

func newDecayClient(w *world) *decayClient {
	f := &decayClient{w: w, rng: w.rng(3000)}
	f.move()
	return f
}

func (f *decayClient) move() {
	f.life++
	f.key, f.events = fmt.Sprintf("fading-%d", f.life), nil
}

func (f *decayClient) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(f.rng, 1000, 9000))
	defer cancel()
	if f.rng.IntN(2) == 0 && len(f.events) > 0 {
		f.look(ctx, c, f.key, f.events, false)
		return
	}
	e := timedAmount{
		time.Now().Add(-2*time.Hour - time.Duration(f.rng.Int64N(int64(3*time.Hour)))).Truncate(time.Microsecond),
		float64(1 + f.rng.IntN(5)),
	}
	err := c.Increment(ctx, fadingNamespace, ebb.Increment{Key: f.key, Bin: "b", Amount: e.amount, Time: e.at})
	f.w.done(outcomeOf(err))
	f.events = append(f.events, e)
	if err != nil {
		f.left = append(f.left, uncertainKey{f.key, f.events})
		f.move()
	}
}

// look reads a key, and checks its sum. If doubtful is set, the last event may be missing.
func (f *decayClient) look(ctx context.Context, c *ebb.Client, key string, events []timedAmount, doubtful bool) {
	d, err := c.Distribution(ctx, fadingNamespace, key)
	f.w.read(err == nil)
	if err != nil {
		return
	}
	want := sumAt(events, d.AsOf)
	ok := near(d.Z, want)
	if doubtful {
		ok = ok || near(d.Z, sumAt(events[:len(events)-1], d.AsOf))
	}
	f.w.hold("decayed-sum", ok, "%s is %v at %v, and of %d events %v is left", key, d.Z, d.AsOf, len(events), want)
}

// sumAt returns what is left of events at a time.
func sumAt(events []timedAmount, at time.Time) (sum float64) {
	for _, e := range events {
		sum += e.amount * math.Exp2(-float64(at.Sub(e.at))/float64(fadingHalfLife))
	}
	return sum
}

// near allows a relative error of 1e-9. It also allows 1e-300, because a clock's jump may leave almost nothing of a
// sum.
func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*want+1e-300 }

func (f *decayClient) settle(ctx context.Context, c *ebb.Client) {
	if len(f.events) > 0 {
		f.look(ctx, c, f.key, f.events, false)
	}
	for _, l := range f.left {
		f.look(ctx, c, l.key, l.events, true)
	}
}
