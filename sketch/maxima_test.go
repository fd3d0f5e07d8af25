package sketch

import (
	"math"
	"slices"
	"testing"
)

// Whatever is done to a large distribution, each maximum is an upper bound of its block, and Top and TopTied are the
// beginning of All, which looks at every bin.
func TestTopByMaxima(t *testing.T) {
	for _, p := range everyParams() {
		t.Run(name(p), func(t *testing.T) {
			t.Parallel()
			r := rng(7)
			steps := make([]byte, 400)
			for i := range steps {
				steps[i] = byte(r.next())
			}
			churn(t, p, 1500, steps)
		})
	}
}

// What is left of values that shrank is looked for where it is: a maximum that is too large costs time only.
func TestTopAfterDecreases(t *testing.T) {
	p := wideParams()
	p.AllowNegative = true
	d := filled(p, 5000)
	for i := range 2500 {
		if err := d.Add(p, epoch, epoch, uint32(i*7), -1.5); err != nil {
			t.Fatal(err)
		}
	}
	checkTop(t, d, p, epoch)
}

// A distribution that was made up, whose values are 0 and whose latest event is so early that they are to be multiplied
// by infinity, is read like any other.
func TestTopOfNothingTimesInfinity(t *testing.T) {
	for _, p := range []*Params{wideParams(), compactParams()} {
		d := filled(p, 3000)
		for i := range d.Len() {
			d.setRaw(i, 0)
		}
		d.remax()
		d.last = 0
		for _, rate := range []float64{0, 1e-9} {
			r := d.At(p, epoch).WithRate(rate)
			if got, want := r.Top(10, nil), r.All(nil); !slices.Equal(got, want[:min(10, len(want))]) {
				t.Errorf("top %v, of all %v", got, want)
			}
		}
	}
}

// FuzzTop does what the bytes say to a large distribution.
func FuzzTop(f *testing.F) {
	all := everyParams()
	for i := range all {
		f.Add(byte(i), uint16(1025+i*100), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, byte(i), 250, 128, 64})
	}
	f.Fuzz(func(t *testing.T, kind byte, bins uint16, steps []byte) {
		churn(t, all[int(kind)%len(all)], int(bins)%4096, steps[:min(len(steps), 60)])
	})
}

// churn fills a distribution, whose counts often tie, and lets each byte do something to it.
func churn(t *testing.T, p *Params, bins int, steps []byte) {
	now := epoch
	d := &Distribution{}
	add := func(t *testing.T, bin int, n float64) {
		if err := d.Add(p, now, now, uint32(bin), n); err != nil {
			t.Fatal(err)
		}
	}
	for i := range bins {
		add(t, i*7, float64(1+i*i%13))
	}
	checkTop(t, d, p, now)
	for i, step := range steps {
		bin := (i*256 + int(step)) * 31 % (bins + 200)
		switch step % 16 {
		case 0:
			now += Tick(step) * hour / 64
		case 1:
			d.Prune(p, now, nil)
		case 2:
			if p.Decay == HalfLife && p.landmark(now) > d.mark {
				d.rebase(p.landmark(now))
			}
		case 3:
			b := d.AppendBinary(nil)
			if _, err := d.Decode(b); err != nil {
				t.Fatal(err)
			}
		case 4:
			d.Place(slices.Repeat([]uint64{math.MaxUint64}, d.WordsFor(d.Len())+int(step)))
			var h Header
			d.Header(&h)
			*d = loaded(&h, d.Words())
		case 5:
			o := filled(p, int(step))
			d.Merge(p, o, func(bin uint32) uint32 { return bin * uint32(step) })
		case 6:
			longer := *p
			longer.HalfLife *= 2
			d.Convert(p, &longer, now)
			d.Convert(&longer, p, now)
		case 7:
			other := *p
			other.Decay = (p.Decay + 1) % 3
			d.Convert(p, &other, now)
			d.Convert(&other, p, now)
		case 8:
			if p.AllowNegative {
				add(t, bin*7, -float64(step))
			}
		default:
			add(t, bin*7, float64(step%5))
		}
		if i%20 == 0 || i == len(steps)-1 {
			checkTop(t, d, p, now+Tick(step)*hour/100)
		}
	}
}

func checkTop(t *testing.T, d *Distribution, p *Params, at Tick) {
	t.Helper()
	if d.room > maximaMin {
		for i := range d.Len() {
			if m := d.maxima()[i/block]; d.less(m, d.raw(i)) {
				t.Fatalf("bin %d of %d holds %x, the maximum of its block is %x", i, d.Len(), d.raw(i), m)
			}
		}
	}
	full, brief := d.At(p, at), d.Brief(p, at)
	if full.Z != brief.Z || full.Z2 != brief.Z2 || full.EffectiveN != brief.EffectiveN || full.Bins > brief.Bins || full.Last != brief.Last {
		t.Fatalf("a brief reading is %+v, a full one %+v", brief, full)
	}
	for _, r := range []Reading{full, brief, full.WithRate(1e-4), brief.WithRate(1e-4)} {
		all := r.All(nil)
		for _, n := range []int{1, 10, sortedMax, sortedMax + 1, 300, 10_000} {
			want := all[:min(n, len(all))]
			if got := r.Top(n, nil); !slices.Equal(got, want) {
				t.Fatalf("top %d of %d bins: %v, want %v", n, d.Len(), got, want)
			}
			for len(want) > 0 && len(want) < len(all) && all[len(want)].Count == want[n-1].Count {
				want = all[:len(want)+1]
			}
			if got := r.TopTied(n, nil); !slices.Equal(got, want) {
				t.Fatalf("top %d of %d bins and what ties: %v, want %v", n, d.Len(), got, want)
			}
		}
	}
}
