package accuracy

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/sketch"
)

// Figure is a figure that the origins published, measured again.
type Figure struct {
	// What names the things that were counted, and Structure the structure that counted them.
	What      string `json:"what"`
	Structure string `json:"structure"`
	// Origin is the published figure, in words; empty if that structure was not published.
	Origin string `json:"origin"`
	// Bias and RMSE are of the relative error; Worst is the largest error of all seeds.
	Bias  float64 `json:"bias"`
	RMSE  float64 `json:"rmse"`
	Worst float64 `json:"worst"`
	// Theory is the relative standard error in theory; 0 if none is known.
	Theory float64 `json:"theory,omitempty"`
	Bytes  int     `json:"bytes"` // encoded; 5 bits a register for the references
	Seeds  int     `json:"seeds"`

	squares float64
}

func (f *Figure) see(estimate, truth float64, bytes int) {
	e := estimate/truth - 1
	f.Seeds++
	f.Bias += (e - f.Bias) / float64(f.Seeds)
	f.squares += e * e
	f.RMSE = math.Sqrt(f.squares / float64(f.Seeds))
	f.Worst = max(f.Worst, math.Abs(e))
	f.Bytes = max(f.Bytes, bytes)
}

// The stream of words has each of WordsDistinct different words once, and between them as many repetitions, drawn by
// Zipf's law.
const (
	WordsDistinct = 4_956_262
	wordsZipf     = 1.1
)

// words calls f with the hash of every word of the stream.
func words(ctx context.Context, distinct, seed uint64, f func(hash uint64)) {
	r := rand.New(rand.NewPCG(seed, 0x776f726473))
	often := rand.NewZipf(r, wordsZipf, 1, distinct-1)
	var word [8]byte
	hash := func(id uint64) uint64 {
		binary.LittleEndian.PutUint64(word[:], id)
		return xxh3.HashSeed(word[:], seed)
	}
	for id := range distinct {
		f(hash(id))
		f(hash(often.Uint64()))
		if id%(1<<16) == 0 && ctx.Err() != nil {
			return
		}
	}
}

// counter is one structure in the table of words.
type counter struct {
	figure Figure
	fresh  func() (add func(hash uint64), read func() (estimate float64, bytes int))
	events bool // it counts all words, and not the different ones
}

// wordCounters are the structures of table 3 of the report, and further ones of ebb.
func wordCounters(seed *uint64) []counter {
	const what = "different words"
	morris := func(bits int, a float64, origin string) counter {
		return counter{
			figure: Figure{What: "words", Structure: map[int]string{8: "Morris, 8 bits", 16: "Morris, 16 bits"}[bits], Origin: origin, Theory: MorrisTheory(a, 2*WordsDistinct)},
			events: true,
			fresh: func() (func(uint64), func() (float64, int)) {
				m := must(sketch.NewMorris(sketch.MorrisParams{Bits: bits, A: a}))
				chance := rand.New(rand.NewPCG(*seed, uint64(bits)))
				return func(uint64) { _ = m.Add(0, 0, 1, chance.Uint64()) }, func() (float64, int) { return m.Estimate(0).Count, bits / 8 }
			},
		}
	}
	reference := func(name, origin string, theory float64, estimate func(*Ranks) float64) counter {
		return counter{
			figure: Figure{What: what, Structure: name + ", 2^16 registers of 5 bits (reference)", Origin: origin, Theory: theory},
			fresh: func() (func(uint64), func() (float64, int)) {
				k := NewRanks(16)
				return k.Add, func() (float64, int) { return estimate(k), k.Bytes() }
			},
		}
	}
	distinct := func(name string, p int) counter {
		return counter{
			figure: Figure{What: what, Structure: "distinct, " + name, Theory: DistinctTheory(p)},
			fresh: func() (func(uint64), func() (float64, int)) {
				d := must(sketch.NewDistinct(sketch.DistinctParams{Precision: p}))
				return func(h uint64) { d.Add(h) }, func() (float64, int) {
					n, _ := d.Estimate()
					return n, len(d.AppendBinary(nil))
				}
			},
		}
	}
	const m16, k = 1 << 16, 1 << 15
	return []counter{
		morris(8, 0.08, "6.52%"),
		morris(16, 0.0005, ""),
		reference("LogLog", "8.76% in 41 KB", LogLogTheory(m16), (*Ranks).LogLog),
		reference("SuperLogLog", "", SuperLogLogTheory(m16), (*Ranks).SuperLogLog),
		reference("HyperLogLog", "0.54% in 40 KB", HyperLogLogTheory(m16), (*Ranks).HyperLogLog),
		distinct("precision 11", 11),
		distinct("precision 13", 13),
		{
			figure: Figure{What: what, Structure: "set (KMV), k = 32768", Origin: "0.88% in 256 KB", Theory: SetTheory(k, WordsDistinct)},
			fresh: func() (func(uint64), func() (float64, int)) {
				s := must(sketch.NewSet(sketch.SetParams{K: k, Signature: -1}))
				return func(h uint64) { s.Add(h, nil) }, func() (float64, int) { return s.Estimate().Value, len(s.AppendBinary(nil)) }
			},
		},
		{
			figure: Figure{What: what, Structure: "bloom, scalable, 0.1%", Origin: "0.14% in 11,509 KB"},
			fresh: func() (func(uint64), func() (float64, int)) {
				b := must(sketch.NewBloomScalable(sketch.BloomParams{Capacity: 100_000, FalseRate: 0.001}))
				return func(h uint64) { b.Add(h) }, func() (float64, int) { return b.State().Keys, len(b.AppendBinary(nil)) }
			},
		},
		{
			figure: Figure{What: what, Structure: "bloom, 0.14%, made for 5,000,000", Origin: "0.14% in 11,509 KB"},
			fresh: func() (func(uint64), func() (float64, int)) {
				b := must(sketch.NewBloomScalable(sketch.BloomParams{Capacity: 5_000_000, FalseRate: 0.0014}))
				return func(h uint64) { b.Add(h) }, func() (float64, int) { return b.State().Keys, len(b.AppendBinary(nil)) }
			},
		},
	}
}

// Words measures the report's table of different words, once for each seed. It calls done, if not nil, after each seed.
func Words(ctx context.Context, seeds int, done func(seeds int)) ([]Figure, error) {
	return countWords(ctx, WordsDistinct, seeds, done)
}

func countWords(ctx context.Context, distinct uint64, seeds int, done func(seeds int)) ([]Figure, error) {
	var seed uint64
	counters := wordCounters(&seed)
	for range seeds {
		seed++
		adds := make([]func(uint64), len(counters))
		reads := make([]func() (float64, int), len(counters))
		for i := range counters {
			adds[i], reads[i] = counters[i].fresh()
		}
		total := 0.0
		words(ctx, distinct, seed, func(h uint64) {
			total++
			for _, add := range adds {
				add(h)
			}
		})
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i, read := range reads {
			truth := float64(distinct)
			if counters[i].events {
				truth = total
			}
			estimate, bytes := read()
			counters[i].figure.see(estimate, truth, bytes)
		}
		if done != nil {
			done(int(seed))
		}
	}
	figures := make([]Figure, len(counters))
	for i, c := range counters {
		figures[i] = c.figure
	}
	return figures, nil
}

// Overlaps measures the report's example of two sets of 50,000 things that share 25,000, with k = 1024. The error of
// the similarity, which is 1/3, is absolute.
func Overlaps(seeds int) []Figure {
	const each, both, k = 50_000, 25_000, 1024
	names := []string{"first set", "second set", "intersection", "union", "similarity"}
	truths := []float64{each, each, both, 2*each - both, 1}
	origins := []string{"50,416 (0.8%)", "52,439 (4.9%)", "25,900 (3.6%)", "75,346 (0.5%)", ""}
	figures := make([]Figure, len(names))
	for i := range figures {
		figures[i] = Figure{What: names[i] + " of 50,000 and 50,000 that share 25,000", Structure: "set, k = 1024", Origin: origins[i], Theory: SetTheory(k, truths[i])}
	}
	// both sets keep the hashes below theta, which is about k/each: the number of shared ones is almost a Poisson
	// variable
	figures[2].Theory = 1 / math.Sqrt(float64(k)*both/each)
	const similar = float64(both) / (2*each - both)
	figures[4].Theory = math.Sqrt(similar * (1 - similar) / (k * (2*each - both) / each)) // union: 1.5 times as many
	for seed := range seeds {
		a, b := must(sketch.NewSet(sketch.SetParams{K: k})), must(sketch.NewSet(sketch.SetParams{K: k}))
		r := rand.New(rand.NewPCG(uint64(seed), k))
		for i := range 2*each - both {
			h := r.Uint64()
			if i < each {
				a.Add(h, nil)
			}
			if i >= each-both {
				b.Add(h, nil)
			}
		}
		o := must(a.Compare(&b))
		union := a.Clone()
		if err := union.Merge(&b); err != nil {
			panic(err) // cannot fail: both have the same parameters
		}
		size := len(a.AppendBinary(nil))
		for i, v := range []float64{a.Estimate().Value, b.Estimate().Value, o.Intersection.Value, union.Estimate().Value, o.Jaccard.Value - similar + 1} {
			figures[i].see(v, truths[i], size)
		}
	}
	return figures
}

// Registers measures the two HyperLogLog of the report: the error of the reference estimator at the report's number of
// different words.
func Registers(ctx context.Context, seeds int) ([]Figure, error) {
	figures := []Figure{
		{Structure: "HyperLogLog, 2^12 registers (reference)", Origin: "1.625% in 2.56 KB", Theory: HyperLogLogTheory(1 << 12)},
		{Structure: "HyperLogLog, 2^16 registers (reference)", Origin: "0.4% in 40.96 KB", Theory: HyperLogLogTheory(1 << 16)},
	}
	for i, p := range []int{12, 16} {
		figures[i].What = "different things"
		k := Kind{skipFrom: 1 << p, fresh: func() subject {
			return &ranks{Ranks: NewRanks(p), estimate: (*Ranks).HyperLogLog}
		}}
		for seed := range seeds {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			trial(k, Options{Seed: uint64(p)}, seed, []uint64{WordsDistinct}, func(_ int, s subject) {
				estimate, truth := s.reads()
				_, bytes := s.bytes()
				figures[i].see(estimate, truth, bytes)
			})
		}
	}
	return figures, nil
}

// Messages measures linear counting as the article on message summaries does: with 250 to 50,000 members, and the bytes
// of an empty counter.
func Messages(seeds int) []Figure {
	const fewest, most, perDecade = 250, 50_000, 8
	p := sketch.LinearParams{Capacity: most}
	empty := must(sketch.NewLinearCounter(p))
	figures := []Figure{
		{What: "members, 250 to 50,000", Structure: "linear, capacity 50,000", Origin: "< 1% in 10,937", Theory: LinearTheory(float64(must(p.Bits())), most)},
		{What: "no members", Structure: "linear, capacity 50,000", Origin: "69 bytes", Bytes: len(empty.AppendBinary(nil)), Seeds: 1},
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(uint64(seed), most))
		l := empty.Clone()
		n := 0
		for i := 0; n < most; i++ {
			to := min(most, int(fewest*math.Pow(10, float64(i)/perDecade)))
			for ; n < to; n++ {
				if err := l.Add(r.Uint64(), nil); err != nil {
					panic(err) // cannot fail: the counter keeps no members
				}
			}
			figures[0].see(l.Estimate().Count, float64(n), len(l.AppendBinary(nil)))
		}
	}
	figures[0].Seeds = seeds
	return figures
}
