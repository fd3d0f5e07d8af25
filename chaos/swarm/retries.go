package swarm

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// retrier has a session of its own in one shard. Unlike the SDK, it uses all that a session allows. It leaves sequences
// out and sends them later. It sends commands again that were answered long ago, also below the window. It continues
// with a session that was idle for too long. It counts in a key that only it writes.
//
//	            bottom                       top      newest
//	refused ------>|  answered as before      |  new     |
//	       . x x x [ x . x x x . x x x . x x x ] . x . x
//
// The window ends at the newest sequence that was applied. That is at least the newest one that was answered, and at
// most the newest one that was sent.
type retrier struct {
	w    *world
	rng  *rand.Rand
	odd  bool // its results have more than a count: the limit on their bytes may shorten the window
	home uint32
	key  string
	doors

	session, secret uint64
	used            moment           // when the session was last used
	late            bool             // an earlier command may still arrive, and use the session then
	sent            map[uint64]*sent // of the session, by sequence
	top, newest     uint64           // the newest sequence that was answered, and the newest that was sent
	acked, unknown  int              // amounts that count, or may count, in all sessions
}

// moment is when something happened: not before from, and not after to.
type moment struct{ from, to time.Duration }

// sent is a command that was sent, with its first answer.
type sent struct {
	amount   int
	applied  uint64
	refused  int
	answered bool
	tries    int
}

// shardSlack is how far the clock of a shard may be from the clock of a client, if all clocks are right.
const shardSlack = time.Second

func newRetrier(w *world, odd bool) *retrier {
	r := &retrier{w: w, rng: w.rng(8400), odd: odd, key: "retried", doors: doors{}}
	if odd {
		r.rng, r.key = w.rng(8401), "retried-odd"
	}
	r.home = proto.ShardOf(countsNamespace, []byte(r.key), w.plan.Shards)
	return r
}

func (r *retrier) work(*ebb.Client) {
	if r.session == 0 {
		r.open()
		return
	}
	if r.rng.IntN(12) == 0 { // idle for about as long as a session may be
		if idle := r.w.plan.knobTime(knobSessionExpiry); idle <= 10*time.Second && !r.w.waiting.Load() {
			time.Sleep(idle - 2*shardSlack + millis(r.rng, 0, 5000))
		}
	}
	if !r.odd && r.w.plan.turned(knobSessions) && r.rng.IntN(15) == 0 && !r.w.waiting.Load() {
		r.overfillSessions()
	}
	for range 1 + r.rng.IntN(4) {
		if r.session != 0 {
			r.send(r.draw())
		}
	}
}

// open opens a session.
func (r *retrier) open() {
	r.secret = r.rng.Uint64() | 1
	from := r.w.now()
	result, err := r.apply(&ebbv1.Command{
		Namespace: countsNamespace, Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: r.secret}},
	})
	if err != nil {
		return
	}
	r.session, r.sent, r.top, r.newest = result.GetSession(), map[uint64]*sent{}, 0, 0
	r.used, r.late = moment{from, r.w.now()}, false
}

// overfillSessions opens one session more than a shard remembers, and uses none of them. If this was too fast for any
// session to expire, the shard must refuse one.
func (r *retrier) overfillSessions() {
	limit, opened, began := int(r.w.plan.knob(knobSessions)), 0, r.w.now()
	within := r.w.plan.knobTime(knobSessionExpiry) - 2*shardSlack
	for range limit + 1 {
		_, err := r.apply(&ebbv1.Command{
			Namespace: countsNamespace, Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: 1}},
		})
		if errors.Is(err, proto.ErrTooManySessions) {
			break
		}
		if err == nil {
			opened++
		}
	}
	if !r.w.everSkewed.Load() && r.w.now()-began < within {
		r.w.hold("room-kept", opened <= limit, "%d sessions were opened in %v: the limit is %d", opened, r.w.now()-began, limit)
	}
}

// draw chooses a sequence: a new one, one that was left out, or one that was sent before.
func (r *retrier) draw() uint64 {
	window := uint64(r.w.plan.knob(knobSessionWindow))
	back := uint64(0)
	switch n := r.rng.IntN(8); {
	case n < 3:
		return r.newest + 1
	case n == 3:
		return r.newest + 1 + r.rng.Uint64N(min(window, 5))
	case n == 4: // the edge of the window
		back = window + r.rng.Uint64N(4) - 2
	case n == 5:
		back = r.rng.Uint64N(window + 1)
	case n == 6:
		back = r.rng.Uint64N(3)
	default:
		back = window + r.rng.Uint64N(window)
	}
	if back >= r.newest {
		return r.newest + 1
	}
	return r.newest - back
}

// send sends the command of a sequence, perhaps again.
func (r *retrier) send(sequence uint64) {
	window := uint64(r.w.plan.knob(knobSessionWindow))
	one := r.sent[sequence]
	if one == nil {
		one = &sent{amount: 1 + r.rng.IntN(5)}
		r.sent[sequence] = one
		r.unknown += one.amount
	}
	one.tries++
	// The newest sequence below the window is between low and high: nothing else is on its way that could move the
	// window.
	low, high := below(r.top, window), below(max(r.newest, sequence), window)
	r.newest = max(r.newest, sequence)
	before, from := r.used, r.w.now()
	result, err := r.apply(r.command(sequence, one))
	switch to := r.w.now(); {
	case err == nil:
		r.answered(sequence, one, result, low)
		r.expiry(before, moment{from, to}, false)
		r.used = moment{from, to}
		r.top = max(r.top, sequence)
	case errors.Is(err, proto.ErrSequenceTooOld):
		r.w.hold("window-edges", sequence <= high || r.odd,
			"sequence %d is refused as too old, where %d was the newest and the window is %d", sequence, r.newest, window)
		r.expiry(before, moment{from, to}, false)
		r.used = moment{from, to}
	case errors.Is(err, proto.ErrSessionExpired):
		r.expiry(before, moment{from, to}, true)
		r.session = 0
	default:
		r.late = true
	}
}

// below returns the newest sequence that is below a window which ends at top.
func below(top, window uint64) uint64 {
	if top <= window {
		return 0
	}
	return top - window
}

// answered compares an answer with the first answer to the same sequence. It also checks that the sequence is in the
// window.
func (r *retrier) answered(sequence uint64, one *sent, result *ebbv1.CommandResult, low uint64) {
	r.w.hold("window-edges", sequence > low, "sequence %d is answered, where %d had been applied and the window is %d",
		sequence, r.top, r.w.plan.knob(knobSessionWindow))
	if !one.answered {
		one.applied, one.refused, one.answered = result.GetApplied(), len(result.GetRefused()), true
		r.acked += one.amount
		r.unknown -= one.amount
		r.w.hold("window-edges", one.refused == 0 || r.odd,
			"%d increments of sequence %d are refused", one.refused, sequence)
		return
	}
	r.w.hold("window-edges", one.applied == result.GetApplied() && one.refused == len(result.GetRefused()),
		"sequence %d has %d applied and %d refused the %d. time, and had %d and %d", sequence, result.GetApplied(),
		len(result.GetRefused()), one.tries, one.applied, one.refused)
}

// expiry checks that a session is known until it has been idle for too long, and not after that.
func (r *retrier) expiry(used, now moment, expired bool) {
	if r.w.everSkewed.Load() {
		return
	}
	after := r.w.plan.knobTime(knobSessionExpiry)
	if expired {
		r.w.hold("session-ends", now.to-used.from > after-shardSlack, "a session is expired that was used %v before",
			now.to-used.from)
		return
	}
	r.w.hold("session-ends", r.late || now.from-used.to < after+shardSlack, "a session is known that was not used for %v",
		now.from-used.to)
}

// command returns the command of a sequence. It has as many increments as the amount, so that its result has a count of
// its own.
func (r *retrier) command(sequence uint64, one *sent) *ebbv1.Command {
	var list []*ebbv1.Increment
	for range one.amount {
		list = append(list, &ebbv1.Increment{Key: []byte(r.key), Bin: []byte("b"), Amount: new(1.0)})
	}
	if r.odd { // this increment is refused; if a wrong clock makes its time possible, it adds 0
		future := time.Now().Add(1000 * 24 * time.Hour).UnixMicro()
		list = append(list, &ebbv1.Increment{Key: []byte(r.key), Bin: []byte("b"), TimeUs: future, Amount: new(0.0)})
	}
	return &ebbv1.Command{
		Namespace: countsNamespace, Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: list}},
		Identity: &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{
			Session: r.session, Sequence: sequence, Secret: r.secret,
		}},
	}
}

// apply sends a command to any node.
func (r *retrier) apply(c *ebbv1.Command) (*ebbv1.CommandResult, error) {
	b, err := protobuf.Marshal(c)
	if err != nil {
		return nil, err
	}
	door, err := r.to(r.w, r.rng.IntN(r.w.plan.Nodes))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	result, err := door.Send(ctx, r.home, b)
	switch {
	case err == nil:
		r.w.done(acked)
	case errors.Is(err, proto.ErrSequenceTooOld), errors.Is(err, proto.ErrSessionExpired),
		errors.Is(err, proto.ErrTooManySessions):
		r.w.done(failed)
	default:
		r.w.done(unknown)
	}
	return result, err
}

// settle is the last check: every answered command counts once, and every other at most once.
func (r *retrier) settle(ctx context.Context, c *ebb.Client) {
	r.close()
	d, err := c.Distribution(ctx, countsNamespace, r.key)
	if !r.w.hold("healed-reads", err == nil, "read %s when all was mended: %v", r.key, err) {
		return
	}
	r.w.hold("acked-kept", d.Z >= float64(r.acked), "lost: %s counts %v, and %d was acknowledged", r.key, d.Z, r.acked)
	r.w.hold("counted-once", d.Z <= float64(r.acked+r.unknown),
		"%s counts %v, and only %d was acknowledged and %d is unknown", r.key, d.Z, r.acked, r.unknown)
}
