package client

import (
	"context"
	"math"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// AskOption changes how a question is asked.
type AskOption func(*asking)

type asking struct {
	consistency ebbv1.Consistency
	staleness   time.Duration
	partial     bool
	strict      bool
	alone       bool
	asOf        time.Time
	confidence  float64
}

func askingOf(opts []AskOption) asking {
	a := asking{consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE}
	for _, o := range opts {
		o(&a)
	}
	return a
}

// Linearizable (the default): every write acknowledged before the question
// began is in the answer.
func Linearizable() AskOption {
	return func(a *asking) { a.consistency = ebbv1.Consistency_CONSISTENCY_LINEARIZABLE }
}

// Bounded accepts an answer that is at most staleness old, from any replica that can prove it. The proof is by clocks.
// It is wrong if a machine was paused with all of its clocks, and its time of day was not corrected afterwards. A node
// there may answer as if no time had passed, until other nodes reach it again, or for ten seconds.
func Bounded(staleness time.Duration) AskOption {
	return func(a *asking) { a.consistency, a.staleness = ebbv1.Consistency_CONSISTENCY_BOUNDED, staleness }
}

// Any accepts whatever the asked replica has.
func Any() AskOption {
	return func(a *asking) { a.consistency = ebbv1.Consistency_CONSISTENCY_ANY }
}

// AllowPartial accepts an answer without some shards. Its Coverage shows which shards answered.
func AllowPartial() AskOption { return func(a *asking) { a.partial = true } }

// Strict refuses an answer that lacks keys that the question names, with ErrMissingKeys. Otherwise they count as empty,
// and Coverage.Missing names them.
func Strict() AskOption { return func(a *asking) { a.strict = true } }

// Alone sends the question in a request of its own. Otherwise small questions about one key, which many goroutines ask
// at once, share requests. A question waits, for 2 ms at most, until a request in flight to the same node returns. Then
// it is sent together with the others. A question that has no answer 250 ms later is asked alone.
func Alone() AskOption { return func(a *asking) { a.alone = true } }

// AsOf asks for the answer at time t instead of now. A shard whose clock is ahead of t uses its own time; the answer
// contains the time that was used.
func AsOf(t time.Time) AskOption { return func(a *asking) { a.asOf = t } }

// Confidence sets the confidence of the intervals: 0.5 to 0.9999; 0.95 by default.
func Confidence(c float64) AskOption { return func(a *asking) { a.confidence = c } }

// Distribution asks for every visible bin of a key, most probable first.
func (c *Client) Distribution(ctx context.Context, ns, key string, opts ...AskOption) (Distribution, error) {
	q := &ebbv1.DistributionQuestion{Keys: bytesOf(key), Select: &ebbv1.DistributionQuestion_All{All: true}}
	return c.distribution(ctx, "distribution", ns, key, q, opts)
}

// Top asks for the n most probable bins of a key; n is 1 to 100,000.
func (c *Client) Top(ctx context.Context, ns, key string, n int, opts ...AskOption) (Distribution, error) {
	q := &ebbv1.DistributionQuestion{Keys: bytesOf(key), Select: &ebbv1.DistributionQuestion_Top{Top: clampCount(n)}}
	return c.distribution(ctx, "top", ns, key, q, opts)
}

// Merged asks for the n most probable bins (all if n is 0) of several keys taken
// as one distribution.
func (c *Client) Merged(ctx context.Context, ns string, keys []string, n int, opts ...AskOption) (Distribution, error) {
	q := &ebbv1.DistributionQuestion{Keys: bytesOf(keys...), Select: &ebbv1.DistributionQuestion_All{All: true}}
	if n != 0 {
		q.Select = &ebbv1.DistributionQuestion_Top{Top: clampCount(n)}
	}
	name := ""
	if len(keys) == 1 {
		name = keys[0]
	}
	return c.distribution(ctx, "merged", ns, name, q, opts)
}

// MergedMatching is Merged for the distributions of the namespace that match a pattern, on whatever shards: see
// KeysQuery.
func (c *Client) MergedMatching(ctx context.Context, ns, pattern string, n int, opts ...AskOption) (Distribution, error) {
	q := &ebbv1.DistributionQuestion{Patterns: bytesOf(pattern), Select: &ebbv1.DistributionQuestion_All{All: true}}
	if n != 0 {
		q.Select = &ebbv1.DistributionQuestion_Top{Top: clampCount(n)}
	}
	return c.distribution(ctx, "merged", ns, pattern, q, opts)
}

// Bins asks for just these bins of a key, in this order; an unknown bin counts 0.
func (c *Client) Bins(ctx context.Context, ns, key string, bins []string, opts ...AskOption) (Distribution, error) {
	q := &ebbv1.DistributionQuestion{
		Keys:   bytesOf(key),
		Select: &ebbv1.DistributionQuestion_Bins{Bins: &ebbv1.BinList{Bins: bytesOf(bins...)}},
	}
	return c.distribution(ctx, "bins", ns, key, q, opts)
}

// Probability asks how probable a bin of a key is.
func (c *Client) Probability(ctx context.Context, ns, key, bin string, opts ...AskOption) (Reading, error) {
	d, err := c.Bins(ctx, ns, key, []string{bin}, opts...)
	if err != nil {
		return Reading{}, err
	}
	r := Reading{Estimate: Estimate{Confidence: d.Confidence, AsOf: d.AsOf}, Coverage: d.Coverage, Found: d.Found}
	if len(d.Bins) == 1 {
		r.Estimate = d.Bins[0].P
	}
	return r, nil
}

// Count asks for Z: everything ever added to a key, decayed. The true value is certain to be between Low and High,
// which differ by what is lost (see Distribution.Lost).
func (c *Client) Count(ctx context.Context, ns, key string, opts ...AskOption) (Reading, error) {
	d, err := c.Top(ctx, ns, key, 1, opts...)
	if err != nil {
		return Reading{}, err
	}
	e := exact(d.Z, d.AsOf)
	slack := proto.RoundingOf(d.Z)
	e.Low, e.High = e.Low-slack, e.High+d.Lost+slack
	if d.Signed {
		e.Low -= d.Lost
	}
	return Reading{Estimate: e, Coverage: d.Coverage, Found: d.Found}, nil
}

// Entropy asks for the entropy of a key's visible bins, in bits. Its error bars
// are those of the plug-in estimate over EffectiveN events; it reads all bins.
func (c *Client) Entropy(ctx context.Context, ns, key string, opts ...AskOption) (Reading, error) {
	d, err := c.Distribution(ctx, ns, key, opts...)
	if err != nil {
		return Reading{}, err
	}
	return Reading{Estimate: entropyOf(d), Coverage: d.Coverage, Found: d.Found}, nil
}

// entropyOf puts error bars on the entropy:
//
//	H = -sum p log2 p,  var H = (sum p (log2 p)^2 - H^2) / n,  n = EffectiveN
//
// with the normal quantile of the confidence, kept within 0 and log2(bins).
func entropyOf(d Distribution) Estimate {
	e := Estimate{Value: d.Entropy, Low: d.Entropy, High: d.Entropy, Confidence: d.Confidence, AsOf: d.AsOf}
	visible := d.Z - d.Other
	if d.EffectiveN <= 0 || visible <= 0 {
		return e
	}
	var square float64
	for _, b := range d.Bins {
		if p := b.Count / visible; p > 0 {
			square += p * math.Log2(p) * math.Log2(p)
		}
	}
	z := math.Sqrt2 * math.Erfinv(d.Confidence)
	half := z * math.Sqrt(max(0, square-d.Entropy*d.Entropy)/d.EffectiveN)
	e.Low = max(0, d.Entropy-half)
	e.High = max(d.Entropy, min(d.Entropy+half, math.Log2(float64(max(d.BinsTotal, 1)))))
	return e
}

// CountKeys asks how many live keys a namespace has, over all shards.
func (c *Client) CountKeys(ctx context.Context, ns string, opts ...AskOption) (Reading, error) {
	q := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}
	a, err := c.askOne(ctx, "count keys", "", q, opts)
	if err != nil {
		return Reading{}, err
	}
	coverage := coverageOf(a.GetCoverage())
	return Reading{
		Estimate: exact(float64(a.GetCountKeys().GetKeys()), coverage.AsOfMax), Coverage: coverage, Found: true,
	}, nil
}

func (c *Client) distribution(
	ctx context.Context, op, ns, key string, q *ebbv1.DistributionQuestion, opts []AskOption,
) (Distribution, error) {
	question := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Distribution{Distribution: q}}
	a, err := c.askOne(ctx, op, key, question, opts)
	if err != nil {
		return Distribution{}, err
	}
	return distributionOf(a), nil
}

// clampCount turns a count that does not fit a uint32 into the largest uint32. So a wrong count stays wrong, and does
// not wrap to a valid one.
func clampCount(n int) uint32 {
	if n < 0 || n > math.MaxUint32 {
		return math.MaxUint32
	}
	return uint32(n)
}

func bytesOf(names ...string) [][]byte {
	out := make([][]byte, len(names))
	for i, n := range names {
		out[i] = []byte(n)
	}
	return out
}
