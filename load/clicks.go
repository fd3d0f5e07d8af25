package load

import (
	"math"
	"math/rand/v2"
	"sort"
	"time"
)

// Clicks generates clicks on short links. Its statistics are those of real clicks: on 1.usa.gov links in 2012 and 2013,
// 194,118 clicks from 172 countries on 24,005 links.
//
//   - Countries follow the sun: each has a share of all clicks, and people
//     everywhere click by their local hour (five times as much at noon as at four
//     in the morning).
//   - Links are as unequal as the real ones: 4% of clicks go to the first of
//     24,005, half to the first 100.
//   - A part of each country's clicks follows a ranking of links of its own.
//   - Every ten minutes another link is popular.
//
// The same seed and the same times give the same clicks. One goroutine at a time may use it.
type Clicks struct {
	rng   *rand.Rand
	seed  uint64
	names []string // of links, by rank

	slot       int64     // number of the current sunTurn; the two fields below hold for it
	cumulative []float64 // of countries
	star       int       // rank of the popular link
}

// Click is one click.
type Click struct {
	Time    time.Time
	Country string // ISO 3166, or EmptyBin where it is not known
	Link    string // six letters and digits
	Browser string
}

const (
	sunTurn   = 10 * time.Minute // how long the shares of countries stay
	tasteLove = 0.25             // of a country's clicks follow its own ranking of links
	starLove  = 0.08             // of all clicks go to the popular link
	nowhere   = 0.139            // of all clicks have no country
)

// countries with their clicks of every 10,000 and their hours east of
// Greenwich, weighted over their zones.
var countries = []struct {
	code  string
	share float64
	east  float64
}{
	{"US", 7077, -5.9},
	{"GB", 497, 0},
	{"CA", 292, -6.2},
	{"JP", 196, 9},
	{"AU", 125, 10.5},
	{"DE", 111, 1},
	{"ES", 109, 1},
	{"IN", 102, 5.5},
	{"FR", 98, 1},
	{"MX", 89, -6.2},
	{"NL", 85, 1},
	{"BR", 77, -3},
	{"IT", 64, 1},
	{"RU", 56, 4.2},
	{"HK", 52, 8},
	{"AR", 43, -3},
	{"SE", 39, 1},
	{"CO", 35, -5},
	{"EG", 34, 2},
	{"BE", 34, 1},
	{"TH", 31, 7},
	{"TR", 31, 2},
	{"MY", 30, 8},
	{"PH", 29, 8},
	{"CN", 29, 8},
	{"IE", 28, 0},
	{"KR", 26, 9},
	{"PL", 26, 1},
	{"ZA", 23, 2},
	{"CL", 23, -3},
	{"CR", 22, -6},
	{"VE", 21, -4.5},
	{"PT", 21, 0},
	{"GR", 20, 2},
	{"NO", 19, 1},
	{"NZ", 19, 13},
	{"SA", 18, 3},
	{"FI", 16, 2},
	{"ID", 16, 7},
	{"AT", 15, 1},
	{"CH", 15, 1},
	{"RS", 15, 1},
	{"PR", 15, -4},
	{"DK", 14, 1},
	{"CZ", 13, 1},
	{"RO", 13, 2},
	{"PE", 12, -5},
	{"SG", 11, 8},
	{"HU", 11, 1},
	{"EC", 11, -5},
	{"AE", 10, 4},
	{"PK", 10, 5},
	{"TW", 9, 8},
	{"IL", 9, 2},
	{"BG", 8, 2},
	{"DO", 6, -4},
	{"UA", 6, 2},
	{"BD", 6, 6},
	{"SK", 5, 1},
	{"SI", 5, 1},
}

// activity is how much people click in each local hour, relative to an average of 1.
var activity = [24]float64{
	0.69, 0.44, 0.25, 0.22, 0.30, 0.36, 0.60, 0.80, 1.05, 1.40, 1.25, 1.26,
	1.25, 1.40, 1.35, 1.40, 1.50, 1.39, 1.25, 1.30, 1.25, 1.08, 0.95, 0.84,
}

// linkShares is how many of 194,118 clicks went to all links up to a rank.
var linkShares = []struct{ rank, clicks float64 }{
	{0, 0},
	{1, 7649},
	{2, 14864},
	{3, 21334},
	{5, 30138},
	{10, 45824},
	{20, 59605},
	{50, 79221},
	{100, 95154},
	{200, 111233},
	{500, 130385},
	{1000, 143153},
	{2000, 155131},
	{5000, 169443},
	{10000, 180113},
	{20000, 190113},
	{24005, 194118},
}

var browsers = []struct {
	name   string
	clicks int
}{
	{"IE", 50338},
	{"Chrome", 43354},
	{"Other", 31256},
	{"Safari", 31068},
	{"Firefox", 27836},
	{"FacebookApp", 4495},
	{"TwitterApp", 3467},
	{"Opera", 2183},
	{"GoogleMaps", 121},
}

// NewClicks returns a generator. The seed decides the clicks and the names of
// links.
func NewClicks(seed uint64) *Clicks {
	c := &Clicks{rng: rand.New(rand.NewPCG(seed, 0x65bb)), seed: seed, slot: math.MinInt64}
	c.names = make([]string, int(linkShares[len(linkShares)-1].rank))
	naming := rand.New(rand.NewPCG(seed, 0x11c5))
	taken := make(map[string]bool, len(c.names))
	for i := range c.names {
		name := linkName(naming)
		for taken[name] {
			name = linkName(naming)
		}
		c.names[i], taken[name] = name, true
	}
	c.cumulative = make([]float64, len(countries))
	return c
}

const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func linkName(rng *rand.Rand) string {
	var name [6]byte
	for i := range name {
		name[i] = letters[rng.IntN(len(letters))]
	}
	return string(name[:])
}

// Next returns a click that happens at t.
func (c *Clicks) Next(t time.Time) Click {
	c.advance(t)
	country := c.country()
	click := Click{Time: t, Country: countries[country].code, Link: c.names[c.link(country)], Browser: c.browser()}
	if c.rng.Float64() < nowhere {
		click.Country = EmptyBin
	}
	return click
}

// advance sets the shares of countries for time t.
func (c *Clicks) advance(t time.Time) {
	slot := t.UnixNano() / int64(sunTurn)
	if slot == c.slot {
		return
	}
	c.slot = slot
	hour := float64(t.Unix()%86400) / 3600
	var sum float64
	for i := range countries {
		sum += countries[i].share * activityAt(hour+countries[i].east)
		c.cumulative[i] = sum
	}
	c.star = rand.New(rand.NewPCG(c.seed, uint64(slot))).IntN(len(c.names))
}

// activityAt interpolates between the middles of hours.
func activityAt(hour float64) float64 {
	h := math.Mod(hour-0.5+48, 24)
	i := int(h)
	f := h - float64(i)
	return activity[i]*(1-f) + activity[(i+1)%24]*f
}

func (c *Clicks) country() int {
	x := c.rng.Float64() * c.cumulative[len(c.cumulative)-1]
	if x < c.cumulative[0] {
		return 0 // the first country has seven of ten clicks
	}
	return sort.SearchFloat64s(c.cumulative, x)
}

// link draws the rank of a link.
func (c *Clicks) link(country int) int {
	x := c.rng.Float64()
	if x < starLove {
		return c.star
	}
	rank := rankAt((x - starLove) / (1 - starLove))
	if country > 0 && c.rng.Float64() < tasteLove {
		rank = (rank + 37*country) % len(c.names) // the country's own order
	}
	return rank
}

// rankAt returns the rank, from 0, of the link at position x of all clicks sorted by rank; x is from 0 to 1. Between
// two entries of the table the rank grows exponentially with the clicks.
func rankAt(x float64) int {
	last := len(linkShares) - 1
	clicks := x * linkShares[last].clicks
	i := sort.Search(last, func(i int) bool { return linkShares[i].clicks > clicks })
	lo, hi := linkShares[i-1], linkShares[i]
	f := (clicks - lo.clicks) / (hi.clicks - lo.clicks)
	rank := (lo.rank+1)*math.Pow((hi.rank+1)/(lo.rank+1), f) - 1
	return min(int(rank), int(hi.rank)-1)
}

func (c *Clicks) browser() string {
	n := 0
	for _, b := range browsers {
		n += b.clicks
	}
	x := c.rng.IntN(n)
	for _, b := range browsers {
		if x -= b.clicks; x < 0 {
			return b.name
		}
	}
	return browsers[0].name
}
