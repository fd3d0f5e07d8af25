package swarm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// holding maps the names of keys to what they hold; a key that holds nothing is not in it.
type holding map[string]string

// owner is the only user of some keys: strings, phrases or distributions. It writes, deletes, expires, renames and
// reads them. While every command is answered, the keys have one possible state, and every answer and every read must
// agree with it. A command of unknown outcome leaves two or three possible states. The owner then takes other names,
// because the command may still be done at any time. The last check must find the old names in one of their possible
// states.
type owner struct {
	w     *world
	id    int
	rng   *rand.Rand
	life  int // how often it has taken new names
	names []string
	kind  ebb.Kind
	state holding
	left  []estate
}

// estate is a set of keys that an owner has left after a command of unknown outcome.
type estate struct {
	kind  ebb.Kind
	names []string
	could []holding // the possible states
	after string
}

func newOwner(w *world, id int) *owner {
	o := &owner{w: w, id: id, rng: w.rng(1000 + uint64(id))}
	o.move()
	return o
}

// move takes other names, of several shards.
func (o *owner) move() {
	o.life++
	o.kind = []ebb.Kind{ebb.KindString, ebb.KindPhrases, ebb.KindDistribution}[o.rng.IntN(3)]
	o.names, o.state = nil, holding{}
	for i := range 4 {
		o.names = append(o.names, fmt.Sprintf("own-%d-%d/%c", o.id, o.life, 'a'+rune(i)))
	}
}

// deed is a command with its expected result: the state after it, and the states in between that an unknown outcome may
// leave.
type deed struct {
	name    string
	do      func(ctx context.Context, c *ebb.Client) (count int, err error)
	after   holding
	between []holding
	count   int   // what it must answer
	refused error // the error that it must fail with; nil if none
}

func (o *owner) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(o.rng, 1000, 9000))
	defer cancel()
	if o.rng.IntN(3) == 0 {
		o.look(ctx, c)
		return
	}
	d := o.draw()
	count, err := d.do(ctx, c)
	o.w.done(outcomeOf(err))
	switch {
	case err == nil && d.refused != nil:
		o.w.hold("answer-right", false, "%s was done on %v, and should be refused with %v", d.name, o.state, d.refused)
	case err == nil:
		o.w.hold("answer-right", count == d.count, "%s says %d on %v, and not %d", d.name, count, o.state, d.count)
		o.state = d.after
		return
	case d.refused != nil && errors.Is(err, d.refused):
		o.w.hold("answer-right", true, "")
		return
	case errors.Is(err, ebb.ErrKeyNotFound), errors.Is(err, ebb.ErrKeyExists):
		o.w.hold("answer-right", false, "%s is refused with %v on %v", d.name, err, o.state)
	}
	could := append([]holding{o.state}, d.between...)
	if d.refused == nil {
		could = append(could, d.after)
	}
	o.left = append(o.left, estate{o.kind, o.names, could, fmt.Sprintf("%s: %v", d.name, err)})
	o.move()
}

// draw chooses the next command.
func (o *owner) draw() deed {
	key := o.names[o.rng.IntN(len(o.names))]
	there := 0
	if o.state[key] != "" {
		there = 1
	}
	gone := maps.Clone(o.state)
	delete(gone, key)
	switch o.rng.IntN(8) {
	case 0:
		return deed{name: "delete " + key, after: gone, count: there, do: func(ctx context.Context, c *ebb.Client) (int, error) {
			return c.Delete(ctx, countsNamespace, key)
		}}
	case 1:
		return deed{name: "expire " + key, after: gone, count: there, do: func(ctx context.Context, c *ebb.Client) (int, error) {
			return c.ExpireAt(ctx, countsNamespace, time.Unix(1, 0), key)
		}}
	case 2:
		return deed{name: "expire late " + key, after: o.state, count: there, do: func(ctx context.Context, c *ebb.Client) (int, error) {
			return c.Expire(ctx, countsNamespace, 90*365*24*time.Hour, key)
		}}
	case 3, 4:
		return o.rename(key, o.names[o.rng.IntN(len(o.names))], o.rng.IntN(2) == 0)
	}
	return o.write(key)
}

func (o *owner) rename(from, to string, overwrite bool) deed {
	if from == to {
		return o.write(from)
	}
	d := deed{name: fmt.Sprintf("rename %s %s, overwrite %v", from, to, overwrite), after: o.state, do: func(ctx context.Context, c *ebb.Client) (int, error) {
		return 0, c.Rename(ctx, countsNamespace, from, to, overwrite)
	}}
	switch {
	case o.state[from] == "":
		d.refused = ebb.ErrKeyNotFound
	case o.state[to] == o.state[from] && overwrite:
		return o.write(from) // between shards this looks like another rename that is under way, and is refused
	case o.state[to] != "" && !overwrite:
		d.refused = ebb.ErrKeyExists
	default:
		both := maps.Clone(o.state)
		both[to] = o.state[from]
		after := maps.Clone(both)
		delete(after, from)
		d.after, d.between = after, []holding{both}
	}
	return d
}

func (o *owner) write(key string) deed {
	after := maps.Clone(o.state)
	in := ebb.Increment{Key: key, Kind: o.kind, Amount: 1}
	switch o.kind {
	case ebb.KindString:
		in.Text = fmt.Sprintf("%x", o.rng.Uint64())
		after[key] = in.Text
	case ebb.KindPhrases:
		in.Bin = []string{"alpha", "beta gamma", "gamma"}[o.rng.IntN(3)]
		has := strings.Split(o.state[key], ",")
		has = slices.DeleteFunc(has, func(p string) bool { return p == "" || p == in.Bin })
		if in.Amount = float64(1 - 2*o.rng.IntN(2)); in.Amount > 0 {
			has = append(has, in.Bin)
		}
		slices.Sort(has)
		if after[key] = strings.Join(has, ","); after[key] == "" {
			delete(after, key)
		}
	default:
		in.Bin = "b"
		z := 0
		_, _ = fmt.Sscan(o.state[key], &z)
		in.Amount = float64(1 + o.rng.IntN(3))
		after[key] = fmt.Sprint(z + int(in.Amount))
	}
	return deed{name: fmt.Sprintf("write %s %q %v %q", key, in.Bin, in.Amount, in.Text), after: after, do: func(ctx context.Context, c *ebb.Client) (int, error) {
		return 0, c.Increment(ctx, countsNamespace, in)
	}}
}

// held returns what a key holds; empty if it holds nothing.
func held(ctx context.Context, c *ebb.Client, kind ebb.Kind, key string) (string, error) {
	switch kind {
	case ebb.KindString:
		v, err := c.String(ctx, countsNamespace, key)
		return v.Text, err
	case ebb.KindPhrases:
		v, err := c.Summary(ctx, countsNamespace, ebb.SummaryQuery{Keys: []string{key}, Members: true})
		slices.Sort(v.Members)
		return strings.Join(v.Members, ","), err
	}
	d, err := c.Distribution(ctx, countsNamespace, key)
	if !d.Found {
		return "", err
	}
	return fmt.Sprint(d.Z), err
}

// look reads one key.
func (o *owner) look(ctx context.Context, c *ebb.Client) {
	key := o.names[o.rng.IntN(len(o.names))]
	got, err := held(ctx, c, o.kind, key)
	o.w.read(err == nil)
	if err == nil {
		o.w.hold("owner-reads", got == o.state[key], "%s holds %q, and %q was acknowledged", key, got, o.state[key])
	}
}

// settle is the last check: keys that were left must be in one of their possible states.
func (o *owner) settle(ctx context.Context, c *ebb.Client) {
	for _, e := range append(o.left, estate{o.kind, o.names, []holding{o.state}, "the last command"}) {
		got := holding{}
		for _, key := range e.names {
			v, err := held(ctx, c, e.kind, key)
			if !o.w.hold("healed-reads", err == nil, "read %s when all was mended: %v", key, err) {
				return
			}
			if v != "" {
				got[key] = v
			}
		}
		o.w.hold("whole-or-not", slices.ContainsFunc(e.could, func(h holding) bool { return maps.Equal(h, got) }),
			"after %s there is %v, and not one of %v", e.after, got, e.could)
	}
}
