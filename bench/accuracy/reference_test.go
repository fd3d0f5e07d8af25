package accuracy

import (
	"math"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/sketch"
)

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if !(math.Abs(got-want) <= within) {
		t.Errorf("%s is %v, want %v within %v", what, got, want, within)
	}
}

// TestTheory: the figures that papers and manuals state.
func TestTheory(t *testing.T) {
	near(t, "ExaLogLog in 1 KiB", DistinctTheory(8), 0.0215, 5e-5)
	near(t, "ExaLogLog in 8 KiB", DistinctTheory(11), 0.0076, 5e-5)
	near(t, "HyperLogLog of 4096 registers", HyperLogLogTheory(4096), 0.01625, 1e-9)
	near(t, "HyperLogLog of 65536 registers", HyperLogLogTheory(65536), 0.0040625, 1e-9)
	near(t, "LogLog of 1024 registers", LogLogTheory(1024), 0.040625, 1e-9)
	near(t, "SuperLogLog of 1024 registers", SuperLogLogTheory(1024), 0.0328125, 1e-9)
	near(t, "bottom-k up to k", SetTheory(1024, 1024), 0, 0)
	near(t, "bottom-k of one more", SetTheory(16, 17), math.Sqrt(1./17/15), 1e-12)
	near(t, "bottom-k of many", SetTheory(1024, 1e12), 0.031265, 1e-6)
	near(t, "linear counting, Whang's table: 1000 in 5329 bits", LinearTheory(5329, 1000), 0.01, 1e-6)
	near(t, "linear counting, Whang's table: 10,000 in 7960 bits", LinearTheory(7960, 10_000), 0.01, 1e-6)
	near(t, "linear counting of few", LinearTheory(1e6, 100), math.Sqrt(0.5/1e6), 1e-7)
	near(t, "Morris counter, first event", MorrisTheory(1, 1), 0, 0)
	near(t, "Morris's own base 2", MorrisTheory(1, 1e9), math.Sqrt(0.5), 1e-9)
}

// TestConstants of the reference estimators, as their papers have them.
func TestConstants(t *testing.T) {
	near(t, "alpha of LogLog", logLogAlpha(1<<30), 0.39701, 5e-6)
	// the mean of m ranks deviates by 1.29806/sqrt(m) in units of 1/ln 2, and so the mean of its power is larger by a
	// half of the square
	near(t, "alpha of LogLog of 1024", logLogAlpha(1024), 0.39701*math.Exp(-1.29806*1.29806/2/1024), 5e-6)
	near(t, "alpha of HyperLogLog of 16", hyperLogLogAlpha(16), 0.673, 0)
	near(t, "alpha of HyperLogLog of 4096", hyperLogLogAlpha(4096), 0.72111, 5e-6)
	swing := 0.0
	for i := range 64 {
		swing = max(swing, math.Abs(superLogLogRatio(math.Exp2(15+float64(i)/64))/superLogLogAlpha()-1))
	}
	near(t, "how far SuperLogLog swings", swing, 0.0141, 1e-4)
}

// TestRanks: hashes go where the papers say.
func TestRanks(t *testing.T) {
	r := NewRanks(4)
	for _, c := range []struct {
		hash uint64
		at   int
		rank uint8
	}{
		{1<<63 | 3, 3, 1},
		{1<<62 | 3, 3, 2},
		{1<<63 | 3, 3, 2}, // the larger stays
		{1<<40 | 5, 5, 24},
		{0, 0, rankMax},
	} {
		r.Add(c.hash)
		if got := r.ranks[c.at]; got != c.rank {
			t.Errorf("after %#x register %d has %d, want %d", c.hash, c.at, got, c.rank)
		}
	}
	near(t, "bytes of 65536 registers", float64(NewRanks(16).Bytes()), 40_960, 0)
	near(t, "HyperLogLog of nothing", NewRanks(10).HyperLogLog(), 0, 0)
}

// TestReferenceErrors: each reference estimator has its published standard error over a grid that passes through all
// phases of a doubling, and no bias but the second order. That of SuperLogLog holds at its best phase: bias and
// variance swing, and over a doubling they make 1.12/sqrt(m).
func TestReferenceErrors(t *testing.T) {
	trials := 1000
	if testing.Short() {
		trials = 200
	}
	for _, c := range []struct {
		name               string
		best, worst, swing float64
	}{
		{"loglog", 1, 1, 0},
		{"superloglog", 1, 1.15, 0.0141},
		{"hyperloglog", 1, 1, 0},
	} {
		k := kindNamed(t, c.name)
		rows, err := Run(t.Context(), k, Options{Trials: trials, Exact: 1024, Max: 100_000_000, PerDecade: 4})
		if err != nil {
			t.Fatal(err)
		}
		chance := 4.5 / math.Sqrt(2*float64(trials))
		squares, n := 0.0, 0.0
		for _, r := range rows {
			if r.N < 100_000 {
				continue
			}
			q := r.RMSE / *r.Theory
			t.Logf("%s %d: bias %+.3f%%, rmse %.3f%%, %.3f of theory", k.Name, r.N, 100*r.Bias, 100*r.RMSE, q)
			if q < c.best*(0.97-chance) || q > c.worst*(1.03+chance) {
				t.Errorf("%s %d: rmse is %v of theory", k.Name, r.N, q)
			}
			near(t, k.Name+": bias", r.Bias, 0, 4.5*r.BiasError+c.swing+2**r.Theory**r.Theory)
			squares += q * q
			n++
		}
		q := math.Sqrt(squares / n)
		t.Logf("%s: %.3f of theory over all", k.Name, q)
		if q < 0.97*c.best || q > 1.03*c.worst {
			t.Errorf("%s: rmse over all sizes is %v of theory", k.Name, q)
		}
	}
}

func kindNamed(t *testing.T, name string) Kind {
	t.Helper()
	i := slices.IndexFunc(Kinds(), func(k Kind) bool { return k.Name == name })
	if i < 0 {
		t.Fatalf("no kind %s", name)
	}
	return Kinds()[i]
}

// TestBits: what the theory of linear counting goes by is what the counter has.
func TestBits(t *testing.T) {
	p := sketch.LinearParams{Capacity: linearCapacity}
	bits, err := p.Bits()
	if err != nil || bits%64 != 0 || bits > 8*4400 {
		t.Errorf("%d bits, %v", bits, err)
	}
	p.Capacity = 0
	if _, err := p.Bits(); err == nil {
		t.Error("a capacity of nothing has bits")
	}
}
