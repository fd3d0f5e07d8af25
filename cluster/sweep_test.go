package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

const lease, sweepTime = int64(proto.SliceLeaseUS), int64(proto.SliceSweepUS)

// pass lets time go by, which all shards hear of.
func (e *fakeCluster) pass(us int64) {
	e.with(func() {
		e.stamp += us
		tick, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}}, "", nil)
		if err != nil {
			e.t.Fatal(err)
		}
		for number := range e.states {
			e.enter(number, tick)
		}
	})
}

// sweep sweeps what the shards have to sweep by their clocks, until there is no more, and reports whether all got
// through.
func (e *fakeCluster) sweep(ctx context.Context) bool {
	for home, state := range e.states {
		for {
			list := state.Orphans(state.Now(), 3)
			if len(list) == 0 {
				break
			}
			if e.router("ebb-2").Sweep(ctx, home, list) != nil {
				return false
			}
		}
	}
	return true
}

// contents are the ids of all bitmaps that are listed.
func (e *fakeCluster) contents() map[string]string {
	e.t.Helper()
	all := map[string]string{}
	list := e.about(e.coordinator("ebb-1"), &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{}}})
	for _, key := range list.GetKeys().GetKeys() {
		all[string(key.GetKey())] = fmt.Sprint(e.idsOf(string(key.GetKey())))
	}
	return all
}

// parts is how many keys the shards hold, and how many there should be: homes, and the parts that they name.
func (e *fakeCluster) parts() (held, named int) {
	e.t.Helper()
	for _, state := range e.states {
		held += int(state.Keys())
	}
	for key := range e.contents() {
		named++
		number, err := e.coordinator("ebb-0").homeGenerations(e.t.Context(), e.table, "people", [][]byte{[]byte(key)})
		if err != nil {
			e.t.Fatal(err)
		}
		part := &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
			Expr: keyTerm(string(proto.PartName(number[0], []byte(key)))), Select: &ebbv1.BitmapQuestion_Count{Count: true},
		}}}
		for id, state := range e.states {
			if state.Ask(&ebbv1.ShardQuestion{Shard: id, Question: part}, sketch.Tick(e.stamp)).GetAnswer().GetBitmap().GetCount() > 0 {
				named++
			}
		}
	}
	return held, named
}

var wide = []uint64{1, 70_000, 140_000, 1 << 20, 1 << 30, 1 << 40}

// whatCrashes are the things that leave something behind when they stop in the middle.
var whatCrashes = map[string]func(ctx context.Context, e *fakeCluster) error{
	"a bitmap is made": func(ctx context.Context, e *fakeCluster) error {
		_, err := e.router("ebb-0").Bits(ctx, &ebbv1.BitsRequest{Namespace: "people", Changes: []*ebbv1.BitChange{setIDs("new", wide...)}})
		return err
	},
	"a bitmap is changed": func(ctx context.Context, e *fakeCluster) error {
		_, err := e.router("ebb-0").Bits(ctx, &ebbv1.BitsRequest{Namespace: "people", Changes: []*ebbv1.BitChange{setIDs("a", 2, 80_000, 150_000)}})
		return err
	},
	"a bitmap is deleted": func(ctx context.Context, e *fakeCluster) error {
		_, err := e.keys("ebb-0").Delete(ctx, &ebbv1.DeleteRequest{Namespace: "people", Keys: [][]byte{[]byte("a"), []byte("b")}})
		return err
	},
	"a bitmap expires": func(ctx context.Context, e *fakeCluster) error {
		_, err := e.keys("ebb-0").Expire(ctx, &ebbv1.ExpireRequest{Namespace: "people", Keys: [][]byte{[]byte("a"), []byte("b")}, TtlUs: 1_000_000})
		return err
	},
	"a new bitmap is stored": func(ctx context.Context, e *fakeCluster) error { return e.storeBoth(ctx, "new") },
	"a bitmap is replaced":   func(ctx context.Context, e *fakeCluster) error { return e.storeBoth(ctx, "a") },
}

// storeBoth stores what is in a or b.
func (e *fakeCluster) storeBoth(ctx context.Context, key string) error {
	x := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{keyTerm("a"), keyTerm("b")}}}}
	_, err := e.keys("ebb-0").StoreBitmap(ctx, &ebbv1.StoreBitmapRequest{Namespace: "people", Key: []byte(key), Expr: x})
	return err
}

// A node may stop anywhere in anything it does, also if the bitmap is deleted then, and whenever what it had sent
// arrives. In the end there are no parts but those that homes name, and nothing that a home names was swept. Sweeps may
// stop anywhere, too.
func TestNothingIsLeftAndNothingIsLost(t *testing.T) {
	for what, do := range whatCrashes {
		for _, late := range []struct {
			after int64 // µs; below 0: never
			name  string
		}{{-1, "never"}, {lease / 2, "soon"}, {lease + 1, "too late"}, {sweepTime + 2*lease, "after the sweep"}} {
			for _, deleted := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, deleted %v, the rest arrives %s", what, deleted, late.name), func(t *testing.T) {
					for through, whole := 0, false; !whole; through++ {
						whole = crashAt(t, do, through, deleted, late.after)
					}
				})
			}
		}
	}
}

// crashAt lets so many commands through, and reports whether these were all.
func crashAt(t *testing.T, do func(ctx context.Context, e *fakeCluster) error, through int, deleted bool, late int64) (whole bool) {
	e := newFakeCluster(t, 4)
	e.people()
	e.bits("people", setIDs("a", wide...), setIDs("b", 3, 1<<33))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &crash{left: through, stop: cancel}
	e.with(func() { e.crash = c })
	err := do(ctx, e)
	if whole = len(c.late) == 0; whole && err != nil {
		t.Fatalf("it fails without a crash: %v", err)
	}
	e.with(func() { e.crash = nil })
	if deleted {
		if _, err := e.keys("ebb-1").Delete(t.Context(), &ebbv1.DeleteRequest{Namespace: "people", Keys: [][]byte{[]byte("a"), []byte("new")}}); err != nil {
			t.Fatal(err)
		}
	}
	arrive := func() {
		e.with(func() {
			for _, cmd := range c.late {
				e.enter(cmd.Shard, cmd.Command)
			}
		})
	}
	step := func(us int64) {
		e.pass(us)
		before := e.contents()
		ctx, cancel := context.WithCancel(t.Context())
		for stops := 0; ; stops += 3 { // and sweeps that stop after 0, 3, 6 ... commands
			c := &crash{left: stops, stop: cancel}
			e.with(func() { e.crash = c })
			done := e.sweep(ctx)
			e.with(func() { e.crash = nil })
			if done {
				break
			}
			ctx, cancel = context.WithCancel(t.Context())
		}
		cancel()
		if after := e.contents(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Fatalf("after %d commands: a sweep made %v of %v", through, after, before)
		}
	}
	if late >= 0 {
		e.pass(late)
		if late > sweepTime {
			step(0)
		}
		arrive()
	}
	e.pass(2_000_000) // a time to live is over
	step(lease)
	step(2 * sweepTime)
	step(2 * sweepTime)
	for number, state := range e.states {
		if n := state.OrphanCount(); n != 0 {
			t.Fatalf("after %d commands: shard %d has %d bitmaps to sweep", through, number, n)
		}
	}
	e.pass(1)
	if held, named := e.parts(); held != named {
		t.Fatalf("after %d commands: shards hold %d keys, homes and what they name are %d", through, held, named)
	}
	return whole
}

// A store that is sent again under its identity is done once, though the second goes as far as it can; what it has
// stored is swept.
func TestSlicedStoreOnce(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.people()
	e.bits("people", setIDs("a", wide...))
	req := &ebbv1.StoreBitmapRequest{Namespace: "people", Key: []byte("copy"), Expr: keyTerm("a"), IdempotencyKey: &ebbv1.IdempotencyKey{IssuedAtUs: year2026, Hi: 1, Lo: 2}}
	for _, more := range [][]uint64{nil, {5}} {
		if len(more) > 0 {
			e.bits("people", setIDs("a", more...))
		}
		if got, err := e.keys("ebb-1").StoreBitmap(t.Context(), req); err != nil || got.GetCount() != uint64(len(wide)) {
			t.Fatalf("store: %v, %v", got, err)
		}
	}
	if got := e.idsOf("copy"); !slices.Equal(got, wide) {
		t.Errorf("stored %v", got)
	}
	e.pass(2 * sweepTime)
	if !e.sweep(t.Context()) {
		t.Error("it does not sweep")
	}
	e.pass(1)
	if held, named := e.parts(); held != named {
		t.Errorf("shards hold %d keys, homes and what they name are %d", held, named)
	}
	none := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_AndNot{AndNot: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{keyTerm("a"), keyTerm("a")}}}}
	if got, err := e.keys("ebb-1").StoreBitmap(t.Context(), &ebbv1.StoreBitmapRequest{Namespace: "people", Key: []byte("copy"), Expr: none}); err != nil || got.GetCount() != 0 {
		t.Errorf("store nothing: %v, %v", got, err)
	}
	if got := e.contents()["copy"]; got != "" {
		t.Errorf("of no ids there is a key: %s", got)
	}
}

// If the leaders of shards change during a store, it continues with the new ones, and counts each part once.
func TestSlicedStoreWhileLeadersChange(t *testing.T) {
	e := newFakeCluster(t, 8)
	e.people()
	e.bits("people", setIDs("a", wide...), setIDs("b", 9))
	e.with(func() {
		e.quiet = true
		for number := range e.leads {
			e.leads[number] = nodeNames(3)[(int(number)+1)%3]
		}
	})
	if err := e.storeBoth(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := e.idsOf("a"); len(got) != len(wide)+1 {
		t.Errorf("stored %v", got)
	}
}

// What stands under a number is valid for the time of a lease, whichever node sends it. A bitmap that was not put in
// time is refused.
func TestLeasesEnd(t *testing.T) {
	e := newFakeCluster(t, 4)
	e.people()
	e.bits("people", setIDs("a", wide...))
	slow := e.router("ebb-0")
	slow.cfg.Now = func() time.Time { return e.now().Add(-2 * proto.SliceLeaseUS * time.Microsecond) }
	if _, err := slow.Bits(t.Context(), &ebbv1.BitsRequest{Namespace: "people", Changes: []*ebbv1.BitChange{setIDs("a", 8)}}); !errors.Is(err, proto.ErrBadTime) {
		t.Errorf("a change by a clock that is a minute behind: %v", err)
	}
	store := &ebbv1.StoreBitmapRequest{Namespace: "people", Key: []byte("b"), Expr: keyTerm("a")}
	if _, err := NewKeys(slow, e.coordinator("ebb-0")).StoreBitmap(t.Context(), store); !errors.Is(err, proto.ErrBadTime) {
		t.Errorf("a store by a clock that is a minute behind: %v", err)
	}
	home := e.table.ShardOf("people", []byte("a"))
	put := func(what *ebbv1.HomeCommand) error {
		cmd, err := encoded(&ebbv1.Command{Body: &ebbv1.Command_Home{Home: what}}, "people", nil)
		if err != nil {
			t.Fatal(err)
		}
		var result *ebbv1.CommandResult
		e.with(func() { result = e.enter(home, cmd) })
		return refusedIn(&ebbv1.ApplyResponse{Results: []*ebbv1.CommandResult{result}})
	}
	number := &ebbv1.HomeNumber{Key: []byte("a"), Number: 77}
	if err := put(&ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Reserve{Reserve: number}}); err != nil {
		t.Fatal(err)
	}
	e.pass(lease + 1)
	if err := put(&ebbv1.HomeCommand{What: &ebbv1.HomeCommand_Put{Put: &ebbv1.HomePut{Number: number, Count: 3}}}); !errors.Is(err, proto.ErrKeyBusy) {
		t.Errorf("put after the lease: %v", err)
	}
	if got := e.idsOf("a"); !slices.Equal(got, wide) {
		t.Errorf("ids %v", got)
	}
}
