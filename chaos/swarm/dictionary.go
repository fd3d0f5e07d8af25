package swarm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	ebb "github.com/ebbdb/ebb/client"
)

// dictionaryClient checks ids of strings. It adds new strings to a bitmap of a namespace with a dictionary. The parts
// of the dictionary assign ids in the order of their logs, and for ever, so the ids show that order.
type dictionaryClient struct {
	w       *world
	rng     *rand.Rand
	next    int
	batches [][]string // acknowledged, one after the other
	maybe   []string   // of unknown outcome
	ids     map[string]uint64
	of      map[uint64]string
}

const namedKey = "people"

func newDictionaryClient(w *world) *dictionaryClient {
	return &dictionaryClient{w: w, rng: w.rng(7700), ids: map[string]uint64{}, of: map[uint64]string{}}
}

func (n *dictionaryClient) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(n.rng, 1000, 6000))
	defer cancel()
	if n.rng.IntN(2) == 0 && len(n.batches) > 0 {
		n.w.read(n.look(ctx, c, n.batches[n.rng.IntN(len(n.batches))]) == nil)
		return
	}
	var batch []string
	for range 1 + n.rng.IntN(5) {
		n.next++
		batch = append(batch, fmt.Sprintf("person-%d", n.next))
	}
	changed, err := c.SetNames(ctx, namedNamespace, namedKey, batch...)
	n.w.done(outcomeOf(err))
	if err != nil {
		n.maybe = append(n.maybe, batch...)
		return
	}
	n.w.hold("bits-answer", changed == len(batch), "%d new strings were set, and it is said that %d changed", len(batch), changed)
	n.batches = append(n.batches, batch)
}

// look asks whether strings are in, and for their ids.
func (n *dictionaryClient) look(ctx context.Context, c *ebb.Client, batch []string) error {
	in, err := c.Bitmap(namedNamespace, ebb.Bits(namedKey)).ContainsNames(ctx, batch...)
	if err != nil {
		return err
	}
	n.w.hold("names-kept", len(in) == len(batch) && !slices.Contains(in, false), "of %v, which were acknowledged, are in: %v", batch, in)
	given, err := c.NameIDs(ctx, namedNamespace, batch...)
	if err != nil {
		return err
	}
	var list []uint64
	for i, g := range given {
		id, known := n.ids[g.Name]
		other, taken := n.of[g.ID]
		n.w.hold("names-kept", g.Found && g.Name == batch[i] && (!known || id == g.ID) && (!taken || other == g.Name),
			"%s has id %d (found: %v); before it had %d (known: %v), and the id was that of %q", g.Name, g.ID, g.Found, id, known, other)
		n.ids[g.Name], n.of[g.ID] = g.ID, g.Name
		list = append(list, g.ID)
	}
	back, err := c.IDNames(ctx, namedNamespace, list...)
	if err != nil {
		return err
	}
	for i, b := range back {
		n.w.hold("names-kept", b.Found && b.Name == batch[i], "id %d stands for %q, and not for %s", list[i], b.Name, batch[i])
	}
	return nil
}

// settle asks for all strings, lists them, and checks that ids were assigned in order.
func (n *dictionaryClient) settle(ctx context.Context, c *ebb.Client) {
	for _, batch := range n.batches {
		if err := n.look(ctx, c, batch); !n.w.hold("healed-reads", err == nil, "ask for strings when all was mended: %v", err) {
			return
		}
	}
	have := map[string]bool{}
	for name, err := range c.Bitmap(namedNamespace, ebb.Bits(namedKey)).Names(ctx) {
		if !n.w.hold("healed-reads", err == nil, "list the strings when all was mended: %v", err) {
			return
		}
		n.w.hold("names-kept", !have[name], "%s is listed twice", name)
		have[name] = true
	}
	sure := 0
	for _, batch := range n.batches {
		for _, name := range batch {
			n.w.hold("names-kept", have[name], "%s was acknowledged, and is not listed", name)
			sure++
		}
	}
	n.w.hold("names-kept", len(have) <= sure+len(n.maybe), "%d strings are listed, and only %d were acknowledged and %d may be in", len(have), sure, len(n.maybe))
	n.ordered()
}

// ordered checks the parts of the dictionary; the ids of a part have the same remainder. In each part, strings of later
// commands must have larger ids.
func (n *dictionaryClient) ordered() {
	last := make([]uint64, n.w.plan.Shards)
	for _, batch := range n.batches {
		now := slices.Clone(last)
		for _, name := range batch {
			id := n.ids[name]
			part := id % uint64(len(last))
			n.w.hold("log-in-order", id > last[part] || last[part] == 0, "%s has id %d, and %q, which was acknowledged before, has %d", name, id, n.of[last[part]], last[part])
			now[part] = max(now[part], id)
		}
		last = now
	}
}
