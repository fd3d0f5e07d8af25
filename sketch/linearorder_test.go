package sketch

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"testing"
)

// leakyEvent is an event of a leaky bucket.
type leakyEvent struct {
	at  Tick
	bin uint32
	n   float64
}

// leaky is what buckets have in the end, with their events in the order of times.
func leaky(p *Params, events []leakyEvent, end Tick) map[uint32]float64 {
	sorted := slices.Clone(events)
	slices.SortStableFunc(sorted, func(a, b leakyEvent) int { return cmp.Compare(a.at, b.at) })
	level := map[uint32]int64{}
	for _, e := range sorted {
		level[e.bin] = max(max(level[e.bin], p.leaked(e.at))+toMicro(e.n), p.leaked(e.at))
	}
	out := map[uint32]float64{}
	for bin, l := range level {
		out[bin] = float64(max(l-p.leaked(end), 0)) / microPerCount
	}
	return out
}

// Under linear decay, what a bin has with its events in the order of their times lies between what it is said to have
// and what is lost more, whatever order they come in, with and without negative amounts, prunings and encodings.
// Without Bounded it does not.
func TestLinearInAnyOrder(t *testing.T) {
	const bins, end = 12, epoch + 30*hour
	var widest, count [3]float64
	wrong := 0
	for seed := range 600 {
		for _, bounded := range []bool{true, false} {
			r := rng(seed)
			p := &Params{
				Decay: Linear, HalfLife: hour, Threshold: []float64{0.001, 0.4}[r.below(2)], OrderFree: true, Bounded: bounded,
				AllowNegative: r.below(3) == 0, BinsMax: []int{0, 8}[r.below(2)],
			}
			events := make([]leakyEvent, 400)
			size := []float64{0.0004, 0.1, 1, 10}[r.below(4)]
			for i := range events {
				events[i] = leakyEvent{
					at:  epoch + Tick(r.below(int(30*hour))),
					bin: uint32(r.below(bins)),
					n:   size * r.float(),
				}
				if p.AllowNegative && r.below(4) == 0 {
					events[i].n = -events[i].n
				}
			}
			lateness := r.below(3)
			switch lateness {
			case 0: // a few minutes late
				slices.SortFunc(events, func(a, b leakyEvent) int { return cmp.Compare(a.at, b.at) })
				for i := range events {
					events[i].at -= Tick(r.below(int(hour / 10)))
				}
			case 1:
				slices.SortFunc(events, func(a, b leakyEvent) int { return cmp.Compare(b.at, a.at) })
			}
			var d Distribution
			var taken []leakyEvent
			clock := Tick(0)
			for _, e := range events {
				if clock = max(clock, e.at); d.Dead(p, clock) {
					d.Prune(p, clock, nil)
				}
				switch err := d.Add(p, clock, e.at, e.bin, e.n); {
				case err == ErrTooManyBins:
					continue
				case err != nil:
					t.Fatal(err)
				}
				taken = append(taken, e)
				if bounded && r.below(20) == 0 {
					d.Prune(p, clock, nil)
				}
				if r.below(30) == 0 {
					var again Distribution
					if rest, err := again.Decode(d.AppendBinary(nil)); err != nil || len(rest) > 0 {
						t.Fatal(err)
					}
					d = again
				}
			}
			reading, truth := d.At(p, end), leaky(p, taken, end)
			sum, least := 0.0, reading.Z
			for _, n := range truth {
				sum += n
			}
			if p.AllowNegative {
				least -= reading.Lost
			}
			if bounded && (sum < least-1e-9 || sum > reading.Z+reading.Lost+1e-9) {
				t.Fatalf("stream %d, %+v: Z is %v, told %v and at most %v more", seed, *p, sum, reading.Z, reading.Lost)
			}
			for bin := range uint32(bins) {
				c, short, want := reading.Count(bin), reading.Short(bin), truth[bin]
				low := c
				if p.AllowNegative {
					low -= short
				}
				if want >= low-1e-9 && want <= c+short+1e-9 {
					widest[lateness] += short
					count[lateness] += c
					continue
				}
				if wrong++; bounded {
					t.Fatalf(
						"stream %d, %+v: bin %d has %v, told %v and at most %v more",
						seed,
						*p,
						bin,
						want,
						c,
						short,
					)
				}
			}
		}
	}
	if wrong == 0 {
		t.Error("without bounds all counts are right")
	}
	for i, order := range []string{"up to 6 minutes late", "newest first", "any order"} {
		t.Logf("%s: %.3g of what is counted is lost", order, widest[i]/count[i])
	}
	t.Logf("%d counts are wrong without bounds", wrong)
}

// What bins below the threshold have left is part of Z, and is Other; also where no bin is visible.
func TestLinearCountsWhatIsHidden(t *testing.T) {
	for _, floor := range []Floor{Prune, Prior} {
		for _, busy := range []float64{20, 1} {
			p := &Params{
				Decay: Linear, HalfLife: hour, Floor: floor, Threshold: 0.1, Prior: 0.5, OrderFree: true, Bounded: true,
			}
			var d Distribution
			z, hidden := busy-0.92+6*0.08, 6*0.08
			for bin := range uint32(7) {
				n := 1.0
				if bin == 0 {
					n = busy
				}
				if err := d.Add(p, epoch, epoch, bin, n); err != nil {
					t.Fatal(err)
				}
			}
			if busy == 1 {
				hidden = z
			}
			if floor == Prior {
				z += 7 * p.Prior
			}
			at := p.leakedBy(p.leaked(epoch) + 920_000)
			for _, r := range []Reading{d.At(p, at), d.Brief(p, at), d.At(p, epoch).WithRate(0), d.At(p, at).Left()} {
				wantZ, wantOther := z, hidden
				switch {
				case r.At == epoch:
					wantZ, wantOther = z+7*0.92, 0
				case r.Brief || r.least == 1:
					wantOther = 0
				}
				if math.Abs(r.Z-wantZ) > 1e-4 || math.Abs(r.Other-wantOther) > 1e-4 {
					t.Errorf("floor %d, %v: z %v, other %v, want %v, %v", floor, busy, r.Z, r.Other, wantZ, wantOther)
				}
			}
		}
	}
}

// A summary lives until nothing can be left of any bin, and Death says when that is.
func TestLinearDiesWhenNothingIsLost(t *testing.T) {
	p := &Params{Decay: Linear, HalfLife: hour, Threshold: 0.001, OrderFree: true, Bounded: true}
	var d Distribution
	if err := d.Add(p, epoch+100*hour, epoch, 1, 3); err != nil {
		t.Fatal(err)
	}
	if r := d.At(p, epoch+100*hour); r.Count(1) != 0 || math.Abs(r.Lost-3.001) > 1e-5 {
		t.Errorf("a late event counts %v, at most %v more", r.Count(1), r.Lost)
	}
	death := d.Death(p)
	if before := death - hour/1000; d.Dead(p, before) || !d.Dead(p, death) {
		t.Errorf("it is dead %t before its death and %t at it", d.Dead(p, before), d.Dead(p, death))
	}
	if want := epoch + 100*hour + hour*3*1000/693; death < want-hour/100 || death > want+hour/100 {
		t.Errorf("it dies at %d, not about %d", death, want)
	}
	r, lost := d.At(p, death-hour/10), 0.1*math.Ln2
	if math.Abs(r.Lost-lost) > 0.01 {
		t.Errorf("a tenth of a half-life before its death %v is lost, not about %v", r.Lost, lost)
	}
	d.Prune(p, death, nil)
	if d.Len() != 0 || d.At(p, death).Lost != p.LostAtBirth(death) {
		t.Errorf("after its death: %d bins, %v", d.Len(), d.At(p, death).Lost)
	}
}

// Events in the order of their times lose nothing but what an earlier summary may have had, and what is merged adds up.
func TestLinearInTimeLosesNothing(t *testing.T) {
	p := &Params{Decay: Linear, HalfLife: hour, Threshold: 0.001, OrderFree: true, Bounded: true}
	var d, both Distribution
	for i := range 1000 {
		at := epoch + Tick(i)*hour/100
		if err := d.Add(p, at, at, uint32(i%5), 1); err != nil {
			t.Fatal(err)
		}
	}
	at := epoch + 10*hour
	if r := d.At(p, at); r.Lost != p.LostAtBirth(at) {
		t.Errorf("%v is lost", r.Lost)
	}
	both.Merge(p, &d, nil)
	both.Merge(p, &d, nil)
	if r := both.At(p, at); math.Abs(r.Lost-2*p.LostAtBirth(at)) > 1e-6 {
		t.Errorf("of both %v is lost", r.Lost)
	}
	half := *p
	half.Decay = HalfLife
	d.Convert(p, &half, at)
	if lost := d.Lost(&half, at); math.Abs(lost-p.LostAtBirth(at)) > 1e-6 {
		t.Errorf("as a half-life %v is lost", lost)
	}
	d.Convert(&half, p, at)
	if lost := d.Lost(p, at); math.Abs(lost-p.LostAtBirth(at)) > 1e-6 {
		t.Errorf("and back %v is lost", lost)
	}
}

// Of a busy stream whose events are up to a minute late, little is lost.
func TestLinearOfABusyStream(t *testing.T) {
	p, r := &Params{Decay: Linear, HalfLife: hour, Threshold: 0.001, OrderFree: true, Bounded: true}, rng(1)
	var d Distribution
	var events []leakyEvent
	const n, end = 20_000, epoch + 24*hour
	for i := range n {
		clock := epoch + 24*hour*Tick(i)/n
		e := leakyEvent{at: clock - Tick(r.below(int(hour/60))), bin: uint32(r.below(1 + r.below(100))), n: 1}
		if err := d.Add(p, clock, e.at, e.bin, e.n); err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	reading, short := d.At(p, end), 0.0
	for bin, want := range leaky(p, events, end) {
		c := reading.Count(bin)
		if want < c-1e-9 || want > c+reading.Short(bin)+1e-9 {
			t.Errorf("bin %d has %v, told %v and at most %v more", bin, want, c, reading.Short(bin))
		}
		if want > 1 {
			short = max(short, (want-c)/want)
		}
	}
	t.Logf(
		"%.2g%% of the sum of %.0f is lost at most, and %.2g%% of a bin at the most is missing",
		100*reading.Lost/reading.Z,
		reading.Z,
		100*short,
	)
	if reading.Lost > 0.02*reading.Z {
		t.Errorf("%v of %v may be lost", reading.Lost, reading.Z)
	}
}

// TestGoldenBounded: every machine computes the same bytes of linear decay with late events.
func TestGoldenBounded(t *testing.T) {
	var b bytes.Buffer
	for _, signed := range []bool{false, true} {
		p := &Params{
			Decay:         Linear,
			HalfLife:      hour,
			Threshold:     0.01,
			OrderFree:     true,
			Bounded:       true,
			AllowNegative: signed,
			BinsMax:       40,
		}
		var d Distribution
		h, r := fnv.New64a(), rng(5)
		for i := range 5000 {
			now := epoch + Tick(i)*hour/50
			at := now - Tick(r.below(int(hour)))*Tick(r.below(3))
			n := r.float() * 2
			if signed && r.below(4) == 0 {
				n = -n
			}
			if err := d.Add(p, now, at, uint32(r.below(1+r.below(60))), n); err != nil && err != ErrTooManyBins {
				t.Fatal(err)
			}
			if i%40 == 0 {
				d.Prune(p, now, nil)
			}
			reading := d.At(p, now)
			fmt.Fprintf(h, "%x %x %x %d,", d.AppendBinary(nil), reading.visible, reading.Lost, d.Death(p))
		}
		fmt.Fprintf(&b, "signed %t: %x\nhash %016x\n", signed, d.AppendBinary(nil), h.Sum64())
	}
	golden(t, "golden-bounded.txt", b.Bytes())
}
