package sketch

import (
	"bytes"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"runtime"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files of testdata")

// TestGolden: every machine computes the same bits. tools/golden.sh runs it as GOAMD64=v1 and v3, with cpu.fma=off, and
// as arm64. The file changes only together with a behaviour version: replicas of different releases share a log.
func TestGolden(t *testing.T) {
	var b bytes.Buffer
	goldenFunctions(&b)
	for _, p := range everyParams() {
		goldenDistribution(t, &b, p)
	}
	golden(t, "golden.txt", b.Bytes())
}

// golden holds what was computed against a file of testdata.
func golden(t *testing.T, name string, b []byte) {
	file := "testdata/" + name
	if *update {
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, expected := bytes.Split(b, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range max(len(got), len(expected)) {
		if i >= len(got) || i >= len(expected) || !bytes.Equal(got[i], expected[i]) {
			t.Fatalf("%s on %s/%s line %d differs:\ngot  %s\nwant %s", name, runtime.GOOS, runtime.GOARCH, i+1, line(got, i), line(expected, i))
		}
	}
	t.Logf("%s: %d lines agree on %s/%s", name, len(got), runtime.GOOS, runtime.GOARCH)
}

func line(lines [][]byte, i int) []byte {
	if i < len(lines) {
		return lines[i]
	}
	return []byte("nothing")
}

// goldenFunctions writes a few values of each function, and a hash of many.
func goldenFunctions(w io.Writer) {
	for _, f := range []struct {
		name  string
		value func(*rng) float64
	}{
		{"exp2", func(r *rng) float64 { return Exp2(int64(r.below(100)), r.next()) }},
		{"exp2 of a float", func(r *rng) float64 { return exp2Float(float64(r.float()*100) - 50) }},
		{"weight", func(r *rng) float64 {
			mark, h := r.below(1e4), 1e6+r.below(1e12)
			return Weight(Tick(mark*h+r.below(100*h)-50*h), int64(mark), Tick(h))
		}},
		{"log2", func(r *rng) float64 { return Log2(math.Float64frombits(r.next()>>2 | 1<<60)) }},
		{"log2 near 1", func(r *rng) float64 { return Log2(0.99 + r.float()/50) }},
		{"leaked", func(r *rng) float64 {
			return float64((&Params{HalfLife: Tick(1e6 + r.below(1e12))}).leaked(Tick(r.next() >> 12)))
		}},
		{"quantile", func(r *rng) float64 { return normalQuantile(r.float()) }},
		{"squeeze", func(r *rng) float64 {
			v := r.float()
			c, _ := squeeze(v, dither(v, r.float()))
			return float64(c)
		}},
	} {
		r := rng(1)
		h := fnv.New64a()
		for i := range 20_000 {
			v := math.Float64bits(f.value(&r))
			fmt.Fprintf(h, "%x,", v)
			if i < 3 {
				fmt.Fprintf(w, "%s %016x\n", f.name, v)
			}
		}
		fmt.Fprintf(w, "%s hash %016x\n", f.name, h.Sum64())
	}
}

// goldenDistribution writes a short history in full, and a hash of all states and answers of a longer one.
func goldenDistribution(t *testing.T, w io.Writer, p *Params) {
	t.Helper()
	for _, events := range []int{12, 3000} {
		var d, merged Distribution
		h := history{r: rng(events), now: epoch, bins: 3 + events/20, span: 50 * hour, negative: p.AllowNegative}
		hash := fnv.New64a()
		for i := range events {
			e := h.next()
			if err := d.Add(p, e.now, e.t, e.bin, e.n); err != nil {
				t.Fatal(err)
			}
			if i%50 != 0 {
				continue
			}
			fmt.Fprintf(hash, "%x %s", d.AppendBinary(nil), goldenAnswer(&d, p, h.now+hour/3))
			if i%500 == 0 {
				converted, day := d.Clone(), *p
				day.HalfLife = 24 * hour
				converted.Convert(p, &day, h.now)
				merged.Merge(&day, &converted, nil)
				fmt.Fprintf(hash, "%x", merged.AppendBinary(nil))
			}
		}
		if events < 100 {
			fmt.Fprintf(w, "%s bytes %x\n", name(p), d.AppendBinary(nil))
			fmt.Fprintf(w, "%s answer %s\n", name(p), goldenAnswer(&d, p, h.now+hour))
		}
		fmt.Fprintf(w, "%s hash of %d %016x\n", name(p), events, hash.Sum64())
	}
}

func goldenAnswer(d *Distribution, p *Params, at Tick) string {
	r := d.At(p, at)
	probability, low, high := r.P(1, 0.95)
	return fmt.Sprintf("%s p %x %x %x death %d rate %x", answer(d, p, at), probability, low, high, d.Death(p), r.WithRate(1e-4).Z)
}
