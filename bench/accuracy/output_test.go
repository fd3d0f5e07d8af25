package accuracy

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write golden files instead of comparing them")

// TestGoldenCSV: the same seeds give the same bytes on every machine, from the first addition to the last digit.
func TestGoldenCSV(t *testing.T) {
	var rows []Row
	for _, name := range []string{"distinct-1k", "set", "linear", "morris-8", "hyperloglog"} {
		r, err := Run(t.Context(), kindNamed(t, name), Options{Trials: 8, Exact: 3000, Max: 1_000_000_000_000, PerDecade: 1})
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r...)
	}
	var b bytes.Buffer
	if err := WriteCSV(&b, rows); err != nil {
		t.Fatal(err)
	}
	const file = "testdata/accuracy.csv"
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s is stale (-update writes it); got\n%s", file, b.Bytes())
	}
}

func rowsOf(theory *float64, n ...uint64) (rows []Row) {
	for i, size := range n {
		rows = append(rows, Row{Kind: "k", N: size, Bias: 0.001 * float64(1-i%3), RMSE: 0.01 * float64(i), Theory: theory, Trials: 100})
	}
	return rows
}

// TestPlots are well-formed SVG that names what it shows, whatever there is to show, the same bytes each time.
func TestPlots(t *testing.T) {
	theory, none := 0.02, 0.0
	for name, rows := range map[string][]Row{
		"many sizes":    rowsOf(&theory, 1, 10, 100, 1000, 1e9, 1e18),
		"one size":      rowsOf(&theory, 1),
		"all exact":     rowsOf(&none, 1),
		"no theory":     rowsOf(nil, 1, 10, 100),
		"theory late":   append(rowsOf(nil, 1, 10), rowsOf(&theory, 100, 1000)...),
		"no error much": {{N: 5, RMSE: 1e-300, Bias: -1e-300, Theory: &theory, Trials: 1}},
	} {
		for what, plot := range map[string]func(io.Writer, string, []Row) error{"rmse": PlotRMSE, "bias": PlotBias} {
			var a, b bytes.Buffer
			if err := errors.Join(plot(&a, "sets of a few things", rows), plot(&b, "sets of a few things", rows)); err != nil {
				t.Errorf("%s of %s: %v", what, name, err)
				continue
			}
			if !bytes.Equal(a.Bytes(), b.Bytes()) {
				t.Errorf("%s of %s: two plots of the same differ", what, name)
			}
			for _, part := range []string{"<svg", "sets of a few things", "things", what + ", %"} {
				if !strings.Contains(a.String(), part) {
					t.Errorf("%s of %s: no %q", what, name, part)
				}
			}
			if strings.Contains(a.String(), "NaN") || strings.Contains(a.String(), "-9223372036854775808") {
				t.Errorf("%s of %s has a point that is nowhere", what, name)
			}
			d := xml.NewDecoder(&a)
			for {
				if _, err := d.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("%s of %s: %v", what, name, err)
				}
			}
		}
	}
}

// TestWords: every structure of the table counts a short stream within 4.5 standard errors, the references once there
// are many more words than registers.
func TestWords(t *testing.T) {
	const seeds = 2
	distinct := uint64(1_000_000)
	if testing.Short() {
		distinct = 700_000
	}
	figures, err := countWords(t.Context(), distinct, seeds, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		t.Logf("%-50s bias %+.3f%%, rmse %.3f%%, theory %.3f%%, %d bytes", f.Structure, 100*f.Bias, 100*f.RMSE, 100*f.Theory, f.Bytes)
		limit := f.Theory
		if limit == 0 {
			limit = 0.001 // words that the filter took for others
		}
		if strings.HasPrefix(f.Structure, "SuperLogLog") {
			limit += 0.0141 / 4.5
		}
		if f.Seeds != seeds || f.Worst > 4.5*limit || f.RMSE > f.Worst+1e-12 || f.Bytes == 0 {
			t.Errorf("%+v", f)
		}
	}
}

// TestWordsAreWhatTheyAre: every word comes, and Zipf's repetitions come in between.
func TestWordsAreWhatTheyAre(t *testing.T) {
	count := map[uint64]int{}
	total, most := 0, 0
	words(t.Context(), 1000, 7, func(h uint64) {
		total++
		count[h]++
		most = max(most, count[h])
	})
	if len(count) != 1000 || total != 2000 || most < 100 {
		t.Errorf("%d different words of %d, one %d times", len(count), total, most)
	}
}

// TestOverlaps: the report's example, rms of 200 seeds within theory.
func TestOverlaps(t *testing.T) {
	seeds := 200
	if testing.Short() {
		seeds = 60
	}
	for _, f := range Overlaps(seeds) {
		t.Logf("%s: bias %+.3f%%, rmse %.3f%%, theory %.3f%%", f.What, 100*f.Bias, 100*f.RMSE, 100*f.Theory)
		chance := 4.5 / math.Sqrt(2*float64(seeds))
		if q := f.RMSE / f.Theory; q > 1.05+chance || q < 0.9-chance {
			t.Errorf("%s: rmse is %v of theory", f.What, q)
		}
		near(t, f.What+": bias", f.Bias, 0, 4.5*f.Theory/math.Sqrt(float64(seeds)))
	}
}

// TestMessages: linear counting from 250 to 50,000 within 1%, and an empty counter in a few bytes.
func TestMessages(t *testing.T) {
	figures := Messages(20)
	for _, f := range figures {
		t.Logf("%s: bias %+.3f%%, rmse %.3f%%, worst %.3f%%, theory %.3f%%, %d bytes", f.What, 100*f.Bias, 100*f.RMSE, 100*f.Worst, 100*f.Theory, f.Bytes)
	}
	many, none := figures[0], figures[1]
	if many.RMSE > 0.01 || many.RMSE < 0.001 || many.Bytes > 8192 || none.Bytes > 69 || none.Bytes == 0 {
		t.Errorf("%+v, %+v", many, none)
	}
	near(t, "bias", many.Bias, 0, 0.002)
}

// TestRegisters: the HyperLogLog of the report, at its number of words.
func TestRegisters(t *testing.T) {
	const seeds = 40
	figures, err := Registers(t.Context(), seeds)
	if err != nil {
		t.Fatal(err)
	}
	for i, bytes := range []int{2560, 40_960} {
		f := figures[i]
		near(t, f.Structure+": rmse of theory", f.RMSE/f.Theory, 1, 0.05+4.5/math.Sqrt(2*seeds))
		near(t, f.Structure+": bytes", float64(f.Bytes), float64(bytes), 0)
	}
}

// TestBounds: what was promised holds, and the promises are not idle: what may happen does.
func TestBounds(t *testing.T) {
	for _, b := range Bounds(2) {
		t.Logf("%s: %s: limit %v, measured %v in %d", b.Kind, b.Promise, b.Limit, b.Measured, b.Checks)
		if !b.Within || b.Checks == 0 {
			t.Errorf("%+v", b)
		}
		if b.Kind != "countmin" && b.Limit > 0 && b.Measured < b.Limit/4 {
			t.Errorf("%s: %s: %v is far below %v", b.Kind, b.Promise, b.Measured, b.Limit)
		}
	}
	for _, c := range []struct {
		bound  Bound
		within bool
	}{
		{rate("k", "never", 0, 0, 10), true},
		{rate("k", "never", 0, 1, 1_000_000), false},
		{rate("k", "rarely", 0.01, 110, 10_000), true},
		{rate("k", "rarely", 0.01, 200, 10_000), false},
		{largest("k", "small", 0.01, 0.01, 1), true},
		{largest("k", "small", 0.01, 0.011, 1), false},
	} {
		if c.bound.Within != c.within {
			t.Errorf("%+v", c.bound)
		}
	}
}
