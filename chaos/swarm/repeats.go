package swarm

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ebbdb/ebb/chaos/sim"
	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// repeater sends commands again under their idempotency keys, to other nodes, like a caller that has lost the answer.
// Each answer must equal the first.
type repeater struct {
	w    *world
	rng  *rand.Rand
	next uint64 // id
	done []repeated
	doors
}

// repeated is a command that was answered.
type repeated struct {
	req     *ebbv1.BitsRequest
	changed uint64
}

const (
	repeatKey = "repeated"
	// repeatsKept is how many commands may be sent again: those of half a minute.
	repeatsKept = 100
)

func newRepeater(w *world) *repeater {
	return &repeater{w: w, rng: w.rng(4000), doors: doors{}}
}

func (r *repeater) work(*ebb.Client) {
	if len(r.done) > 0 && r.rng.IntN(2) == 0 {
		r.again(r.done[r.rng.IntN(len(r.done))])
		return
	}
	if r.w.plan.turned(knobKeys) && r.rng.IntN(15) == 0 && !r.w.waiting.Load() {
		r.overfillKeys()
		return
	}
	r.once()
}

// overfillKeys sends one new command more than a shard remembers idempotency keys. If this was too fast for any key to
// expire, the shard must refuse one.
func (r *repeater) overfillKeys() {
	limit, done, began := int(r.w.plan.knob(knobKeys)), 0, r.w.now()
	within := r.w.plan.knobTime(knobKeyWindow) - 2*shardSlack
	for range limit + 1 {
		if r.once() {
			done++
		}
	}
	if !r.w.everSkewed.Load() && r.w.now()-began < within {
		r.w.hold("room-kept", done <= limit, "%d idempotency keys were taken in %v: the limit is %d",
			done, r.w.now()-began, limit)
	}
}

// once sends a new command.
func (r *repeater) once() bool {
	var ids []uint64
	for range 1 + r.rng.IntN(5) {
		r.next++
		ids = append(ids, r.next)
	}
	req := &ebbv1.BitsRequest{
		Namespace: countsNamespace, Changes: []*ebbv1.BitChange{{Key: []byte(repeatKey), Op: ebbv1.BitOp_BIT_OP_FLIP, Ids: ids}},
		IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: time.Now().UnixMicro(), Hi: r.rng.Uint64(), Lo: r.rng.Uint64()},
	}
	changed, ok := r.send(req)
	if ok {
		r.w.hold("repeat-same", changed == uint64(len(ids)), "%d new ids were flipped, and it is said that %d changed", len(ids), changed)
		r.done = append(r.done, repeated{req, changed})
		r.done = r.done[max(0, len(r.done)-repeatsKept):]
	}
	return ok
}

// again sends a command a second time, which must not flip its ids again.
func (r *repeater) again(d repeated) {
	if changed, ok := r.send(d.req); ok {
		r.w.hold("repeat-same", changed == d.changed, "a command answered that it changed %d ids, and the second time %d", d.changed, changed)
	}
}

// send sends a request to any node; ok reports whether the node has applied it.
func (r *repeater) send(req *ebbv1.BitsRequest) (changed uint64, ok bool) {
	door, err := r.doors.to(r.w, r.rng.IntN(r.w.plan.Nodes))
	if err != nil {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	from := time.Now()
	resp, err := door.Bits(ctx, req)
	r.age(req, from, err)
	if err != nil || len(resp.GetRefused()) > 0 {
		r.w.done(unknown)
		return 0, false
	}
	r.w.done(acked)
	return resp.GetChanged()[0], true
}

// age checks that an idempotency key is known within its window, and refused after that.
func (r *repeater) age(req *ebbv1.BitsRequest, from time.Time, err error) {
	issued, window := time.UnixMicro(req.GetIdempotencyKey().GetIssuedAtUs()), r.w.plan.knobTime(knobKeyWindow)
	switch {
	case r.w.everSkewed.Load():
	case err == nil:
		age := from.Sub(issued)
		r.w.hold("key-window", age < window+shardSlack, "an idempotency key is known that was issued %v ago", age)
	case errors.Is(err, proto.ErrIdempotencyKeyTooOld):
		age := time.Since(issued)
		r.w.hold("key-window", age > window-shardSlack, "an idempotency key is too old that was issued %v ago", age)
	}
}

// settle checks that every flipped id is in the bitmap, so that it was flipped once.
func (r *repeater) settle(ctx context.Context, c *ebb.Client) {
	r.doors.close()
	var ids []uint64
	for _, d := range r.done {
		ids = append(ids, d.req.Changes[0].Ids...)
	}
	if len(ids) == 0 {
		return
	}
	got, err := c.Bitmap(countsNamespace, ebb.Bits(repeatKey)).Contains(ctx, ids...)
	if !r.w.hold("healed-reads", err == nil, "read the repeated ids when all was mended: %v", err) {
		return
	}
	var out []uint64
	for i, is := range got {
		if !is {
			out = append(out, ids[i])
		}
	}
	r.w.hold("repeat-same", len(out) == 0,
		"%v of %d ids are not in that were flipped once, and sent again under the same idempotency key", out, len(ids))
}

// doors are the direct connections of one client to nodes, by number of the node. They are opened when they are needed.
type doors map[int]*sim.Door

func (d doors) to(w *world, i int) (*sim.Door, error) {
	if d[i] != nil {
		return d[i], nil
	}
	door, err := w.c.Door(clientIP(0), i)
	if err == nil {
		d[i] = door
	}
	return door, err
}

// close closes all connections. No request may be under way.
func (d doors) close() {
	for _, door := range d {
		_ = door.Close()
	}
}

// witness adds to the story what each node's replica has of a key, however stale.
func (w *world) witness(ns, key string) {
	for i := range w.c.Nodes() {
		if w.c.Node(i) == nil {
			w.tell("%s is dead", w.c.Name(i))
			continue
		}
		z, err := w.sumAt(i, ns, key)
		if err != nil {
			w.tell("%s says of %s: %v", w.c.Name(i), key, err)
			continue
		}
		w.tell("%s has %v of %s", w.c.Name(i), z, key)
	}
}

func (w *world) sumAt(i int, ns, key string) (float64, error) {
	var door *sim.Door
	door, err := w.c.Door(clientIP(clientHosts-1), i)
	if err != nil {
		return 0, err
	}
	defer door.Close() //nolint:errcheck // the answer is here
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return door.Sum(ctx, ns, key, &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_ANY})
}
