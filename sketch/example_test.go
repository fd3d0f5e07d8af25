package sketch_test

import (
	"fmt"
	"time"

	"github.com/ebbdb/ebb/sketch"
)

const hour = sketch.Tick(time.Hour / time.Microsecond)

var noon = sketch.Tick(time.Date(2011, 11, 1, 12, 0, 0, 0, time.UTC).UnixMicro())

func params() *sketch.Params {
	return &sketch.Params{Decay: sketch.HalfLife, HalfLife: hour, Floor: sketch.Prune, Threshold: 0.001}
}

const (
	germany = iota
	brazil
	japan
)

// Counts halve in every half-life.
func Example() {
	p := params()
	var clicks sketch.Distribution
	for range 8 {
		if err := clicks.Add(p, noon, noon, germany, 1); err != nil {
			fmt.Println(err)
		}
	}
	for hours := range sketch.Tick(4) {
		fmt.Printf("%.0f ", clicks.At(p, noon+hours*hour).Count(germany))
	}
	// Output: 8 4 2 1
}

// A late event weighs what it would weigh had it come in time.
func ExampleDistribution_Add() {
	p := params()
	var clicks sketch.Distribution
	fmt.Println(clicks.Add(p, noon, noon-hour, germany, 1))
	fmt.Println(clicks.Add(p, noon, noon, germany, -1))
	fmt.Println(clicks.At(p, noon).Count(germany))
	// Output:
	// <nil>
	// negative amount
	// 0.5
}

func ExampleReading_Top() {
	p := params()
	var clicks sketch.Distribution
	for bin, n := range []float64{germany: 40, brazil: 50, japan: 10} {
		if err := clicks.Add(p, noon, noon, uint32(bin), n); err != nil {
			fmt.Println(err)
		}
	}
	r := clicks.At(p, noon+hour)
	for _, b := range r.Top(2, nil) {
		probability, low, high := r.P(b.ID, 0.95)
		fmt.Printf("bin %d: %.0f clicks, %.2f in [%.2f, %.2f]\n", b.ID, b.Count, probability, low, high)
	}
	fmt.Printf("Z %.0f, n_eff %.0f, %.3f bits\n", r.Z, r.EffectiveN, r.Entropy)
	// Output:
	// bin 1: 25 clicks, 0.50 in [0.40, 0.60]
	// bin 0: 20 clicks, 0.40 in [0.31, 0.50]
	// Z 50, n_eff 100, 1.361 bits
}

// The compatibility doors decay from the last event at a rate of their own.
func ExampleReading_WithRate() {
	p := params()
	var clicks sketch.Distribution
	if err := clicks.Add(p, noon, noon, germany, 100); err != nil {
		fmt.Println(err)
	}
	r := clicks.At(p, noon+10*1_000_000)
	fmt.Printf("%.1f %.1f\n", r.Count(germany), r.WithRate(0.1).Count(germany))
	// Output: 99.8 36.8
}

func ExampleDistribution_Merge() {
	p := params()
	var a, b sketch.Distribution
	if err := a.Add(p, noon, noon, germany, 4); err != nil {
		fmt.Println(err)
	}
	if err := b.Add(p, noon+2*hour, noon+2*hour, germany, 4); err != nil {
		fmt.Println(err)
	}
	a.Merge(p, &b, nil)
	fmt.Println(a.At(p, noon+2*hour).Count(germany))
	// Output: 5
}

// A half-life of two hours from noon on.
func ExampleDistribution_Convert() {
	p := params()
	var clicks sketch.Distribution
	if err := clicks.Add(p, noon, noon, germany, 8); err != nil {
		fmt.Println(err)
	}
	slower := params()
	slower.HalfLife = 2 * hour
	clicks.Convert(p, slower, noon+hour)
	fmt.Printf("%.3f\n", clicks.At(slower, noon+3*hour).Count(germany))
	// Output: 2.000
}

// Ten half-lives take 1 below a threshold of 0.001, almost to the tick.
func ExampleDistribution_Death() {
	p := params()
	var clicks sketch.Distribution
	if err := clicks.Add(p, noon, noon, germany, 1.024); err != nil {
		fmt.Println(err)
	}
	death := clicks.Death(p)
	fmt.Println(death-noon-10*hour < 10, clicks.Dead(p, death), clicks.Dead(p, death-1000))
	// Output: true true false
}

func ExampleDistribution_Prune() {
	p := params()
	var clicks sketch.Distribution
	for bin, n := range []float64{germany: 40, brazil: 0.002} {
		if err := clicks.Add(p, noon, noon, uint32(bin), n); err != nil {
			fmt.Println(err)
		}
	}
	clicks.Prune(p, noon+2*hour, func(bin uint32) { fmt.Println("gone:", bin) })
	fmt.Println("left:", clicks.Len())
	// Output:
	// gone: 1
	// left: 1
}

func ExampleDistribution_AppendBinary() {
	p := params()
	var clicks, copied sketch.Distribution
	if err := clicks.Add(p, noon, noon, germany, 1); err != nil {
		fmt.Println(err)
	}
	b := clicks.AppendBinary(nil)
	rest, err := copied.Decode(b)
	fmt.Println(len(b), len(rest), err, copied.At(p, noon).Count(germany))
	_, err = copied.Decode(b[:10])
	fmt.Println(err, copied.At(p, noon).Count(germany))
	// Output:
	// 39 0 <nil> 1
	// corrupt summary 1
}

func ExampleWeight() {
	fmt.Println(sketch.Weight(5*hour, 3, hour), sketch.Weight(hour/2, 0, hour), sketch.Weight(0, 1, hour))
	// Output: 4 1.4142135623730951 0.5
}

func ExampleExp2() {
	fmt.Println(sketch.Exp2(10, 0), sketch.Exp2(-1, 1<<63))
	// Output: 1024 0.7071067811865476
}

func ExampleLog2() {
	fmt.Println(sketch.Log2(1024), sketch.Log2(3))
	// Output: 10 1.584962500721156
}
