package sketch

import (
	"math"
	"math/rand/v2"
	"testing"
)

// stream is a Poisson process of one bin, counted under two half-lives.
type stream struct {
	fast, slow   Params
	f, s         Distribution
	began, later Tick // of the fast and the slow summary
	rng          *rand.Rand
}

const trendSecond = Tick(1_000_000)

func newStream(seed uint64, fast, slow Tick) *stream {
	began := Tick(1e15)
	return &stream{
		fast: Params{HalfLife: fast, Decay: HalfLife, Threshold: 1e-9}, slow: Params{HalfLife: slow, Decay: HalfLife, Threshold: 1e-9},
		began: began, later: began, rng: rand.New(rand.NewPCG(seed, 1)),
	}
}

// run adds events at a rate a second from one time to another, in seconds after it began.
func (s *stream) run(t testing.TB, bin uint32, rate, from, to float64) {
	t.Helper()
	for at := from + s.rng.ExpFloat64()/rate; at < to; at += s.rng.ExpFloat64() / rate {
		tick := s.began + Tick(at*1e6)
		if err := s.f.Add(&s.fast, tick, tick, bin, 1); err != nil {
			t.Fatal(err)
		}
		if tick < s.later {
			continue
		}
		if err := s.s.Add(&s.slow, tick, tick, bin, 1); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *stream) trend(at float64) Trend {
	tick := s.began + Tick(at*1e6)
	return Trends(s.f.At(&s.fast, tick), s.s.At(&s.slow, tick), Exposure{From: s.began}.At(&s.fast, tick), Exposure{From: s.later}.At(&s.slow, tick))
}

// Under a constant rate the trend raises a false alarm about as often as it says, its rates have no bias while it warms
// up, and its interval holds the truth.
func TestTrendIsCalibrated(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		rate       float64 // events a second
		fast, slow Tick
		later      float64 // the slow one began so many seconds later
		at         float64
	}{
		{"warm, 9 events", 0.1, 60 * trendSecond, 1200 * trendSecond, 0, 9000},
		{"warm, 90 events", 1, 60 * trendSecond, 1200 * trendSecond, 0, 9000},
		{"young", 1, 60 * trendSecond, 1200 * trendSecond, 0, 100},
		{"younger than the slow half-life", 1, 60 * trendSecond, 7200 * trendSecond, 0, 600},
		{"half-lives near each other", 1, 60 * trendSecond, 120 * trendSecond, 0, 900},
		{"turned on later", 1, 60 * trendSecond, 1200 * trendSecond, 1000, 1400},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			runs := 4000
			if testing.Short() {
				runs = 1500
			}
			alarms, outside, fast, slow, z2 := 0, 0, 0.0, 0.0, 0.0
			for seed := range runs {
				s := newStream(uint64(seed), c.fast, c.slow)
				s.later += Tick(c.later * 1e6)
				s.run(t, 1, c.rate, 0, c.at)
				tr := s.trend(c.at)
				if tr.Warming() {
					t.Fatal("warming")
				}
				ch := tr.Bin(1, 0.95)
				fast, slow, z2 = fast+ch.Fast, slow+ch.Slow, z2+ch.Z*ch.Z
				if ch.P < 0.05 {
					alarms++
				}
				if ch.Low > 0 || ch.High < 0 {
					outside++
				}
			}
			n := float64(runs)
			t.Logf("false alarms %.2f%%, outside %.2f%%, z'z %.3f, rates %.4f and %.4f", 100*float64(alarms)/n, 100*float64(outside)/n, z2/n, fast/n/c.rate, slow/n/c.rate)
			if a := float64(alarms) / n; a < 0.03 || a > 0.065 {
				t.Errorf("false alarms %.4f of 0.05", a)
			}
			if o := float64(outside) / n; o > 0.065 {
				t.Errorf("outside of the interval %.4f of 0.05", o)
			}
			if math.Abs(fast/n/c.rate-1) > 0.05 || math.Abs(slow/n/c.rate-1) > 0.03 {
				t.Errorf("rates %g and %g of %g", fast/n, slow/n, c.rate)
			}
		})
	}
}

// A rate that rose eightfold is found, and so is one that fell; the interval holds the truth, which follows from the
// exposures.
func TestTrendFindsAStep(t *testing.T) {
	t.Parallel()
	const runs = 300
	for _, c := range []struct {
		name          string
		before, after float64 // events a second
	}{
		{"rises", 0.5, 4}, {"falls", 4, 0.5},
	} {
		found, held := 0, 0
		for seed := range uint64(runs) {
			s := newStream(seed, 60*trendSecond, 1200*trendSecond)
			s.run(t, 1, c.before, 0, 9000)
			s.run(t, 1, c.after, 9000, 9120)
			tr := s.trend(9120)
			ch := tr.Bin(1, 0.95)
			if ch.P < 0.001 && ch.Bits > 0 == (c.after > c.before) {
				found++
			}
			// two fast half-lives later three quarters of the fast rate are new
			fast := c.after*0.75 + c.before*0.25
			part := 1 - math.Exp2(-120./1200)
			truth := math.Log2(fast / (c.after*part + c.before*(1-part)))
			if ch.Low <= truth && truth <= ch.High {
				held++
			}
		}
		if found < runs*9/10 || held < runs*85/100 {
			t.Errorf("%s: found %d, within the interval %d of %d", c.name, found, held, runs)
		}
	}
}

// What is new altogether rises by as much as exposures allow, what is gone falls, and nothing known says nothing; no
// figure is infinite.
func TestTrendAtItsEnds(t *testing.T) {
	s := newStream(1, 60*trendSecond, 1200*trendSecond)
	s.run(t, 1, 1, 0, 6000)
	s.run(t, 2, 5, 7150, 7200)
	tr := s.trend(7200)
	most := math.Log2(1200. / 60)
	gone, fresh, unknown := tr.Bin(1, 0.95), tr.Bin(2, 0.95), tr.Bin(3, 0.95)
	if fresh.Bits < most-0.5 || fresh.Low < 2 || fresh.High > most+0.1 || fresh.P > 1e-6 {
		t.Errorf("new: %+v, at most %.3f bits", fresh, most)
	}
	if gone.Bits > -2 || gone.High > -1 || gone.P > 1e-6 {
		t.Errorf("gone: %+v", gone)
	}
	if math.Abs(unknown.Bits) > 1e-9 || unknown.Low != -bitsMax || unknown.High < most-0.1 || unknown.P != 1 || unknown.Z != 0 {
		t.Errorf("unknown: %+v", unknown)
	}
	for _, c := range []Change{gone, fresh, unknown, tr.Total(0.95)} {
		for _, v := range []float64{c.Fast, c.Slow, c.Bits, c.StdError, c.Low, c.High, c.Z, c.P} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Errorf("%+v", c)
			}
		}
		if c.Low > c.Bits || c.Bits > c.High {
			t.Errorf("out of its interval: %+v", c)
		}
	}
}

// Before there is a past, and while the fast summary knows events from before the slow one began, nothing is compared.
func TestTrendWarms(t *testing.T) {
	s := newStream(1, 60*trendSecond, 1200*trendSecond)
	s.later += 6000 * trendSecond
	s.run(t, 1, 1, 0, 6030)
	for at, warming := range map[float64]bool{6030: true, 6200: true, 6241: false, 9000: false} {
		tr := s.trend(at)
		if tr.Warming() != warming {
			t.Errorf("after %g s: warming %v", at-6000, tr.Warming())
		}
		if c := tr.Total(0.95); warming && (c.P != 1 || c.Z != 0 || c.Bits != 0) {
			t.Errorf("warming: %+v", c)
		}
	}
	tr := Trends(s.f.At(&s.fast, s.began), s.s.At(&s.slow, s.began), 0, 0)
	if c := tr.Total(0.95); !tr.Warming() || c.Fast != 0 || c.P != 1 {
		t.Errorf("at the first moment: %+v", c)
	}
}

// An exposure is what a summary of one event a second counts, also under settings that changed on the way.
func TestExposure(t *testing.T) {
	began := Tick(1e15)
	first := Params{HalfLife: 100 * trendSecond, Decay: HalfLife, Threshold: 1e-9}
	second := Params{HalfLife: 30 * trendSecond, Decay: HalfLife, Threshold: 1e-9}
	plain := Params{Decay: None}
	var d Distribution
	add := func(p *Params, from, to int) {
		for i := from * 10; i < to*10; i++ {
			at := began + Tick(i)*trendSecond/10 + trendSecond/20
			if err := d.Add(p, at, at, 1, 0.1); err != nil {
				t.Fatal(err)
			}
		}
	}
	e := Exposure{From: began}
	check := func(p *Params, at int) {
		t.Helper()
		tick := began + Tick(at)*trendSecond
		got, want := e.At(p, tick), d.At(p, tick).Z
		if math.Abs(got-want) > 1e-4*want {
			t.Errorf("after %d s: %.6f, counted %.6f", at, got, want)
		}
	}
	add(&first, 0, 150)
	check(&first, 150)
	at := began + 150*trendSecond
	e = Exposure{From: at, Had: e.At(&first, at)}
	d.Convert(&first, &second, at)
	add(&second, 150, 190)
	check(&second, 190)
	at = began + 190*trendSecond
	e = Exposure{From: at, Had: e.At(&second, at)}
	d.Convert(&second, &plain, at)
	add(&plain, 190, 300)
	check(&plain, 300)
}

// Takes answers what Add does, whatever the distribution has been through, and changes nothing.
func TestTakesIsWhatAddAnswers(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	answers := map[error]int{}
	for range 200 {
		p := Params{HalfLife: trendSecond, Decay: HalfLife, Threshold: 0.01, BinsMax: 1 + rng.IntN(6), AllowNegative: rng.IntN(2) == 0}
		if rng.IntN(4) == 0 {
			p.Decay = None
		}
		var d Distribution
		now := Tick(1e15)
		for range 200 {
			now += Tick(rng.ExpFloat64() * float64(trendSecond) * math.Pow(10, 3*rng.Float64()-2))
			at := now - Tick(rng.IntN(2))*Tick(rng.Int64N(int64(10*trendSecond)))
			bin, n := uint32(rng.IntN(9)), []float64{1, 0.02, -1, CountMax / 3, 1e-30, math.NaN(), 0, CountMax * 2}[rng.IntN(8)]
			before := d.AppendBinary(nil)
			want := d.Takes(&p, now, at, bin, n)
			if string(d.AppendBinary(nil)) != string(before) {
				t.Fatal("Takes wrote")
			}
			got := d.Add(&p, now, at, bin, n)
			if got != want {
				t.Fatalf("Add of %g to %d of %d bins answers %v, Takes %v", n, d.Len(), p.BinsMax, got, want)
			}
			answers[got]++
		}
	}
	for _, err := range []error{nil, ErrTooManyBins, ErrNegative, ErrOverflow} {
		if answers[err] < 100 {
			t.Errorf("%v was answered %d times", err, answers[err])
		}
	}
}
