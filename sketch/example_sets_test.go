package sketch_test

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/sketch"
)

// How many visitors, at two doors and at both together.
func ExampleDistinct() {
	north, _ := sketch.NewDistinct(sketch.DistinctParams{})
	south, _ := sketch.NewDistinct(sketch.DistinctParams{})
	for i := range 1000 {
		visitor := fmt.Sprint("visitor ", i)
		north.Add(xxh3.HashString(visitor))
		if i < 300 {
			south.Add(xxh3.HashString(visitor))
			south.Add(xxh3.HashString("another " + visitor))
		}
	}
	if err := north.Merge(&south); err != nil {
		fmt.Println(err)
		return
	}
	n, stdErr := north.Estimate()
	fmt.Printf("%.0f +- %.0f\n", n, stdErr)
	// Output: 1300 +- 0
}

// Visitors of the last hour and of the last day.
func ExampleDistinctWindow() {
	const hour = sketch.Tick(3_600_000_000)
	w, _ := sketch.NewDistinctWindow(sketch.DistinctWindowParams{Slice: hour, Slices: 24})
	for i := range sketch.Tick(100) {
		now := i * hour / 4 // one every quarter of an hour
		w.Add(now, now, xxh3.HashString(fmt.Sprint(i)))
	}
	now := 99 * hour / 4
	lastHour, _ := w.Estimate(now, hour)
	lastDay, _ := w.Estimate(now, 24*hour)
	fmt.Println(lastHour, lastDay)
	// Output: 4 96
}

// How many visitors are around: each counts half after an hour, a quarter after two.
func ExampleDistinctDecayed() {
	const hour = sketch.Tick(3_600_000_000)
	d, _ := sketch.NewDistinctDecayed(sketch.DistinctDecayedParams{HalfLife: hour})
	d.Add(0, 0, xxh3.HashString("ann"))
	d.Add(0, 0, xxh3.HashString("bob"))
	d.Add(hour, hour, xxh3.HashString("ann"))
	n, stdErr := d.Estimate(hour)
	fmt.Println(n, stdErr)
	// Output: 1.5 0
}

// How alike two audiences are.
func ExampleSet() {
	films, _ := sketch.NewSet(sketch.SetParams{Members: true})
	books, _ := sketch.NewSet(sketch.SetParams{Members: true})
	for i := range 600 {
		name := fmt.Sprint("person ", i)
		if i < 400 {
			films.Add(xxh3.HashString(name), []byte(name))
		}
		if i >= 300 {
			books.Add(xxh3.HashString(name), []byte(name))
		}
	}
	overlap, err := films.Compare(&books)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("both", overlap.Intersection.Value, "of", overlap.Union.Value)
	fmt.Printf("similarity %.3f\n", overlap.Jaccard.Value)
	// Output:
	// both 100 of 600
	// similarity 0.167
}

// The nearest neighbour of each of three sets.
func ExampleSimilarityGraph() {
	var sets []*sketch.Set
	for _, from := range []int{0, 1000, 4000} {
		s, _ := sketch.NewSet(sketch.SetParams{})
		for i := range 5000 {
			s.Add(xxh3.HashString(fmt.Sprint(from+i)), nil)
		}
		sets = append(sets, &s)
	}
	graph, err := sketch.SimilarityGraph(sets, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, links := range graph {
		fmt.Printf("%d to %d: %.1f\n", i, links[0].To, links[0].Jaccard.Value)
	}
	// Output:
	// 0 to 1: 0.7
	// 1 to 0: 0.7
	// 2 to 1: 0.2
}

// A sample that prefers the recent.
func ExampleSetDecayed() {
	const hour = sketch.Tick(3_600_000_000)
	s, _ := sketch.NewSetDecayed(sketch.SetDecayedParams{HalfLife: hour, Members: true})
	s.Add(0, 0, xxh3.HashString("ann"), []byte("ann"))
	s.Add(2*hour, 2*hour, xxh3.HashString("bob"), []byte("bob"))
	weights := map[string]float64{}
	s.Sample(2*hour, func(_ uint64, member string, weight float64) { weights[member] = weight })
	fmt.Println(weights, s.Estimate(2*hour).Value)
	// Output: map[ann:0.25 bob:1] 1.25
}
