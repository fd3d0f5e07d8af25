package swarm

import (
	"context"
	"math/rand/v2"
	"slices"

	ebb "github.com/ebbdb/ebb/client"
)

// bitOwner sets and clears ids of one bitmap that no other client touches. After a command without an answer its ids
// may be in or out, and are not used again.
type bitOwner struct {
	w         *world
	namespace string
	invariant string
	rng       *rand.Rand
	in        []uint64 // acknowledged as set, and not cleared since
	out       []uint64 // acknowledged as cleared
	either    map[uint64]bool
}

const bitKey = "ids"

func newBitOwner(w *world, namespace string) *bitOwner {
	b := &bitOwner{w: w, namespace: namespace, invariant: "bits-kept", rng: w.rng(2000), either: map[uint64]bool{}}
	if namespace == slicedNamespace {
		b.invariant, b.rng = "slices-kept", w.rng(2001)
	}
	return b
}

func (b *bitOwner) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(b.rng, 1000, 9000))
	defer cancel()
	switch r := b.rng.IntN(6); {
	case r < 2:
		b.look(ctx, c)
	case r < 3 && len(b.in) > 0:
		b.clear(ctx, c)
	default:
		b.set(ctx, c)
	}
}

// set adds new ids, of several slices.
func (b *bitOwner) set(ctx context.Context, c *ebb.Client) {
	ids := make([]uint64, 1+b.rng.IntN(8))
	for i := range ids {
		ids[i] = b.rng.Uint64N(4)<<16 | b.rng.Uint64N(1<<16)
	}
	ids = slices.DeleteFunc(ids, func(id uint64) bool { return b.either[id] || slices.Contains(b.in, id) })
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) == 0 {
		return
	}
	changed, err := c.SetBits(ctx, b.namespace, bitKey, ids...)
	if !b.outcome(err, ids) {
		return
	}
	b.in = append(b.in, ids...)
	b.out = slices.DeleteFunc(b.out, func(id uint64) bool { return slices.Contains(ids, id) })
	b.answered("set", changed, ids)
}

// clear removes some ids.
func (b *bitOwner) clear(ctx context.Context, c *ebb.Client) {
	ids := slices.Clone(b.in[b.rng.IntN(len(b.in)):])
	ids = ids[:min(len(ids), 4)]
	changed, err := c.ClearBits(ctx, b.namespace, bitKey, ids...)
	b.in = slices.DeleteFunc(b.in, func(id uint64) bool { return slices.Contains(ids, id) })
	if !b.outcome(err, ids) {
		return
	}
	b.out = append(b.out, ids...)
	b.answered("cleared", changed, ids)
}

// outcome reports whether an edit was acknowledged; otherwise its ids may be in or out.
func (b *bitOwner) outcome(err error, ids []uint64) bool {
	b.w.done(outcomeOf(err))
	if err == nil {
		return true
	}
	for _, id := range ids {
		b.either[id] = true
		b.out = slices.DeleteFunc(b.out, func(o uint64) bool { return o == id })
	}
	return false
}

func (b *bitOwner) answered(what string, changed int, ids []uint64) {
	b.w.hold("bits-answer", changed == len(ids), "%d ids of %s were %s, and it is said that %d changed", len(ids), b.namespace, what, changed)
}

// look asks for a few ids whose state is known.
func (b *bitOwner) look(ctx context.Context, c *ebb.Client) {
	var ids []uint64
	for _, of := range [][]uint64{b.in, b.out} {
		for range min(3, len(of)) {
			ids = append(ids, of[b.rng.IntN(len(of))])
		}
	}
	if len(ids) == 0 {
		return
	}
	got, err := c.Bitmap(b.namespace, ebb.Bits(bitKey)).Contains(ctx, ids...)
	b.w.read(err == nil)
	if err != nil {
		return
	}
	for i, id := range ids {
		want := slices.Contains(b.in, id)
		b.w.hold(b.invariant, got[i] == want, "%d is in the bitmap of %s: %v, and %v was acknowledged", id, b.namespace, got[i], want)
	}
}

// settle compares all of the bitmap.
func (b *bitOwner) settle(ctx context.Context, c *ebb.Client) {
	have := map[uint64]bool{}
	for id, err := range c.Bitmap(b.namespace, ebb.Bits(bitKey)).IDs(ctx) {
		if !b.w.hold("healed-reads", err == nil, "read the bitmap of %s when all was mended: %v", b.namespace, err) {
			return
		}
		have[id] = true
	}
	var missing, extra []uint64
	for _, id := range b.in {
		if !have[id] {
			missing = append(missing, id)
		}
		delete(have, id)
	}
	for id := range have {
		if !b.either[id] {
			extra = append(extra, id)
		}
	}
	slices.Sort(extra)
	b.w.hold(b.invariant, len(missing)+len(extra) == 0, "the bitmap of %s lacks %v of %d acknowledged ids, and has %v that nobody has acknowledged", b.namespace, missing, len(b.in), extra)
}
