package main

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/load"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The shares of countries change so much that it is seen, in every half minute, and not only in the first.
func TestDemoClicksNeverStandStill(t *testing.T) {
	const halfLife, rate = 30 * time.Second, 500
	m, clicks, rng := clickModel{halfLife}, load.NewClicks(1), rand.New(rand.NewPCG(1, 1))
	counts, began := map[string]float64{}, time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	fade := math.Exp2(-1 / halfLife.Seconds())
	var before map[string]float64
	for second := range 240 {
		for i := range rate {
			at := time.Duration(second)*time.Second + time.Duration(i)*time.Second/rate
			counts[m.draw(rng, at, clicks.Next(began.Add(at)).Country)]++
		}
		total := 0.0
		for country := range counts {
			counts[country] *= fade
			total += counts[country]
		}
		if second%30 != 29 {
			continue
		}
		shares, moved := map[string]float64{}, 0.0
		for country, n := range counts {
			shares[country] = n / total
			moved += math.Abs(shares[country]-before[country]) / 2
		}
		if before != nil && moved < 0.1 {
			t.Errorf("in the 30 s before %d s only %.1f%% of the picture changed", second+1, 100*moved)
		}
		before = shares
	}
}

// Every 20 s another country bursts, for 5 s, and takes most clicks.
func TestDemoClicksBurst(t *testing.T) {
	m, rng := clickModel{30 * time.Second}, rand.New(rand.NewPCG(1, 1))
	seen := map[string]bool{}
	for i := range 10 {
		at := surpriseEvery/2 + time.Duration(i)*surpriseEvery
		s := m.surprise(at + time.Second)
		if !s.bursting() || seen[s.code] || s.age != time.Second {
			t.Errorf("at %v: %+v", at, s)
		}
		seen[s.code] = true
		if after := m.surprise(at + surpriseLasts); after.bursting() || after.code != s.code {
			t.Errorf("after it: %+v", after)
		}
		n := 0
		for range 1000 {
			if m.draw(rng, at+time.Second, "US") == s.code {
				n++
			}
		}
		if n < 500 || n > 700 {
			t.Errorf("%s has %d of 1000 clicks", s.code, n)
		}
	}
	if s := m.surprise(time.Second); s.bursting() || s.news(time.Second) != "" {
		t.Errorf("at the beginning: %+v", s)
	}
}

// The picture marks what rises, what falls and the surprise, and says what to watch for.
func TestDemoMarksRisesAndFalls(t *testing.T) {
	var history shareHistory
	at := time.Unix(1_800_000_000, 0)
	shares := func(us, gb float64) *ebbv1.Distribution {
		return &ebbv1.Distribution{Bins: []*ebbv1.Bin{
			{Bin: []byte("US"), P: us}, {Bin: []byte("GB"), P: gb}, {Bin: []byte("IS"), P: 0.1},
		}}
	}
	if marks := history.marks(at, shares(0.5, 0.2)); len(marks) != 0 {
		t.Errorf("the first picture marks %v", marks)
	}
	d := shares(0.4, 0.3)
	f := frame{answer: &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: d}}}
	f.marks = history.marks(at.Add(3*time.Second), d)
	f.surprise, f.halfLife = surprise{"IS", "Iceland", time.Second}, 30*time.Second
	picture := f.render()
	for _, want := range []string{"US -", "GB +", "IS !", "! surprise: Iceland (IS) takes 60% of all clicks for 5s", watchFor} {
		if !strings.Contains(picture, want) {
			t.Errorf("%q is not in\n%s", want, picture)
		}
	}
	if line := f.line(); !strings.Contains(line, "US 0.00-  GB 0.00+  IS 0.00!") {
		t.Errorf("the line is %s", line)
	}
	f.paused = true
	if strings.Contains(f.render(), "! surprise") {
		t.Error("there is a surprise while the stream is paused")
	}
}
