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

// changer is the only user of a namespace, whose half-life it changes as often as the cluster allows. Each half-life is
// longer than those before, so that every change counts. If a change may have been late, it is unknown which half-life
// was in force when. Only the shortest and the longest are known.
type changer struct {
	w       *world
	rng     *rand.Rand
	acked   int // changes
	unknown int
	life    int
	key     string
	events  []timedAmount
}

const (
	changingNamespace = "changing"
	changingHalfLife  = time.Hour
	changingStep      = time.Minute
)

var changingSpace = ebb.Namespace{Name: changingNamespace, HalfLife: changingHalfLife}

func newChanger(w *world) *changer {
	c := &changer{w: w, rng: w.rng(8500)}
	c.move()
	return c
}

// move takes another key, because it is unknown which events the old one has.
func (k *changer) move() {
	k.life++
	k.key, k.events = fmt.Sprintf("changing-%d", k.life), nil
}

func (k *changer) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(k.rng, 1000, 6000))
	defer cancel()
	switch n := k.rng.IntN(6); {
	case n < 2:
		k.change(ctx, c)
	case n < 4 || len(k.events) == 0:
		k.add(ctx, c)
	default:
		k.w.read(k.look(ctx, c) == nil)
	}
}

// longest returns the longest half-life that may have been set.
func (k *changer) longest() time.Duration {
	return changingHalfLife + time.Duration(k.acked+k.unknown)*changingStep
}

// change requests a longer half-life, and checks the answer against the limit of changes.
func (k *changer) change(ctx context.Context, c *ebb.Client) {
	limit := int(k.w.plan.knob(knobHalfLives))
	_, err := c.SetNamespace(ctx, ebb.Namespace{Name: changingNamespace, HalfLife: k.longest() + changingStep})
	switch outcome := outcomeOf(err); {
	case err == nil:
		k.acked++
		k.w.hold("changes-counted", k.acked <= limit, "change %d of a half-life is made: the limit is %d", k.acked, limit)
	case errors.Is(err, ebb.ErrBadNamespace):
		k.w.hold("changes-counted", k.acked+k.unknown >= limit,
			"after %d changes, and %d that may have been made, there may be no more: the limit is %d: %v",
			k.acked, k.unknown, limit, err)
	case outcome == unknown:
		k.unknown++
	}
	k.w.done(outcomeOf(err))
}

func (k *changer) add(ctx context.Context, c *ebb.Client) {
	at := time.Now().Add(-time.Duration(k.rng.Int64N(int64(3 * time.Hour)))).Truncate(time.Microsecond)
	e := timedAmount{at, float64(1 + k.rng.IntN(5))}
	in := ebb.Increment{Key: k.key, Bin: "b", Amount: e.amount, Time: e.at}
	err := c.Increment(ctx, changingNamespace, in)
	k.w.done(outcomeOf(err))
	k.events = append(k.events, e)
	if err != nil {
		k.move()
	}
}

// look reads the key. Its sum must lie between what the shortest half-life leaves and what the longest leaves.
func (k *changer) look(ctx context.Context, c *ebb.Client) error {
	d, err := c.Distribution(ctx, changingNamespace, k.key)
	if err != nil {
		return err
	}
	low, high := k.left(d.AsOf, changingHalfLife), k.left(d.AsOf, k.longest())
	k.w.hold("changed-sum", d.Z >= low*(1-1e-9)-1e-300 && d.Z <= high*(1+1e-9)+1e-300,
		"%s is %v at %v: %v is left with the shortest half-life, and %v with the longest", k.key, d.Z, d.AsOf, low, high)
	return nil
}

// left returns what a half-life leaves of the events at a time.
func (k *changer) left(at time.Time, halfLife time.Duration) (sum float64) {
	for _, e := range k.events {
		sum += e.amount * math.Exp2(-float64(at.Sub(e.at))/float64(halfLife))
	}
	return sum
}

func (k *changer) settle(ctx context.Context, c *ebb.Client) {
	if len(k.events) == 0 {
		return
	}
	err := k.look(ctx, c)
	k.w.hold("healed-reads", err == nil, "read %s when all was mended: %v", k.key, err)
}
