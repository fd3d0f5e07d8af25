package accuracy

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// TestRunIsWithinTheory: a short run of every kind that is served stays within theory at all sizes, and does its work:
// the errors that ought to be there are.
func TestRunIsWithinTheory(t *testing.T) {
	trials := 60
	if testing.Short() {
		trials = 20
	}
	for _, k := range Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			rows, err := Run(t.Context(), k, Options{Trials: trials, Exact: 20_000, PerDecade: 2})
			if err != nil {
				t.Fatal(err)
			}
			most := 0.0
			for _, r := range rows {
				if r.Theory == nil {
					continue
				}
				most = max(most, r.RMSE/(*r.Theory+1e-300))
				if !r.Within && !k.Reference {
					t.Errorf("%d: bias %.4f%% +- %.4f%%, rmse %.4f%%, theory %.4f%%", r.N, 100*r.Bias, 100*r.BiasError, 100*r.RMSE, 100**r.Theory)
				}
			}
			if most < 0.8 {
				t.Errorf("no rmse is above %v of theory", most)
			}
		})
	}
}

// TestRunRepeats: the same seed gives the same figures for any number of workers, another seed others.
func TestRunRepeats(t *testing.T) {
	k := Kinds()[1]
	o := Options{Trials: 12, Exact: 5000, PerDecade: 1}
	figures := func(o Options) string {
		rows, err := Run(t.Context(), k, o)
		if err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			rows[i].Theory = nil // a pointer
		}
		return fmt.Sprintf("%+v", rows)
	}
	one := figures(o)
	o.Workers = 3
	if figures(o) != one {
		t.Error("three workers answer otherwise")
	}
	o.Seed++
	if figures(o) == one {
		t.Error("another seed answers the same")
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		most uint64
		per  int
		want []uint64
	}{
		{1, 3, []uint64{1}},
		{100, 1, []uint64{1, 10, 100}},
		{2000, 3, []uint64{1, 2, 5, 10, 22, 46, 100, 215, 464, 1000, 2000}},
		{20, 10, []uint64{1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20}},
	} {
		if got := Sizes(c.most, c.per); !slices.Equal(got, c.want) {
			t.Errorf("Sizes(%d, %d) = %v, want %v", c.most, c.per, got, c.want)
		}
	}
}

// TestSummarise: known errors, and what is outside of theory.
func TestSummarise(t *testing.T) {
	r := summarise([]float64{0.03, -0.01, 0.01, -0.03}, 0.03)
	if r.Bias != 0 || math.Abs(r.RMSE-math.Sqrt(5e-4)) > 1e-12 || math.Abs(r.BiasError-r.RMSE/2) > 1e-12 || !r.Within {
		t.Errorf("%+v", r)
	}
	if q := r.Quantiles; q[0] != -0.03 || q[3] != 0.01 || q[6] != 0.03 {
		t.Errorf("quantiles %v", q)
	}
	many := func(e, bias float64) []float64 {
		errs := make([]float64, 10_000)
		for i := range errs {
			errs[i] = e*float64(i%2*2-1) + bias
		}
		return errs
	}
	for _, c := range []struct {
		name    string
		e, bias float64
		within  bool
	}{
		{"as theory says", 0.03, 0, true},
		{"4% more", 0.0312, 0, true},
		{"6% more", 0.0318, 0, false},
		{"a bias of chance", 0.03, 0.001, true},
		{"a bias", 0.03, 0.003, false},
	} {
		if got := summarise(many(c.e, c.bias), 0.03).Within; got != c.within {
			t.Errorf("%s: within is %v", c.name, got)
		}
	}
	if r := summarise(many(9, 9), math.NaN()); !r.Within || r.Theory != nil {
		t.Errorf("without a theory: %+v", r)
	}
}

// TestSkip: many trials that skip and many that add every thing have errors of the same size and the same mean.
func TestSkip(t *testing.T) {
	trials := 150
	if testing.Short() {
		trials = 80
	}
	for _, k := range Kinds() {
		if _, ok := k.fresh().(skipper); !ok {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			const size = 30_000
			var rows [2]Row
			for i, exact := range []uint64{size, 1} {
				all, err := Run(t.Context(), k, Options{Trials: trials, Max: size, PerDecade: 1, Exact: exact, Seed: uint64(i)})
				if err != nil {
					t.Fatal(err)
				}
				rows[i] = all[len(all)-1]
			}
			added, skipped := rows[0], rows[1]
			if d := skipped.Bias - added.Bias; math.Abs(d) > 4.5*math.Hypot(added.BiasError, skipped.BiasError) {
				t.Errorf("bias %v when added, %v skipping", added.Bias, skipped.Bias)
			}
			chance := 4.5 / math.Sqrt(float64(trials)) // of two rmse
			// a Poisson number of things from 4096 on adds at most 0.6%
			if q := skipped.RMSE / added.RMSE; q < 1/(1+chance) || q > 1+chance {
				t.Errorf("rmse %v when added, %v skipping", added.RMSE, skipped.RMSE)
			}
		})
	}
}

// TestProfilesAgree: two halves merged, a half of another precision reduced, and a sketch read back from its bytes have
// the very errors of the plain one that saw the same hashes, at every size.
func TestProfilesAgree(t *testing.T) {
	errorsOf := func(name string) (all [][4]float64) {
		rows, err := Run(t.Context(), kindNamed(t, name), Options{Trials: 10, Exact: 10_000, PerDecade: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			all = append(all, [4]float64{r.Bias, r.RMSE, r.Quantiles[0], r.Quantiles[6]})
		}
		return all
	}
	plain := errorsOf("distinct-1k")
	for _, name := range []string{"distinct-merged", "distinct-reduced", "distinct-encoded"} {
		if got := errorsOf(name); !slices.Equal(got, plain) {
			t.Errorf("%s has errors %v\nplain %v", name, got, plain)
		}
	}
}
