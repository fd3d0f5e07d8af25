package swarm

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	ebb "github.com/ebbdb/ebb/client"
)

// ranker keeps distributions and a top-k that no other client touches. It asks for their largest bins: of one key, of
// several, and of those that match a pattern, through the SDK and in the query language. It knows the one right answer.
// After a command without an answer it takes other keys, as an owner does.
type ranker struct {
	w    *world
	rng  *rand.Rand
	life int
	keys []string
	has  map[string]map[string]float64 // key, bin
	best map[string]float64            // of the top-k
}

// rankedBins is how many bins there are.
const rankedBins = 9

func newRanker(w *world) *ranker {
	r := &ranker{w: w, rng: w.rng(7200)}
	r.move()
	return r
}

func (r *ranker) move() {
	r.life++
	r.keys, r.has, r.best = nil, map[string]map[string]float64{}, map[string]float64{}
	for i := range 4 {
		key := fmt.Sprintf("rank-%d-%c", r.life, 'a'+rune(i))
		r.keys = append(r.keys, key)
		r.has[key] = map[string]float64{}
	}
}

func (r *ranker) top() string     { return fmt.Sprintf("topk-%d", r.life) }
func (r *ranker) pattern() string { return fmt.Sprintf("rank-%d-*", r.life) }

func (r *ranker) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(r.rng, 1000, 6000))
	defer cancel()
	if r.rng.IntN(2) == 0 {
		r.write(ctx, c)
		return
	}
	ask := []func(context.Context, *ebb.Client) error{r.askTop, r.askTop, r.askSome, r.askSurprise, r.askKeys, r.askTopK}[r.rng.IntN(6)]
	r.w.read(ask(ctx, c) == nil)
}

func (r *ranker) write(ctx context.Context, c *ebb.Client) {
	bin, n := fmt.Sprintf("b%d", r.rng.IntN(rankedBins)), float64(1+r.rng.IntN(5))
	in, into := ebb.Increment{Key: r.top(), Kind: ebb.KindTopK, Bin: bin, Amount: n}, r.best
	if r.rng.IntN(4) > 0 {
		in.Key, in.Kind = r.keys[r.rng.IntN(len(r.keys))], ebb.KindDistribution
		into = r.has[in.Key]
	}
	err := c.Increment(ctx, countsNamespace, in)
	r.w.done(outcomeOf(err))
	into[bin] += n
	if err != nil {
		r.move()
	}
}

// some returns some keys that hold something, and the merged counts of these keys.
func (r *ranker) some() (keys []string, merged map[string]float64) {
	for _, key := range r.keys {
		if len(r.has[key]) > 0 && (r.rng.IntN(2) == 0 || len(keys) == 0) {
			keys = append(keys, key)
		}
	}
	return keys, r.merged(keys)
}

func (r *ranker) merged(keys []string) map[string]float64 {
	all := map[string]float64{}
	for _, key := range keys {
		for bin, n := range r.has[key] {
			all[bin] += n
		}
	}
	return all
}

// askTop asks for the largest bins of keys.
func (r *ranker) askTop(ctx context.Context, c *ebb.Client) error {
	keys, want := r.some()
	if len(keys) == 0 {
		return nil
	}
	n := 1 + r.rng.IntN(4)
	var d ebb.Distribution
	var err error
	asked := strings.Join(keys, " | ")
	switch r.rng.IntN(5) {
	case 0:
		d, err = c.Top(ctx, countsNamespace, keys[0], n)
		asked, want = keys[0], r.has[keys[0]]
	case 1:
		d, err = c.Merged(ctx, countsNamespace, keys, n)
	case 2:
		d, err = c.MergedMatching(ctx, countsNamespace, r.pattern(), n)
		asked, want = r.pattern(), r.merged(r.keys)
	case 3:
		asked = r.pattern()
		want = r.merged(r.keys)
		fallthrough
	default:
		var a ebb.Result
		a, err = c.Query(ctx, fmt.Sprintf("top %d %s", n, asked), ebb.InNamespace(countsNamespace))
		if err == nil {
			d = a.Distribution()
			d.Coverage = a.Coverage
		}
	}
	if err != nil {
		return err
	}
	r.w.complete(d.Coverage, false)
	r.w.hold("ranking-right", ranked(d, n, want), "the top %d of %s are %+v of %v, and it has %v", n, asked, d.Bins, d.Z, want)
	return nil
}

// ranked reports whether the bins of a distribution are the n largest of want, in order.
func ranked(d ebb.Distribution, n int, want map[string]float64) bool {
	sizes := slices.SortedFunc(maps.Values(want), func(a, b float64) int { return cmp.Compare(b, a) })
	sum := 0.0
	for _, size := range sizes {
		sum += size
	}
	if !about(d.Z, sum) || len(d.Bins) != min(n, len(sizes)) || d.BinsTotal != len(sizes) {
		return false
	}
	for i, b := range d.Bins {
		if !about(b.Count, sizes[i]) || !about(want[b.Name], b.Count) || !about(b.P.Value, b.Count/sum) || b.P.Low > b.P.Value || b.P.High < b.P.Value {
			return false
		}
	}
	return true
}

// askSome asks for bins by name, and for the entropy. One of the bins is in no key.
func (r *ranker) askSome(ctx context.Context, c *ebb.Client) error {
	keys, want := r.some()
	if len(keys) == 0 {
		return nil
	}
	bins := []string{"b0", "b1", "nobody"}
	a, err := c.Query(ctx, fmt.Sprintf(`p(%s, "%s")`, strings.Join(keys, " | "), strings.Join(bins, `", "`)), ebb.InNamespace(countsNamespace))
	if err != nil {
		return err
	}
	r.w.complete(a.Coverage, false)
	d := a.Distribution()
	ok := len(d.Bins) == len(bins)
	for i := 0; ok && i < len(bins); i++ {
		ok = d.Bins[i].Name == bins[i] && about(d.Bins[i].Count, want[bins[i]]) && about(d.Bins[i].P.Value*d.Z, want[bins[i]])
	}
	r.w.hold("ranking-right", ok, "of %v %v are %+v, and they have %v", keys, bins, d.Bins, want)
	e, err := c.Entropy(ctx, countsNamespace, keys[0])
	if err != nil {
		return err
	}
	r.w.hold("ranking-right", math.Abs(e.Value-entropyOf(r.has[keys[0]])) <= 1e-6, "the entropy of %s is %v, and it has %v", keys[0], e.Value, r.has[keys[0]])
	return nil
}

func entropyOf(bins map[string]float64) (h float64) {
	sum := 0.0
	for _, n := range bins {
		sum += n
	}
	for _, n := range bins {
		h -= n / sum * math.Log2(n/sum)
	}
	return h
}

// askSurprise asks how one half of the keys differs from the other.
func (r *ranker) askSurprise(ctx context.Context, c *ebb.Client) error {
	ours, theirs := r.merged(r.keys[:2]), r.merged(r.keys[2:])
	s, err := c.Surprise(ctx, countsNamespace, ebb.SurpriseQuery{Keys: r.keys[:2], Against: r.keys[2:], Top: rankedBins})
	if err != nil {
		return err
	}
	r.w.complete(s.Coverage, false)
	both := len(ours) > 0 && len(theirs) > 0
	far, parts := distance(ours, theirs)
	ok := s.Found == both
	for _, b := range s.Bins {
		ok = ok && (!both || math.Abs(b.Share-parts[b.Name]) <= 1e-6)
	}
	r.w.hold("surprise-right", ok && (!both || math.Abs(s.JensenShannon-far) <= 1e-6), "found: %v, %v bits from %v to %v, of which %+v: %v is right, of %v", s.Found, s.JensenShannon, ours, theirs, s.Bins, far, parts)
	return nil
}

// distance returns the Jensen-Shannon divergence in bits, and the part of each bin in it.
func distance(p, q map[string]float64) (sum float64, parts map[string]float64) {
	parts = map[string]float64{}
	total := func(of map[string]float64) (z float64) {
		for _, n := range of {
			z += n
		}
		return z
	}
	pz, qz := total(p), total(q)
	half := func(a, m float64) float64 {
		if a == 0 {
			return 0
		}
		return a * math.Log2(a/m) / 2
	}
	for i := range rankedBins {
		bin := fmt.Sprintf("b%d", i)
		a, b := p[bin]/pz, q[bin]/qz
		if m := (a + b) / 2; m > 0 {
			parts[bin] = half(a, m) + half(b, m)
			sum += parts[bin]
		}
	}
	return sum, parts
}

// askKeys asks which keys match a pattern, by name or the largest first.
func (r *ranker) askKeys(ctx context.Context, c *ebb.Client) error {
	ask, byTotal := "keys "+r.pattern(), r.rng.IntN(2) == 0
	if byTotal {
		ask = "top 10 keys " + r.pattern()
	}
	a, err := c.Query(ctx, ask, ebb.InNamespace(countsNamespace))
	if err != nil {
		return err
	}
	r.w.complete(a.Coverage, false)
	var have, want []float64
	ok := true
	for i, info := range a.Keys().Keys {
		have = append(have, info.Total.Value)
		ok = ok && about(info.Total.Value, sumOfBins(r.has[info.Key])) && (byTotal || i == 0 || a.Keys().Keys[i-1].Key < info.Key)
	}
	for _, key := range r.keys {
		if z := sumOfBins(r.has[key]); z > 0 {
			want = append(want, z)
		}
	}
	ok = ok && len(have) == len(want) && (!byTotal || slices.IsSortedFunc(have, func(a, b float64) int { return cmp.Compare(b, a) }))
	r.w.hold("ranking-right", ok, "%s says %+v, and there is %v", ask, a.Keys().Keys, r.has)
	return nil
}

func sumOfBins(bins map[string]float64) (z float64) {
	for _, n := range bins {
		z += n
	}
	return z
}

// askTopK asks the top-k, which has room for all bins, and so is exact within its bounds.
func (r *ranker) askTopK(ctx context.Context, c *ebb.Client) error {
	if len(r.best) == 0 {
		return nil
	}
	a, err := c.Query(ctx, fmt.Sprintf("top %d %s", rankedBins, r.top()), ebb.InNamespace(countsNamespace))
	if err != nil {
		return err
	}
	items := a.Summary().Items
	ok := len(items) == len(r.best)
	for i, item := range items {
		ok = ok && item.Count.Low-1e-6 <= r.best[item.Bin] && r.best[item.Bin] <= item.Count.High+1e-6 && (i == 0 || items[i-1].Count.Value >= item.Count.Value)
	}
	r.w.hold("ranking-right", ok, "the top of %s are %+v, and it has %v", r.top(), items, r.best)
	return nil
}

// settle asks everything once more.
func (r *ranker) settle(ctx context.Context, c *ebb.Client) {
	for _, ask := range []func(context.Context, *ebb.Client) error{r.askTop, r.askSome, r.askSurprise, r.askKeys, r.askTopK} {
		err := ask(ctx, c)
		r.w.hold("healed-reads", err == nil, "ask about %v when all was mended: %v", r.keys, err)
	}
}
