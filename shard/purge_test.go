package shard

import (
	"bytes"
	"fmt"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// life applies commands to a state, an entry each, a millisecond apart.
type life struct {
	t     *testing.T
	s     *State
	stamp int64
	also  func(index uint64, raw []byte, results []*ebbv1.CommandResult) // nil, or what is done with each entry
}

func newLife(t *testing.T, mem Memory) *life {
	l := &life{t: t, s: New(1, mem), stamp: 1_700_000_000_000_000}
	l.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourDeletion}}})
	return l
}

func (l *life) apply(c *ebbv1.Command) *ebbv1.CommandResult {
	l.t.Helper()
	return l.entry(c)[0]
}

// entry applies commands in one entry.
func (l *life) entry(commands ...*ebbv1.Command) []*ebbv1.CommandResult {
	l.t.Helper()
	l.stamp += 1000
	index, raw := l.s.Applied()+1, encode(l.t, l.stamp, commands...)
	results := l.s.Apply(index, raw, nil)
	if len(results) != len(commands) {
		l.t.Fatalf("%v: %d results", commands, len(results))
	}
	if l.also != nil {
		l.also(index, raw, results)
	}
	return results
}

// must is apply of what is not to be refused.
func (l *life) must(c *ebbv1.Command) *ebbv1.CommandResult {
	l.t.Helper()
	r := l.apply(c)
	if r.Error != nil || len(r.Refused) > 0 {
		l.t.Fatalf("%v: %v", c, r)
	}
	return r
}

func (l *life) define(ns *ebbv1.Namespace) {
	l.t.Helper()
	l.must(&ebbv1.Command{Namespace: ns.Name, Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns}})
}

func (l *life) ask(q *ebbv1.Question) *ebbv1.ShardAnswer {
	return l.s.Ask(&ebbv1.ShardQuestion{Shard: 1, Question: q}, sketch.Tick(l.stamp))
}

// restored is the same life of a replica that was made of a snapshot.
func (l *life) restored() *life {
	l.t.Helper()
	audit(l.t, l.s)
	s, err := Restore(1, &wiping{}, bytes.NewReader(snapshot(l.t, l.s)))
	if err != nil {
		l.t.Fatal(err)
	}
	return &life{t: l.t, s: s, stamp: l.stamp}
}

func inGrace(ns *ebbv1.Namespace) *ebbv1.Namespace {
	ns = pb.CloneOf(ns)
	ns.Version++
	ns.Deletion = &ebbv1.NamespaceDeletion{DeletedUs: 5, PurgeUs: 50}
	return ns
}

func beingPurged(ns *ebbv1.Namespace) *ebbv1.Namespace {
	ns = inGrace(ns)
	ns.Deletion.Purging = true
	return ns
}

func undeleted(ns *ebbv1.Namespace) *ebbv1.Namespace {
	ns = pb.CloneOf(ns)
	ns.Version++
	ns.Deletion = nil
	return ns
}

func purgeOf(ns *ebbv1.Namespace, from uint64) *ebbv1.Command {
	return &ebbv1.Command{Namespace: ns.Name, Body: &ebbv1.Command_PurgeNamespace{PurgeNamespace: &ebbv1.PurgeNamespace{Version: ns.Version, From: from}}}
}

func in(ns string, c *ebbv1.Command) *ebbv1.Command {
	c = pb.CloneOf(c)
	c.Namespace = ns
	return c
}

func setIDs(key string, ids ...uint64) *ebbv1.Command {
	edits := &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{{Key: []byte(key), Op: ebbv1.BitOp_BIT_OP_SET, Ids: proto.AppendBitIDs(nil, ids)}}}
	return &ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: edits}}
}

// A namespace of each sort, and what fills it: every place in which a shard holds something of one.
func sorts() map[string]struct {
	ns   *ebbv1.Namespace
	fill func(l *life, ns string)
} {
	type sort = struct {
		ns   *ebbv1.Namespace
		fill func(l *life, ns string)
	}
	return map[string]sort{
		"distributions": {&ebbv1.Namespace{}, func(l *life, ns string) {
			for i := range 300 {
				l.must(in(ns, increments(fmt.Sprint("k", i), "a", fmt.Sprint("bin", i))))
			}
			l.must(&ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{
				Keys: [][]byte{[]byte("k1")}, Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: 1e15},
			}}})
		}},
		"two half-lives": {&ebbv1.Namespace{HalfLifeUs: 3600e6, SlowHalfLifeUs: new(int64(36000e6))}, func(l *life, ns string) {
			for i := range 100 {
				l.must(in(ns, increments(fmt.Sprint("k", i), "a", "b")))
			}
		}},
		"event time": {&ebbv1.Namespace{Clock: ebbv1.Clock_CLOCK_EVENT}, func(l *life, ns string) {
			c := increments("k", "a")
			c.GetIncrements().Increments[0].TimeUs = l.stamp - 1000
			l.must(in(ns, c))
		}},
		"bodies": {&ebbv1.Namespace{Kind: ebbv1.Kind_KIND_DISTINCT}, func(l *life, ns string) {
			for i := range 20 {
				l.must(in(ns, increments(fmt.Sprint("k", i), "a", "b")))
			}
		}},
		"bitmaps": {&ebbv1.Namespace{}, func(l *life, ns string) {
			ids := make([]uint64, 5000)
			for i := range ids {
				ids[i] = uint64(i) * 977
			}
			l.must(in(ns, setIDs("large", ids...)))
			l.must(in(ns, setIDs("small", 1, 2, 3)))
		}},
		"slices": {&ebbv1.Namespace{BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE}, func(l *life, ns string) {
			for _, h := range []*ebbv1.HomeCommand{
				{What: &ebbv1.HomeCommand_Reserve{Reserve: &ebbv1.HomeNumber{Number: 77, Key: []byte("k")}}},
				{What: &ebbv1.HomeCommand_Put{Put: &ebbv1.HomePut{Number: &ebbv1.HomeNumber{Number: 77, Key: []byte("k")}, Count: 3}}},
				{What: &ebbv1.HomeCommand_Reserve{Reserve: &ebbv1.HomeNumber{Number: 78, Key: []byte("l")}}},
			} {
				l.must(&ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_Home{Home: h}})
			}
		}},
		"strings": {&ebbv1.Namespace{Dictionary: &ebbv1.Dictionary{Parts: 1}}, func(l *life, ns string) {
			l.must(&ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_Names{Names: &ebbv1.Names{Shards: 1, Names: [][]byte{[]byte("x"), []byte("y")}}}})
		}},
		"identities": {&ebbv1.Namespace{}, func(l *life, ns string) {
			l.must(&ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "s", Token: 1}}})
			l.must(&ebbv1.Command{Namespace: ns, Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: 9}}})
			c := in(ns, increments("k", "a"))
			c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: l.stamp, Hi: 1, Lo: 2}}
			l.must(c)
		}},
	}
}

// shown is what a namespace answers: its keys and what is in them, without the time.
func (l *life) shown(ns string) string {
	l.t.Helper()
	audit(l.t, l.s)
	list := l.ask(&ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Limit: 1000}}})
	if list.GetError() != nil {
		l.t.Fatal(list)
	}
	s := ""
	for _, k := range list.GetAnswer().GetKeys().GetKeys() {
		s += string(k.GetKey()) + " " + k.GetKind().String() + "\n"
	}
	return s
}

// A deleted namespace takes no writes and answers nothing, undeleted it is as it was, and purged nothing is left of it.
// All replicas agree all the while, those that are made of a snapshot in the middle, too.
func TestLifeOfANamespace(t *testing.T) {
	for name, sort := range sorts() {
		t.Run(name, func(t *testing.T) {
			l := newLife(t, &wiping{})
			bystander := proto.FillNamespace(&ebbv1.Namespace{Name: "b", Version: 1, HashSeed: 5, Dictionary: &ebbv1.Dictionary{Parts: 1}}, proto.DefaultNamespaceSettings())
			ns := proto.FillNamespace(pb.CloneOf(sort.ns), proto.DefaultNamespaceSettings())
			ns.Name, ns.Version, ns.HashSeed = "a", 1, 3
			l.define(ns)
			sort.fill(l, "a")
			l.define(bystander)
			sorts()["distributions"].fill(l, "b")
			sorts()["strings"].fill(l, "b")
			sorts()["identities"].fill(l, "b")
			before, other, held := l.shown("a"), l.shown("b"), l.s.Keys()

			l.define(inGrace(ns))
			was := l.s.Checksum()
			for what, c := range map[string]*ebbv1.Command{
				"increments": increments("k", "a"), "bits": setIDs("k", 1),
				"delete":  {Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k")}}}},
				"expire":  {Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Keys: [][]byte{[]byte("k")}, Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: 1}}}},
				"put":     {Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("n"), What: &ebbv1.PutKey_From{From: []byte("k")}}}},
				"names":   {Body: &ebbv1.Command_Names{Names: &ebbv1.Names{Shards: 1, Names: [][]byte{[]byte("z")}}}},
				"store":   {Body: &ebbv1.Command_StoreBitmap{StoreBitmap: &ebbv1.StoreBitmap{Key: []byte("n")}}},
				"home":    {Body: &ebbv1.Command_Home{Home: &ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Reserve{Reserve: &ebbv1.HomeNumber{Number: 99, Key: []byte("n")}}}}},
				"source":  {Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: "t", Token: 1}}},
				"session": {Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}},
			} {
				if r := l.apply(in("a", c)); r.GetError().GetCode() != ebbv1.Code_CODE_NAMESPACE_NOT_FOUND {
					t.Errorf("in grace, %s is answered with %v", what, r)
				}
			}
			if r := l.apply(purgeOf(inGrace(ns), 0)); r.GetError() == nil {
				t.Error("one in grace is purged")
			}
			if l.s.Keys() != held || l.s.Checksum() == was { // the clock has moved
				t.Errorf("%d keys are held of %d", l.s.Keys(), held)
			}
			for _, q := range []*ebbv1.Question{
				{Namespace: "a", Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{}}},
				{Namespace: "a", Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}},
				{Namespace: "a", Ask: &ebbv1.Question_Names{Names: &ebbv1.NamesQuestion{Names: [][]byte{[]byte("x")}}}},
			} {
				if e := l.ask(q).GetError(); e.GetCode() != ebbv1.Code_CODE_NAMESPACE_NOT_FOUND {
					t.Errorf("in grace, %v is answered with %v", q, e)
				}
			}
			if list := l.s.Orphans(1<<60, 10); len(list) > 0 {
				t.Errorf("in grace, %d numbers are to be swept", len(list))
			}

			l = l.restored()
			back := undeleted(inGrace(ns))
			l.define(back)
			if after := l.shown("a"); after != before {
				t.Errorf("undeleted it holds\n%snot\n%s", after, before)
			}

			gone := beingPurged(back)
			l.define(gone)
			replica := l.restored()
			for from, entries := uint64(0), 0; ; entries++ {
				r := l.must(purgeOf(gone, from))
				if again := replica.must(purgeOf(gone, from)); !pb.Equal(again, r) {
					t.Fatalf("a replica is at %v, and another at %v", again, r)
				}
				if a, b := l.s.Checksum(), replica.s.Checksum(); a != b {
					t.Fatalf("after %d entries replicas differ", entries)
				}
				if entries > 10 {
					t.Fatal("the purge does not end")
				}
				if from = r.GetPurge().GetNext(); r.GetPurge().GetDone() {
					break
				}
				replica = l.restored()
			}
			if d := l.s.Deletion("a"); !d.Emptied || d.Keys != 0 {
				t.Errorf("purged it is %+v", d)
			}
			l = l.restored()
			if l.shown("b") != other {
				t.Error("another namespace lost keys")
			}
			if l.s.OrphanCount() != 0 || l.s.sources.live != 1 || l.s.sessions.live != 1 || l.s.answered.live != 1 || len(l.s.dictPartitions) != 1 {
				t.Errorf("left are %d orphans, %d sources, %d sessions, %d idempotency keys, %d parts of dictionaries", l.s.OrphanCount(),
					l.s.sources.live, l.s.sessions.live, l.s.answered.live, len(l.s.dictPartitions))
			}
			if id, ok := l.s.idOf(l.s.lookup([]byte("b")), []byte("y")); !ok || id != 1 {
				t.Errorf("a string of another namespace has id %d, %v", id, ok)
			}
			l.define(ns) // late, and older
			if l.apply(in("a", increments("k", "a"))).GetError() == nil {
				t.Error("an older definition lets writes in again")
			}

			anew := undeleted(gone)
			anew.HashSeed = 4
			l.define(anew)
			if shown := l.shown("a"); shown != "" {
				t.Errorf("anew it holds %s", shown)
			}
			sort.fill(l, "a")
			if after := l.shown("a"); after != before {
				t.Errorf("anew, and filled, it holds\n%snot\n%s", after, before)
			}
			l.restored()
		})
	}
}

// A purge is cut into entries that each drop a bounded number of keys. A replica that is made of a snapshot after the
// first of them drops the same keys.
func TestPurgeInBoundedEntries(t *testing.T) {
	const keys = 5000
	l := newLife(t, Heap{})
	ns := proto.FillNamespace(&ebbv1.Namespace{Name: "a", Version: 1, HashSeed: 3}, proto.DefaultNamespaceSettings())
	l.define(ns)
	for i := range keys {
		l.must(in("a", increments(fmt.Sprint("k", i), "a", "b", "c")))
	}
	taken := l.s.summaries.bins.taken
	gone := beingPurged(ns)
	l.define(gone)
	if r := l.must(purgeOf(gone, purgeEnd<<purgeStageShift)).GetPurge(); r.GetDone() || r.GetNext() != 0 {
		t.Errorf("begun at its end it is at %v", r)
	}
	from, dropped, entries := uint64(0), uint64(0), 0
	var late *life
	for done := false; !done; entries++ {
		r := l.must(purgeOf(gone, from)).GetPurge()
		if most := uint64(purgeWork/purgeKeyWork + 1); r.GetDropped() > most {
			t.Fatalf("an entry drops %d keys: more than %d", r.GetDropped(), most)
		}
		if entries == 0 {
			late = l.restored()
		} else if other := late.must(purgeOf(gone, from)).GetPurge(); !pb.Equal(other, r) {
			t.Fatalf("entry %d: a replica made of a snapshot says %v, and the other %v", entries, other, r)
		}
		if from, done, dropped = r.GetNext(), r.GetDone(), dropped+r.GetDropped(); entries > 100 {
			t.Fatal("it does not end")
		}
	}
	if late.s.Checksum() != l.s.Checksum() {
		t.Error("a replica that is made of a snapshot in the middle of a purge differs")
	}
	audit(t, l.s)
	audit(t, late.s)
	if dropped != keys || entries < keys*purgeKeyWork/purgeWork {
		t.Errorf("%d keys were dropped in %d entries", dropped, entries)
	}
	for i := 0; l.s.Fragmented(); i++ {
		if i > 100 {
			t.Fatal("pages are not given back by entries")
		}
		l.must(purgeOf(gone, from))
	}
	if l.s.summaries.bins.taken > taken/4 {
		t.Errorf("%d words of pages are taken, of %d before", l.s.summaries.bins.taken, taken)
	}
}

// A shard that is full of namespaces gives a new one the place of the emptied one with the lowest version, and of no
// other.
func TestNewNamespacesReplaceEmptiedOnes(t *testing.T) {
	l := newLife(t, Heap{})
	limits := DefaultLimits()
	limits.Namespaces = 3
	l.s.SetLimits(limits)
	all := map[string]*ebbv1.Namespace{}
	for i, name := range []string{"a", "b", "c"} {
		ns := proto.FillNamespace(&ebbv1.Namespace{
			Name: name, Version: uint64(10 - i), HashSeed: uint64(i + 1), HalfLifeUs: 3600e6, SlowHalfLifeUs: new(int64(36000e6)),
		}, proto.DefaultNamespaceSettings())
		l.define(ns)
		l.must(in(name, increments("k", "x")))
		all[name] = beingPurged(ns)
	}
	fresh := proto.FillNamespace(&ebbv1.Namespace{Name: "d", Version: 20, HashSeed: 9}, proto.DefaultNamespaceSettings())
	define := &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: fresh}}
	l.define(all["c"]) // of the lowest version, and not emptied
	if r := l.apply(define); r.GetError() == nil {
		t.Fatal("a namespace takes the place of one with keys")
	}
	for _, name := range []string{"a", "b"} {
		l.define(all[name])
		if r := l.must(purgeOf(all[name], 0)); !r.GetPurge().GetDone() {
			t.Fatal(r)
		}
	}
	l.must(define)
	l.must(in("d", increments("k", "x")))
	if l.s.NamespaceVersion("b") != 0 || l.s.NamespaceVersion("a") == 0 || l.s.Deletion("c").Keys != 1 {
		t.Errorf("versions %d of a and %d of b are known, and c has %d keys", l.s.NamespaceVersion("a"), l.s.NamespaceVersion("b"), l.s.Deletion("c").Keys)
	}
	if back := l.restored(); back.s.Checksum() != l.s.Checksum() || back.shown("d") != "k KIND_DISTRIBUTION\n" {
		t.Error("a replica that is made of a snapshot differs")
	}
}

// Before the behaviour is switched on, shards know of no deletions.
func TestDeletionWaitsForItsBehaviour(t *testing.T) {
	l := &life{t: t, s: New(1, Heap{}), stamp: 1e15}
	ns := proto.FillNamespace(&ebbv1.Namespace{Name: "a", Version: 1, HashSeed: 3}, proto.DefaultNamespaceSettings())
	l.define(ns)
	gone := beingPurged(ns)
	for _, c := range []*ebbv1.Command{{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: gone}}, purgeOf(gone, 0)} {
		if r := l.apply(c); r.GetError() == nil {
			t.Errorf("%v is applied", c)
		}
	}
}
