package shard

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// purgeStory is a log of random entries about namespaces that are filled, deleted, undeleted, purged and made anew, and
// replicas that apply it in different ways. After each entry their bytes and what they answered are compared.
type purgeStory struct {
	*life
	r       *rand.Rand
	kinds   []string
	version uint64
	spaces  map[string]*storySpace

	restarted *State // is made of its own snapshot after each entry
	caught    *State // is made of the first replica's snapshot now and then
	views     []*View
	log       [][]byte
}

type storySpace struct {
	ns     *ebbv1.Namespace
	kind   string
	place  uint64 // of its purge
	rounds int    // purge entries of it
}

func newPurgeStory(t *testing.T, seed uint64) *purgeStory {
	p := &purgeStory{
		life: &life{t: t, s: New(1, &wiping{}), stamp: 1_700_000_000_000_000}, r: rand.New(rand.NewPCG(seed, 19)),
		spaces: map[string]*storySpace{}, restarted: New(1, &wiping{}), caught: New(1, &wiping{}),
	}
	for kind := range sorts() {
		p.kinds = append(p.kinds, kind)
	}
	slices.Sort(p.kinds)
	limits := DefaultLimits()
	limits.Namespaces = 6 // new ones take the places of purged ones
	for _, s := range p.all() {
		s.SetLimits(limits)
	}
	p.life.also = p.entered
	p.life.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourDeletion}}})
	return p
}

func (p *purgeStory) all() []*State { return []*State{p.life.s, p.restarted, p.caught} }

// reopened is a state made of the snapshot of another, with its limits.
func (p *purgeStory) reopened(from *State) *State {
	p.t.Helper()
	s, err := RestoreUnder(from.limits, 1, &wiping{}, bytes.NewReader(snapshot(p.t, from)))
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// entered applies an entry to the other replicas, and compares them with the first.
func (p *purgeStory) entered(index uint64, raw []byte, results []*ebbv1.CommandResult) {
	p.t.Helper()
	p.log = append(p.log, raw)
	want := snapshot(p.t, p.life.s)
	for i, s := range []*State{p.restarted, p.caught} {
		for n, r := range s.Apply(index, raw, nil) {
			if !pb.Equal(r, results[n]) {
				p.t.Fatalf("entry %d: replica %d answers %v, and the first %v", index, i+1, r, results[n])
			}
		}
		if !bytes.Equal(snapshot(p.t, s), want) {
			p.t.Fatalf("after entry %d replica %d has other bytes than the first", index, i+1)
		}
	}
	p.restarted = p.reopened(p.restarted)
	if p.r.IntN(8) == 0 {
		p.caught = p.reopened(p.life.s)
	}
	if p.r.IntN(4) == 0 { // what is purged is copied where a view holds it
		p.views = append(p.views, p.life.s.Freeze())
		if len(p.views) > 3 {
			p.views[0].Release()
			p.views = p.views[1:]
		}
	}
}

// of returns a random namespace in a state, nil if there is none.
func (p *purgeStory) of(fits func(*ebbv1.NamespaceDeletion) bool) *storySpace {
	var list []*storySpace
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		if s := p.spaces[name]; s != nil && fits(s.ns.GetDeletion()) {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[p.r.IntN(len(list))]
}

func live(d *ebbv1.NamespaceDeletion) bool    { return d == nil }
func grace(d *ebbv1.NamespaceDeletion) bool   { return d != nil && !d.GetPurging() }
func purging(d *ebbv1.NamespaceDeletion) bool { return d.GetPurging() }

// change brings a newer definition into the log.
func (p *purgeStory) change(s *storySpace, d *ebbv1.NamespaceDeletion) {
	p.version++
	s.ns = pb.CloneOf(s.ns)
	s.ns.Version, s.ns.Deletion, s.place = p.version, d, 0
	p.define(s.ns)
}

// step applies some entries.
func (p *purgeStory) step() {
	switch n := p.r.IntN(100); {
	case n < 12:
		p.create()
	case n < 24:
		if s := p.of(live); s != nil {
			p.fill(s)
		}
	case n < 32:
		if s := p.of(live); s != nil {
			p.change(s, &ebbv1.NamespaceDeletion{DeletedUs: 5, PurgeUs: 50, Purging: p.r.IntN(2) == 0})
		}
	case n < 36:
		if s := p.of(grace); s != nil {
			p.change(s, nil)
		}
	case n < 42:
		if s := p.of(grace); s != nil {
			p.change(s, &ebbv1.NamespaceDeletion{DeletedUs: 5, PurgeUs: 50, Purging: true})
		}
	case n < 45: // keys fade while they are purged
		p.stamp += int64(p.r.IntN(3600e6 * 24))
		p.apply(&ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: new(ebbv1.Tick)}})
	case n < 48: // refused, by all alike
		if s := p.of(func(d *ebbv1.NamespaceDeletion) bool { return d != nil }); s != nil {
			p.apply(in(s.ns.GetName(), increments("late", "x")))
		}
	default:
		p.purge()
	}
}

func (p *purgeStory) create() {
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		if p.spaces[name] != nil {
			continue
		}
		kind := p.kinds[p.r.IntN(len(p.kinds))]
		p.version++
		ns := proto.FillNamespace(pb.CloneOf(sorts()[kind].ns), proto.DefaultNamespaceSettings())
		ns.Name, ns.Version, ns.HashSeed = name, p.version, p.r.Uint64()|1
		s := &storySpace{ns: ns, kind: kind}
		if r := p.apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}}); r.GetError() == nil {
			p.spaces[name] = s
			p.fill(s)
		}
		return
	}
}

// fill writes what is of the namespace's sort, and enough keys for a purge of several entries.
func (p *purgeStory) fill(s *storySpace) {
	switch s.kind {
	case "slices":
		number := &ebbv1.HomeNumber{Number: p.r.Uint64() >> 1, Key: fmt.Appendf(nil, "sliced-%d", p.r.IntN(50))}
		reserve := &ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Reserve{Reserve: number}}
		put := &ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Put{Put: &ebbv1.HomePut{Number: number, Count: 3}}}
		for _, h := range []*ebbv1.HomeCommand{reserve, put}[:1+p.r.IntN(2)] {
			p.must(&ebbv1.Command{Namespace: s.ns.GetName(), Body: &ebbv1.Command_Home{Home: h}})
		}
		return
	case "event time", "strings":
		if p.life.s.namespaces[p.life.s.spaces[s.ns.GetName()]].keys == 0 {
			sorts()[s.kind].fill(p.life, s.ns.GetName())
		}
		return
	case "bitmaps", "identities":
		sorts()[s.kind].fill(p.life, s.ns.GetName())
	}
	list := &ebbv1.Increments{}
	for range 400 + p.r.IntN(1200) {
		list.Increments = append(list.Increments, &ebbv1.Increment{
			Key: fmt.Appendf(nil, "key-%d", p.r.IntN(4000)), Bin: fmt.Appendf(nil, "bin-%d", p.r.IntN(300)),
		})
	}
	p.apply(&ebbv1.Command{Namespace: s.ns.GetName(), Body: &ebbv1.Command_Increments{Increments: list}})
}

// purge applies an entry of a purge, at times together with writes to another namespace, or from a place where a leader
// that lost its term would go on.
func (p *purgeStory) purge() {
	s := p.of(purging)
	if s == nil {
		return
	}
	from := s.place
	if p.r.IntN(6) == 0 {
		from = uint64(p.r.IntN(purgeEnd+1))<<purgeStageShift | uint64(p.r.IntN(3000))
	}
	commands := []*ebbv1.Command{purgeOf(s.ns, from)}
	if other := p.of(live); other != nil && p.r.IntN(3) == 0 && other.ns.GetClock() != ebbv1.Clock_CLOCK_EVENT {
		commands = append(commands, in(other.ns.GetName(), increments(fmt.Sprint("beside-", p.r.IntN(50)), "x", "y")))
	}
	r := p.entry(commands...)[0]
	if r.GetError() != nil {
		p.t.Fatal(r)
	}
	s.rounds++
	if s.place = r.GetPurge().GetNext(); r.GetPurge().GetDone() {
		delete(p.spaces, s.ns.GetName())
	}
}

// Replicas agree byte for byte after every entry of purges, whatever they were made of: the log from its beginning, a
// snapshot after each entry, or another replica's snapshot in the middle of a purge.
func TestReplicasAgreeInPurges(t *testing.T) {
	t.Parallel()
	purges, longest := 0, 0
	for seed := range uint64(4) {
		p := newPurgeStory(t, seed)
		seen := map[*storySpace]bool{}
		for range 150 {
			for _, s := range p.spaces {
				seen[s] = true
			}
			p.step()
		}
		for _, v := range p.views {
			v.Release()
		}
		for s := range seen {
			if s.rounds > 0 {
				purges++
			}
			longest = max(longest, s.rounds)
		}
		for _, s := range p.all() {
			audit(t, s)
		}
		again := New(1, Heap{})
		again.SetLimits(p.life.s.limits)
		for i, raw := range p.log {
			again.Apply(uint64(i+1), raw, nil)
		}
		if !bytes.Equal(snapshot(t, again), snapshot(t, p.life.s)) {
			t.Errorf("seed %d: a replica that reads the log again differs", seed)
		}
	}
	if purges < 20 || longest < 4 {
		t.Errorf("%d purges of at most %d entries: the test has become too easy", purges, longest)
	}
	t.Logf("%d purges of at most %d entries", purges, longest)
}
