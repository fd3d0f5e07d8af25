package sketch_test

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/sketch"
)

// hashed is a hash with the namespace's seed.
func hashed(s string) uint64 { return xxh3.HashStringSeed(s, 7) }

// Two visits an hour ago count as one with a half-life of an hour.
func ExampleCountMin() {
	visits, err := sketch.NewCountMin(sketch.CountMinParams{Epsilon: 0.001, Delta: 0.01, HalfLife: hour})
	if err != nil {
		fmt.Println(err)
	}
	for range 2 {
		if err := visits.Add(noon, noon, hashed("ada"), 1); err != nil {
			fmt.Println(err)
		}
	}
	e := visits.Estimate(noon+hour, hashed("ada"))
	fmt.Printf("between %.3f and %.0f\n", e.Count-e.Err, e.Count)
	fmt.Println(visits.Estimate(noon, hashed("bob")).Count)
	// Output:
	// between 0.999 and 1
	// 0
}

// Names by count, each with how much of it may be too much.
func ExampleTopK() {
	names, err := sketch.NewTopK(sketch.TopKParams{K: 1, HalfLife: hour})
	if err != nil {
		fmt.Println(err)
	}
	for i, name := range []string{"ada", "bob", "ada", "eve", "ada", "bob"} {
		if err := names.Add(noon, noon-sketch.Tick(i)*1000, []byte(name), 2); err != nil {
			fmt.Println(err)
		}
	}
	for _, x := range names.Top(noon+hour, 2, nil) {
		fmt.Printf("%s %.2f, at most %.0f too many\n", x.Name, x.Count, x.Err)
	}
	// Output:
	// ada 3.00, at most 0 too many
	// bob 2.00, at most 0 too many
}

// Latencies, each within 1% of the truth.
func ExampleQuantile() {
	latency, err := sketch.NewQuantile(sketch.QuantileParams{Accuracy: 0.01, HalfLife: hour})
	if err != nil {
		fmt.Println(err)
	}
	for ms := 1; ms <= 1000; ms++ {
		if err := latency.Add(noon, noon, float64(ms), 1); err != nil {
			fmt.Println(err)
		}
	}
	r := latency.At(noon)
	low, high := r.Rank(250)
	fmt.Printf("median %.0f ms, p99 %.0f ms\n", r.Quantile(0.5), r.Quantile(0.99))
	fmt.Printf("%.1f%% to %.1f%% took no longer than 250 ms\n", 100*low, 100*high)
	// Output:
	// median 498 ms, p99 983 ms
	// 24.9% to 25.4% took no longer than 250 ms
}

// A small set is exact and knows its members.
func ExampleLinearCounter() {
	readers, err := sketch.NewLinearCounter(sketch.LinearParams{Capacity: 50_000, Members: true})
	if err != nil {
		fmt.Println(err)
	}
	for _, name := range []string{"ada", "bob", "ada"} {
		if err := readers.Add(hashed(name), []byte(name)); err != nil {
			fmt.Println(err)
		}
	}
	members, _ := readers.Members(nil)
	fmt.Println(readers.Estimate().Count, len(members))
	for i := range 20_000 {
		if err := readers.Add(hashed(fmt.Sprint(i)), nil); err != nil {
			fmt.Println(err)
		}
	}
	e := readers.Estimate()
	fmt.Println(e.Count > 19_600 && e.Count < 20_400, e.StandardError < 100, e.Exact)
	// Output:
	// 2 2
	// true true false
}

func ExampleBloom() {
	seen, err := sketch.NewBloom(sketch.BloomParams{Capacity: 1000, FalseRate: 0.01})
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(seen.Add(hashed("ada")), seen.Add(hashed("ada")))
	fmt.Println(seen.Has(hashed("ada")).Found, seen.Has(hashed("bob")).Found)
	// Output:
	// true false
	// true false
}

// Ten times as many keys as at first.
func ExampleBloomScalable() {
	seen, err := sketch.NewBloomScalable(sketch.BloomParams{Capacity: 1000, FalseRate: 0.01})
	if err != nil {
		fmt.Println(err)
	}
	for i := range 10_000 {
		seen.Add(hashed(fmt.Sprint(i)))
	}
	s := seen.State()
	fmt.Println(seen.Generations(), s.FalseRate < 0.01, s.Over)
	// Output: 4 true false
}

// What was seen within the hour.
func ExampleBloomExpiring() {
	seen, err := sketch.NewBloomExpiring(sketch.BloomExpiringParams{Capacity: 1000, FalseRate: 0.01, Window: hour})
	if err != nil {
		fmt.Println(err)
	}
	seen.Add(noon, noon, hashed("ada"))
	fmt.Println(seen.Has(noon+hour, hashed("ada")).Found, seen.Has(noon+2*hour, hashed("ada")).Found)
	// Output: true false
}

// A register of a byte; the seed is a hash of shard and log index.
func ExampleMorris() {
	counter, err := sketch.NewMorris(sketch.MorrisParams{Bits: 8})
	if err != nil {
		fmt.Println(err)
	}
	for index := range 1000 {
		if err := counter.Add(noon, noon, 1, hashed(fmt.Sprint("shard 1, entry ", index))); err != nil {
			fmt.Println(err)
		}
	}
	e := counter.Estimate(noon)
	fmt.Println(e.Count > 1000-4*e.StandardError && e.Count < 1000+4*e.StandardError, e.Saturated)
	// Output: true false
}
