package shard

import (
	"math/rand/v2"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func storing(key string, x *ebbv1.BitmapExpr) *ebbv1.Command {
	return &ebbv1.Command{Body: &ebbv1.Command_StoreBitmap{StoreBitmap: &ebbv1.StoreBitmap{Key: []byte(key), Expr: x}}}
}

func bitmapKey(key string) *ebbv1.BitmapExpr {
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte(key)}}
}

func oddOf(keys ...string) *ebbv1.BitmapExpr {
	list := &ebbv1.BitmapExprs{}
	for _, key := range keys {
		list.Of = append(list.Of, bitmapKey(key))
	}
	return &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Xor{Xor: list}}
}

// What is stored is what the expression was when the command was applied, of ids of every shape; also over a key that
// it names. A view keeps what it saw, and a snapshot has it.
func TestStoredBitmapIsTheExpression(t *testing.T) {
	for name, draw := range shapes {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, uint64(len(name))))
			s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
			sets := map[string]idSet{"a": {}, "b": {}, "k": {}}
			for round := range 12 {
				for _, key := range []string{"a", "b"} {
					ids := idSet{}
					for range 1 + r.IntN(1<<r.IntN(13)) {
						ids[draw(r)] = true
					}
					sets[key].edit(flipOp, ids.sorted()...)
					applyOne(t, s, edits(bitsOf(key, flipOp, ids.sorted()...)))
				}
				view := s.Freeze()
				defer view.Release()
				was := sets["k"]
				want := idSet{}
				for _, key := range []string{"a", "b", "k"} {
					want.edit(flipOp, sets[key].sorted()...)
				}
				res := applyOne(t, s, storing("k", oddOf("a", "b", "k")))
				if res.GetError() != nil || res.GetApplied() != 1 || res.GetChanged() != uint64(len(want)) {
					t.Fatalf("round %d: %v, and %d ids were to be stored", round, res, len(want))
				}
				sets["k"] = want
				audit(t, s)
				sameIDs(t, &s.frame, want)
				sameIDs(t, &view.frame, was)
				again := reopen(t, s)
				sameIDs(t, &again.frame, want)
				if again.Checksum() != s.Checksum() {
					t.Fatalf("round %d: another checksum after a restart", round)
				}
			}
			if res := applyOne(t, s, storing("k", oddOf("a", "a"))); res.GetError() != nil || res.GetChanged() != 0 {
				t.Fatal(res)
			}
			if s.Keys() != 2 {
				t.Errorf("%d keys: one without ids is left", s.Keys())
			}
		})
	}
}

// A command that is repeated stores nothing again, and hears what it heard; one that cannot be done changes nothing.
func TestStoreOnce(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	applyOne(t, s, edits(bitsOf("a", setOp, 1, 2, 3)))
	c := storing("k", bitmapKey("a"))
	c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: int64(beginning), Hi: 1}}
	first := applyOne(t, s, c)
	applyOne(t, s, edits(bitsOf("a", setOp, 4)))
	s = reopen(t, s)
	if again := applyOne(t, s, c); again.GetChanged() != 3 || again.GetApplied() != first.GetApplied() {
		t.Errorf("%v, and then %v", first, again)
	}
	sameIDs(t, &s.frame, idSet{1: true, 2: true, 3: true})

	applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{{Key: []byte("words"), Bin: []byte("b")}}}}})
	for what, c := range map[string]*ebbv1.Command{
		"over a distribution": storing("words", bitmapKey("a")),
		"of a distribution":   storing("k", bitmapKey("words")),
		"without a key":       storing("", bitmapKey("a")),
		"of nothing":          storing("k", &ebbv1.BitmapExpr{}),
		"of broken containers": storing("k", &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Containers{
			Containers: &ebbv1.BitmapContainers{Containers: []byte{1, 9, 7}},
		}}),
	} {
		c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: int64(beginning), Hi: 2, Lo: uint64(len(what))}}
		one := applyOne(t, s, c)
		two := applyOne(t, s, c)
		if proto.FromWire(one.GetError()) == nil || one.GetError().GetMessage() != two.GetError().GetMessage() || two.GetChanged() != 0 {
			t.Errorf("%s: %v, and then %v", what, one, two)
		}
	}
	if s.Keys() != 3 {
		t.Errorf("%d keys", s.Keys())
	}
	sameIDs(t, &s.frame, idSet{1: true, 2: true, 3: true})
}

// A shard remembers how many ids a stored bitmap has: also more than fit next to a session's bit, and all that there
// may be.
func TestStoredManyOnce(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1}, beginning)
	id := applyOne(t, s, &ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}).Session
	for i, count := range []uint64{countMax - 1, countMax, countMax + 1, countMax + 2, countMax + 3, storedMax} {
		c := storing("k", &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{First: 0, Last: count - 1}}})
		for name, identity := range map[string]func(*ebbv1.Command){
			"a session": func(c *ebbv1.Command) {
				c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: id, Sequence: uint64(i + 1)}}
			},
			"a key": func(c *ebbv1.Command) {
				c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: int64(beginning), Hi: uint64(i + 1)}}
			},
		} {
			identity(c)
			first := applyOne(t, s, c)
			s = reopen(t, s)
			if again := applyOne(t, s, c); first.GetChanged() != count || !pb.Equal(first, again) {
				t.Errorf("%s, %d ids: %v, and then %v", name, count, first, again)
			}
		}
	}
}

// FuzzContainers: whatever containers come with a question, they are refused, or are the same when they are written and
// read again.
func FuzzContainers(f *testing.F) {
	f.Add(uint64(0), []byte{0})
	f.Add(uint64(3), []byte{1, 1<<2 | 1, 5, 0, 0})
	f.Add(uint64(1<<48-1), []byte{2, 1<<2 | 1, 5, 0, 0})
	f.Fuzz(func(t *testing.T, from uint64, raw []byte) {
		count := func(m *ebbv1.BitmapContainers) (ids uint64, again *ebbv1.BitmapContainers, err error) {
			x := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Containers{Containers: m}}
			g, refused := SpreadBitmaps(&ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: x}}}, nil)
			if refused != nil {
				return 0, nil, refused
			}
			again, ids, _, _, err = g.Containers(nil, from, 1<<30)
			return ids, again, err
		}
		ids, again, err := count(&ebbv1.BitmapContainers{From: from, Containers: raw})
		if err != nil || from > sliceMax {
			return
		}
		if same, _, err := count(again); err != nil || same != ids {
			t.Fatalf("%d ids, and then %d: %v", ids, same, err)
		}
	})
}
