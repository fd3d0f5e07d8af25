package sketch

import (
	"fmt"
	"testing"
)

const hour = Tick(3_600_000_000)

// epoch is where the tests' clocks start.
const epoch = Tick(1_700_000_000_000_000)

func wideParams() *Params {
	return &Params{Decay: HalfLife, HalfLife: hour, Floor: Prune, Threshold: 0.001}
}

func compactParams() *Params {
	p := wideParams()
	p.Compact = true
	return p
}

func linearParams() *Params {
	p := wideParams()
	p.Decay = Linear
	return p
}

// rng is splitmix64: the same numbers everywhere.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below is a number in 0..n-1.
func (r *rng) below(n int) int { return int(r.next() % uint64(n)) }

// float is a number in [0, 1).
func (r *rng) float() float64 { return float64(r.next()>>11) * 0x1p-53 }

// filled is a distribution of the given number of bins, with ids far apart.
func filled(p *Params, bins int) *Distribution {
	d := &Distribution{}
	r := rng(bins)
	for i := range bins {
		if err := d.Add(p, epoch, epoch-Tick(r.below(3600))*1e6, uint32(i*7), 1+r.float()); err != nil {
			panic(err)
		}
	}
	return d
}

// BenchmarkAdd adds to random bins of random distributions, as a shard does. Most of these are in no cache.
func BenchmarkAdd(b *testing.B) {
	for _, c := range []struct {
		name                string
		p                   *Params
		bins, distributions int
		late                bool
	}{
		{"wide/bins=10/distributions=100000", wideParams(), 10, 100_000, false},
		{"wide/bins=50/distributions=100000", wideParams(), 50, 100_000, false},
		{"wide/bins=260/distributions=30000", wideParams(), 260, 30_000, false},
		{"wide/bins=10/distributions=1000000", wideParams(), 10, 1_000_000, false},
		{"wide/bins=50/distributions=1/late", wideParams(), 50, 1, true},
		{"wide/bins=64/distributions=1", wideParams(), 64, 1, false},
		{"wide/bins=260/distributions=1", wideParams(), 260, 1, false},
		{"compact/bins=50/distributions=100000", compactParams(), 50, 100_000, false},
		{"compact/bins=260/distributions=30000", compactParams(), 260, 30_000, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			all := make([]Distribution, c.distributions)
			size := 0
			for i := range all {
				all[i] = filled(c.p, c.bins).Clone()
				size += all[i].Size()
			}
			r := rng(1)
			now := epoch
			b.ResetTimer()
			for b.Loop() {
				x := r.next()
				d := &all[x>>32%uint64(len(all))]
				now++
				t := now
				if c.late {
					t -= 1e9
				}
				if err := d.Add(c.p, now, t, uint32(x)%uint32(c.bins)*7, 1); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(size)/float64(c.distributions*c.bins), "B/bin")
		})
	}
}

// BenchmarkAddTouched is BenchmarkAdd in batches that are touched first, as the commands of a log entry can be.
func BenchmarkAddTouched(b *testing.B) {
	for _, c := range []struct {
		name                string
		p                   *Params
		bins, distributions int
	}{
		{"wide/bins=10/distributions=1000000", wideParams(), 10, 1_000_000},
		{"wide/bins=50/distributions=100000", wideParams(), 50, 100_000},
		{"wide/bins=260/distributions=30000", wideParams(), 260, 30_000},
		{"compact/bins=50/distributions=100000", compactParams(), 50, 100_000},
	} {
		b.Run(c.name, func(b *testing.B) {
			all := make([]Distribution, c.distributions)
			for i := range all {
				all[i] = filled(c.p, c.bins).Clone()
			}
			r, now, touched := rng(1), epoch, uint64(0)
			var batch [32]struct {
				d   *Distribution
				bin uint32
			}
			b.ResetTimer()
			for i := 0; i < b.N; i += len(batch) {
				for j := range batch {
					x := r.next()
					batch[j].d, batch[j].bin = &all[x>>32%uint64(len(all))], uint32(x)%uint32(c.bins)*7
					touched += uint64(batch[j].d.room)
				}
				for j := range batch {
					touched += batch[j].d.Touch(batch[j].bin)
				}
				for j := range batch {
					now++
					if err := batch[j].d.Add(c.p, now, now, batch[j].bin, 1); err != nil {
						b.Fatal(err)
					}
				}
			}
			if touched == 0 {
				b.Fatal("nothing was touched")
			}
		})
	}
}

// BenchmarkNewBin grows distributions from nothing.
func BenchmarkNewBin(b *testing.B) {
	for _, bins := range []int{10, 260, 100_000} {
		b.Run(fmt.Sprint(bins), func(b *testing.B) {
			p := wideParams()
			var d Distribution
			i := 0
			for b.Loop() {
				if i%bins == 0 {
					d = Distribution{}
				}
				if err := d.Add(p, epoch, epoch, uint32(i%bins)*7, 1); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

// BenchmarkTop takes the top 10 of a reading (top), makes a brief one first (brief), and makes a full one (at).
func BenchmarkTop(b *testing.B) {
	b.Run("260", func(b *testing.B) { benchmarkTop(b, 260, 10) })
	b.Run("1M", func(b *testing.B) { benchmarkTop(b, 1_000_000, 10) })
}

func benchmarkTop(b *testing.B, bins, n int) {
	for _, c := range []struct {
		name string
		p    *Params
	}{{"wide", wideParams()}, {"compact", compactParams()}, {"linear", linearParams()}} {
		p, name := c.p, c.name
		d := filled(p, bins)
		dst := make([]Bin, 0, n)
		r := d.At(p, epoch+hour/3)
		b.Run(name+"/top", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				dst = r.Top(n, dst[:0])
			}
		})
		b.Run(name+"/brief", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				brief := d.Brief(p, epoch+hour/3)
				dst = brief.Top(n, dst[:0])
			}
		})
		b.Run(name+"/at", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r = d.At(p, epoch+hour/3)
			}
		})
	}
}

func BenchmarkExp2(b *testing.B) {
	x, sum := uint64(0), 0.0
	for b.Loop() {
		x += 0x9e3779b97f4a7c15
		sum += Exp2(3, x)
	}
	_ = sum
}

func BenchmarkWeight(b *testing.B) {
	t, sum := epoch, 0.0
	for b.Loop() {
		t++
		sum += Weight(t, int64(epoch/hour), hour)
	}
	_ = sum
}

func BenchmarkLog2(b *testing.B) {
	x, sum := 1.5, 0.0
	for b.Loop() {
		x += 1e-3
		sum += Log2(x)
	}
	_ = sum
}

func BenchmarkEncode(b *testing.B) {
	d := filled(wideParams(), 260)
	buf := d.AppendBinary(nil)
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			buf = d.AppendBinary(buf[:0])
		}
	})
	b.Run("decode", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Decode(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
