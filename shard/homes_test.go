package shard

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

func reserved(key string, number uint64) *ebbv1.Command {
	what := &ebbv1.HomeCommand_Reserve{Reserve: &ebbv1.HomeNumber{Key: []byte(key), Number: number}}
	return &ebbv1.Command{Namespace: "people", Body: &ebbv1.Command_Home{Home: &ebbv1.HomeCommand{What: what}}}
}

func putHome(key string, number, count uint64) *ebbv1.Command {
	what := &ebbv1.HomeCommand_Put{Put: &ebbv1.HomePut{Number: &ebbv1.HomeNumber{Key: []byte(key), Number: number}, Count: count}}
	return &ebbv1.Command{Namespace: "people", Body: &ebbv1.Command_Home{Home: &ebbv1.HomeCommand{What: what}}}
}

func sweptNumbers(numbers ...uint64) *ebbv1.Command {
	what := &ebbv1.HomeCommand_Swept{Swept: &ebbv1.HomeSwept{Numbers: numbers}}
	return &ebbv1.Command{Namespace: "people", Body: &ebbv1.Command_Home{Home: &ebbv1.HomeCommand{What: what}}}
}

func freshHome(key string, number uint64) *ebbv1.Command {
	e := bitsOf(key, setOp, number)
	e.Fresh = true
	c := edits(e)
	c.Namespace = "people"
	return c
}

// homeWorld is a shard of homes, and its time.
type homeWorld struct {
	t   *testing.T
	s   *State
	now int64
}

func newHomeWorld(t *testing.T) *homeWorld {
	def := &ebbv1.Namespace{Name: "people", Version: 1, BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE}
	return &homeWorld{t: t, s: definedAt(t, def, beginning), now: beginning}
}

// entry applies commands in one entry, and says with which errors.
func (w *homeWorld) entry(commands ...*ebbv1.Command) (codes []ebbv1.Code) {
	w.t.Helper()
	for _, r := range w.s.Apply(w.s.Applied()+1, encode(w.t, w.now, commands...), nil) {
		codes = append(codes, r.GetError().GetCode())
	}
	audit(w.t, w.s)
	w.s = reopen(w.t, w.s)
	return codes
}

// expect compares what is to be swept some time with what it should be.
func (w *homeWorld) expect(when string, want ...uint64) {
	w.t.Helper()
	var got []uint64
	for _, r := range w.s.Orphans(1<<60, 100) {
		got = append(got, r.Generation)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("%s: %d are to be swept, want %d", when, got, want)
	}
}

// Every way in which a home goes leaves its number, which stays until it is said to be swept, and not before it may be.
func TestNumbersOfHomesThatGo(t *testing.T) {
	w := newHomeWorld(t)
	del := &ebbv1.Command{Namespace: "people", Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("a")}}}}
	expire := &ebbv1.Command{Namespace: "people", Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Keys: [][]byte{[]byte("b")}, Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: second}}}}
	w.entry(freshHome("a", 1), freshHome("b", 2), freshHome("c", 3))
	w.expect("made")
	w.entry(del)
	w.expect("deleted", 1)
	w.entry(freshHome("a", 4), del, freshHome("a", 5))
	w.expect("deleted and made in one entry", 1, 4)
	w.entry(expire)
	w.now += 2 * second
	w.entry()
	w.expect("expired", 1, 4, 2)
	w.entry(reserved("c", 6), putHome("c", 6, 10))
	w.expect("replaced", 1, 4, 2, 3)
	w.entry(sweptNumbers(1, 2))
	w.expect("swept too early", 1, 4, 2, 3)
	w.now += proto.SliceSweepUS
	other := sweptNumbers(1, 2)
	other.Namespace = "others"
	w.entry(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "others", Version: 1, BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE}}}, other)
	w.expect("swept by who may write another namespace", 1, 4, 2, 3)
	w.entry(sweptNumbers(1, 2, 99))
	w.expect("swept", 4, 3)
	if n := len(w.s.Orphans(sketch.Tick(w.now), 1)); n != 1 {
		t.Errorf("%d of at most 1", n)
	}
	if n := len(w.s.Orphans(sketch.Tick(w.now-10*second), 100)); n != 0 {
		t.Errorf("%d are due before it is time", n)
	}
}

// A number is put where it was reserved, once, and within a lease.
func TestNumbersThatAreReserved(t *testing.T) {
	w := newHomeWorld(t)
	const good, busy, bad = ebbv1.Code_CODE_UNSPECIFIED, ebbv1.Code_CODE_KEY_BUSY, ebbv1.Code_CODE_BAD_REQUEST
	expect := func(what string, got []ebbv1.Code, want ...ebbv1.Code) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	expect("reserved twice", w.entry(reserved("a", 1), reserved("a", 1)), good, good)
	expect("reserved for another", w.entry(reserved("b", 1)), bad)
	w.expect("reserved", 1)
	expect("put for another", w.entry(putHome("b", 1, 5)), busy)
	expect("put", w.entry(putHome("a", 1, 5)), good)
	expect("put again", w.entry(putHome("a", 1, 5)), busy)
	w.expect("put")
	expect("put of no ids", w.entry(reserved("a", 2), putHome("a", 2, 0)), good, good)
	w.expect("put of no ids", 1)
	expect("never reserved", w.entry(putHome("a", 7, 5)), busy)
	w.entry(reserved("a", 3))
	w.now += proto.SliceLeaseUS
	expect("at the end of its lease", w.entry(putHome("a", 3, 5)), good)
	w.entry(reserved("a", 4))
	w.now += proto.SliceLeaseUS + 1
	expect("after it", w.entry(putHome("a", 4, 5)), busy)
	expect("a part", w.entry(reserved("\x00part", 9)), ebbv1.Code_CODE_BAD_KEY)
	expect("no number", w.entry(reserved("a", 0)), bad)
	expect("nothing swept", w.entry(sweptNumbers()), ebbv1.Code_CODE_BAD_COUNT)
	wrong := reserved("a", 10)
	wrong.Namespace = ""
	expect("bitmaps on the shards of keys", w.entry(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1}}}, wrong), good, bad)
}

// What came too late for the parts under a number, or too early for a sweep, is refused.
func TestPartsTooLateAndTooEarly(t *testing.T) {
	w := newHomeWorld(t)
	part := proto.PartName(1, []byte("a"))
	put := func(until int64) *ebbv1.Command {
		c := edits(bitsOf(string(part), setOp, 1, 2))
		c.Namespace = "people"
		c.GetBits().UntilUs = until
		return c
	}
	store := func(until int64) *ebbv1.Command {
		s := &ebbv1.StoreBitmap{Key: part, Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Range{Range: &ebbv1.BitRange{First: 5, Last: 9}}}, UntilUs: until}
		return &ebbv1.Command{Namespace: "people", Body: &ebbv1.Command_StoreBitmap{StoreBitmap: s}}
	}
	sweep := func(after int64) *ebbv1.Command {
		return &ebbv1.Command{Namespace: "people", Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{part}, AfterUs: after}}}
	}
	for _, c := range []struct {
		what    string
		command *ebbv1.Command
		keys    uint64
		changed bool
	}{
		{"an edit that says nothing of its time", put(0), 0, false},
		{"a late edit", put(beginning - 1), 0, false},
		{"an edit in time", put(beginning), 1, true},
		{"a late store", store(beginning - 1), 1, false},
		{"a store in time", store(beginning), 1, true},
		{"an early sweep", sweep(beginning + 1), 1, false},
		{"a sweep in time", sweep(beginning), 0, true},
	} {
		before := w.s.Checksum()
		r := w.s.Apply(w.s.Applied()+1, encode(t, w.now, c.command), nil)[0]
		w.s.Apply(w.s.Applied()+1, encode(t, w.now), nil) // cleans up
		if done := r.GetError() == nil && len(r.GetRefused()) == 0; done != c.changed || w.s.Keys() != c.keys {
			t.Errorf("%s: %v, and there are %d keys", c.what, r, w.s.Keys())
		}
		if c.changed == (w.s.Checksum() == before) && c.changed {
			t.Errorf("%s changed nothing", c.what)
		}
	}
}

// The key of a home is one that can have parts and, when the home is gone, an orphan: a snapshot takes no other.
func TestHomesHaveKeysOfSlices(t *testing.T) {
	for _, key := range []string{"\x00a", "\x00", strings.Repeat("k", proto.PartKeyLenMax+1), strings.Repeat("k", proto.KeyLenMax), strings.Repeat("k", proto.PartKeyLenMax), "a\x00"} {
		w := newHomeWorld(t)
		home := bitsOf(key, setOp, 77)
		home.Fresh = true
		c := edits(home)
		c.Namespace = "people"
		r := w.s.Apply(w.s.Applied()+1, encode(t, w.now, c), nil)[0]
		wrong := proto.CheckSliceKey([]byte(key))
		if wrong == nil && r.Applied != 1 || wrong != nil && (len(r.Refused) != 1 || r.Refused[0].Error.GetCode() != wrong.Code || r.Refused[0].Error.GetMessage() != wrong.Message) {
			t.Errorf("a home for %q: %v", key, r)
		}
		forget := &ebbv1.Command{Namespace: "people", Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte(key)}}}}
		w.s.Apply(w.s.Applied()+1, encode(t, w.now, forget), nil)
		w.s.Apply(w.s.Applied()+1, encode(t, w.now), nil) // cleans up
		if remains := wrong == nil; w.s.Keys() != 0 || (w.s.OrphanCount() == 1) != remains {
			t.Errorf("%d keys and %d orphans of a home for %q", w.s.Keys(), w.s.OrphanCount(), key)
		}
		reopen(t, w.s)
	}
}
