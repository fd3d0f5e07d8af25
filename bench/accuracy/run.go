package accuracy

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Options are the options of a run.
type Options struct {
	// Trials is how many trials each kind gets; 0 means 200.
	Trials int
	// Max is the largest size, and PerDecade the number of sizes in each power of ten; 0 means 10^9 and 3.
	Max       uint64
	PerDecade int
	// Exact is how many things are added one by one; 0 means 1,000,000. A kind may need more.
	Exact uint64
	// Seed selects the random numbers. The same seed gives the same figures on every machine and for any number of
	// Workers.
	Seed uint64
	// Workers is how many trials run in parallel; 0 means 1.
	Workers int
	// Done, if not nil, is called after each trial with how many trials of this kind are done. Calls may come from
	// several goroutines.
	Done func(trials int)
}

func (o Options) orDefault() Options {
	def := func(v *uint64, to uint64) {
		if *v == 0 {
			*v = to
		}
	}
	def(&o.Max, 1_000_000_000)
	def(&o.Exact, 1_000_000)
	if o.Trials == 0 {
		o.Trials = 200
	}
	if o.PerDecade == 0 {
		o.PerDecade = 3
	}
	o.Workers = min(max(o.Workers, 1), runtime.GOMAXPROCS(0))
	return o
}

// Sizes returns sizes from 1 to highest, perDecade in each power of ten. Their steps are as equal on a logarithmic
// scale as whole numbers allow. The last one is highest.
func Sizes(highest uint64, perDecade int) (sizes []uint64) {
	for i := 0; ; i++ {
		n := uint64(math.Round(math.Pow(10, float64(i)/float64(perDecade))))
		if n >= highest {
			return append(sizes, highest)
		}
		if len(sizes) == 0 || n > sizes[len(sizes)-1] {
			sizes = append(sizes, n)
		}
	}
}

// sigmas are the positions of Row.Quantiles, in standard deviations of a normal variable.
var sigmas = [7]float64{-3, -2, -1, 0, 1, 2, 3}

// Row is the result of all trials of a kind at one size. Errors are relative.
type Row struct {
	Kind string  `json:"kind"`
	N    uint64  `json:"n"`
	Bias float64 `json:"bias"`
	// BiasError is the standard error of Bias.
	BiasError float64 `json:"bias_error"`
	RMSE      float64 `json:"rmse"`
	// Theory is the standard error in theory, or a bound of it; nil if none is known.
	Theory *float64 `json:"theory"`
	// Quantiles are those of the error at -3, -2, -1, 0, 1, 2 and 3 standard deviations of a normal variable.
	Quantiles [7]float64 `json:"quantiles"`
	// Memory and Encoded are the sizes in bytes of the first trial's summary.
	Memory  int `json:"memory_bytes"`
	Encoded int `json:"encoded_bytes"`
	Trials  int `json:"trials"`
	// Within reports whether the errors are within theory; it is true if no theory is known.
	Within bool `json:"within"`
}

// Run tries a kind, and returns a row for each size. It returns an error only when ctx ends.
func Run(ctx context.Context, k Kind, o Options) ([]Row, error) {
	o = o.orDefault()
	sizes := Sizes(min(o.Max, k.Max), o.PerDecade)
	trials := make([][]float64, o.Trials)
	memory, encoded := make([]int, len(sizes)), make([]int, len(sizes))
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for range o.Workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= o.Trials {
					return
				}
				trials[i] = make([]float64, len(sizes))
				trial(k, o, i, sizes, func(at int, s subject) {
					estimate, truth := s.reads()
					trials[i][at] = estimate/truth - 1
					if i == 0 {
						memory[at], encoded[at] = s.bytes()
					}
				})
				if n := done.Add(1); o.Done != nil {
					o.Done(int(n))
				}
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rows := make([]Row, len(sizes))
	for i, n := range sizes {
		errs := make([]float64, o.Trials)
		for j := range trials {
			errs[j] = trials[j][i]
		}
		rows[i] = summarise(errs, k.Theory(float64(n)))
		rows[i].Kind, rows[i].N, rows[i].Memory, rows[i].Encoded = k.Name, n, memory[i], encoded[i]
	}
	return rows, nil
}

// trial adds things to a fresh subject, and calls at when it has reached each size.
func trial(k Kind, o Options, i int, sizes []uint64, at func(i int, s subject)) {
	r := rand.New(rand.NewPCG(o.Seed, uint64(i)))
	s := k.fresh()
	far, canSkip := s.(skipper)
	exact := max(o.Exact, k.skipFrom)
	n := uint64(0)
	for j, size := range sizes {
		if canSkip && size > exact {
			for ; n < exact; n++ {
				s.add(r)
			}
			far.skip(r, exact, sizes[j:], func(to int) { at(j+to, s) })
			return
		}
		for ; n < size; n++ {
			s.add(r)
		}
		at(j, s)
	}
}

// Limits of what is within theory. Estimates are unbiased only to the first order, so a bias of the square of theory is
// allowed.
const (
	rmseMax  = 1.05
	doubtful = 4.5   // standard errors that chance may explain, measured or in theory: rare errors may not have come
	rounding = 1e-12 // of the arithmetic
)

// summarise makes a row from the errors at one size. It sorts errs.
func summarise(errs []float64, theory float64) Row {
	n := float64(len(errs))
	var sum, squares, fourth float64
	for _, e := range errs {
		sum += e
		squares += e * e
		fourth += e * e * e * e
	}
	mean, square := sum/n, squares/n
	row := Row{Bias: mean, RMSE: math.Sqrt(square), BiasError: math.Sqrt(max(0, square-mean*mean) / n), Trials: len(errs), Within: true}
	slices.Sort(errs)
	for i, z := range sigmas {
		part := math.Erfc(-z/math.Sqrt2) / 2
		row.Quantiles[i] = errs[min(int(part*n), len(errs)-1)]
	}
	if !math.IsNaN(theory) {
		row.Theory = &theory
		// the mean square is itself uncertain: its variance follows from the fourth moment
		chance := doubtful * math.Sqrt(max(0, fourth/n-square*square)/n)
		row.Within = square <= rmseMax*rmseMax*theory*theory+chance+rounding*rounding &&
			math.Abs(mean) <= doubtful*max(row.BiasError, theory/math.Sqrt(n))+theory*theory+rounding
	}
	return row
}
