package node

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// defaultNamespace is the namespace of a command that names none.
var defaultNamespace = []byte(proto.DefaultNamespace)

// usageKept is how long the figures of a node that no longer answers count. By then its shards are led by others, which
// count them.
const usageKept = 3 * time.Second

// usage sums what namespaces hold in all replicas of this node, which is the memory that they take here. It also sums
// what they hold in the shards that this node leads, which is its part of the cluster's total. For the other parts it
// has the last reports of the other nodes.
//
// look counts; admission reads the figures of the last look without a lock.
type usage struct {
	spaces atomic.Pointer[map[string]*spaceUsage] // by namespace; never nil
	// inhabited is how many namespaces have keys on this node.
	inhabited atomic.Int64

	mu    sync.Mutex // guards what follows
	seen  map[usageSource][]*spaceUsage
	nodes map[string]nodeUsage
}

// usageSource is a replica whose namespaces are counted.
type usageSource interface {
	usage(visit func(space int, name string, u shard.Usage))
	leads() bool
}

// spaceUsage is what one namespace holds.
type spaceUsage struct {
	name string
	// At the last look, on this node: bytes in all replicas, keys and bytes in the shards that it leads.
	held, keys, bytes atomic.Uint64
	// Elsewhere, in the shards that other nodes lead.
	otherKeys, otherBytes atomic.Uint64
	// admitted is how many bytes of commands that may grow were let in since the last look.
	admitted atomic.Int64

	// The sums of the look in progress; usage.mu is held.
	next spaceSum
}

type spaceSum struct{ heldKeys, held, keys, bytes uint64 }

// nodeUsage is the last report of another node.
type nodeUsage struct {
	at     time.Time
	spaces []*ebbv1.NodeNamespace
}

func newUsage() *usage {
	u := &usage{nodes: make(map[string]nodeUsage)}
	u.clear()
	return u
}

// clear drops the names of namespaces. u.mu is held, or u is new.
func (u *usage) clear() {
	u.spaces.Store(&map[string]*spaceUsage{})
	u.seen = make(map[usageSource][]*spaceUsage)
}

// of returns what a namespace holds; nil for a namespace that holds nothing.
func (u *usage) of(name []byte) *spaceUsage { return (*u.spaces.Load())[string(name)] }

// look counts again.
func (u *usage) look(replicas []usageSource) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(*u.spaces.Load()) > 2*proto.NamespacesMax {
		u.clear() // most of them are of namespaces that are gone
	}
	spaces, added := *u.spaces.Load(), map[string]*spaceUsage(nil)
	find := func(name string) *spaceUsage {
		if s := spaces[name]; s != nil {
			return s
		}
		if added == nil {
			added = make(map[string]*spaceUsage)
		}
		if added[name] == nil {
			added[name] = &spaceUsage{name: name}
		}
		return added[name]
	}
	for _, s := range spaces {
		s.next = spaceSum{}
	}
	seen := make(map[usageSource][]*spaceUsage, len(replicas))
	for _, r := range replicas {
		leads, known := r.leads(), u.seen[r]
		r.usage(func(space int, name string, has shard.Usage) {
			for len(known) <= space {
				known = append(known, nil)
			}
			if known[space] == nil || known[space].name != name {
				known[space] = find(name)
			}
			sum := &known[space].next
			sum.heldKeys += has.Keys
			sum.held += has.Bytes
			if leads {
				sum.keys += has.Keys
				sum.bytes += has.Bytes
			}
		})
		seen[r] = known
	}
	u.seen = seen
	if added != nil {
		all := maps.Clone(spaces)
		maps.Copy(all, added)
		u.spaces.Store(&all)
		spaces = all
	}
	inhabited := int64(0)
	for _, s := range spaces {
		if s.next.heldKeys > 0 {
			inhabited++
		}
		s.held.Store(s.next.held)
		s.keys.Store(s.next.keys)
		s.bytes.Store(s.next.bytes)
		s.admitted.Store(0)
	}
	u.inhabited.Store(inhabited)
}

// recordReports stores what other nodes reported at a time. For nodes without a report, the one before counts for
// usageKept.
func (u *usage) recordReports(at time.Time, said map[string][]*ebbv1.NodeNamespace) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for node, spaces := range said {
		u.nodes[node] = nodeUsage{at, spaces}
	}
	sums := make(map[string]spaceSum)
	for node, n := range u.nodes {
		if at.Sub(n.at) > usageKept {
			delete(u.nodes, node)
			continue
		}
		for _, s := range n.spaces {
			sum := sums[s.GetName()]
			sum.keys += s.GetKeys()
			sum.bytes += s.GetBytes()
			sums[s.GetName()] = sum
		}
	}
	all := maps.Clone(*u.spaces.Load())
	for name := range sums {
		if all[name] == nil {
			all[name] = &spaceUsage{name: name}
		}
	}
	for name, s := range all {
		s.otherKeys.Store(sums[name].keys)
		s.otherBytes.Store(sums[name].bytes)
	}
	u.spaces.Store(&all)
}

// report returns what the wanted namespaces hold on this node, the largest first.
func (u *usage) report(wanted func(name string) bool) (out []*ebbv1.NodeNamespace) {
	for name, s := range *u.spaces.Load() {
		if held := s.held.Load(); held > 0 && wanted(name) {
			out = append(out, &ebbv1.NodeNamespace{Name: name, Keys: s.keys.Load(), Bytes: s.bytes.Load(), Held: held})
		}
	}
	slices.SortFunc(out, func(a, b *ebbv1.NodeNamespace) int {
		return cmp.Or(cmp.Compare(b.GetHeld(), a.GetHeld()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out
}

// largest returns the n namespaces that take most of this node's memory.
func (u *usage) largest(n int) []*ebbv1.NodeNamespace {
	all := u.report(func(string) bool { return true })
	return all[:min(n, len(all))]
}

// usage implements usageSource.
func (r *replica) usage(visit func(space int, name string, u shard.Usage)) { r.state.usage(visit) }

// leads implements usageSource.
func (r *replica) leads() bool {
	_, leads := r.leading()
	return leads
}
