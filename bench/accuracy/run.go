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

// Options of a run.
type Options struct {
	// Trials of each kind; 0 means 200.
	Trials int
	// Max is the largest size, PerDecade how many there are between powers of ten: 0 means 10^9 and 3.
	Max       uint64
	PerDecade int
	// Exact is up to where all things are really added, 0 means 1,000,000. A kind may need more.
	Exact uint64
	// Seed makes another run; the same one gives the same figures on every machine and for any number of Workers.
	Seed uint64
	// Workers run trials side by side; 0 means 1.
	Workers int
	// Done, if any, is called after each trial with how many of this kind are done. Calls may come from several
	// goroutines.
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

// Sizes are 1 to max, so many in each power of ten, as near to equal steps of the logarithm as whole numbers are; max
// is the last.
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

// sigmas are the quantiles of the error that Row.Quantiles has: those of a normal variable at -3 to 3 standard
// deviations.
var sigmas = [7]float64{-3, -2, -1, 0, 1, 2, 3}

// Row is what the trials of a kind say about one size. Errors are relative.
type Row struct {
	Kind string  `json:"kind"`
	N    uint64  `json:"n"`
	Bias float64 `json:"bias"`
	// BiasError is the standard error of Bias.
	BiasError float64 `json:"bias_error"`
	RMSE      float64 `json:"rmse"`
	// Theory is the standard error in theory or a bound of it, nil where none is known.
	Theory *float64 `json:"theory"`
	// Quantiles of the error at -3, -2, -1, 0, 1, 2 and 3 standard deviations of a normal variable.
	Quantiles [7]float64 `json:"quantiles"`
	// Memory and Encoded are the bytes of the first trial's summary.
	Memory  int `json:"memory_bytes"`
	Encoded int `json:"encoded_bytes"`
	Trials  int `json:"trials"`
	// Within theory, or nothing known against which to hold it.
	Within bool `json:"within"`
}

// Run tries a kind, and answers a row for each size. It ends early only when ctx does.
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

// trial takes a fresh subject through all sizes.
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

// Limits of what is within theory. Estimates are unbiased to the first order: the square of theory is allowed.
const (
	rmseMax  = 1.05
	doubtful = 4.5   // standard errors of a figure that may be chance; those in theory, too, lest rare errors that did not come count as bias
	rounding = 1e-12 // of the arithmetic
)

// summarise sorts errs.
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
		// the mean square is itself uncertain, by its own fourth moment
		chance := doubtful * math.Sqrt(max(0, fourth/n-square*square)/n)
		row.Within = square <= rmseMax*rmseMax*theory*theory+chance+rounding*rounding &&
			math.Abs(mean) <= doubtful*max(row.BiasError, theory/math.Sqrt(n))+theory*theory+rounding
	}
	return row
}
