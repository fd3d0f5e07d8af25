package swarm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// outcome is the outcome of a command, according to the SDK.
type outcome int

const (
	acked outcome = iota
	unknown
	failed // it was not applied
)

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return acked
	case errors.Is(err, ebb.ErrUnknownOutcome):
		return unknown
	}
	return failed
}

// kinds are the kinds of the counted keys, by number. Several keys are distributions, in different shards, so that one
// question can ask them together.
var kinds = []ebb.Kind{
	ebb.KindDistribution, ebb.KindDistribution, ebb.KindDistribution, ebb.KindDistribution,
	ebb.KindCountMin, ebb.KindQuantile, ebb.KindTopK, ebb.KindDistinct, ebb.KindLinear, ebb.KindBloom, ebb.KindMorris, ebb.KindSet,
}

// spread is how many of the first keys are distributions.
const spread = 4

func keyName(k int) string { return fmt.Sprintf("key-%d", k) }

// hasMembers reports whether a kind counts its members, and not the amounts that are added.
func hasMembers(kind ebb.Kind) bool {
	switch kind {
	case ebb.KindDistinct, ebb.KindLinear, ebb.KindBloom, ebb.KindSet:
		return true
	}
	return false
}

// estimates reports whether a kind's sum is an estimate.
func estimates(kind ebb.Kind) bool {
	switch kind {
	case ebb.KindDistinct, ebb.KindLinear, ebb.KindBloom, ebb.KindMorris, ebb.KindSet:
		return true
	}
	return false
}

// counts are keys that many clients write and read together. The oracle knows bounds for each key:
//
//	acknowledged <= counted <= acknowledged + unknown outcomes
//	a read >= what was acknowledged, or read, before it began
type counts struct {
	w *world

	mu   sync.Mutex // guards what follows
	keys []account
}

// account is what the oracle knows of a key.
type account struct {
	acked, unknown, open float64
	failed               float64  // not applied, according to the SDK: a read before that answer may include it
	seen                 float64  // the largest sum that was certainly read
	members              []string // some of the acknowledged members
	past                 []past   // how much was acknowledged at which time
	recent               []Line   // operations
}

type past struct {
	at    time.Duration
	acked float64
}

// recentMax is how many operations of a key are reported when one of its answers is wrong.
const recentMax = 40

func newCounts(w *world) *counts { return &counts{w: w, keys: make([]account, len(kinds))} }

func (c *counts) ackedOf(k int) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys[k].acked
}

// note records an operation on a key. c.mu is held.
func (a *account) note(at time.Duration, format string, args ...any) {
	a.recent = append(a.recent, Line{at, LineOperation, fmt.Sprintf(format, args...)})
	a.recent = a.recent[max(0, len(a.recent)-recentMax):]
}

// event adds n to the sum of a key. For a kind that counts members, it adds n members that no other event adds.
func event(k, n int, rng *rand.Rand) []ebb.Increment {
	in := ebb.Increment{Key: keyName(k), Bin: "b", Amount: float64(n), Kind: kinds[k], Value: rng.Float64()}
	if !hasMembers(in.Kind) {
		return []ebb.Increment{in}
	}
	var members []ebb.Increment
	for range n {
		in.Bin, in.Amount = fmt.Sprintf("%x", rng.Uint64()), 1
		members = append(members, in)
	}
	return members
}

// add increments one key once, and records the outcome.
func (c *counts) add(ctx context.Context, by *ebb.Client, k, many int, rng *rand.Rand) {
	n := float64(many)
	events := event(k, many, rng)
	c.mu.Lock()
	c.keys[k].open += n
	c.mu.Unlock()
	began := c.w.now()
	err := by.Increment(ctx, countsNamespace, events...)
	o := outcomeOf(err)
	c.w.done(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &c.keys[k]
	a.open -= n
	switch o {
	case acked:
		a.acked += n
		a.past = append(a.past, past{c.w.now(), a.acked})
		if hasMembers(kinds[k]) && len(a.members) < 200 {
			for _, e := range events {
				a.members = append(a.members, e.Bin)
			}
		}
		a.note(c.w.now(), "%s +%v, sent at %.3fs, is acknowledged: %v in all", keyName(k), n, began.Seconds(), a.acked)
	case unknown:
		a.unknown += n
		a.note(c.w.now(), "%s +%v, sent at %.3fs, has an unknown outcome: %v", keyName(k), n, began.Seconds(), err)
	default: // the oracle believes the SDK
		a.failed += n
		a.note(c.w.now(), "%s +%v, sent at %.3fs, was not applied: %v", keyName(k), n, began.Seconds(), err)
	}
}

type writer struct {
	counts *counts
	rng    *rand.Rand
}

func (w *writer) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(w.rng, 500, 8500))
	defer cancel()
	w.counts.add(ctx, c, w.rng.IntN(len(kinds)), 1+w.rng.IntN(5), w.rng)
}

func (w *writer) settle(context.Context, *ebb.Client) {}

// slackOf is how much an estimate may be off in addition to 6 standard errors. A morris of n events misses some
// n^2/2 / 2,000 of them wholly. For few events this number is not Gaussian: of 21 events a morris misses 3 once in
// 7,000 times, and is then 2.9 off where it says 0.28. With 5 the chance is below 1e-8 for any n (TestMorrisSlack). The
// other kinds are exact while they have few members.
func slackOf(kind ebb.Kind) float64 {
	if kind == ebb.KindMorris {
		return 5
	}
	return 1
}

// sumOf returns the sum of a key, and how much it may be off.
func sumOf(ctx context.Context, c *ebb.Client, k int, opts ...ebb.AskOption) (z, off float64, err error) {
	if kinds[k] == ebb.KindDistribution {
		d, err := c.Distribution(ctx, countsNamespace, keyName(k), opts...)
		return d.Z, 0, err
	}
	s, err := c.Summary(ctx, countsNamespace, ebb.SummaryQuery{Keys: []string{keyName(k)}}, opts...)
	if estimates(kinds[k]) {
		return s.Total.Value, 6*s.Total.StdErr + slackOf(kinds[k]), err
	}
	return math.Round(s.Total.Value), 0, err
}

type reader struct {
	counts *counts
	rng    *rand.Rand
}

// work reads one key, in most cases linearizably, and checks the answer against the oracle.
func (r *reader) work(c *ebb.Client) {
	k := r.rng.IntN(len(kinds))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	switch r.rng.IntN(6) {
	case 0:
		r.counts.bounded(ctx, c, k, millis(r.rng, 100, 4000))
	case 1:
		r.counts.any(ctx, c, k)
	default:
		r.counts.linearizable(ctx, c, k)
	}
}

func (r *reader) settle(context.Context, *ebb.Client) {}

func (c *counts) linearizable(ctx context.Context, by *ebb.Client, k int) {
	c.mu.Lock()
	floor, seen := c.keys[k].acked, c.keys[k].seen
	c.mu.Unlock()
	began := c.w.now()
	z, off, err := sumOf(ctx, by, k)
	c.w.read(err == nil)
	if err != nil {
		return
	}
	c.mu.Lock()
	a := &c.keys[k]
	a.seen = max(a.seen, z-off)
	ceiling := a.ceiling()
	a.note(c.w.now(), "%s is read, asked at %.3fs: %v", keyName(k), began.Seconds(), z)
	c.mu.Unlock()
	ok := c.w.hold("read-fresh", z+off >= floor, "%s reads %v, and %v was acknowledged before the read began at %.3fs", keyName(k), z, floor, began.Seconds())
	ok = c.w.hold("read-monotone", z+off >= seen, "%s reads %v, and %v was read before", keyName(k), z, seen) && ok
	ok = c.w.hold("read-possible", z-off <= ceiling, "%s reads %v, and at most %v was sent", keyName(k), z, ceiling) && ok
	if !ok {
		c.explain(k)
	}
}

// ceiling is the most that may be counted. It includes failed commands: if the SDK were wrong, a read might have
// included them, and the last check finds that. c.mu is held.
func (a *account) ceiling() float64 { return a.acked + a.unknown + a.open + a.failed }

// boundedSlack is how much clients and nodes may disagree about when a read began.
const boundedSlack = 50 * time.Millisecond

func (c *counts) bounded(ctx context.Context, by *ebb.Client, k int, staleness time.Duration) {
	began := c.w.now()
	skewed := c.w.everSkewed.Load()
	z, off, err := sumOf(ctx, by, k, ebb.Bounded(staleness))
	c.w.read(err == nil)
	if err != nil || skewed || c.w.everSkewed.Load() {
		return
	}
	c.mu.Lock()
	floor := 0.0
	for _, p := range c.keys[k].past {
		if p.at > began-staleness-boundedSlack {
			break
		}
		floor = p.acked
	}
	c.mu.Unlock()
	if !c.w.hold("bounded-fresh", z+off >= floor, "%s reads %v, at most %v old, and %v was acknowledged that long before %.3fs", keyName(k), z, staleness, floor, began.Seconds()) {
		c.explain(k)
	}
}

func (c *counts) any(ctx context.Context, by *ebb.Client, k int) {
	z, off, err := sumOf(ctx, by, k, ebb.Any())
	c.w.read(err == nil)
	if err != nil {
		return
	}
	c.mu.Lock()
	ceiling := c.keys[k].ceiling()
	c.mu.Unlock()
	if !c.w.hold("any-possible", z-off <= ceiling, "%s reads %v at some replica, and at most %v was sent", keyName(k), z, ceiling) {
		c.explain(k)
	}
}

// settle is the last check of one key.
func (c *counts) settle(ctx context.Context, by *ebb.Client, k int) {
	z, off, err := sumOf(ctx, by, k)
	if !c.w.hold("healed-reads", err == nil, "read %s when all was mended: %v", keyName(k), err) {
		return
	}
	c.mu.Lock()
	a := c.keys[k]
	c.mu.Unlock()
	lost, twice := "acked-kept", "counted-once"
	if estimates(kinds[k]) {
		lost, twice = "estimate-bound", "estimate-bound"
	}
	ok := c.w.hold(lost, z+off >= a.acked, "lost: %s counts %v, and %v was acknowledged", keyName(k), z, a.acked)
	ok = c.w.hold(twice, z-off <= a.acked+a.unknown, "%s counts %v, and only %v was acknowledged and %v is unknown", keyName(k), z, a.acked, a.unknown) && ok
	ok = c.w.hold("read-monotone", z+off >= a.seen, "lost: %s counts %v, and %v was read once", keyName(k), z, a.seen) && ok
	ok = c.inside(ctx, by, k, &a) && ok
	if !ok {
		c.explain(k)
	}
}

// inside checks what a summary answers in addition to its sum.
func (c *counts) inside(ctx context.Context, by *ebb.Client, k int, a *account) bool {
	q := ebb.SummaryQuery{Keys: []string{keyName(k)}}
	switch kinds[k] {
	case ebb.KindCountMin, ebb.KindTopK:
		q.Bins = []string{"b"}
	case ebb.KindQuantile:
		q.Quantiles = []float64{0.5}
	case ebb.KindBloom:
		q.Bins = a.members[:min(len(a.members), 100)]
	default:
		return true
	}
	if a.acked == 0 || kinds[k] == ebb.KindBloom && len(q.Bins) == 0 {
		return true
	}
	s, err := by.Summary(ctx, countsNamespace, q)
	if !c.w.hold("healed-reads", err == nil, "ask %s when all was mended: %v", keyName(k), err) {
		return false
	}
	switch kinds[k] {
	case ebb.KindCountMin:
		return c.w.hold("countmin-floor", len(s.Bins) == 1 && s.Bins[0].Value >= a.acked-1e-6, "%s says %+v of a bin with %v acknowledged", keyName(k), s.Bins, a.acked)
	case ebb.KindTopK:
		return c.w.hold("topk-bounds", len(s.Bins) == 1 && s.Bins[0].High >= a.acked-1e-6 && s.Bins[0].Low <= a.acked+a.unknown+1e-6,
			"%s says %+v of a bin with %v acknowledged and %v unknown", keyName(k), s.Bins, a.acked, a.unknown)
	case ebb.KindQuantile:
		return c.w.hold("quantile-bounds", len(s.Quantiles) == 1 && s.Quantiles[0].Low <= s.Quantiles[0].Value && s.Quantiles[0].Value <= s.Quantiles[0].High &&
			s.Quantiles[0].Value >= 0 && s.Quantiles[0].Value <= 1, "%s says %+v of values from 0 to 1", keyName(k), s.Quantiles)
	}
	missing := 0
	for _, m := range s.Memberships {
		if !m.Contained {
			missing++
		}
	}
	return c.w.hold("bloom-members", len(s.Memberships) == len(q.Bins) && missing == 0, "%s has %d of %d members not", keyName(k), missing, len(q.Bins))
}

// explain adds to the story the last operations on a key, and what each replica has of it.
func (c *counts) explain(k int) {
	c.mu.Lock()
	recent := append([]Line(nil), c.keys[k].recent...)
	c.keys[k].recent = nil
	c.mu.Unlock()
	c.w.mu.Lock()
	c.w.verdict.Story = append(c.w.verdict.Story, recent...)
	c.w.mu.Unlock()
	if kinds[k] == ebb.KindDistribution {
		c.w.witness(countsNamespace, keyName(k))
	}
}
