package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func (e *fakeCluster) named(placement ebbv1.BitmapPlacement) {
	e.create(&ebbv1.Namespace{Name: "people", BitmapPlacement: placement, Dictionary: &ebbv1.Dictionary{}})
}

func namesChange(key string, op ebbv1.BitOp, names ...string) *ebbv1.BitChange {
	c := &ebbv1.BitChange{Key: []byte(key), Op: op}
	for _, name := range names {
		c.Names = append(c.Names, []byte(name))
	}
	return c
}

func texts(names [][]byte) []string {
	out := []string{}
	for _, name := range names {
		out = append(out, string(name))
	}
	return out
}

func containsNames(namespace, key string, names ...string) *ebbv1.Question {
	return &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
		Expr: keyTerm(key), Select: &ebbv1.BitmapQuestion_Contains{Contains: &ebbv1.BitmapIds{Names: namesChange(key, 0, names...).Names}},
	}}}
}

// strings of all nodes' routers and coordinators, which share no memory.
type nameNodes struct {
	routers      []*Router
	coordinators []*Coordinator
}

func (e *fakeCluster) nameNodes() (n nameNodes) {
	for _, node := range nodeNames(3) {
		n.routers, n.coordinators = append(n.routers, e.router(node)), append(n.coordinators, e.coordinator(node))
	}
	return n
}

// Whatever strings are set, cleared and flipped through whichever node, a bitmap lists the strings of a Go map, and
// each of them is in for every node. A string has one id, and what was only asked for has none.
func TestStringsInBitmaps(t *testing.T) {
	for _, placement := range []ebbv1.BitmapPlacement{ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY, ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE} {
		for _, shards := range []uint32{3, 16} {
			t.Run(fmt.Sprint(placement, shards), func(t *testing.T) {
				e := newFakeCluster(t, shards)
				e.named(placement)
				r := rand.New(rand.NewPCG(3, uint64(shards)))
				nodes := e.nameNodes()
				want := map[string]map[string]bool{"a": {}, "b/2011": {}}
				for range 30 {
					req := &ebbv1.BitsRequest{Namespace: "people"}
					var changed []uint64
					for range 1 + r.IntN(3) {
						key := slices.Sorted(maps.Keys(want))[r.IntN(2)]
						op, names := ebbv1.BitOp(1+r.IntN(3)), map[string]bool{}
						for range 1 + r.IntN(20) {
							names[fmt.Sprint("user-", r.IntN(200))] = true
						}
						count := uint64(0)
						for name := range names {
							if in := op == ebbv1.BitOp_BIT_OP_SET || op == ebbv1.BitOp_BIT_OP_FLIP && !want[key][name]; in != want[key][name] {
								count++
								if want[key][name] = in; !in {
									delete(want[key], name)
								}
							}
						}
						req.Changes, changed = append(req.Changes, namesChange(key, op, slices.Collect(maps.Keys(names))...)), append(changed, count)
					}
					resp, err := nodes.routers[r.IntN(3)].Bits(t.Context(), req)
					if err != nil || !slices.Equal(resp.GetChanged(), changed) {
						t.Fatalf("%v, %v: %v were to be changed", resp, err, changed)
					}
				}
				for _, c := range nodes.coordinators {
					for key, set := range want {
						b := e.about(c, listIDs("people", keyTerm(key))).GetBitmap()
						if got := slices.Sorted(slices.Values(texts(b.GetNames()))); !slices.Equal(got, slices.Sorted(maps.Keys(set))) || len(b.GetIds()) != len(set) || !slices.IsSorted(b.GetIds()) {
							t.Fatalf("%s holds %q: want %v", key, got, set)
						}
						all := append(slices.Sorted(maps.Keys(set)), "nobody", "user-5")
						for i, in := range e.about(c, containsNames("people", key, all...)).GetBitmap().GetContains() {
							if in != set[all[i]] {
								t.Errorf("%s in %s: %v", all[i], key, in)
							}
						}
					}
				}
				ids := map[uint64]string{}
				for n := range 200 {
					name := fmt.Sprint("user-", n)
					w := nodes.coordinators[n%3].newLookup(e.table, "people", [][]byte{[]byte(name)}, nil)
					if err := nodes.coordinators[n%3].lookUp(t.Context(), e.table, w, &ebbv1.AskRequest{}); err != nil {
						t.Fatal(err)
					}
					if id := w.answer.Ids[0]; w.answer.Found[0] {
						if other, taken := ids[id]; taken || uint32(id%uint64(shards)) != proto.NamePart("people", []byte(name), shards) {
							t.Errorf("%s and %s are %d", name, other, id)
						}
						ids[id] = name
					}
				}
				if len(ids) < 100 {
					t.Fatalf("%d strings have ids", len(ids))
				}
				if a := e.names(nodes.coordinators[0], []string{"nobody"}, nil); a.Found[0] {
					t.Error("a question has named a string")
				}
			})
		}
	}
}

// names asks about the dictionary of the namespace people.
func (e *fakeCluster) names(c *Coordinator, names []string, ids []uint64) *ebbv1.NamesAnswer {
	e.t.Helper()
	q := &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_Names{Names: &ebbv1.NamesQuestion{Names: namesChange("", 0, names...).Names, Ids: ids}}}
	resp, err := c.Ask(e.t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if err != nil || resp.Answers[0].GetError() != nil {
		e.t.Fatalf("%v, %v", resp, err)
	}
	return resp.Answers[0].GetNames()
}

// meddler is a Backend that does something after each call that names strings.
type meddler struct {
	Backend
	after func() error
}

func (m meddler) Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	resp, err := m.Backend.Apply(ctx, req)
	for _, c := range req.GetCommands() {
		if strings.Contains(string(c.GetCommand()), "\x92\x01") && err == nil { // the tag of names
			err = m.after()
			break
		}
	}
	return resp, err
}

// meddlers are the other nodes, each with its meddler.
type meddlers struct {
	Peers
	after func() error
}

func (m meddlers) Backend(node string) (Backend, error) {
	b, err := m.Peers.Backend(node)
	return meddler{b, m.after}, err
}

func (e *fakeCluster) meddled(after func() error) *Router {
	r := e.router("ebb-0")
	cfg := r.cfg
	cfg.Local, cfg.Peers = meddler{cfg.Local, after}, meddlers{cfg.Peers, after}
	return NewRouter(cfg)
}

// Between the name and the bit another node takes over each shard: the bit is set all the same, for the same id. When
// the answer to a name is lost, it is named again, with the same id.
func TestNameThenBit(t *testing.T) {
	for what, after := range map[string]func(e *fakeCluster, call int) error{
		"other leaders": func(e *fakeCluster, call int) error {
			e.with(func() {
				for number := range e.leads {
					if call == 1 {
						e.leads[number] = fmt.Sprint("ebb-", number%3)
					}
				}
			})
			return nil
		},
		"lost answers": func(_ *fakeCluster, call int) error {
			if call < 3 {
				return proto.ErrDeadline.Errorf("the connection broke")
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			e := newFakeCluster(t, 4)
			e.named(0)
			calls := 0
			r := e.meddled(func() error {
				call := 0
				e.with(func() {
					calls++
					call = calls
				})
				return after(e, call)
			})
			resp, err := r.Bits(t.Context(), &ebbv1.BitsRequest{Namespace: "people", Changes: []*ebbv1.BitChange{namesChange("a", 1, "alice", "bob", "eve", "mallory")}})
			if err != nil || resp.GetChanged()[0] != 4 || calls == 0 {
				t.Fatalf("%v, %v after %d calls", resp, err, calls)
			}
			b := e.about(e.coordinator("ebb-2"), listIDs("people", keyTerm("a"))).GetBitmap()
			if got := slices.Sorted(slices.Values(texts(b.GetNames()))); !slices.Equal(got, []string{"alice", "bob", "eve", "mallory"}) {
				t.Errorf("it holds %q", got)
			}
			for i, id := range b.GetIds() {
				if id >= 16 {
					t.Errorf("%s has %d: ids were wasted on a string that had one", b.GetNames()[i], id)
				}
			}
		})
	}
}

// A crash between the name and the bit leaves a string with an id and nothing else: the bitmap is not there, and the
// next write uses that id.
func TestNameWithoutBit(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.named(0)
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	r := e.meddled(func() error { cancel(stop); return nil })
	if _, err := r.assign(ctx, e.table, "people", [][]byte{[]byte("alice")}); err != nil {
		t.Fatal(err)
	}
	c := e.coordinator("ebb-1")
	before := e.names(c, []string{"alice"}, nil)
	if n := e.about(c, listIDs("people", keyTerm("a"))).GetBitmap(); !before.Found[0] || n.GetCount() != 0 {
		t.Fatalf("alice is %v, the bitmap %v", before, n)
	}
	e.bits("people", namesChange("a", 1, "alice"))
	if got := e.about(c, listIDs("people", keyTerm("a"))).GetBitmap().GetIds(); !slices.Equal(got, before.GetIds()) {
		t.Errorf("ids %v: want %v", got, before.GetIds())
	}
}

// Numbers and strings are refused where they have no place, and nothing is written.
func TestStringsAndNumbersApart(t *testing.T) {
	e := newFakeCluster(t, 3)
	e.named(0)
	r := e.router("ebb-0")
	for what, c := range map[string]struct {
		namespace string
		change    *ebbv1.BitChange
		says      string
	}{
		"a number where strings are":  {"people", setIDs("a", 5), "ids are strings there"},
		"a range where strings are":   {"people", &ebbv1.BitChange{Key: []byte("a"), Op: 1, Range: &ebbv1.BitRange{Last: 9}}, "ids are strings there"},
		"a string where numbers are":  {"default", namesChange("a", 1, "alice"), "no dictionary"},
		"an empty string":             {"people", namesChange("a", 1, "alice", ""), "string 1: an empty string"},
		"a long string":               {"people", namesChange("a", 1, strings.Repeat("x", 257)), "the limit of one that gets an id is 256"},
		"strings and numbers at once": {"people", &ebbv1.BitChange{Key: []byte("a"), Op: 1, Ids: []uint64{1}, Names: [][]byte{[]byte("x")}}, "only one of them"},
	} {
		if _, err := r.Bits(t.Context(), &ebbv1.BitsRequest{Namespace: c.namespace, Changes: []*ebbv1.BitChange{c.change}}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	resp, err := e.coordinator("ebb-0").Ask(t.Context(), &ebbv1.AskRequest{Questions: []*ebbv1.Question{
		containsNames("default", "a", "alice"),
		{Ask: &ebbv1.Question_Names{Names: &ebbv1.NamesQuestion{Ids: []uint64{1}}}},
		{Namespace: "people", Ask: &ebbv1.Question_Names{Names: &ebbv1.NamesQuestion{}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, says := range []string{"no dictionary", "no dictionary", "names strings or ids"} {
		if got := resp.Answers[i].GetError().GetMessage(); !strings.Contains(got, says) {
			t.Errorf("answer %d: %q", i, got)
		}
	}
	if a := e.names(e.coordinator("ebb-0"), []string{"alice", "x"}, nil); a.Found[0] || a.Found[1] {
		t.Error("a refused request has named a string")
	}
}

// A page of long strings ends where they would not fit a message, and the next one begins there. A bare page has
// numbers only.
func TestPagesOfLongStrings(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.named(0)
	const count = 15_000
	r, want := e.router("ebb-0"), map[string]bool{}
	for from := 0; from < count; from += 3000 {
		var names []string
		for n := from; n < from+3000; n++ {
			names = append(names, fmt.Sprintf("%d%s", n, strings.Repeat("x", 240)))
			want[names[len(names)-1]] = true
		}
		if _, err := r.Bits(t.Context(), &ebbv1.BitsRequest{Namespace: "people", Changes: []*ebbv1.BitChange{namesChange("a", 1, names...)}}); err != nil {
			t.Fatal(err)
		}
	}
	c := e.coordinator("ebb-1")
	q := listIDs("people", keyTerm("a"))
	page, pages := q.GetBitmap().GetIds(), 0
	for more := true; more; pages++ {
		b := e.about(c, q).GetBitmap()
		if len(b.GetNames()) != len(b.GetIds()) || len(b.GetIds()) == 0 {
			t.Fatalf("%d ids, %d strings", len(b.GetIds()), len(b.GetNames()))
		}
		for _, name := range b.GetNames() {
			if !want[string(name)] {
				t.Fatalf("%.20q comes twice, or was never there", name)
			}
			delete(want, string(name))
		}
		more, page.From = b.GetMore(), b.GetNext()
	}
	if pages != 2 || len(want) > 0 {
		t.Errorf("%d pages, %d strings left out", pages, len(want))
	}
	page.From, page.Bare = 0, true
	if b := e.about(c, q).GetBitmap(); len(b.GetIds()) != count || len(b.GetNames()) > 0 {
		t.Errorf("%d ids, %d strings", len(b.GetIds()), len(b.GetNames()))
	}
}

// Without the shards that know a string there is no answer about it, unless the node remembers it, or a replica knows
// it.
func TestStringsWithoutLeaders(t *testing.T) { synctest.Test(t, testStringsWithoutLeaders) }

func testStringsWithoutLeaders(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.named(0)
	e.bits("people", namesChange("a", 1, "alice"))
	alice := e.names(e.coordinator("ebb-0"), []string{"alice"}, nil)
	e.with(func() {
		for number := range e.leads {
			if number != e.table.ShardOf("people", []byte("a")) {
				e.leads[number] = ""
			}
		}
	})
	ctx, cancel := contextFor(t, 1)
	defer cancel()
	ask := func(q *ebbv1.Question) *ebbv1.Answer {
		resp, err := e.coordinator("ebb-1").Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Answers[0]
	}
	if a := ask(listIDs("people", keyTerm("a"))); a.GetError() != nil || !slices.Equal(texts(a.GetBitmap().GetNames()), []string{"alice"}) || !slices.Equal(a.GetBitmap().GetIds(), alice.GetIds()) {
		t.Errorf("a replica knows alice: %v", a)
	}
	var lost string // of a part without a leader
	for n := 0; lost == "" || proto.NamePartShard(proto.NamePart("people", []byte(lost), 4), 4) == e.table.ShardOf("people", []byte("a")); n++ {
		lost = fmt.Sprint(n)
	}
	if a := ask(containsNames("people", "a", lost)); a.GetError().GetCode() != ebbv1.Code_CODE_INCOMPLETE {
		t.Errorf("nobody can say whether %s has an id: %v", lost, a)
	}
}

// Where no replica of a part can be reached, its strings are left out of a partial answer, whose coverage says so;
// without that there is no answer.
func TestStringsThatCannotBeReached(t *testing.T) { synctest.Test(t, testStringsThatCannotBeReached) }

func testStringsThatCannotBeReached(t *testing.T) {
	e := newFakeClusterOf(t, 9, 9)
	e.named(0)
	home := e.table.ShardOf("people", []byte("a"))
	apart := func(shard uint32) bool {
		for _, node := range nodeNames(9) {
			_, one := e.table.ReplicaOn(node, home)
			if _, other := e.table.ReplicaOn(node, shard); one && other {
				return false
			}
		}
		return true
	}
	var far, near string
	for n := 0; far == "" || near == ""; n++ {
		name := fmt.Sprint(n)
		switch shard := proto.NamePartShard(proto.NamePart("people", []byte(name), 9), 9); {
		case shard == home:
			near = name
		case apart(shard):
			far = name
		}
	}
	e.bits("people", namesChange("a", 1, near, far))
	lost := proto.NamePartShard(proto.NamePart("people", []byte(far), 9), 9)
	e.with(func() {
		for _, node := range nodeNames(9) {
			if _, has := e.table.ReplicaOn(node, lost); has {
				e.mood[node] = mood{away: true}
			}
		}
	})
	for _, partial := range []bool{true, false} {
		ctx, cancel := contextFor(t, 2)
		resp, err := e.coordinator(e.leads[home]).Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{listIDs("people", keyTerm("a"))}, AllowPartial: partial})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		a := resp.Answers[0]
		if v := a.GetCoverage(); !slices.Equal(v.GetShardsFailed(), []uint32{lost}) || v.GetShardsAnswered() != 1 || v.GetShardsTotal() != 2 {
			t.Errorf("partial %v: coverage %v", partial, v)
		}
		got := slices.Sorted(slices.Values(texts(a.GetBitmap().GetNames())))
		if partial && (!slices.Equal(got, []string{"", near}) || len(a.GetBitmap().GetIds()) != 2) || !partial && a.GetError().GetCode() != ebbv1.Code_CODE_INCOMPLETE {
			t.Errorf("partial %v: %v", partial, a)
		}
	}
}

// A dictionary is chosen when a namespace is created, has as many parts as there are shards, and stays.
func TestDictionaryIsChosenAtBirth(t *testing.T) {
	e := newFakeCluster(t, 4)
	set := func(create bool, ns *ebbv1.Namespace) (*ebbv1.Namespace, *proto.Error) {
		return e.control.setNamespace(&ebbv1.SetNamespaceRequest{Namespace: ns, Create: create})
	}
	if ns, err := set(true, &ebbv1.Namespace{Name: "people", Dictionary: &ebbv1.Dictionary{}}); err != nil || ns.GetDictionary().GetParts() != 4 {
		t.Fatalf("%v, %v", ns, err)
	}
	if ns, err := set(false, &ebbv1.Namespace{Name: "people", HalfLifeUs: 60e6, Dictionary: &ebbv1.Dictionary{}}); err != nil || ns.GetDictionary().GetParts() != 4 {
		t.Errorf("%v, %v", ns, err)
	}
	for what, ns := range map[string]*ebbv1.Namespace{
		"another number of parts": {Name: "people", Dictionary: &ebbv1.Dictionary{Parts: 3}},
		"one that was without":    {Name: "default", Dictionary: &ebbv1.Dictionary{}},
		"a new one of 3 parts":    {Name: "new", Dictionary: &ebbv1.Dictionary{Parts: 3}},
		"one under linear decay":  {Name: "leak", Decay: ebbv1.Decay_DECAY_LINEAR, Dictionary: &ebbv1.Dictionary{}},
	} {
		if _, err := set(false, ns); !errors.Is(err, proto.ErrBadNamespace) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A dictionary that was made with another number of shards, fewer or more, keeps its parts: ids have the remainder that
// they had, and every string is found.
func TestDictionaryOfOtherParts(t *testing.T) {
	for _, parts := range []uint32{2, 5} {
		e := newFakeCluster(t, 3)
		wire := edit(e.table)
		ns := proto.FillNamespace(&ebbv1.Namespace{Name: "people", Version: 1, HashSeed: 1, Dictionary: &ebbv1.Dictionary{Parts: parts}}, proto.DefaultNamespaceSettings())
		wire.Namespaces = put(wire.Namespaces, ns, (*ebbv1.Namespace).GetName)
		table, err := NewTable(wire)
		if err != nil {
			t.Fatal(err)
		}
		e.table = table
		for number := range e.states {
			e.enter(number, e.definition("people"))
		}
		var names []string
		for n := range 100 {
			names = append(names, fmt.Sprint("user-", n))
		}
		e.bits("people", namesChange("a", 1, names...))
		c := e.coordinator("ebb-1")
		a := e.names(c, names, nil)
		for i, name := range names {
			if !a.Found[i] || uint32(a.Ids[i]%uint64(parts)) != proto.NamePart("people", []byte(name), parts) || a.Ids[i] > 200 {
				t.Errorf("%d parts: %s is %d, %v", parts, name, a.Ids[i], a.Found[i])
			}
		}
		got := texts(e.about(c, listIDs("people", keyTerm("a"))).GetBitmap().GetNames())
		if slices.Sort(names); !slices.Equal(slices.Sorted(slices.Values(got)), names) {
			t.Errorf("%d parts: %q", parts, got)
		}
	}
}

// A command for another number of shards names nothing: a shard would hand out ids of the part of another.
func TestStringsForAnotherCluster(t *testing.T) {
	e := newFakeCluster(t, 3)
	e.named(0)
	name := []byte("alice")
	for _, forwarded := range []bool{false, true} {
		for shards := uint32(1); shards <= 4; shards++ {
			cmd, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_Names{Names: &ebbv1.Names{Names: [][]byte{name}, Shards: shards}}}, "people", nil)
			if err != nil {
				t.Fatal(err)
			}
			to := proto.NamePartShard(proto.NamePart("people", name, 3), shards)
			req := &ebbv1.ApplyRequest{Forwarded: forwarded, Commands: []*ebbv1.ShardCommand{{Shard: to, Command: cmd}}}
			if _, err := e.router("ebb-0").Apply(t.Context(), req); (shards == 3) != (err == nil) || err != nil && !errors.Is(err, proto.ErrWrongShard) {
				t.Errorf("%d shards, forwarded: %v: %v", shards, forwarded, err)
			}
		}
	}
}

// A memory has the pairs that were set or found last, and forgets others.
func TestRecent(t *testing.T) {
	var m recentCache[int, int]
	for i := range 3 * recentMax {
		m.set(i, i)
		if v, ok := m.get(0); !ok || v != 0 {
			t.Fatalf("after %d: what is asked for is forgotten", i)
		}
	}
	if n := len(m.young) + len(m.old); n > 2*recentMax {
		t.Errorf("%d pairs", n)
	}
	if _, ok := m.get(1); ok {
		t.Error("what was not asked for is remembered")
	}
}
