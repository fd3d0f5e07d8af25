package swarm

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// expiryClient checks that members expire. It adds members with the times of events, and computes what is left of them
// at any time: by half-life in a distinct, a set, a count-min and a bloom, by a window in another distinct. After a
// command without an answer it takes another key. After a wrong clock the remainder is unknown, because a shard's
// clock never goes back.
type expiryClient struct {
	w    *world
	rng  *rand.Rand
	keys []*expiringKey
}

// expiringKey is a key whose members expire.
type expiringKey struct {
	namespace string
	kind      ebb.Kind
	life      int
	latest    map[string]time.Time // by member
	events    []timedAmount        // all of them
}

const (
	// expiryMembers is how many members there are to draw from.
	expiryMembers = 40
	// bloomGone is the number of half-lives after which no bloom contains a member. It takes 1.2 in a bloom from before
	// the cluster's storage version was in force, and 1.125 in all others.
	bloomGone = 1.5
	// windowSlack is how much longer than requested the covered window may be. A key from before the cluster's storage
	// version was in force has slices of a 60th of the window, rounded up, and one more. An answer says what it covers.
	windowSlack = windowLength / 30
)

func newExpiryClient(w *world) *expiryClient {
	a := &expiryClient{w: w, rng: w.rng(7500)}
	for _, o := range []expiringKey{
		{namespace: fadingNamespace, kind: ebb.KindDistinct},
		{namespace: fadingNamespace, kind: ebb.KindSet},
		{namespace: fadingNamespace, kind: ebb.KindBloom},
		{namespace: fadingNamespace, kind: ebb.KindCountMin},
		{namespace: windowNamespace, kind: ebb.KindDistinct},
	} {
		o.move()
		a.keys = append(a.keys, &o)
	}
	return a
}

func (o *expiringKey) move() {
	o.life++
	o.latest, o.events = map[string]time.Time{}, nil
}

func (o *expiringKey) key() string { return fmt.Sprintf("aging-%s-%d", proto.KindName(o.kind), o.life) }

func (a *expiryClient) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(a.rng, 1000, 6000))
	defer cancel()
	o := a.keys[a.rng.IntN(len(a.keys))]
	if a.rng.IntN(3) == 0 {
		a.w.read(a.look(ctx, c, o) == nil)
		return
	}
	var events []ebb.Increment
	for range 1 + a.rng.IntN(4) {
		in := ebb.Increment{Key: o.key(), Kind: o.kind, Bin: fmt.Sprintf("m%d", a.rng.IntN(expiryMembers)), Amount: 1}
		in.Time = time.Now().Add(-time.Minute - time.Duration(a.rng.Int64N(int64(2*fadingHalfLife)))).Truncate(time.Microsecond)
		if in.Time.After(o.latest[in.Bin]) {
			o.latest[in.Bin] = in.Time
		}
		o.events = append(o.events, timedAmount{in.Time, 1})
		events = append(events, in)
	}
	err := c.Increment(ctx, o.namespace, events...)
	a.w.done(outcomeOf(err))
	if err != nil {
		o.move()
	}
}

// look asks a key for its remaining members, and checks the answer.
func (a *expiryClient) look(ctx context.Context, c *ebb.Client, o *expiringKey) error {
	if len(o.events) == 0 {
		return nil
	}
	q := ebb.SummaryQuery{Keys: []string{o.key()}}
	if o.namespace == windowNamespace {
		q.Window = time.Duration(1+a.rng.IntN(int(windowLength/time.Minute))) * time.Minute
	}
	if o.kind == ebb.KindBloom {
		for i := range expiryMembers {
			q.Bins = append(q.Bins, fmt.Sprintf("m%d", i))
		}
	}
	skewed := a.w.everSkewed.Load()
	s, err := c.Summary(ctx, o.namespace, q)
	if err != nil || skewed || a.w.everSkewed.Load() {
		return err
	}
	a.w.complete(s.Coverage, false)
	low, high := o.left(q.Window, s.Span, s.AsOf)
	if q.Window > 0 && s.Found {
		a.w.hold("aged-right", s.Span >= q.Window && s.Span <= q.Window+windowSlack, "%s covers %v of a window of %v", o.key(), s.Span, q.Window)
	}
	if o.kind == ebb.KindBloom {
		a.w.hold("aged-right", o.contained(q.Bins, s), "%s says at %v %+v: of %v", o.key(), s.AsOf, s.Memberships, o.latest)
	} else {
		off := 6*s.Total.StdErr + 1e-6*high
		if estimates(o.kind) {
			off++ // few members hardly ever collide, so the error is not normally distributed
		}
		a.w.hold("aged-right", s.Total.Value >= low-off && s.Total.Value <= high+off, "%s of %s says at %v, in a window of %v, %v, off by %v at most: from %v to %v are left of %d events",
			o.key(), o.namespace, s.AsOf, q.Window, s.Total.Value, off, low, high, len(o.events))
	}
	return nil
}

// left returns bounds of what is left of a key at a time. For a window, high includes members that are only in the
// longer span that the answer covers.
func (o *expiringKey) left(window, span time.Duration, at time.Time) (low, high float64) {
	if o.kind == ebb.KindCountMin {
		sum := sumAt(o.events, at)
		return sum, sum
	}
	for _, seen := range o.latest {
		age := at.Sub(seen)
		switch {
		case window == 0:
			n := math.Exp2(-float64(age) / float64(fadingHalfLife))
			low, high = low+n, high+n
		case age <= window:
			low, high = low+1, high+1
		case age <= span:
			high++
		}
	}
	return low, high
}

// contained reports whether a bloom has each member that was seen within a half-life, and no member that must be gone.
// The bloom is almost empty, so it has no false positives.
func (o *expiringKey) contained(members []string, s ebb.Summary) bool {
	if len(s.Memberships) != len(members) {
		return false
	}
	for i, m := range members {
		seen, is := o.latest[m], s.Memberships[i].Contained
		age := float64(s.AsOf.Sub(seen)) / float64(fadingHalfLife)
		if is && (seen.IsZero() || age > bloomGone) || !is && !seen.IsZero() && age <= 1 {
			return false
		}
	}
	return true
}

// settle asks each key once more.
func (a *expiryClient) settle(ctx context.Context, c *ebb.Client) {
	for _, o := range a.keys {
		err := a.look(ctx, c, o)
		a.w.hold("healed-reads", err == nil, "read %s when all was mended: %v", o.key(), err)
	}
}
