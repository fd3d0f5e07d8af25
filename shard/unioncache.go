package shard

import (
	"container/list"
	"hash/maphash"
	"maps"
	"math/bits"
	"slices"
)

// UnionCache keeps unions of periods that questions ask for, of the bitmaps of any number of states and outside of what
// is replicated. A union of so many periods as a power of two is kept from where a window begins, and another that ends
// where it ends; where they overlap nothing is lost, since it is a union:
//
//	window   1  2  3  4  5  6  7
//	unions  |-----4----|
//	                 |-----4----|
//
// So the next window needs one more, and whatever a window is, it is two bitmaps; three when its last period is still
// written to. A union is made when it is asked for a second time and none of its bitmaps has changed, and used as long
// as none of them has. One goroutine at a time may use it.
type UnionCache struct {
	// UnionCacheStats says what it did.
	UnionCacheStats
	mem      Memory
	max      int
	all      map[Family]map[Span]*list.Element // of *CachedUnion
	recent   list.List                         // of *CachedUnion: the first was used last
	seenOnce map[windowID]uint64               // what was asked for once: the digest of its versions
}

// UnionCacheStats says what a UnionCache did.
type UnionCacheStats struct {
	Bytes    int    // of unions that are kept
	Kept     int    // unions that are kept
	Windows  uint64 // that were asked for
	Answered uint64 // of them, by at least one union
	Made     uint64 // unions
	Evicted  uint64 // unions that made way for others
	Outdated uint64 // unions with a bitmap that has changed
}

const (
	// unionsOpen is how many of the last periods of a window may be written to while it is asked for.
	unionsOpen = 3
	// seenOnceMax is how many spans are remembered that were asked for once.
	seenOnceMax = 1 << 14
)

// NewUnionCache returns an empty UnionCache that keeps so many bytes at most.
func NewUnionCache(mem Memory, bytesMax int) *UnionCache {
	return &UnionCache{
		mem: mem, max: bytesMax, all: map[Family]map[Span]*list.Element{}, seenOnce: map[windowID]uint64{},
	}
}

// Find returns the unions that are there for a window, fewest first to last, and those that are worth making now;
// whoever makes them Adds them, and finds again what there is then.
func (u *UnionCache) Find(w *Window) (have []*CachedUnion, worth []*PlannedUnion) {
	u.Windows++
	if w.Whole && w.Bytes <= u.max/2 {
		for _, s := range u.worth(w) {
			part := *w
			part.Span = s
			part.Versions, part.keys = w.versionsOf(s), w.keys[s.First-w.First:][:s.Len]
			worth = append(worth, &PlannedUnion{w, s, u.Cover(&part), u.max / 2})
		}
	}
	have = u.Cover(w)
	if len(have) > 0 {
		u.Answered++
	}
	return have, worth
}

// worth are the unions that a window was asked for before, and that are not there. When its last period has changed
// since, it is looked at without that.
func (u *UnionCache) worth(w *Window) (missing []Span) {
	var fresh []Span
	defer func() {
		for _, s := range fresh {
			u.remember(windowID{w.Family, s}, w.versionsOf(s))
		}
	}()
	for open := range unionsOpen + 1 {
		n := w.Len - open
		if n < windowLeast {
			break
		}
		size := 1 << (bits.Len(uint(n)) - 1)
		pair := []Span{{w.First, size}, {w.First + int64(n-size), size}}
		missing, quiet := missing[:0], true
		for _, s := range slices.Compact(pair) {
			versions, id := w.versionsOf(s), windowID{w.Family, s}
			switch {
			case u.valid(w, s) != nil:
			case u.remembers(id, versions):
				missing = append(missing, s)
			default:
				quiet, fresh = false, append(fresh, s)
			}
		}
		if quiet {
			for _, s := range missing {
				delete(u.seenOnce, windowID{w.Family, s}) // a concurrent question does not make it as well
			}
			return missing
		}
	}
	return nil
}

func (u *UnionCache) remember(id windowID, versions []BitmapVersion) {
	if len(u.seenOnce) >= seenOnceMax {
		clear(u.seenOnce)
	}
	u.seenOnce[id] = digestOf(versions)
}

// remembers says whether a span was asked for once, with these versions.
func (u *UnionCache) remembers(id windowID, versions []BitmapVersion) bool {
	digest, known := u.seenOnce[id]
	return known && digest == digestOf(versions)
}

var digestSeed = maphash.MakeSeed()

// digestOf stands for the versions of a span, which may be thousands. Where two lists have the same digest, a union is
// made one question early.
func digestOf(versions []BitmapVersion) (digest uint64) {
	type chain struct {
		before uint64
		BitmapVersion
	}
	for _, e := range versions {
		digest = maphash.Comparable(digestSeed, chain{digest, e})
	}
	return digest
}

// valid is the union of a span of a window, if it is there and of the same versions. One of others goes.
func (u *UnionCache) valid(w *Window, s Span) *list.Element {
	e := u.all[w.Family][s]
	if e == nil {
		return nil
	}
	if union := e.Value.(*CachedUnion); !slices.Equal(union.versions, w.versionsOf(s)) {
		u.drop(e)
		u.Outdated++
		return nil
	}
	return e
}

// Cover returns the unions that are there for a window, as few as reach.
func (u *UnionCache) Cover(w *Window) (have []*CachedUnion) {
	var within []*list.Element
	for s := range u.all[w.Family] {
		if s.First >= w.First && s.end() <= w.end() {
			if e := u.valid(w, s); e != nil {
				within = append(within, e)
			}
		}
	}
	for at := w.First; at < w.end(); {
		var best *list.Element
		reach := at + 1 // of the bitmap itself
		for _, e := range within {
			if s := e.Value.(*CachedUnion).Span; s.First <= at && s.end() > reach {
				best, reach = e, s.end()
			}
		}
		if best != nil {
			have = append(have, best.Value.(*CachedUnion))
			u.recent.MoveToFront(best)
		}
		at = reach
	}
	return have
}

// Add keeps a union, if it is one. Others make way for it, those first that were not used for longest.
func (u *UnionCache) Add(union *CachedUnion) {
	if union == nil {
		return
	}
	if e := u.all[union.Family][union.Span]; e != nil {
		u.drop(e)
	}
	family := u.all[union.Family]
	if family == nil {
		family = map[Span]*list.Element{}
		u.all[union.Family] = family
	}
	family[union.Span] = u.recent.PushFront(union)
	u.Bytes += union.Bytes()
	u.Kept++
	u.Made++
	for u.Bytes > u.max {
		u.drop(u.recent.Back())
		u.Evicted++
	}
}

// Forget drops all that is kept for a shard: its state has been replaced by one in which the same versions may be of
// other bitmaps.
func (u *UnionCache) Forget(shard ID) {
	for e := u.recent.Front(); e != nil; {
		next := e.Next()
		if e.Value.(*CachedUnion).Shard == shard {
			u.drop(e)
		}
		e = next
	}
	maps.DeleteFunc(u.seenOnce, func(id windowID, _ uint64) bool { return id.Shard == shard })
}

func (u *UnionCache) drop(e *list.Element) {
	union := e.Value.(*CachedUnion)
	u.recent.Remove(e)
	delete(u.all[union.Family], union.Span)
	if len(u.all[union.Family]) == 0 {
		delete(u.all, union.Family)
	}
	u.Bytes -= union.Bytes()
	u.Kept--
	union.free(u.mem)
}
