package node

import (
	"sync"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
	"github.com/ebbdb/ebb/sketch"
)

// unions caches unions of periods for all shards of a node.
type unions struct {
	mem  *mapped.Memory
	mu   sync.Mutex // guards what follows
	all  *shard.UnionCache
	eras map[shard.ID]uint64 // how often a shard's unions were dropped
}

// newUnions returns a cache of at most so many bytes; nil, which keeps nothing, for 0 and less.
func newUnions(bytes int) *unions {
	if bytes <= 0 {
		return nil
	}
	mem := mapped.New()
	return &unions{mem: mem, all: shard.NewUnionCache(mem, bytes), eras: make(map[shard.ID]uint64)}
}

// era returns a number that changes when the shard's unions are dropped.
func (u *unions) era(id shard.ID) uint64 {
	if u == nil {
		return 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.eras[id]
}

// forget drops the unions of a shard whose state has been replaced by another.
func (u *unions) forget(id shard.ID) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.eras[id]++
	u.all.Forget(id)
}

// lend gives a view the unions with which it can answer a question; it makes some of them first. They stay until
// release is called. The view is of the given era, or of a later one. If that era has passed, the cached unions are not
// of the current state, and lend gives none.
func (u *unions) lend(id shard.ID, era uint64, view *shard.View, q *ebbv1.ShardQuestion, at sketch.Tick) (release func()) {
	if u == nil {
		return func() {}
	}
	windows := view.Windows(q, at)
	if len(windows) == 0 || u.era(id) != era {
		return func() {}
	}
	release = u.mem.Hold()
	have, planned := u.find(windows)
	if len(planned) > 0 {
		u.add(id, era, made(view, planned, at, u.mem))
		have = u.cover(windows)
	}
	for i, w := range windows {
		view.Use(w, have[i])
	}
	return release
}

func (u *unions) find(windows []*shard.Window) (have [][]*shard.CachedUnion, planned []*shard.PlannedUnion) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, w := range windows {
		unions, worth := u.all.Find(w)
		have, planned = append(have, unions), append(planned, worth...)
	}
	return have, planned
}

func (u *unions) cover(windows []*shard.Window) (have [][]*shard.CachedUnion) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, w := range windows {
		have = append(have, u.all.Cover(w))
	}
	return have
}

func (u *unions) add(id shard.ID, era uint64, list []*shard.CachedUnion) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, union := range list {
		u.all.Add(union)
	}
	if u.eras[id] != era {
		u.all.Forget(id)
	}
}

func (u *unions) stats() shard.UnionCacheStats {
	if u == nil {
		return shard.UnionCacheStats{}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all.UnionCacheStats
}

// made makes unions at the same time: a window needs two at most.
func made(view *shard.View, planned []*shard.PlannedUnion, at sketch.Tick, mem shard.Memory) []*shard.CachedUnion {
	list := make([]*shard.CachedUnion, len(planned))
	var making sync.WaitGroup
	for i, d := range planned[1:] {
		making.Go(func() { list[i+1] = view.BuildUnion(d, at, mem) })
	}
	list[0] = view.BuildUnion(planned[0], at, mem)
	making.Wait()
	return list
}
