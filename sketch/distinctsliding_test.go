package sketch

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func newSliding(t testing.TB, precision int, window Tick) DistinctSliding {
	t.Helper()
	w, err := NewDistinctSliding(DistinctSlidingParams{Distinct: DistinctParams{Precision: precision}, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestDistinctSlidingOfAnHour: 25 things in the last hour and 31 in the six minutes before it, of a window of six
// hours. A ring of 60 slices answers 56, and says "55.99 to 56.01".
func TestDistinctSlidingOfAnHour(t *testing.T) {
	w := newSliding(t, 11, 6*hour)
	now := epoch + 5*hour/7
	for i := range 31 {
		w.Add(now-hour-1, now-hour-1-Tick(i)*hour/300, remix(uint64(i), 0))
	}
	for i := range 25 {
		w.Add(now, now-Tick(i)*hour/26, remix(uint64(100+i), 0))
	}
	union, within := w.Union(now, hour), w.Within(now, hour)
	n, _ := union.Estimate()
	least, _ := within.Estimate()
	if least != 25 || n < 25 || n > 26 {
		t.Errorf("%v, at least %v; want 25, and one more at most of the same slice", n, least)
	}
	if span := w.Span(now, hour); span < hour || span > hour+w.Slice() {
		t.Errorf("the answer covers %d us of %d, slices are of %d", span, hour, w.Slice())
	}
	if w.Slice()*50 > hour {
		t.Errorf("slices of %d us are more than 2%% of an hour", w.Slice())
	}
}

type slidingEvent struct {
	t    Tick
	hash uint64
}

// slidingTruth is the Distinct of the events of a slice and of later ones, in the form that a window has.
func slidingTruth(w *DistinctSliding, events []slidingEvent, first int64) string {
	d, _ := NewDistinct(w.Params().Distinct)
	for _, e := range events {
		if w.sliceOf(e.t) >= first {
			d.Add(e.hash)
		}
	}
	return registersOf(&d)
}

// registersOf is what a Distinct knows, whichever form it has.
func registersOf(d *Distinct) string {
	c := d.Clone()
	if !c.dense {
		c.densify(c.p)
	}
	return fmt.Sprint(c.words)
}

// TestDistinctSlidingIsTheDistinct: of several windows with clocks of their own, with late events and idle times,
// merged in any order, every window reads as the Distinct of what happened in the slices that it touches. Replicas
// agree to the byte, also one that restarts in between.
func TestDistinctSlidingIsTheDistinct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rng(rapid.Uint64().Draw(t, "seed"))
		precision := 2 + r.below(4)
		make := func() DistinctSliding {
			w, _ := NewDistinctSliding(DistinctSlidingParams{Distinct: DistinctParams{Precision: precision}, Window: hour})
			return w
		}
		parts := []DistinctSliding{make(), make(), make()}
		var events []slidingEvent
		now, things := epoch, 1+r.below(80)
		for range r.below(300) {
			if r.below(3) == 0 {
				now += Tick(r.below(1 + int(hour)/(1+r.below(30))))
			}
			e := slidingEvent{t: now - Tick(r.below(int(hour))), hash: remix(uint64(r.below(things)), 1)}
			if r.below(2) == 0 {
				e.t = now
			}
			at := r.below(len(parts))
			before := parts[at].Clone()
			if parts[at].Add(now, e.t, e.hash) {
				events = append(events, e)
			}
			if _, err := before.Decode(before.AppendBinary(nil)); err != nil {
				t.Fatal(err)
			}
			before.Add(now, e.t, e.hash)
			if string(before.AppendBinary(nil)) != string(parts[at].AppendBinary(nil)) || before.Held() != parts[at].Held() {
				t.Fatal("one that restarts differs")
			}
		}
		slidingMerges(t, &r, parts)
		parts[0].Add(now, 0, 0) // tells the time and adds nothing
		w := &parts[0]
		for range 20 {
			at, window := now+Tick(r.below(int(hour)/2)), 1+Tick(r.below(int(hour)))
			first := w.sliceOf(at - window + 1)
			union, within := w.Union(at, window), w.Within(at, window)
			if registersOf(&union) != slidingTruth(w, events, first) {
				t.Fatalf("the %d us to %d", window, at)
			}
			if Tick(first)*w.Slice() < at-window+1 {
				first++
			}
			if registersOf(&within) != slidingTruth(w, events, first) {
				t.Fatalf("whole slices in the %d us to %d", window, at)
			}
			if span := w.Span(at, window); span < window || span > window+w.Slice() {
				t.Fatalf("a window of %d us covers %d", window, span)
			}
		}
		if death := w.Death(); death > 0 {
			if d := w.Union(death, hour); registersOf(&d) != slidingTruth(w, nil, 0) {
				t.Fatal("not empty when it is dead")
			}
		}
	})
}

// slidingMerges merges parts into the first, in an order by chance, and checks the laws.
func slidingMerges(t *rapid.T, r *rng, parts []DistinctSliding) {
	for len(parts) > 1 {
		i, last := r.below(len(parts)-1), &parts[len(parts)-1]
		before := string(last.AppendBinary(nil))
		a, b := parts[i].Clone(), last.Clone()
		for _, err := range []error{parts[i].Merge(last), b.Merge(&a), b.Merge(&a)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if string(parts[i].AppendBinary(nil)) != string(b.AppendBinary(nil)) {
			t.Fatal("does not commute, or not repeat without effect")
		}
		if before != string(last.AppendBinary(nil)) {
			t.Fatal("the other changed")
		}
		parts = parts[:len(parts)-1]
	}
}

// TestDistinctSlidingReduces: merged with a lower precision it reads as if it had been of that from the start.
func TestDistinctSlidingReduces(t *testing.T) {
	for _, events := range []int{20, 3000} {
		var w [3]DistinctSliding
		for i, p := range []int{7, 4, 4} {
			w[i] = newSliding(t, p, 12*hour)
		}
		r := rng(1)
		for i := range events {
			now, h := epoch+Tick(i)*hour/100, r.next()
			if i%7 == 0 {
				h &= 1<<20 - 1 // many leading zeros
			}
			w[r.below(2)].Add(now, now, h)
			w[2].Add(now, now, h)
		}
		a, b := w[0].Clone(), w[1].Clone()
		for _, err := range []error{a.Merge(&w[1]), b.Merge(&w[0])} {
			if err != nil {
				t.Fatal(err)
			}
		}
		at := epoch + Tick(events)*hour/100
		for _, got := range []DistinctSliding{a, b} {
			for _, window := range []Tick{hour / 10, hour, 12 * hour} {
				x, y := got.Union(at, window), w[2].Union(at, window)
				if got.Params() != w[2].Params() || registersOf(&x) != registersOf(&y) {
					t.Errorf("%d events: %d us differ", events, window)
				}
			}
		}
	}
}

// TestDistinctSlidingRing: the ring of a window reads as one that saw the latest sight of each thing.
func TestDistinctSlidingRing(t *testing.T) {
	for _, things := range []int{30, 3000} {
		w := newSliding(t, 5, 60*hour)
		r, now := rng(3), epoch
		latest := map[uint64]Tick{}
		for range 4000 {
			now += Tick(r.below(int(hour) / 50))
			h := remix(uint64(r.below(things)), 0)
			w.Add(now, now, h)
			latest[h] = now
		}
		p := DistinctWindowParams{Slice: hour, Slices: 61}
		ring, err := w.Ring(p)
		if err != nil {
			t.Fatal(err)
		}
		for length := Tick(1); length < 60; length += 7 {
			want, _ := NewDistinct(w.Params().Distinct)
			first := now/hour - length + 1
			for h, at := range latest {
				if (w.sliceOf(at)+1)*int64(w.Slice())-1 >= int64(first*hour) {
					want.Add(h)
				}
			}
			if got := ring.Union(now, length*hour); registersOf(&got) != registersOf(&want) {
				t.Errorf("%d things, %d hours differ", things, length)
			}
		}
		if _, err := w.Ring(DistinctWindowParams{Slice: w.Slice() - 1, Slices: 2}); !errors.Is(err, ErrIncompatible) {
			t.Errorf("a ring of finer slices: %v", err)
		}
	}
}

// TestDistinctSlidingRingAtItsEdge: where the latest slice reaches into the next one of the ring, nothing of it is left
// out, neither of tokens nor of updates.
func TestDistinctSlidingRingAtItsEdge(t *testing.T) {
	for _, things := range []int{3, 3000} {
		w := newSliding(t, 5, 60*hour+17) // slices of both forms begin at different times
		p := DistinctWindowParams{Slice: hour + 1, Slices: 61}
		at := (epoch/p.Slice + 1) * p.Slice
		if w.sliceOf(at) != w.sliceOf(at-1) {
			t.Fatal("the slices begin at the same time")
		}
		r := rng(1)
		for range things {
			w.Add(at, at, r.next())
		}
		ring, err := w.Ring(p)
		if err != nil {
			t.Fatal(err)
		}
		got, want := ring.Union(at, 1+p.Slice), w.Union(at, 1)
		if registersOf(&got) != registersOf(&want) {
			t.Errorf("%d things differ", things)
		}
	}
}

// TestDistinctSlidingError: of windows of all lengths the error is that of a Distinct.
func TestDistinctSlidingError(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	const trials, precision = 60, 8
	windows := []Tick{hour / 2, hour, 6 * hour, 24 * hour}
	sum := make([]float64, len(windows))
	for trial := range trials {
		w := newSliding(t, precision, 24*hour)
		r, now := rng(trial), epoch
		const perHour = 2000
		for range 24 * perHour {
			now += hour / perHour
			w.Add(now, now, r.next())
		}
		for i, window := range windows {
			d := w.Union(now, window)
			n, _ := d.Estimate()
			truth := float64(perHour) * float64(window) / float64(hour)
			sum[i] += (n - truth) * (n - truth) / truth / truth
		}
	}
	for i, window := range windows {
		rmse, theory := math.Sqrt(sum[i]/trials), 0.3437/math.Sqrt(1<<precision)
		t.Logf("window of %v h: rmse %.4f, theory %.4f", float64(window)/float64(hour), rmse, theory)
		if rmse > 1.3*theory { // 3 sigma of 60 trials, and slices
			t.Errorf("window of %d us: rmse %.4f, theory %.4f", window, rmse, theory)
		}
	}
}

func TestDistinctSlidingRefuses(t *testing.T) {
	for _, p := range []DistinctSlidingParams{
		{Window: 0},
		{Window: HalfLifeMax + 1},
		{Window: hour, Distinct: DistinctParams{Precision: 1}},
	} {
		if _, err := NewDistinctSliding(p); !errors.Is(err, ErrParams) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	w := newSliding(t, 4, hour)
	w.Add(epoch, epoch, 1)
	before := string(w.AppendBinary(nil))
	for _, p := range []DistinctSlidingParams{
		{Window: hour + 1, Distinct: DistinctParams{Precision: 3}},
		{Window: hour, Distinct: DistinctParams{Precision: 3, Hash: Hash{Seed: 1}}},
	} {
		o, err := NewDistinctSliding(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Merge(&o); !errors.Is(err, ErrIncompatible) || string(w.AppendBinary(nil)) != before {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for i := range len(before) {
		if rest, err := w.Decode([]byte(before[:i])); !errors.Is(err, ErrCorrupt) || rest != nil {
			t.Errorf("%d bytes of %d: %v", i, len(before), err)
		}
	}
	full := newSliding(t, 8, hour)
	r := rng(1)
	for range 5000 {
		full.Add(epoch, epoch, r.next())
	}
	if _, err := w.DecodeWithin(full.AppendBinary(nil), full.Held()/2); !errors.Is(err, ErrCorrupt) {
		t.Errorf("decodes into half of its memory: %v", err)
	}
	if full.Held() > full.ReservedMost() {
		t.Errorf("holds %d bytes of %d", full.Held(), full.ReservedMost())
	}
}

// slidingSamples are encodings of windows in all states.
func slidingSamples(t testing.TB) (all [][]byte) {
	for _, things := range []uint64{3, 1000} {
		w := newSliding(t, 2, hour)
		all = append(all, w.AppendBinary(nil))
		r := rng(things)
		for i := range 100 {
			now := epoch + Tick(i)*hour/20
			w.Add(now, now-Tick(r.below(int(hour))), remix(r.next()%things, 0))
			if i%33 == 0 {
				all = append(all, w.AppendBinary(nil))
			}
		}
		w.Add(epoch+100*hour, epoch+100*hour-2*hour, 0)
		all = append(all, w.AppendBinary(nil))
	}
	return all
}

// FuzzDistinctSlidingDecode: what is accepted encodes to the same bytes and can be used; what is not leaves the
// receiver alone.
func FuzzDistinctSlidingDecode(f *testing.F) {
	for _, b := range slidingSamples(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w := newSliding(t, 4, hour)
		w.Add(epoch, epoch, 5)
		before := string(w.AppendBinary(nil))
		rest, err := w.DecodeWithin(b, 1<<20)
		if err != nil {
			if string(w.AppendBinary(nil)) != before {
				t.Fatal("refused, and changed the receiver")
			}
			return
		}
		if again := w.AppendBinary(nil); string(again) != string(b[:len(b)-len(rest)]) {
			t.Fatalf("%x encodes to %x", b[:len(b)-len(rest)], again)
		}
		now := w.Last()
		union := w.Union(now, w.Params().Window/3)
		union.Estimate()
		c := w.Clone()
		w.Add(now, now, 7)
		if err := c.Merge(&w); err != nil {
			t.Fatal(err)
		}
		if string(c.AppendBinary(nil)) != string(w.AppendBinary(nil)) {
			t.Fatal("merging what is part of it is not without effect")
		}
	})
}

// TestGoldenDistinctSliding: every machine computes the same bits.
func TestGoldenDistinctSliding(t *testing.T) {
	var b strings.Builder
	hash := fnv.New64a()
	w := newSliding(t, 5, 20*hour)
	r := rng(1)
	now := epoch
	for i := range 3000 {
		now += Tick(r.below(int(hour) / 10))
		w.Add(now, now-Tick(r.below(int(hour)*3)), remix(uint64(r.below(1000)), 0))
		if i%100 == 0 {
			d := w.Union(now, 1+Tick(r.below(20))*hour)
			n, stdErr := d.Estimate()
			fmt.Fprintf(&b, "after %d: %x +- %x\n", i+1, n, stdErr)
			fmt.Fprintf(hash, "%x", w.AppendBinary(nil))
		}
	}
	fmt.Fprintf(&b, "hash %016x\n", hash.Sum64())
	golden(t, "golden_distinctsliding.txt", []byte(b.String()))
}

func BenchmarkDistinctSliding(b *testing.B) {
	for _, visitors := range []int{10_000, 10_000_000} {
		w := newSliding(b, 0, 60*hour)
		r, now := rng(1), epoch
		add := func() {
			now += hour / 5000
			w.Add(now, now, remix(uint64(r.below(visitors)), 0))
		}
		for range 400_000 {
			add()
		}
		b.Run(fmt.Sprintf("add/visitors=%d", visitors), func(b *testing.B) {
			for b.Loop() {
				add()
			}
			b.ReportMetric(float64(w.Size()), "B")
		})
		b.Run(fmt.Sprintf("estimate/visitors=%d", visitors), func(b *testing.B) {
			for b.Loop() {
				d := w.Union(now, 40*hour)
				d.Estimate()
			}
		})
	}
}
