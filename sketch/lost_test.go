package sketch

import (
	"math"
	"math/rand/v2"
	"testing"
)

func orderFree() Params {
	return Params{Decay: HalfLife, HalfLife: hour, Threshold: 0.001, OrderFree: true}
}

// exactCounts is what distributions are compared with: sums of weights, without a landmark.
type exactCounts struct {
	p    *Params
	bins map[uint32]float64
	z    float64
}

func (e *exactCounts) count(at, t Tick, bin uint32, n float64) {
	w := n
	if e.p.Decay == HalfLife {
		w = n * math.Exp2(float64(t-at)/float64(e.p.HalfLife))
	}
	e.bins[bin] += w
	e.z += w
}

type oneEvent struct {
	t   Tick
	bin uint32
	n   float64
}

// countAll counts events in their order, at a clock that is the latest time so far, and at least from.
func countAll(t *testing.T, d *Distribution, p *Params, from Tick, events []oneEvent) (clock Tick) {
	t.Helper()
	clock = from
	for _, e := range events {
		clock = max(clock, e.t)
		now := p.Now(clock)
		if d.Dead(p, clock) {
			d.Prune(p, clock, nil)
		}
		d.PruneForBin(p, &now, e.bin, nil)
		if err := d.AddNow(p, &now, e.t, e.bin, e.n); err != nil {
			t.Fatal(err)
		}
	}
	return clock
}

// checkWithin fails unless every bin and Z of the exact counts lie within what a distribution says at a time.
func checkWithin(t *testing.T, d *Distribution, p *Params, at Tick, exact *exactCounts) (lost float64) {
	t.Helper()
	r := d.At(p, at)
	rounding := 1e-11
	if p.Compact {
		rounding = 1e-5
	}
	within := func(what string, bin uint32, truth, v, short float64) {
		slack := rounding*math.Max(math.Abs(truth), math.Abs(v)) + 1e4*faintest
		low := v
		if p.AllowNegative {
			low = v - short
		}
		if truth < low-slack || truth > v+short+slack {
			t.Helper()
			t.Fatalf("%s %d is %v, outside of %v and %v more (lost %v)", what, bin, truth, v, short, r.Lost)
		}
	}
	within("Z", 0, exact.z, r.Z, r.Lost)
	for bin, truth := range exact.bins {
		within("bin", bin, truth, r.Count(bin), r.Short(bin))
	}
	return r.Lost
}

// Thirty thousand events that are 11 half-lives old weigh 4.88 in each of three bins, whatever comes first.
func TestLateEventsCount(t *testing.T) {
	for _, freshFirst := range []bool{false, true} {
		p := orderFree()
		now := 1000 * hour
		var events []oneEvent
		for i := range 30_000 {
			events = append(events, oneEvent{now - 11*hour, uint32(i % 3), 1})
		}
		fresh := oneEvent{now, 7, 1}
		if freshFirst {
			events = append([]oneEvent{fresh}, events...)
		} else {
			events = append(events, fresh)
		}
		exact := exactCounts{p: &p, bins: map[uint32]float64{}}
		for _, e := range events {
			exact.count(now, e.t, e.bin, e.n)
		}
		var d Distribution
		countAll(t, &d, &p, 0, events)
		if lost := checkWithin(t, &d, &p, now, &exact); lost > 9./7*p.Threshold {
			t.Errorf("fresh first %v: %v is lost", freshFirst, lost)
		}
		if r := d.At(&p, now); math.Abs(r.Count(1)-10_000./2048) > 0.003 {
			t.Errorf("fresh first %v: a bin counts %v", freshFirst, r.Count(1))
		}
	}
}

// Random streams, late and bursty, over few and many bins, in any order, in two parts that merge, and after they were
// encoded.
func TestOrderOfEventsStaysWithinLost(t *testing.T) {
	trials := 400
	if testing.Short() {
		trials = 60
	}
	for seed := range trials {
		rng := rand.New(rand.NewPCG(uint64(seed), 60))
		p := orderFree()
		switch seed % 6 {
		case 1:
			p.Compact = true
		case 2:
			p.AllowNegative = true
		case 3:
			p.Floor = Clamp
		case 4:
			p.Threshold = 0.3
		case 5:
			p.Decay = None
		}
		events := randomStream(rng, &p)
		end := Tick(0)
		for _, e := range events {
			end = max(end, e.t)
		}
		end += Tick(rng.Int64N(int64(4 * hour)))
		exact := exactCounts{p: &p, bins: map[uint32]float64{}}
		for _, e := range events {
			exact.count(end, e.t, e.bin, e.n)
		}
		plain := p
		if p.Floor == Clamp {
			plain.Floor = Prune // the floor lifts what is read, and nothing else
		}
		for order := range 4 {
			var parts [2]Distribution
			half := len(events)
			if order == 3 {
				half /= 2
			}
			countAll(t, &parts[0], &p, 0, events[:half])
			countAll(t, &parts[1], &p, 0, events[half:])
			d := recoded(t, &parts[0])
			if order == 3 {
				d.Merge(&p, &parts[1], nil)
			}
			checkWithin(t, &d, &plain, end, &exact)
			rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		}
	}
}

func recoded(t *testing.T, d *Distribution) (out Distribution) {
	t.Helper()
	if rest, err := out.Decode(d.AppendBinary(nil)); err != nil || len(rest) > 0 {
		t.Fatalf("%d bytes are left of an encoding, error %v", len(rest), err)
	}
	return out
}

// randomStream is about a thousand events over up to 60 half-lives, nearly in order, with bursts and silences.
func randomStream(rng *rand.Rand, p *Params) (events []oneEvent) {
	bins := []int{3, 10, 100, 3000}[rng.IntN(4)]
	at, late := 1000*hour, Tick(1+rng.Int64N(int64(20*hour)))
	for len(events) < 1000 {
		switch rng.IntN(40) {
		case 0:
			at += Tick(rng.Int64N(int64(15 * hour)))
		default:
			at += Tick(rng.Int64N(int64(hour / 20)))
		}
		n := float64(1 + rng.IntN(3))
		if p.AllowNegative && rng.IntN(3) == 0 {
			n = -n
		}
		if rng.IntN(4) == 0 {
			n *= 0.0004
		}
		t := at - Tick(rng.ExpFloat64()*float64(late)/4)
		events = append(events, oneEvent{max(t, 0), uint32(rng.IntN(1 + rng.IntN(bins))), n})
	}
	return events
}

// Clamp and Prior keep the bins that are known, and the summary, for good.
func TestFloorsKeepBins(t *testing.T) {
	for _, decay := range []Decay{HalfLife, Linear} {
		p := Params{Decay: decay, HalfLife: hour, Threshold: 0.001, Floor: Clamp, OrderFree: true}
		var d Distribution
		for bin := range uint32(4) {
			if err := d.Add(&p, 100*hour, 100*hour, bin, float64(bin+1)); err != nil {
				t.Fatal(err)
			}
		}
		for _, later := range []Tick{200, 5000} {
			r := d.At(&p, later*hour)
			if r.Bins != 4 || r.Z != 4 || r.Count(2) != 1 {
				t.Errorf("%v: after %d half-lives %d bins, Z %v, a count of %v", decay, later, r.Bins, r.Z, r.Count(2))
			}
		}
		if d.Death(&p) != MaxTick || d.Dead(&p, 5000*hour) {
			t.Errorf("%v: it dies at %d", decay, d.Death(&p))
		}
		if err := d.Add(&p, 5000*hour, 5000*hour, 9, 1); err != nil {
			t.Fatal(err)
		}
		if r := d.At(&p, 5000*hour); r.Bins != 5 {
			t.Errorf("%v: a late write leaves %d bins", decay, r.Bins)
		}
	}
}

// No summary dies within three half-lives of its birth, and what was born small dies soon after.
func TestDeathIsNotNearBirth(t *testing.T) {
	p := orderFree()
	for i := range 50 {
		born := 1000*hour + Tick(i)*hour/50
		var d Distribution
		if err := d.Add(&p, born, born-40*hour, 1, 1); err != nil {
			t.Fatal(err)
		}
		if d.Dead(&p, born+3*hour-1000) {
			t.Fatal("dead within three half-lives of its birth")
		}
		death := d.Death(&p)
		if !d.Dead(&p, death) || death > born+3*hour+hour/1000 {
			t.Fatalf("dies %v half-lives after its birth", float64(death-born)/float64(hour))
		}
	}
}

// The bins that live decide about memory, however many names die.
func TestThinFollowsLiveBins(t *testing.T) {
	p := orderFree()
	p.Threshold = 0.1
	var d Distribution
	at, next, most := 1000*hour, uint32(0), 0
	for range 60_000 {
		at += hour / 100
		next++
		countAll(t, &d, &p, at, []oneEvent{{at, next, 1}})
		most = max(most, d.Len())
	}
	// a bin of 1 lives for log2(10) half-lives of 100 events each: 333 live, and removals may wait for 3.2 half-lives
	if most > (333+320)*8/7 {
		t.Errorf("%d bins at most", most)
	}
}
