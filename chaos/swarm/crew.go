package swarm

import (
	"math"
	"slices"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// duty is what some of the clients may be there for. A seed has a few of them: with all it would cost several times as much, and faults do not mind who is hit.
type duty struct {
	name   string
	spaces []ebb.Namespace // that it works in, beside counts
	employ func(w *world) []client
}

// dutiesDrawn is how many of them a seed has.
const dutiesDrawn = 5

var (
	fadingSpace = ebb.Namespace{Name: fadingNamespace, HalfLife: fadingHalfLife}
	slicedSpace = ebb.Namespace{Name: slicedNamespace, Decay: ebb.DecayNone, BitmapPlacement: ebb.PlaceBySlice}
	windowSpace = ebb.Namespace{Name: windowNamespace, HalfLife: fadingHalfLife, Window: new(windowLength)}
	trendSpace  = ebb.Namespace{Name: trendNamespace, HalfLife: trendFast, SlowHalfLife: new(trendSlow)}
	namedSpace  = ebb.Namespace{Name: namedNamespace, Decay: ebb.DecayNone, Dictionary: true}
)

const (
	windowNamespace = "window"   // of distinct keys that count a window
	trendNamespace  = "trending" // of two half-lives
	namedNamespace  = "named"    // bitmaps of strings
	windowLength    = time.Hour
	trendFast       = 10 * time.Second
	trendSlow       = 5 * time.Minute
)

// duties are all of them, in the order in which they are employed.
var duties = []duty{
	{"owns", nil, func(w *world) []client { return []client{newOwner(w, 1)} }},
	{"bits", nil, func(w *world) []client { return []client{newBitOwner(w, countsNamespace)} }},
	{"slices", []ebb.Namespace{slicedSpace}, func(w *world) []client { return []client{newBitOwner(w, slicedNamespace)} }},
	{"fades", []ebb.Namespace{fadingSpace}, func(w *world) []client { return []client{newFader(w)} }},
	{repeats, nil, func(w *world) []client { return []client{newRepeater(w)} }},
	{"unites", nil, func(w *world) []client { return []client{newUniter(w)} }},
	{"ranks", nil, func(w *world) []client { return []client{newRanker(w)} }},
	{"compares", nil, func(w *world) []client { return []client{newComparer(w)} }},
	{"computes", []ebb.Namespace{slicedSpace}, func(w *world) []client { return []client{newComputer(w)} }},
	{"ages", []ebb.Namespace{fadingSpace, windowSpace}, func(w *world) []client { return []client{newAger(w)} }},
	{"trends", []ebb.Namespace{trendSpace}, func(w *world) []client { return []client{newTrender(w)} }},
	{"names", []ebb.Namespace{namedSpace}, func(w *world) []client { return []client{newNamer(w)} }},
	{"imports", nil, func(w *world) []client { return []client{newImporter(w)} }},
	{"watches", nil, func(w *world) []client { return []client{newWatcher(w)} }},
	{"switches", nil, newSwitchers},
	{"writes-log", nil, newScribes},
	{deletes, nil, func(w *world) []client { return []client{newDeleter(w)} }},
	{dates, []ebb.Namespace{datedSpace}, func(w *world) []client { return []client{newDater(w)} }},
	{retries, nil, func(w *world) []client { return []client{newRetrier(w, false), newRetrier(w, true)} }},
	{unaided, nil, func(w *world) []client { return []client{newUnaided(w)} }},
	{halfLives, []ebb.Namespace{changingSpace}, func(w *world) []client { return []client{newChanger(w)} }},
}

// deletes, dates, retries, unaided and half-lives are drawn by themselves, so that seeds keep the other duties that they
// had before these came. Seeds with small limits have those that reach them.
const (
	deletes    = "deletes"
	deletesOne = 3 // of so many seeds
	dates      = "dates"
	datesOne   = 3
	retries    = "retries"
	retriesOne = 3
	unaided    = "unaided"
	unaidedOne = 3
	repeats    = "repeats"
	halfLives  = "half-lives"
	// halfLivesOne is rare: few changes say nothing where the limit is that of production.
	halfLivesOne = 12
)

// crew draws the duties of a seed, or takes those that a test wants.
func (w *world) crew() []duty {
	if w.opts.Crew != nil {
		return slices.DeleteFunc(slices.Clone(duties), func(d duty) bool { return !slices.Contains(w.opts.Crew, d.name) })
	}
	others := len(duties) - 5
	drawn := w.rng(7000).Perm(others)[:dutiesDrawn]
	slices.Sort(drawn)
	if w.rng(7001).IntN(deletesOne) == 0 {
		drawn = append(drawn, others)
	}
	if w.rng(7002).IntN(datesOne) == 0 {
		drawn = append(drawn, others+1)
	}
	if w.plan.Knobs != nil || w.rng(7003).IntN(retriesOne) == 0 {
		drawn = append(drawn, others+2)
	}
	if w.rng(7004).IntN(unaidedOne) == 0 {
		drawn = append(drawn, others+3)
	}
	if w.plan.turned(knobHalfLives) || w.rng(7005).IntN(halfLivesOne) == 0 {
		drawn = append(drawn, others+4)
	}
	again := slices.IndexFunc(duties, func(d duty) bool { return d.name == repeats })
	if w.plan.Knobs[knobKeyWindow] != 0 && !slices.Contains(drawn, again) {
		drawn = append(drawn, again)
	}
	var crew []duty
	for _, i := range drawn {
		crew = append(crew, duties[i])
	}
	return crew
}

// spaces are the namespaces that a crew needs.
func spaces(crew []duty) []ebb.Namespace {
	all := []ebb.Namespace{{Name: countsNamespace, Decay: ebb.DecayNone}}
	for _, d := range crew {
		for _, space := range d.spaces {
			if !slices.ContainsFunc(all, func(s ebb.Namespace) bool { return s.Name == space.Name }) {
				all = append(all, space)
			}
		}
	}
	return all
}

// complete holds an answer that may not be partial to saying that nothing is missing, and any answer to numbers of shards that add up.
func (w *world) complete(c ebb.Coverage, partial bool) {
	w.hold("coverage-adds-up", c.ShardsAnswered+len(c.ShardsFailed) == c.ShardsTotal && (partial || c.Complete()) && c.ShardsTotal <= int(w.plan.Shards),
		"of %d shards %d answered and %v failed, where partial answers are allowed: %v", c.ShardsTotal, c.ShardsAnswered, c.ShardsFailed, partial)
}

// included reports whether an answer says that it has all of a shard.
func included(c ebb.Coverage, shard uint32) bool {
	return !slices.Contains(c.ShardsFailed, shard) && !slices.Contains(c.ShardsStale, shard)
}

// about reports whether two numbers differ by rounding alone.
func about(got, want float64) bool {
	return math.Abs(got-want) <= 1e-9*max(1, math.Abs(want))
}
