package swarm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

const (
	datedNamespace = "dated" // with an event clock
	datedHalfLife  = 100 * time.Hour
	datedMaxJump   = 240 * time.Hour
	datedKeys      = 4 // at once, so that some shards have had no event for a while
)

var datedSpace = ebb.Namespace{
	Name:     datedNamespace,
	HalfLife: datedHalfLife,
	Clock:    ebb.ClockEvent,
	MaxJump:  new(datedMaxJump),
}

// dater writes events with dates of long ago, in and out of order, and knows what is left of them at any time. It alone
// writes to its namespace, so it knows the time of the event clock. After a command without an answer it takes another
// key.
type dater struct {
	w      *world
	rng    *rand.Rand
	life   int
	keys   [datedKeys]datedKey
	left   []datedKey    // keys no longer written; the last event of each may be missing
	now    time.Time     // the latest date that was sent
	known  time.Time     // the latest date that was acknowledged
	latest time.Time     // the latest time of an answer
	by     *ebb.Client   // the client that got this answer
	past   time.Duration // how far before the present its dates begin
}

type datedKey struct {
	name   string
	events []timedAmount
}

func newDater(w *world) *dater {
	d := &dater{w: w, rng: w.rng(3100), past: 200 * 24 * time.Hour}
	for i := range d.keys {
		d.move(i)
	}
	return d
}

func (d *dater) move(i int) {
	d.life++
	d.keys[i] = datedKey{name: fmt.Sprintf("dated-%d", d.life)}
}

func (d *dater) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(d.rng, 1000, 9000))
	defer cancel()
	i := d.rng.IntN(datedKeys)
	key := &d.keys[i]
	switch n := d.rng.IntN(10); {
	case n < 4 && len(key.events) > 0:
		d.look(ctx, c, key, false)
		return
	case n == 4 && len(key.events) > 0:
		d.jump(ctx, c, key.name)
		return
	}
	if d.now.IsZero() {
		d.now = time.Now().Add(-d.past).Truncate(time.Second)
	}
	step := time.Duration(d.rng.Int64N(int64(3*time.Hour))) - time.Hour
	e := timedAmount{d.now.Add(step).Truncate(time.Microsecond), float64(1 + d.rng.IntN(5))}
	err := c.Increment(ctx, datedNamespace, ebb.Increment{Key: key.name, Bin: "b", Amount: e.amount, Time: e.at})
	d.w.done(outcomeOf(err))
	key.events = append(key.events, e)
	if e.at.After(d.now) {
		d.now = e.at
	}
	if err != nil {
		d.left = append(d.left, *key)
		d.move(i)
		return
	}
	if e.at.After(d.known) {
		d.known = e.at
	}
}

// jump sends an event dated further ahead than max_jump allows, to a shard that has had an event.
func (d *dater) jump(ctx context.Context, c *ebb.Client, key string) {
	at := d.now.Add(datedMaxJump + time.Duration(d.rng.Int64N(int64(1000*time.Hour))) + time.Second)
	err := c.Increment(ctx, datedNamespace, ebb.Increment{Key: key, Bin: "wrong", Time: at})
	d.w.hold("jump-refused", err != nil, "an event of %v was taken, where the latest date is %v", at, d.now)
	if errors.Is(err, ebb.ErrTimeJump) {
		err = nil // the expected refusal
	}
	d.w.done(outcomeOf(err))
}

// look reads a key, and checks its sum and time. If doubtful is set, the last event may be missing.
func (d *dater) look(ctx context.Context, c *ebb.Client, key *datedKey, doubtful bool) {
	got, err := c.Distribution(ctx, datedNamespace, key.name)
	d.w.read(err == nil)
	if err != nil {
		return
	}
	if c != d.by {
		d.by, d.latest = c, time.Time{}
	}
	d.w.hold("event-clock-forward", !got.AsOf.Before(d.latest) && !got.AsOf.After(d.now),
		"an answer is of %v, after one of %v; the latest date is %v", got.AsOf, d.latest, d.now)
	d.latest = got.AsOf
	events := key.events
	ok := left(got, events)
	if doubtful {
		ok = ok || left(got, events[:len(events)-1])
	}
	d.w.hold(
		"dated-sum",
		ok,
		"%s is %v (and %v) at %v, and of %d events %v is left",
		key.name,
		got.Z,
		got.Lost,
		got.AsOf,
		len(events),
		datedSum(events, got.AsOf),
	)
}

// left reports whether an answer is what is left of events, but for what it says is lost.
func left(got ebb.Distribution, events []timedAmount) bool {
	want := datedSum(events, got.AsOf)
	return got.Z <= want*(1+1e-9) && got.Z+got.Lost >= want*(1-1e-9)
}

// datedSum returns what is left of events at a time.
func datedSum(events []timedAmount, at time.Time) (sum float64) {
	for _, e := range events {
		sum += e.amount * math.Exp2(-float64(at.Sub(e.at))/float64(datedHalfLife))
	}
	return sum
}

// settle reads all keys a second after all was mended. By then every key must be answered as of the namespace's time.
func (d *dater) settle(ctx context.Context, c *ebb.Client) {
	time.Sleep(time.Second)
	for i := range d.keys {
		if key := &d.keys[i]; len(key.events) > 0 {
			d.look(ctx, c, key, false)
			d.w.hold(
				"one-event-clock",
				!d.latest.Before(d.known),
				"%s is answered as of %v, and an event of %v was acknowledged",
				key.name,
				d.latest,
				d.known,
			)
		}
	}
	for i := range d.left {
		d.look(ctx, c, &d.left[i], true)
	}
}
