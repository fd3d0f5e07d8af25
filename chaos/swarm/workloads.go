package swarm

import (
	"math"
	"slices"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// workload is an optional kind of client. A seed has a few of them: all together would cost several times as much, and
// faults hit whatever runs.
type workload struct {
	name    string
	spaces  []ebb.Namespace // namespaces that it needs in addition to counts
	clients func(w *world) []client
}

// workloadsDrawn is how many workloads a seed has, without those that are drawn separately.
const workloadsDrawn = 5

var (
	fadingSpace = ebb.Namespace{Name: fadingNamespace, HalfLife: fadingHalfLife}
	slicedSpace = ebb.Namespace{Name: slicedNamespace, Decay: ebb.DecayNone, BitmapPlacement: ebb.PlaceBySlice}
	windowSpace = ebb.Namespace{Name: windowNamespace, HalfLife: fadingHalfLife, Window: new(windowLength)}
	trendSpace  = ebb.Namespace{Name: trendNamespace, HalfLife: trendFast, SlowHalfLife: new(trendSlow)}
	namedSpace  = ebb.Namespace{Name: namedNamespace, Decay: ebb.DecayNone, Dictionary: true}
)

const (
	windowNamespace = "window"   // distinct keys that count over a window
	trendNamespace  = "trending" // with two half-lives
	namedNamespace  = "named"    // bitmaps of strings
	windowLength    = time.Hour
	trendFast       = 10 * time.Second
	trendSlow       = 5 * time.Minute
)

// workloads has all workloads, in the order in which they start.
var workloads = []workload{
	{"owns", nil, func(w *world) []client { return []client{newOwner(w, 1)} }},
	{"bits", nil, func(w *world) []client { return []client{newBitOwner(w, countsNamespace)} }},
	{"slices", []ebb.Namespace{slicedSpace}, func(w *world) []client { return []client{newBitOwner(w, slicedNamespace)} }},
	{"decay", []ebb.Namespace{fadingSpace}, func(w *world) []client { return []client{newDecayClient(w)} }},
	{repeats, nil, func(w *world) []client { return []client{newRepeater(w)} }},
	{"unites", nil, func(w *world) []client { return []client{newUniter(w)} }},
	{"ranks", nil, func(w *world) []client { return []client{newRanker(w)} }},
	{"compares", nil, func(w *world) []client { return []client{newComparer(w)} }},
	{"computes", []ebb.Namespace{slicedSpace}, func(w *world) []client { return []client{newComputer(w)} }},
	{"expiry", []ebb.Namespace{fadingSpace, windowSpace}, func(w *world) []client { return []client{newExpiryClient(w)} }},
	{"trends", []ebb.Namespace{trendSpace}, func(w *world) []client { return []client{newTrender(w)} }},
	{"dictionary", []ebb.Namespace{namedSpace}, func(w *world) []client { return []client{newDictionaryClient(w)} }},
	{"imports", nil, func(w *world) []client { return []client{newImporter(w)} }},
	{"watches", nil, func(w *world) []client { return []client{newWatcher(w)} }},
	{"switches", nil, newSwitchers},
	{"writes-log", nil, newLogWriters},
	{deletes, nil, func(w *world) []client { return []client{newDeleter(w)} }},
	{dates, []ebb.Namespace{datedSpace}, func(w *world) []client { return []client{newDater(w)} }},
	{retries, nil, func(w *world) []client { return []client{newRetrier(w, false), newRetrier(w, true)} }},
	{unaided, nil, func(w *world) []client { return []client{newUnaided(w)} }},
	{halfLives, []ebb.Namespace{changingSpace}, func(w *world) []client { return []client{newChanger(w)} }},
}

// deletes, dates, retries, unaided and half-lives are drawn separately, so that they do not change which other
// workloads a seed has. A seed with small limits also has the workloads that reach these limits.
const (
	deletes    = "deletes"
	deletesOne = 3 // one seed of this many has it
	dates      = "dates"
	datesOne   = 3
	retries    = "retries"
	retriesOne = 3
	unaided    = "unaided"
	unaidedOne = 3
	repeats    = "repeats"
	halfLives  = "half-lives"
	// halfLivesOne is rare: with the limit of production, a run has too few changes to reach it.
	halfLivesOne = 12
)

// drawWorkloads draws the workloads of a seed, or takes those that a test wants.
func (w *world) drawWorkloads() []workload {
	if w.opts.Workloads != nil {
		return slices.DeleteFunc(slices.Clone(workloads), func(l workload) bool {
			return !slices.Contains(w.opts.Workloads, l.name)
		})
	}
	others := len(workloads) - 5
	drawn := w.rng(7000).Perm(others)[:workloadsDrawn]
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
	again := slices.IndexFunc(workloads, func(l workload) bool { return l.name == repeats })
	if w.plan.Knobs[knobKeyWindow] != 0 && !slices.Contains(drawn, again) {
		drawn = append(drawn, again)
	}
	var chosen []workload
	for _, i := range drawn {
		chosen = append(chosen, workloads[i])
	}
	return chosen
}

// spaces are the namespaces that workloads need.
func spaces(chosen []workload) []ebb.Namespace {
	all := []ebb.Namespace{{Name: countsNamespace, Decay: ebb.DecayNone}}
	for _, l := range chosen {
		for _, space := range l.spaces {
			if !slices.ContainsFunc(all, func(s ebb.Namespace) bool { return s.Name == space.Name }) {
				all = append(all, space)
			}
		}
	}
	return all
}

// complete checks that the shard counts of an answer add up. If the answer may not be partial, no shard may be missing.
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
