package shard

import (
	"container/list"
	"hash/maphash"
	"maps"
	"math/bits"
	"slices"
)

// UnionCache keeps unions of periods that questions ask for, over the bitmaps of any number of states. It is not
// replicated. It keeps one union that begins where a window begins, and one that ends where the window ends. Each has
// as many periods as the largest power of two that fits. Where they overlap nothing is lost, since it is a union:
//
//	window   1  2  3  4  5  6  7
//	unions  |-----4----|
//	                 |-----4----|
//
// So the next window needs one more union, and any window is the union of two bitmaps; of three when its last period is
// still written to. A union is made when it is asked for a second time and none of its bitmaps has changed. It is used
// as long as none of them has. One goroutine at a time may use the cache.
type UnionCache struct {
	// UnionCacheStats counts what the cache did.
	UnionCacheStats
	mem      Memory
	max      int
	all      map[Family]map[Span]*list.Element // of *CachedUnion
	recent   list.List                         // of *CachedUnion: the first was used last
	seenOnce map[windowID]uint64               // windows that were asked for once: the digest of their versions
}

// UnionCacheStats counts what a UnionCache did.
type UnionCacheStats struct {
	Bytes    int    // of unions that are kept
	Kept     int    // unions that are kept
	Windows  uint64 // that were asked for
	Answered uint64 // windows for which there was at least one union
	Made     uint64 // unions
	Evicted  uint64 // unions that were dropped to make room
	Outdated uint64 // unions with a bitmap that has changed
}

const (
	// unionsOpen is how many of the last periods of a window may still be written to while the window is asked for.
	unionsOpen = 3
	// seenOnceMax is how many spans that were asked for once are remembered.
	seenOnceMax = 1 << 14
)

// NewUnionCache returns an empty UnionCache that keeps at most bytesMax bytes, in memory of mem.
func NewUnionCache(mem Memory, bytesMax int) *UnionCache {
	return &UnionCache{
		mem: mem, max: bytesMax, all: map[Family]map[Span]*list.Element{}, seenOnce: map[windowID]uint64{},
	}
}

// Find returns the unions that the cache has for a window, as few as possible, first to last. It also returns the
// unions that are worth making now. The caller that makes them Adds them, and calls Cover to find what there is then.
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

// worth returns the unions that a window was asked for before, and that do not exist. If the last periods of the window
// have changed since, it considers the window without them.
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

// remembers says whether a span was asked for before, with these versions.
func (u *UnionCache) remembers(id windowID, versions []BitmapVersion) bool {
	digest, known := u.seenOnce[id]
	return known && digest == digestOf(versions)
}

var digestSeed = maphash.MakeSeed()

// digestOf is a digest of the versions of a span, which may be thousands. If two lists have the same digest, a union is
// made one question too early.
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

// valid returns the union of a span of a window, if it exists and is of the same versions. It drops one of other
// versions.
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

// Cover returns unions that the cache has for a window: as few as cover what they can.
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
		reach := at + 1 // the end of the bitmap itself
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

// Add keeps a union; nil changes nothing. It makes room by dropping those that were not used for the longest time.
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

// Forget drops all that is kept for a shard. It is for a state that was replaced: in the new one, the same versions may
// be of other bitmaps.
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
