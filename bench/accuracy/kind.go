package accuracy

import (
	"fmt"
	"math"

	"github.com/ebbdb/ebb/sketch"
)

// Kind is a structure whose error can be measured.
type Kind struct {
	// Name is one word, such as distinct or set-merged.
	Name string
	// About describes the structure and its parameters.
	About string
	// Reference kinds are published estimators, only for comparison; ebb does not serve them. If one of them is outside
	// of its theory, that is no fault of ebb.
	Reference bool
	// Max is the largest size at which it is tried.
	Max uint64
	// Theory returns the relative standard error at a size, or a bound of it; NaN if none is known.
	Theory func(n float64) float64

	skipFrom uint64 // the least size from which the kind can skip
	fresh    func() subject
}

func bound(e float64) func(float64) float64 { return func(float64) float64 { return e } }

// from returns a theory that is the constant e from a size on, and unknown below it.
func from(least, e float64) func(float64) float64 {
	return func(n float64) float64 {
		if n < least {
			return math.NaN()
		}
		return e
	}
}

// must returns v for parameters that are known to be valid.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

const (
	farthest = 1_000_000_000_000_000_000 // 2^63 hashes are the limit of a Distinct
	// realMax bounds the kinds that cannot skip.
	realMax        = 100_000
	decayedMax     = 10_000
	linearCapacity = 50_000
)

// Kinds returns all kinds, in the order of reports.
func Kinds() []Kind {
	kinds := []Kind{
		distinctKind("distinct", "ExaLogLog, precision 11", 11, 1, 11),
		distinctKind("distinct-1k", "ExaLogLog, precision 8", 8, 1, 8),
		distinctKind("distinct-merged", "two of precision 8, merged", 8, 2, 8),
		distinctKind("distinct-reduced", "one of precision 8 and one of 11, merged", 8, 2, 8, 11),
		distinctKind("distinct-encoded", "ExaLogLog, precision 8, read from its bytes", 8, 1, 8),
		setKind("set", "bottom-k, k = 1024", 1),
		setKind("set-merged", "two of k = 1024, merged", 2),
	}
	kinds[4].fresh = func() subject {
		d := newDistinct(1, 8)
		d.encode = true
		return d
	}
	kinds = append(kinds, plainKinds()...)
	return append(kinds,
		rankKind("loglog", "LogLog, 1024 registers of 5 bits", LogLogTheory, 10, (*Ranks).LogLog),
		rankKind("superloglog", "SuperLogLog, 1024 registers of 5 bits", SuperLogLogTheory, 10, (*Ranks).SuperLogLog),
		rankKind("hyperloglog", "HyperLogLog, 1024 registers of 5 bits", HyperLogLogTheory, 0, (*Ranks).HyperLogLog),
	)
}

func distinctKind(name, about string, p, parts int, precisions ...int) Kind {
	return Kind{
		Name: name, About: about, Max: farthest, Theory: bound(DistinctTheory(p)), skipFrom: 2 << 11,
		fresh: func() subject { return newDistinct(parts, precisions...) },
	}
}

func setKind(name, about string, parts int) Kind {
	const k = sketch.SetKDefault
	return Kind{
		Name: name, About: about, Max: farthest, skipFrom: 4 * k,
		Theory: func(n float64) float64 { return SetTheory(k, n) },
		fresh:  func() subject { return newSet(parts, k) },
	}
}

// plainKinds are the kinds that cannot skip.
func plainKinds() []Kind {
	lp := sketch.LinearParams{Capacity: linearCapacity}
	bits := float64(must(lp.Bits()))
	morrisKind := func(bits int, a float64) Kind {
		return Kind{
			Name: fmt.Sprintf("morris-%d", bits), About: fmt.Sprintf("Morris counter of %d bits, base 1 + %g", bits, a), Max: realMax,
			Theory: func(n float64) float64 { return MorrisTheory(a, n) },
			fresh:  func() subject { return &morris{Morris: must(sketch.NewMorris(sketch.MorrisParams{Bits: bits, A: a}))} },
		}
	}
	return []Kind{
		{
			Name: "linear", About: fmt.Sprintf("linear counting, capacity %d, %.0f bits", linearCapacity, bits), Max: linearCapacity,
			Theory: func(n float64) float64 {
				if n <= sketch.LinearExactMax {
					return 0
				}
				return LinearTheory(bits, n)
			},
			fresh: func() subject { return &linear{LinearCounter: must(sketch.NewLinearCounter(lp))} },
		},
		morrisKind(8, 0.08), morrisKind(16, 0.0005),
		{
			Name: "distinct-decayed", About: "SetSketch of 2048 registers, things up to 4 half-lives old", Max: decayedMax,
			Theory: bound(HyperLogLogTheory(sketch.DistinctRegistersDefault)),
			fresh:  func() subject { return newDistinctDecayed(1) },
		},
		{
			Name: "distinct-decayed-merged", About: "two of them, merged, encoded and read back", Max: decayedMax,
			Theory: bound(HyperLogLogTheory(sketch.DistinctRegistersDefault)),
			fresh:  func() subject { return newDistinctDecayed(2) },
		},
		{
			Name: "distinct-window", About: "twelve slices of ExaLogLog, precision 8, all of them read", Max: realMax,
			Theory: bound(DistinctTheory(8)),
			fresh: func() subject {
				return &distinctWindow{DistinctWindow: must(sketch.NewDistinctWindow(sketch.DistinctWindowParams{
					Distinct: sketch.DistinctParams{Precision: 8}, Slice: decayedHour, Slices: windowSlices,
				}))}
			},
		},
		{
			Name: "set-decayed", About: "priority sample, k = 1024, things up to 4 half-lives old", Max: decayedMax,
			Theory: bound(1 / math.Sqrt(sketch.SetKDefault-1)),
			fresh: func() subject {
				return &setDecayed{SetDecayed: must(sketch.NewSetDecayed(sketch.SetDecayedParams{HalfLife: decayedHour}))}
			},
		},
	}
}

// rankKind returns a reference kind. Its theory holds from load things for each register on.
func rankKind(name, about string, theory func(m float64) float64, load float64, estimate func(*Ranks) float64) Kind {
	const p = 10
	m := float64(int(1) << p)
	return Kind{
		Name: name, About: about, Reference: true, Max: farthest, skipFrom: 1 << p, Theory: from(load*m, theory(m)),
		fresh: func() subject { return &ranks{Ranks: NewRanks(p), estimate: estimate} },
	}
}
