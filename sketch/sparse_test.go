package sketch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// checkSparse compares a table with a map, and its memory with the formula.
func checkSparse[T cell](t interface{ Fatalf(string, ...any) }, s *sparseCells[T], want map[int]T) {
	if s.used != len(want) {
		t.Fatalf("%d cells are used, want %d", s.used, len(want))
	}
	got := s.size()
	if got != sparseBytes[T](len(want)) || len(s.keys) != len(s.cells) || len(s.keys) >= max(5, 8*len(want)/3+1) {
		t.Fatalf("%d slots for %d cells, %d bytes", len(s.keys), len(want), got)
	}
	for i, c := range want {
		if at := s.find(i); at == nil || *at != c {
			t.Fatalf("cell %d is not %v", i, c)
		}
	}
	last := -1
	s.ordered(func(i int, c *T) {
		if i <= last || want[i] != *c {
			t.Fatalf("cell %d after %d is %v", i, last, *c)
		}
		last = i
	})
	for i := range 50 {
		if _, used := want[i]; !used && s.find(i) != nil {
			t.Fatalf("cell %d is not zero", i)
		}
	}
}

// A table does what a map does, whatever happens to it, and its size is a function of what is in it.
func TestSparseCells(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, want := newSparse[[1]float64](1), map[int][1]float64{}
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			i := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 1<<22)).Draw(t, "cell")
			switch rapid.IntRange(0, 20).Draw(t, "step") {
			case 0:
				part := rapid.IntRange(1, 4).Draw(t, "part")
				drop := func(i int, c *[1]float64) {
					if c[0] *= 0.5; i%part == 0 {
						c[0] = 0
					}
				}
				s.change(drop)
				for i, c := range want {
					if drop(i, &c); c[0] == 0 {
						delete(want, i)
					} else {
						want[i] = c
					}
				}
			case 1:
				old := s
				s = s.clone()
				old.cell(i)[0]++
			default:
				s.cell(i)[0]++
				want[i] = [1]float64{want[i][0] + 1}
			}
			checkSparse(t, s, want)
		}
	})
}

// FuzzSparse: indexes from outside, of blocks.
func FuzzSparse(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x01\x00\x00\x00\x01\x00\x40\x00\x00"))
	f.Add(bytes.Repeat([]byte("\x12\x00\x00\x34\x00\x56\x00\x78"), 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, want := newSparse[[4]uint64](1), map[int][4]uint64{}
		for ; len(b) >= 4; b = b[4:] {
			v := binary.BigEndian.Uint32(b)
			i, k := int(v>>4&(1<<21-1)), v&3
			s.cell(i)[k] |= 1
			c := want[i]
			c[k] |= 1
			want[i] = c
		}
		if len(want) > 0 {
			checkSparse(t, s, want)
		}
	})
}

// Indexes that are chosen to meet in one run of slots cost a table no more than a few times as much as others.
func TestSparseCellsOfOneRun(t *testing.T) {
	const cells, slots = 1 << 22, 1 << 17
	s, steps := newSparse[[1]float64](slots*3/4), 0
	for i := 0; i < cells && s.used < slots/4; i++ {
		home := int(uint64(i+1)*0x9e3779b97f4a7c15>>32) & (slots - 1)
		if home > slots/64 {
			continue
		}
		for at, step := home, 1; s.keys[at] != 0; step++ {
			at, steps = (at+step)&(slots-1), steps+1
		}
		s.cell(i)[0] = 1
	}
	if s.used < slots/8 || steps/s.used > 300 {
		t.Errorf("%d cells took %d steps", s.used, steps)
	}
}

// sparseMost is where the bound of the type's comment comes from.
func TestSparseTurnsDense(t *testing.T) {
	for n := 1; n < 1<<22; n += 1 + n/7 {
		checkTurn[[1]uint64](t, n)
		checkTurn[[4]uint64](t, n)
	}
}

func checkTurn[T cell](t *testing.T, n int) {
	t.Helper()
	most, dense := sparseMost[T](n), n*cellBytes[T]()
	if most == 0 && dense >= 2*sparseBytes[T](1) || most > 0 && 2*sparseBytes[T](most) > dense {
		t.Errorf("of %d cells up to %d are in a table", n, most)
	}
	if most > 0 && dense > 6*sparseBytes[T](most) {
		t.Errorf("%d cells take %d bytes after a table of %d took %d", n, dense, most, sparseBytes[T](most))
	}
}

// twin is a sketch and another that is dense from its first event on. Both take the same events.
type twin[T any, P holder[T]] struct{ sparse, dense P }

// check compares encodings, and what is held with what a restored one holds.
func (w *twin[T, P]) check(t *rapid.T) {
	raw := w.sparse.AppendBinary(nil)
	if !bytes.Equal(raw, w.dense.AppendBinary(nil)) {
		t.Fatalf("sparse %x\ndense %x", raw, w.dense.AppendBinary(nil))
	}
	again := P(new(T))
	if rest, err := again.Decode(raw); err != nil || len(rest) > 0 {
		t.Fatalf("%x: %v", raw, err)
	}
	if again.Held() != w.sparse.Held() {
		t.Fatalf("holds %d bytes, and %d after a restart", w.sparse.Held(), again.Held())
	}
	if size := w.sparse.Size(); size > w.sparse.Held()*3/2+64 || w.sparse.Held() > size*3/2+64 {
		t.Fatalf("holds %d bytes, and takes %d", w.sparse.Held(), size)
	}
	if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
		*w.sparse = *again
	}
}

func (w *twin[T, P]) same(t *rapid.T, what string, sparse, dense any) {
	if sparse != dense {
		t.Fatalf("%s: %v, and %v when dense", what, sparse, dense)
	}
}

func hashDrawn(t *rapid.T) uint64 {
	return remix(uint64(rapid.OneOf(rapid.IntRange(0, 30), rapid.IntRange(0, 1<<20)).Draw(t, "item")), 7)
}

func steps(t *rapid.T) int {
	return rapid.OneOf(rapid.IntRange(1, 30), rapid.IntRange(100, 600)).Draw(t, "steps")
}

func TestSparseCountMin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := CountMinParams{
			Epsilon: rapid.SampledFrom([]float64{0.3, 0.05, 0.004, 1e-4}).Draw(t, "epsilon"), Delta: 0.02,
			HalfLife: rapid.SampledFrom([]Tick{0, 1000}).Draw(t, "half-life"),
		}
		fresh := func() twin[CountMin, *CountMin] {
			a, err := NewCountMin(p)
			if err != nil {
				t.Fatal(err)
			}
			b := a
			b.most = 0
			return twin[CountMin, *CountMin]{&a, &b}
		}
		all := []twin[CountMin, *CountMin]{fresh(), fresh()}
		now := Tick(1 << 40)
		for range steps(t) {
			w := &all[rapid.IntRange(0, 1).Draw(t, "which")]
			hash := hashDrawn(t)
			switch rapid.IntRange(0, 30).Draw(t, "step") {
			case 0:
				o := &all[rapid.IntRange(0, 1).Draw(t, "other")]
				c, d := o.sparse.Clone(), o.dense.Clone()
				w.same(t, "merge", w.sparse.Merge(&c), w.dense.Merge(&d))
			case 1:
				c, d := w.sparse.Clone(), w.dense.Clone()
				w.sparse, w.dense = &c, &d
			case 2:
				now += rapid.SampledFrom([]Tick{1000, 50_000, 90_000, 200_000}).Draw(t, "long")
			default:
				now += Tick(rapid.IntRange(0, 3000).Draw(t, "later"))
				at := now - Tick(rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, 150_000)).Draw(t, "late"))
				n := float64(rapid.IntRange(1, 5).Draw(t, "amount")) * 0.7
				w.same(t, "add", w.sparse.Add(now, at, hash, n), w.dense.Add(now, at, hash, n))
			}
			w.check(t)
			w.same(t, "estimate", w.sparse.Estimate(now, hash), w.dense.Estimate(now, hash))
			w.same(t, "death", w.sparse.Death(0.5), w.dense.Death(0.5))
		}
	})
}

func TestSparseBloom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := BloomParams{Capacity: rapid.SampledFrom([]uint64{3, 60, 500, 100_000}).Draw(t, "capacity"), FalseRate: 0.02}
		fresh := func() twin[Bloom, *Bloom] {
			a, err := NewBloom(p)
			if err != nil {
				t.Fatal(err)
			}
			b := a
			b.bits.most = 0
			return twin[Bloom, *Bloom]{&a, &b}
		}
		all := []twin[Bloom, *Bloom]{fresh(), fresh()}
		for range steps(t) {
			w := &all[rapid.IntRange(0, 1).Draw(t, "which")]
			hash := hashDrawn(t)
			switch rapid.IntRange(0, 30).Draw(t, "step") {
			case 0:
				o := &all[rapid.IntRange(0, 1).Draw(t, "other")]
				c, d := o.sparse.Clone(), o.dense.Clone()
				w.same(t, "merge", w.sparse.Merge(&c), w.dense.Merge(&d))
			default:
				w.same(t, "add", w.sparse.Add(hash), w.dense.Add(hash))
			}
			w.check(t)
			hash = hashDrawn(t)
			w.same(t, "has", w.sparse.Has(hash), w.dense.Has(hash))
			w.same(t, "state", w.sparse.State(), w.dense.State())
		}
	})
}

func TestSparseLinear(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.SampledFrom([]uint64{1000, 100_000, 10_000_000}).Draw(t, "capacity")
		p := LinearParams{Capacity: capacity, StandardError: 0.02}
		fresh := func() twin[LinearCounter, *LinearCounter] {
			a, err := NewLinearCounter(p)
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(LinearExactMax - 5) {
				if err := a.Add(remix(i, 3), nil); err != nil {
					t.Fatal(err)
				}
			}
			b := a.Clone()
			b.bits.most = 0
			return twin[LinearCounter, *LinearCounter]{&a, &b}
		}
		all := []twin[LinearCounter, *LinearCounter]{fresh(), fresh()}
		for range steps(t) {
			w := &all[rapid.IntRange(0, 1).Draw(t, "which")]
			switch rapid.IntRange(0, 30).Draw(t, "step") {
			case 0:
				o := &all[rapid.IntRange(0, 1).Draw(t, "other")]
				c, d := o.sparse.Clone(), o.dense.Clone()
				w.same(t, "merge", w.sparse.Merge(&c), w.dense.Merge(&d))
			default:
				hash := hashDrawn(t)
				w.same(t, "add", w.sparse.Add(hash, nil), w.dense.Add(hash, nil))
			}
			w.check(t)
			w.same(t, "estimate", w.sparse.Estimate(), w.dense.Estimate())
		}
	})
}

func TestSparseBloomExpiring(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := BloomExpiringParams{
			Capacity: rapid.SampledFrom([]uint64{3, 100, 3000, 100_000}).Draw(t, "capacity"), FalseRate: 0.02,
			Window: rapid.SampledFrom([]Tick{0, 10_000}).Draw(t, "window"),
		}
		fresh := func() twin[BloomExpiring, *BloomExpiring] {
			a, err := NewBloomExpiring(p)
			if err != nil {
				t.Fatal(err)
			}
			b := a
			b.bits.most = 0
			return twin[BloomExpiring, *BloomExpiring]{&a, &b}
		}
		all := []twin[BloomExpiring, *BloomExpiring]{fresh(), fresh()}
		now := Tick(1 << 40)
		for range steps(t) {
			w := &all[rapid.IntRange(0, 1).Draw(t, "which")]
			hash := hashDrawn(t)
			switch rapid.IntRange(0, 30).Draw(t, "step") {
			case 0:
				o := &all[rapid.IntRange(0, 1).Draw(t, "other")]
				c, d := o.sparse.Clone(), o.dense.Clone()
				if errC, errD := w.sparse.Merge(&c), w.dense.Merge(&d); (errC == nil) != (errD == nil) {
					t.Fatalf("merge: %v, and %v when dense", errC, errD)
				}
			case 1:
				now += rapid.SampledFrom([]Tick{5_000, 9_000, 50_000}).Draw(t, "long")
			default:
				now += Tick(rapid.IntRange(0, 300).Draw(t, "later"))
				at := now - Tick(rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, 20_000)).Draw(t, "late"))
				w.same(t, "add", w.sparse.Add(now, at, hash), w.dense.Add(now, at, hash))
			}
			w.check(t)
			hash = hashDrawn(t)
			at := now + Tick(rapid.IntRange(0, 12_000).Draw(t, "read"))
			w.same(t, "has", w.sparse.Has(at, hash), w.dense.Has(at, hash))
			w.same(t, "state", w.sparse.State(at), w.dense.State(at))
			w.same(t, "death", w.sparse.Death(), w.dense.Death())
		}
	})
}

// A sketch that was dense and has faded is sparse again.
func TestSparseAgain(t *testing.T) {
	c := newCountMin(t, 0.01, 0.01, 1000)
	e, err := NewBloomExpiring(BloomExpiringParams{Capacity: 10_000, FalseRate: 0.01, Window: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	now := Tick(1 << 40)
	for i := range 5000 {
		if err := c.Add(now, now, hashOf(0, i), 1); err != nil {
			t.Fatal(err)
		}
		e.Add(now, now, hashOf(0, i))
	}
	if c.few != nil || e.bits.few != nil {
		t.Fatal("not dense")
	}
	now += 99_000
	if err := c.Add(now, now, 1, 1); err != nil {
		t.Fatal(err)
	}
	now += 90_000
	if err := c.Add(now, now, 1, 1); err != nil {
		t.Fatal(err)
	}
	e.Add(now, now, 1)
	if c.cells != nil || c.few.used != c.depth || e.bits.words != nil || c.Held() > 1000 || e.Held() > 1000 {
		t.Errorf("one item holds %d and %d bytes", c.Held(), e.Held())
	}
	if n := c.Estimate(now, 1).Count; math.Abs(n-1) > 0.1 {
		t.Errorf("it counts %v", n)
	}
}

// BenchmarkNewSketch makes sketches of large sizes and adds some events to each.
func BenchmarkNewSketch(b *testing.B) {
	for _, events := range []int{1, 100, 10_000} {
		run := func(name string, f func()) {
			b.Run(fmt.Sprintf("%s/events=%d", name, events), func(b *testing.B) {
				for b.Loop() {
					f()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events), "ns/event")
			})
		}
		count, _ := NewCountMin(CountMinParams{Epsilon: 3.2e-5, Delta: 1e-5})
		run("countmin", func() {
			c := count.Clone()
			for i := range events {
				_ = c.Add(epoch, epoch, hashOf(0, i), 1)
			}
		})
		bloom, _ := NewBloomScalable(BloomParams{Capacity: 4_000_000, FalseRate: 0.01})
		run("bloom", func() {
			f := bloom.Clone()
			for i := range events {
				f.Add(hashOf(0, i))
			}
		})
		expiring, _ := NewBloomExpiring(BloomExpiringParams{Capacity: 4_000_000, FalseRate: 0.01, Window: hour})
		run("expiring", func() {
			f := expiring.Clone()
			for i := range events {
				f.Add(epoch, epoch, hashOf(0, i))
			}
		})
	}
}
