package shard

import (
	"math"
	"strings"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// checkReferences finds entries that nothing refers to any more.
func (s *State) checkReferences(b *blockReader) {
	for bin, n := range s.bins.names.all {
		if n.use == 0 {
			b.corrupt("bin %d belongs to no key", bin)
		}
	}
	for _, ns := range s.namespaces {
		if ns.definition.GetSlowHalfLifeUs() > 0 && ns.slow == 0 {
			b.corrupt("namespace %q has no companion", ns.definition.Name)
		}
		if ns.emptied && (ns.keys > 0 || len(ns.dictPartitions) > 0 || ns.slow != 0 && s.namespaces[ns.slow].keys > 0) {
			b.corrupt("namespace %q: it is purged, and has keys", ns.definition.Name)
		}
		if len(ns.eras) > 1 && ns.eras[0].keys == 0 {
			b.corrupt("namespace %q: era %d has no keys", ns.definition.Name, ns.eraBase)
		}
	}
}

const (
	// lastSessionMax leaves room for more sessions than will ever be opened above the ids that the clock gave.
	lastSessionMax = math.MaxUint64 / 2
	// lastEpochMax leaves room in the same way for further openings of sources.
	lastEpochMax = math.MaxUint64 / 2
	// eraMax leaves room in the same way for further changes of settings.
	eraMax = noEra / 2
)

// attach makes a restored namespace the slow one of its primary; primary is 0 if it is not a slow namespace.
func (s *State) attach(b *blockReader, ns *namespace, primary uint64) {
	if primary == 0 {
		return
	}
	if primary > uint64(len(s.namespaces)) {
		b.corrupt("a companion of namespace %d, which is not there", primary-1)
		return
	}
	of := s.namespaces[primary-1]
	if of.isSlow || of.slow != 0 || of.definition.Name+slowSuffix != ns.definition.Name || of.seed != ns.seed {
		b.corrupt("namespace %q is no companion of %q", ns.definition.Name, of.definition.Name)
		return
	}
	on := of.definition.GetSlowHalfLifeUs()
	if on > 0 == ns.closed || on > 0 && !pb.Equal(ns.definition, deriveSlow(of.definition)) {
		b.corrupt("companion of namespace %q: settings do not agree", of.definition.Name)
		return
	}
	ns.isSlow = true
	of.slow = uint16(len(s.namespaces))
	s.drop(&namespace{space: of.slow})
}

func (s *State) checkNamespace(b *blockReader, ns *namespace) {
	if b.err != nil {
		return
	}
	name := ns.definition.Name
	if ns.isSlow {
		shown := pb.CloneOf(ns.definition)
		shown.Name = strings.TrimSuffix(name, slowSuffix)
		ns = ns.clone(ns.epoch)
		ns.definition = shown
	}
	_, known := s.spaces[name]
	if err := proto.CheckNamespace(ns.definition); err != nil {
		b.corrupt("namespace %q: %v", name, err)
	} else if err := proto.CheckSecondHalfLife(ns.definition); err != nil {
		b.corrupt("namespace %q: %v", name, err)
	} else if err := proto.CheckDeletion(ns.definition); err != nil {
		b.corrupt("namespace %q: %v", name, err)
	} else if ns.isSlow && ns.deleted() {
		b.corrupt("namespace %q: a companion is not deleted by itself", name)
	} else if ns.began > s.now || ns.exposure.From > s.now ||
		!(ns.exposure.Had >= 0 && ns.exposure.Had <= math.MaxFloat64) ||
		ns.closed && !ns.isSlow || !ns.active.valid(s.now) {
		b.corrupt("namespace %q: what it has counted", name)
	} else if known || len(s.namespaces) >= math.MaxUint16 {
		b.corrupt("namespace %q is one too many", name)
	} else if len(ns.eras) == 0 || !s.means(ns.params(), ns.definition) {
		b.corrupt("namespace %q: settings do not agree", name)
	} else if len(ns.eras) > eraMask || uint64(ns.eraBase)+uint64(len(ns.eras)) > uint64(eraMax) {
		b.corrupt("namespace %q: era %d", name, ns.eraBase)
	} else if ns.eventTime > s.now || !ns.validEras(s.now) {
		b.corrupt("namespace %q: its times are ahead or out of order, or its signs are not known", name)
	}
}

// means says whether settings are the ones of a definition.
func (s *State) means(p *sketch.Params, def *ebbv1.Namespace) bool {
	as := s.paramsOf(def)
	as.Gone = p.Gone
	return *p == as
}

// validEras reports whether eras follow each other up to now, and whether the
// namespace is signed if one of them is. The first may have begun on another
// clock than the rest.
func (ns *namespace) validEras(now sketch.Tick) bool {
	for i := range ns.eras {
		e := &ns.eras[i]
		if e.fresh && !ns.isSlow || e.from > now || e.params.AllowNegative && !ns.signed || i > 1 && e.from < ns.eras[i-1].from {
			return false
		}
	}
	return true
}

// until returns the time up to which an era's distributions may have been written.
func (ns *namespace) until(era uint32, now sketch.Tick) sketch.Tick {
	if ns.clockEpoch() > 0 {
		return now // the clock may have been further
	}
	if i := era - ns.eraBase + 1; i < uint32(len(ns.eras)) {
		return ns.eras[i].from
	}
	return ns.clock(now)
}

// late reports whether the next cleanup of a restored key is later than it can be, which is about its death. The death
// of a body is known only to within some half-lives: see due-is-never-late. kept says that another floor may have kept
// a distribution before.
func (sum *summary) late(p *sketch.Params, kept bool) bool {
	if sum.body == nil {
		return !kept && vanished(p, &sum.dist, min(sum.due, clockMax)-1)
	}
	early := *p
	early.Threshold = lifeline(p) * 0x1p-8
	death := deathOf(sum.body, &early)
	if death == 0 { // nothing is left of it, by chance, before its cleanup
		return sum.due == sketch.MaxTick
	}
	return min(sum.due, clockMax) > death
}

// bodyBytesOver is more than all bodies of a shard can hold under a limit, including what one event adds to them.
func bodyBytesOver(limit int) int { return limit + limit/8 + 2*sketch.BloomBytesMax }

// valid reports whether the content of a restored key may have been written in its namespace by now.
func (sum *summary) valid(ns *namespace, now sketch.Tick) bool {
	if sum.body != nil {
		return sum.body.last() <= now && sum.body.suits(ns)
	}
	return sum.dist.Last() <= now && sum.dist.Suits(&ns.eras[sum.era-ns.eraBase].params, ns.until(sum.era, now), ns.signed)
}

// consistent reports whether recall can answer for every sequence of the window. The ring must reach back to the floor
// of the window, and must have the extra bit for exactly the sequences in extras.
func (w *session) consistent(window uint64) bool {
	if w.low > w.top || uint64(len(w.ring)) < min(w.top, window) {
		return false
	}
	extra := make(map[uint64]bool, len(w.extras))
	for _, o := range w.extras {
		extra[o.sequence] = o.more != ""
	}
	found := 0
	for sequence, left := w.top, w.top-w.floor(window); left > 0; sequence, left = sequence-1, left-1 {
		v := w.ring[sequence&uint64(len(w.ring)-1)]
		if v == extraBit || v&extraBit != 0 && !extra[sequence] {
			return false
		}
		if v&extraBit != 0 {
			found++
		}
	}
	return found == len(w.extras)
}
