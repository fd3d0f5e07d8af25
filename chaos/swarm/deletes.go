package swarm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// deleter is the only user of a namespace, which it fills, deletes, undeletes, purges and creates again. It knows what
// the present generation of the namespace holds. Nothing of earlier generations may come back: neither counts nor ids
// of strings. After a change of the namespace without an answer it takes another name, as an owner does.
type deleter struct {
	w     *world
	rng   *rand.Rand
	life  int
	name  string
	state nameState

	acked map[string]float64 // by key, of this generation
	maybe map[string]float64 // unknown outcomes of all generations: a late command may reach a later one
	in    map[string]bool    // strings that are in the bitmap
	vague bool               // some strings may be in, or have ids of another generation
}

// nameState is the state of the namespace of a name, as far as its user knows.
type nameState int

const (
	nameFree    nameState = iota // no namespace has the name, or it is being purged
	nameLive                     //
	nameDeleted                  // in its grace time
)

const (
	deletesKeys  = 6
	deletesBits  = "seen"
	deletesGrace = 10 * time.Minute
	// purgeMax is how long it may take until a namespace is purged when all was mended.
	purgeMax = time.Minute
	// heardMax is how long it may take, after all was mended, until all nodes know of a change.
	heardMax = 2 * time.Second
)

func newDeleter(w *world) *deleter {
	d := &deleter{w: w, rng: w.rng(7800)}
	d.move()
	return d
}

// move takes another name.
func (d *deleter) move() {
	d.life++
	d.name, d.state, d.vague = fmt.Sprintf("brief-%d", d.life), nameFree, false
	d.maybe = map[string]float64{}
	d.begin()
}

// begin starts a new generation, which holds nothing.
func (d *deleter) begin() { d.acked, d.in = map[string]float64{}, map[string]bool{} }

func (d *deleter) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(d.rng, 1000, 9000))
	defer cancel()
	switch n := d.rng.IntN(12); {
	case d.state == nameFree:
		d.create(ctx, c)
	case d.state == nameDeleted && n < 6:
		d.undelete(ctx, c)
	case d.state == nameDeleted && n < 9:
		d.remove(ctx, c, 0)
	case d.state == nameDeleted: // a leader that does not know of the deletion may accept it: an undelete shows it
		d.count(ctx, c)
	case n == 0:
		d.remove(ctx, c, deletesGrace)
	case n == 1:
		d.remove(ctx, c, 0)
	case n < 5:
		d.count(ctx, c)
	case n < 8:
		d.set(ctx, c)
	default:
		d.w.read(d.look(ctx, c) == nil)
	}
}

// changed counts the outcome of a change of the namespace, and reports whether it was acknowledged. After an unknown
// outcome it takes another name.
func (d *deleter) changed(err error) bool {
	d.w.done(outcomeOf(err))
	if err != nil && outcomeOf(err) == unknown {
		d.move()
	}
	return err == nil
}

func (d *deleter) create(ctx context.Context, c *ebb.Client) {
	_, err := c.CreateNamespace(ctx, ebb.Namespace{Name: d.name, Decay: ebb.DecayNone, Dictionary: true})
	if d.changed(err) {
		d.state = nameLive
		d.begin()
	}
}

func (d *deleter) undelete(ctx context.Context, c *ebb.Client) {
	_, err := c.UndeleteNamespace(ctx, d.name)
	if d.changed(err) {
		d.state = nameLive
		d.w.read(d.look(ctx, c) == nil)
	}
}

func (d *deleter) remove(ctx context.Context, c *ebb.Client, grace time.Duration) {
	_, err := c.DeleteNamespace(ctx, d.name, grace)
	if !d.changed(err) {
		return
	}
	if d.state = nameDeleted; grace == 0 {
		d.state = nameFree
	}
}

func (d *deleter) key() string { return fmt.Sprintf("k%d", d.rng.IntN(deletesKeys)) }

func (d *deleter) count(ctx context.Context, c *ebb.Client) {
	key, n := d.key(), float64(1+d.rng.IntN(3))
	err := c.Increment(ctx, d.name, ebb.Increment{Key: key, Bin: "b", Amount: n})
	switch d.w.done(outcomeOf(err)); outcomeOf(err) {
	case acked:
		d.acked[key] += n
	case unknown:
		d.maybe[key] += n
	}
}

// set puts a string into a bitmap. Each generation uses the same strings, and gives them its own ids.
func (d *deleter) set(ctx context.Context, c *ebb.Client) {
	name := fmt.Sprintf("person-%d", d.rng.IntN(40))
	_, err := c.SetNames(ctx, d.name, deletesBits, name)
	switch d.w.done(outcomeOf(err)); outcomeOf(err) {
	case acked:
		d.in[name] = true
	case unknown:
		d.vague = true
	}
}

// look reads all that the namespace holds.
func (d *deleter) look(ctx context.Context, c *ebb.Client) error {
	for i := range deletesKeys {
		key := fmt.Sprintf("k%d", i)
		got, err := c.Distribution(ctx, d.name, key)
		if err != nil {
			return err
		}
		low, high := d.acked[key], d.acked[key]+d.maybe[key]
		d.w.hold("deletion-right", got.Z >= low && got.Z <= high,
			"key %s of namespace %s counts %v, and %v to %v was written to this generation of it", key, d.name, got.Z, low, high)
	}
	have := map[string]bool{}
	for name, err := range c.Bitmap(d.name, ebb.Bits(deletesBits)).Names(ctx) {
		if err != nil {
			return err
		}
		have[name] = true
	}
	for name := range d.in {
		d.w.hold("deletion-right", have[name], "%s was put into namespace %s, and is not in", name, d.name)
	}
	d.w.hold("deletion-right", d.vague || len(have) == len(d.in),
		"in namespace %s are %d strings, and %d were put in", d.name, len(have), len(d.in))
	return nil
}

// heard reads all that the namespace holds. It tries again for heardMax while a node does not know the namespace: a
// change is acknowledged after half a second at most, and a node with a slow disk may not have it by then.
func (d *deleter) heard(ctx context.Context, c *ebb.Client) error {
	for deadline := time.Now().Add(heardMax); ; time.Sleep(50 * time.Millisecond) {
		err := d.look(ctx, c)
		if !errors.Is(err, ebb.ErrNamespaceNotFound) || time.Now().After(deadline) {
			return err
		}
	}
}

// settle takes a namespace through all its states when all is mended.
func (d *deleter) settle(_ context.Context, c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*purgeMax)
	defer cancel()
	if d.state == nameDeleted {
		d.undelete(ctx, c)
	}
	if d.state == nameFree {
		d.gone(ctx, c, "of which the deletion was acknowledged before")
		d.create(ctx, c)
	}
	d.count(ctx, c)
	d.set(ctx, c)
	err := d.heard(ctx, c)
	if !d.w.hold("healed-reads", err == nil, "read namespace %s when all was mended: %v", d.name, err) {
		return
	}
	d.remove(ctx, c, deletesGrace)
	d.silent(ctx, c)
	d.undelete(ctx, c)
	err = d.heard(ctx, c)
	d.w.hold("healed-reads", err == nil, "read namespace %s, which was undeleted: %v", d.name, err)
	d.remove(ctx, c, 0)
	if !d.w.hold("healed-writes", d.state == nameFree, "namespace %s cannot be deleted when all was mended", d.name) {
		return
	}
	d.gone(ctx, c, "which was deleted when all was mended")
	d.create(ctx, c)
	d.set(ctx, c)
	err = d.heard(ctx, c)
	d.w.hold("healed-reads", err == nil, "read namespace %s, which was made anew: %v", d.name, err)
}

// silent checks that a deleted namespace answers nothing, once all nodes know of the deletion.
func (d *deleter) silent(ctx context.Context, c *ebb.Client) {
	deadline := time.Now().Add(heardMax)
	for i := range deletesKeys {
		for {
			got, err := c.Distribution(ctx, d.name, fmt.Sprintf("k%d", i))
			if refused := errors.Is(err, ebb.ErrNamespaceNotFound); refused || time.Now().After(deadline) {
				d.w.hold("deletion-ends", refused,
					"%v after it was deleted, namespace %s answers %v, %v", heardMax, d.name, got.Z, err)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// gone waits until a namespace has been purged.
func (d *deleter) gone(ctx context.Context, c *ebb.Client, which string) {
	deadline := time.Now().Add(purgeMax)
	for there := true; there; time.Sleep(250 * time.Millisecond) {
		live, deleted, err := c.AllNamespaces(ctx)
		there = err != nil || slices.ContainsFunc(append(live, deleted...), func(n ebb.Namespace) bool {
			return n.Name == d.name
		})
		if !d.w.hold("deletion-ends", !there || time.Now().Before(deadline),
			"namespace %s, %s, is not purged after %v: %v", d.name, which, purgeMax, err) {
			return
		}
	}
}
