package accuracy

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/sketch"
)

// Bound is a promise about a kind whose error has a limit instead of a distribution.
type Bound struct {
	Kind    string `json:"kind"`
	Promise string `json:"promise"`
	// Limit is the promised value, and Measured the result: for a rate a share of the checks, otherwise the largest
	// error.
	Limit    float64 `json:"limit"`
	Measured float64 `json:"measured"`
	Checks   int     `json:"checks"`
	// Within reports whether Measured is within the limit, for a rate with a tolerance of 4.5 standard errors.
	Within bool `json:"within"`
}

// rate makes a bound of how often something may happen.
func rate(kind, promise string, limit float64, happened, checks int) Bound {
	measured, n := float64(happened)/float64(checks), float64(checks)
	return Bound{kind, promise, limit, measured, checks, measured <= limit+doubtful*math.Sqrt(limit*(1-limit)/n)}
}

// largest makes a bound of how large an error may be.
func largest(kind, promise string, limit, measured float64, checks int) Bound {
	return Bound{kind, promise, limit, measured, checks, measured <= limit}
}

// Bounds checks each promise with the seeds from 0 to seeds-1.
func Bounds(seeds int) []Bound {
	return slices.Concat(countBounds(seeds), quantileBounds(seeds), bloomBounds(seeds), expiringBounds(seeds))
}

// The stream of counted items follows Zipf's law.
const (
	boundItems  = 20_000
	boundEvents = 100_000
)

func itemName(id uint64) []byte { return binary.LittleEndian.AppendUint64(nil, id) }

// countBounds checks countmin and topk, for all items, including those that never came.
func countBounds(seeds int) []Bound {
	const epsilon, delta, k = 0.001, 0.01, 50
	below, above, outside, most, checks := 0, 0, 0, 0.0, 0
	for seed := range seeds {
		c := must(sketch.NewCountMin(sketch.CountMinParams{Epsilon: epsilon, Delta: delta}))
		top := must(sketch.NewTopK(sketch.TopKParams{K: k}))
		r := rand.New(rand.NewPCG(uint64(seed), boundEvents))
		often := rand.NewZipf(r, wordsZipf, 1, boundItems-1)
		hash := func(id uint64) uint64 { return xxh3.HashSeed(itemName(id), uint64(seed)) }
		truth := make([]float64, boundItems)
		for range boundEvents {
			id := often.Uint64()
			truth[id]++
			if err := c.Add(0, 0, hash(id), 1); err != nil {
				panic(err) // cannot fail: 1 is a valid amount
			}
			if err := top.Add(0, 0, itemName(id), 1); err != nil {
				panic(err)
			}
		}
		for id, want := range truth {
			checks++
			e := c.Estimate(0, hash(uint64(id)))
			if e.Count < want {
				below++
			}
			if e.Count > want+epsilon*boundEvents {
				above++
			}
			item := top.Item(0, itemName(uint64(id)))
			if item.Count < want || item.Count-item.Err > want {
				outside++
			}
			most = max(most, item.Err/boundEvents)
		}
	}
	return []Bound{
		rate("countmin", "counts below the truth", 0, below, checks),
		rate("countmin", "counts above the truth by more than 0.1% of the sum", delta, above, checks),
		rate("topk", "counts outside of their bracket", 0, outside, checks),
		largest("topk", "width of a bracket, of the sum, with 500 entries", 1./(10*k), most, checks),
	}
}

// quantileBounds checks quantiles of log-normal values.
func quantileBounds(seeds int) []Bound {
	const n = 10_000
	most, checks := 0.0, 0
	for seed := range seeds {
		q := must(sketch.NewQuantile(sketch.QuantileParams{}))
		r := rand.New(rand.NewPCG(uint64(seed), n))
		values := make([]float64, n)
		for i := range values {
			values[i] = math.Exp(3 * r.NormFloat64())
			if err := q.Add(0, 0, values[i], 1); err != nil {
				panic(err) // cannot fail: the value is finite and positive
			}
		}
		slices.Sort(values)
		reading := q.At(0)
		for rank := 1; rank < n; rank += 7 {
			checks++
			// between two ranks, where rounding of the rank does not matter
			got := reading.Quantile((float64(rank) - 0.5) / n)
			most = max(most, math.Abs(got/values[rank-1]-1))
		}
	}
	return []Bound{largest("quantile", "relative error of a quantile", sketch.QuantileAccuracy, most, checks)}
}

// bloomBounds checks filters at their capacity.
func bloomBounds(seeds int) []Bound {
	const keys, probes, target = 50_000, 500_000, 0.0005
	lost, found := 0, 0
	for seed := range seeds {
		f := must(sketch.NewBloom(sketch.BloomParams{Capacity: keys, FalseRate: target}))
		r := rand.New(rand.NewPCG(uint64(seed), keys))
		added := make([]uint64, keys)
		for i := range added {
			added[i] = r.Uint64()
			f.Add(added[i])
		}
		for _, h := range added {
			if !f.Has(h).Found {
				lost++
			}
		}
		for range probes {
			if f.Has(r.Uint64()).Found {
				found++
			}
		}
	}
	return []Bound{
		rate("bloom", "keys that were added and are not found", 0, lost, seeds*keys),
		rate("bloom", "absent keys found, 50,000 keys at 0.05%", target, found, seeds*probes),
	}
}

// expiringBounds checks filters that forget, with as many keys in a window as their capacity. Keys within the window
// must be found. Of keys that never came, and of keys from two windows ago, no more than the promised share may be
// found.
func expiringBounds(seeds int) []Bound {
	const keys, probes, target, window = 20_000, 200_000, 0.01, decayedHour
	lost, stale, found := 0, 0, 0
	for seed := range seeds {
		f := must(sketch.NewBloomExpiring(sketch.BloomExpiringParams{Capacity: keys, FalseRate: target, Window: window}))
		r := rand.New(rand.NewPCG(uint64(seed), probes))
		added := make([]uint64, 4*keys) // four windows of keys, one after the other
		now := decayedNow
		for i := range added {
			added[i] = r.Uint64()
			now += window / keys
			f.Add(now, now, added[i])
		}
		for _, h := range added[3*keys+1:] {
			if !f.Has(now, h).Found {
				lost++
			}
		}
		for _, h := range added[:2*keys] {
			if f.Has(now, h).Found {
				stale++
			}
		}
		for range probes {
			if f.Has(now, r.Uint64()).Found {
				found++
			}
		}
	}
	return []Bound{
		rate("bloom-expiring", "keys of the last window that are not found", 0, lost, seeds*(keys-1)),
		rate("bloom-expiring", "absent keys found, 20,000 keys a window at 1%", target, found, seeds*probes),
		rate("bloom-expiring", "keys of two windows ago found", target, stale, seeds*2*keys),
	}
}
