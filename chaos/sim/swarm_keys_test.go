package sim

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

// Owners keep keys that nobody else touches: strings, phrases and distributions, which they write, delete, expire, rename and read. As
// long as each command is answered there is one state that the keys can be in, and every answer and every read must be of that one.
// A command whose outcome is not known leaves two or three; the owner takes other names then, for it may still be done at any time, and the last
// reckoning finds the old ones in one of these states.
const swarmOwners = 2

// holding is what an owner's keys hold, by name; "" is never held.
type holding map[string]string

// owner is one that works alone, on a few names at a time.
type owner struct {
	s     *swarm
	id    int
	rng   *rand.Rand
	life  int // how often it has taken new names
	names []string
	kind  ebb.Kind
	now   holding
	left  []estate
}

// estate is what an owner has left behind.
type estate struct {
	kind  ebb.Kind
	names []string
	could []holding // what it may be
	after string
}

func (s *swarm) newOwner(id int) *owner {
	o := &owner{s: s, id: id, rng: rand.New(rand.NewPCG(s.seed, 1000+uint64(id)))}
	o.move()
	return o
}

// move takes other names, of several shards.
func (o *owner) move() {
	o.life++
	o.kind = []ebb.Kind{ebb.KindString, ebb.KindPhrases, ebb.KindDistribution}[o.rng.IntN(3)]
	o.names, o.now = nil, holding{}
	for i := range 4 {
		o.names = append(o.names, fmt.Sprintf("own-%d-%d/%c", o.id, o.life, 'a'+rune(i)))
	}
}

// deed is a command, what it makes of what the keys hold, and what else it may have made if its outcome is unknown.
type deed struct {
	name    string
	do      func(ctx context.Context, c *ebb.Client) (count int, err error)
	after   holding
	between []holding
	count   int   // what it says when it is done
	refused error // what it must be refused with
}

func (o *owner) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1000+o.rng.IntN(8000))*time.Millisecond)
	defer cancel()
	if o.rng.IntN(3) == 0 {
		o.look(ctx, c)
		return
	}
	d := o.draw()
	count, err := d.do(ctx, c)
	switch {
	case err == nil && d.refused != nil:
		o.s.note("%s was done on %v, and should be refused with %v", d.name, o.now, d.refused)
	case err == nil && count != d.count:
		o.s.note("%s says %d on %v, and not %d", d.name, count, o.now, d.count)
	case err == nil:
		o.now = d.after
		o.s.did()
		return
	case d.refused != nil && errors.Is(err, d.refused):
		return
	case errors.Is(err, ebb.ErrKeyNotFound), errors.Is(err, ebb.ErrKeyExists):
		o.s.note("%s is refused with %v on %v", d.name, err, o.now)
	}
	could := append([]holding{o.now}, d.between...)
	if d.refused == nil {
		could = append(could, d.after)
	}
	o.left = append(o.left, estate{o.kind, o.names, could, fmt.Sprintf("%s: %v", d.name, err)})
	o.move()
}

// draw chooses what to do.
func (o *owner) draw() deed {
	key := o.names[o.rng.IntN(len(o.names))]
	there := 0
	if o.now[key] != "" {
		there = 1
	}
	gone := maps.Clone(o.now)
	delete(gone, key)
	switch o.rng.IntN(8) {
	case 0:
		return deed{name: "delete " + key, after: gone, count: there, do: func(ctx context.Context, c *ebb.Client) (int, error) {
			return c.Delete(ctx, swarmNamespace, key)
		}}
	case 1:
		return deed{name: "expire " + key, after: gone, count: there, do: func(ctx context.Context, c *ebb.Client) (int, error) {
			return c.ExpireAt(ctx, swarmNamespace, time.Unix(1, 0), key)
		}}
	case 2:
		return deed{name: "expire late " + key, after: o.now, count: there, do: func(ctx context.Context, c *ebb.Client) (int, error) {
			return c.Expire(ctx, swarmNamespace, 90*365*24*time.Hour, key)
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
	d := deed{name: fmt.Sprintf("rename %s %s, overwrite %v", from, to, overwrite), after: o.now, do: func(ctx context.Context, c *ebb.Client) (int, error) {
		return 0, c.Rename(ctx, swarmNamespace, from, to, overwrite)
	}}
	switch {
	case o.now[from] == "":
		d.refused = ebb.ErrKeyNotFound
	case o.now[to] == o.now[from] && overwrite:
		return o.write(from) // between shards this cannot be told from another rename that is under way, and is refused
	case o.now[to] != "" && !overwrite:
		d.refused = ebb.ErrKeyExists
	default:
		both := maps.Clone(o.now)
		both[to] = o.now[from]
		after := maps.Clone(both)
		delete(after, from)
		d.after, d.between = after, []holding{both}
	}
	return d
}

func (o *owner) write(key string) deed {
	after := maps.Clone(o.now)
	in := ebb.Increment{Key: key, Kind: o.kind, Amount: 1}
	switch o.kind {
	case ebb.KindString:
		in.Text = fmt.Sprintf("%x", o.rng.Uint64())
		after[key] = in.Text
	case ebb.KindPhrases:
		in.Bin = []string{"alpha", "beta gamma", "gamma"}[o.rng.IntN(3)]
		has := strings.Split(o.now[key], ",")
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
		_, _ = fmt.Sscan(o.now[key], &z)
		in.Amount = float64(1 + o.rng.IntN(3))
		after[key] = fmt.Sprint(z + int(in.Amount))
	}
	return deed{name: fmt.Sprintf("write %s %q %v %q", key, in.Bin, in.Amount, in.Text), after: after, do: func(ctx context.Context, c *ebb.Client) (int, error) {
		return 0, c.Increment(ctx, swarmNamespace, in)
	}}
}

// held asks what a key holds.
func held(ctx context.Context, c *ebb.Client, kind ebb.Kind, key string) (string, error) {
	switch kind {
	case ebb.KindString:
		v, err := c.String(ctx, swarmNamespace, key)
		return v.Text, err
	case ebb.KindPhrases:
		v, err := c.Summary(ctx, swarmNamespace, ebb.SummaryQuery{Keys: []string{key}, Members: true})
		slices.Sort(v.Members)
		return strings.Join(v.Members, ","), err
	}
	d, err := c.Distribution(ctx, swarmNamespace, key)
	if !d.Found {
		return "", err
	}
	return fmt.Sprint(d.Z), err
}

// look reads one key.
func (o *owner) look(ctx context.Context, c *ebb.Client) {
	key := o.names[o.rng.IntN(len(o.names))]
	if got, err := held(ctx, c, o.kind, key); err == nil && got != o.now[key] {
		o.s.note("%s holds %q, and %q was acknowledged", key, got, o.now[key])
	}
}

// settle is the last reckoning: whatever was left behind is in one of the states that it can be in.
func (o *owner) settle(ctx context.Context, c *ebb.Client) {
	for _, e := range append(o.left, estate{o.kind, o.names, []holding{o.now}, "the last command"}) {
		got := holding{}
		for _, key := range e.names {
			v, err := held(ctx, c, e.kind, key)
			if err != nil {
				o.s.note("read %s when all was mended: %v", key, err)
				return
			}
			if v != "" {
				got[key] = v
			}
		}
		if !slices.ContainsFunc(e.could, func(h holding) bool { return maps.Equal(h, got) }) {
			o.s.note("after %s there is %v, and not one of %v", e.after, got, e.could)
		}
	}
}

func (s *swarm) did() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deeds++
}
