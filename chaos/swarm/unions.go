package swarm

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// uniter writes summaries of three kinds: for each kind some keys in several shards, with members in common. It asks
// for the union of all keys of a kind. No other client writes these keys, so it knows what was acknowledged of each
// bin, and what may have been done.
type uniter struct {
	w   *world
	rng *rand.Rand
	all []*kin
}

// kin are the keys of one kind.
type kin struct {
	kind  ebb.Kind
	parts [unionKeys]part
}

// part is one key of a kind.
type part struct {
	key         string
	shard       uint32
	sure, maybe map[string]float64 // by bin: acknowledged, of unknown outcome
}

const (
	unionKeys = 4
	// unionMembers is how many members there are to draw from: few, so that keys have some in common.
	unionMembers = 60
	// unionBins is how many bins kinds that count amounts have.
	unionBins = 4
)

func newUniter(w *world) *uniter {
	u := &uniter{w: w, rng: w.rng(7100)}
	members := []ebb.Kind{ebb.KindDistinct, ebb.KindLinear, ebb.KindBloom, ebb.KindSet}
	amounts := []ebb.Kind{ebb.KindCountMin, ebb.KindTopK, ebb.KindQuantile, ebb.KindMorris}
	m := u.rng.IntN(len(members))
	for _, kind := range []ebb.Kind{members[m], members[(m+1+u.rng.IntN(len(members)-1))%len(members)], amounts[u.rng.IntN(len(amounts))]} {
		k := &kin{kind: kind}
		for i := range k.parts {
			key := fmt.Sprintf("union-%s-%d", proto.KindName(kind), i)
			k.parts[i] = part{key, proto.ShardOf(countsNamespace, []byte(key), w.plan.Shards), map[string]float64{}, map[string]float64{}}
		}
		u.all = append(u.all, k)
	}
	return u
}

func (u *uniter) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(u.rng, 500, 6000))
	defer cancel()
	k := u.all[u.rng.IntN(len(u.all))]
	if u.rng.IntN(2) == 0 {
		u.write(ctx, c, k)
		return
	}
	u.ask(ctx, c, k)
}

func (u *uniter) write(ctx context.Context, c *ebb.Client, k *kin) {
	p := &k.parts[u.rng.IntN(unionKeys)]
	in := ebb.Increment{Key: p.key, Kind: k.kind, Amount: float64(1 + u.rng.IntN(5)), Value: u.rng.Float64(), Bin: fmt.Sprintf("b%d", u.rng.IntN(unionBins))}
	if hasMembers(k.kind) {
		in.Amount, in.Bin = 1, fmt.Sprintf("m%d", u.rng.IntN(unionMembers))
	}
	o := outcomeOf(c.Increment(ctx, countsNamespace, in))
	u.w.done(o)
	switch o {
	case acked:
		p.sure[in.Bin] += in.Amount
	case unknown:
		p.maybe[in.Bin] += in.Amount
	}
}

// ask asks for the union of all keys of a kind, by name or by a pattern. It may allow a partial answer.
func (u *uniter) ask(ctx context.Context, c *ebb.Client, k *kin) {
	var q ebb.SummaryQuery
	if u.rng.IntN(2) == 0 {
		q.Patterns = []string{fmt.Sprintf("union-%s-*", proto.KindName(k.kind))}
	} else {
		for i := range k.parts {
			q.Keys = append(q.Keys, k.parts[i].key)
		}
	}
	switch k.kind {
	case ebb.KindCountMin, ebb.KindTopK:
		for i := range unionBins {
			q.Bins = append(q.Bins, fmt.Sprintf("b%d", i))
		}
	case ebb.KindBloom:
		for i := range unionMembers {
			q.Bins = append(q.Bins, fmt.Sprintf("m%d", i))
		}
	}
	var opts []ebb.AskOption
	partial := u.rng.IntN(2) == 0
	if partial {
		opts = append(opts, ebb.AllowPartial())
	}
	s, err := c.Summary(ctx, countsNamespace, q, opts...)
	u.w.read(err == nil)
	if err == nil {
		u.w.complete(s.Coverage, partial)
		u.judge(k, q.Bins, s)
	}
}

// judge compares a union with what is known of its parts.
func (u *uniter) judge(k *kin, bins []string, s ebb.Summary) {
	floor, ceiling := k.bounds(s.Coverage, "")
	off := 1e-6
	if estimates(k.kind) {
		off = 6*s.Total.StdErr + slackOf(k.kind)
	}
	z := s.Total.Value
	u.w.hold("coverage-honest", z >= floor-off && z <= ceiling+off, "a union of %s, failed %v, says %v, off by %v at most: %v was acknowledged in the shards that it includes, and at most %v sent to all",
		proto.KindName(k.kind), s.Coverage.ShardsFailed, z, off, floor, ceiling)
	if !s.Found {
		return // the answer says nothing of bins
	}
	for i, bin := range bins {
		floor, ceiling = k.bounds(s.Coverage, bin)
		low, high := 0.0, math.Inf(1)
		switch {
		case k.kind == ebb.KindBloom && i < len(s.Memberships):
			if !s.Memberships[i].Contained {
				high = 0
			}
		case i < len(s.Bins) && k.kind == ebb.KindCountMin:
			high = s.Bins[i].Value
		case i < len(s.Bins):
			low, high = s.Bins[i].Low, s.Bins[i].High
		default:
			low = math.Inf(1)
		}
		u.w.hold("coverage-honest", high >= floor-1e-6 && low <= ceiling+1e-6, "a union of %s, failed %v, says that %s has from %v to %v: %v was acknowledged in the shards that it includes, and at most %v sent to all",
			proto.KindName(k.kind), s.Coverage.ShardsFailed, bin, low, high, floor, ceiling)
	}
}

// bounds returns the least and the most that a union may have of a bin, or of all bins if bin is empty. The least is
// what was acknowledged in the shards that the union includes. The most adds what may have been done, and counts all
// shards.
func (k *kin) bounds(c ebb.Coverage, bin string) (floor, ceiling float64) {
	sure, maybe := map[string]float64{}, map[string]float64{}
	for i := range k.parts {
		p := &k.parts[i]
		for b, n := range p.sure {
			maybe[b] += n
			if included(c, p.shard) {
				sure[b] += n
			}
		}
		for b, n := range p.maybe {
			maybe[b] += n
		}
	}
	return k.sum(sure, bin), k.sum(maybe, bin)
}

// sum returns the number of members, or the total of all amounts. If only is not empty, it counts that bin only.
func (k *kin) sum(bins map[string]float64, only string) (sum float64) {
	for bin, n := range bins {
		if only != "" && bin != only {
			continue
		}
		if hasMembers(k.kind) {
			n = min(n, 1)
		}
		sum += n
	}
	return sum
}

// settle asks for all unions once more, of all shards.
func (u *uniter) settle(ctx context.Context, c *ebb.Client) {
	for _, k := range u.all {
		var keys []string
		for i := range k.parts {
			if len(k.parts[i].sure) > 0 {
				keys = append(keys, k.parts[i].key)
			}
		}
		if len(keys) == 0 {
			continue
		}
		s, err := c.Summary(ctx, countsNamespace, ebb.SummaryQuery{Keys: keys})
		if u.w.hold("healed-reads", err == nil, "ask for the union of %v when all was mended: %v", keys, err) {
			u.w.complete(s.Coverage, false)
			u.judge(k, nil, s)
		}
	}
	u.listed(ctx, c)
}

// listed checks that a pattern finds every key with an acknowledged write.
func (u *uniter) listed(ctx context.Context, c *ebb.Client) {
	have := map[string]bool{}
	for info, err := range c.Keys(ctx, countsNamespace, ebb.KeysQuery{Pattern: "union-*"}) {
		if !u.w.hold("healed-reads", err == nil, "list the keys of unions when all was mended: %v", err) {
			return
		}
		have[info.Key] = true
	}
	for _, k := range u.all {
		for i := range k.parts {
			p := &k.parts[i]
			u.w.hold("keys-listed", len(p.sure) == 0 || have[p.key], "%s has something acknowledged, and no pattern finds it: %d are found", p.key, len(have))
		}
	}
}

// names returns the keys of a map in order, so that two runs of a seed visit them in the same order.
func names[V any](of map[string]V) []string {
	out := make([]string, 0, len(of))
	for name := range of {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
