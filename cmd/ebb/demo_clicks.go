package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Times and shares of the demo's clicks.
const (
	// surpriseEvery is the time from the start of one burst to the next. The first one comes after half of it.
	surpriseEvery = 20 * time.Second
	// surpriseLasts is how long a burst of a country lasts.
	surpriseLasts = 5 * time.Second
	// surprisePart is which part of all clicks the country gets during its burst.
	surprisePart = 0.6
	// wavePart is which part of the other clicks comes from the countries that rise and fall.
	wavePart = 0.6
	// trendOver is the time over which a change of a share is measured.
	trendOver = 3 * time.Second
	// trendLeast is the least relative change of a share in that time that is marked.
	trendLeast = 0.02
)

// waveCountries are countries whose shares of the clicks rise and fall, one after the other.
var waveCountries = []string{"GB", "JP", "BR", "DE", "IN", "AU"}

// bursts are countries with too few clicks to be seen, except during a burst.
var bursts = []struct{ code, name string }{
	{"IS", "Iceland"},
	{"FJ", "Fiji"},
	{"MT", "Malta"},
	{"BT", "Bhutan"},
	{"UY", "Uruguay"},
	{"MN", "Mongolia"},
	{"TO", "Tonga"},
	{"KE", "Kenya"},
	{"PA", "Panama"},
	{"LU", "Luxembourg"},
	{"NP", "Nepal"},
	{"CU", "Cuba"},
}

// clickModel decides which country clicks at a time since the demo began. Some countries rise and fall in waves, each
// with a period of four half-lives. Every 20 s another country bursts for 5 s. Except for draw, it depends on the time
// alone.
type clickModel struct{ halfLife time.Duration }

// surprise is the country of the present burst, or of the last one. The zero value is none.
type surprise struct {
	code, name string
	age        time.Duration // since the burst began
}

// bursting reports whether the burst is still under way.
func (s surprise) bursting() bool { return s.code != "" && s.age < surpriseLasts }

// surprise returns the latest burst at a time.
func (m clickModel) surprise(at time.Duration) surprise {
	at -= surpriseEvery / 2
	if at < 0 {
		return surprise{}
	}
	b := bursts[int(at/surpriseEvery)%len(bursts)]
	return surprise{b.code, b.name, at % surpriseEvery}
}

// wave returns the weight of one of waveCountries at a time, from 0 to 1.
func (m clickModel) wave(i int, at time.Duration) float64 {
	period := 4 * max(m.halfLife, time.Second)
	phase := at.Seconds()/period.Seconds() - float64(i)/float64(len(waveCountries))
	height := max(0, math.Cos(2*math.Pi*phase))
	return height * height
}

// draw returns the country of a click at a time; usual is the country without waves and bursts.
func (m clickModel) draw(rng *rand.Rand, at time.Duration, usual string) string {
	if s := m.surprise(at); s.bursting() && rng.Float64() < surprisePart {
		return s.code
	}
	if rng.Float64() >= wavePart {
		return usual
	}
	sum := 0.0
	for i := range waveCountries {
		sum += m.wave(i, at)
	}
	left := rng.Float64() * sum
	for i, code := range waveCountries {
		if left -= m.wave(i, at); left < 0 {
			return code
		}
	}
	return usual
}

// news describes the present burst, or the last one.
func (s surprise) news(halfLife time.Duration) string {
	switch {
	case s.code == "":
		return ""
	case s.bursting():
		return fmt.Sprintf("! surprise: %s (%s) takes %.0f%% of all clicks for %v",
			s.name, s.code, 100*surprisePart, surpriseLasts)
	}
	return fmt.Sprintf("%s (%s) is over: %v after its last click half of its count is left", s.name, s.code, halfLife)
}

// watchFor tells the user what to look for.
const watchFor = "watch: countries rise + and fall -; every 20 s one bursts ! and is forgotten"

// shareAt is the share of each bin at one time.
type shareAt struct {
	at     time.Time
	shares map[string]float64
}

// shareHistory holds the shares of the last seconds, and marks those that rise or fall.
type shareHistory struct{ past []shareAt }

// marks returns + for each bin whose share has risen, and - for each bin whose share has fallen.
func (h *shareHistory) marks(at time.Time, d *ebbv1.Distribution) map[string]string {
	now := shareAt{at, make(map[string]float64, len(d.GetBins()))}
	for _, bin := range d.GetBins() {
		now.shares[string(bin.GetBin())] = bin.GetP()
	}
	for len(h.past) > 1 && at.Sub(h.past[1].at) >= trendOver {
		h.past = h.past[1:]
	}
	marks := make(map[string]string)
	if len(h.past) > 0 {
		for bin, share := range now.shares {
			before, known := h.past[0].shares[bin]
			switch {
			case !known || share > before*(1+trendLeast):
				marks[bin] = "+"
			case share < before*(1-trendLeast):
				marks[bin] = "-"
			}
		}
	}
	h.past = append(h.past, now)
	return marks
}
