package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Where bitmaps are placed by slice, writers and questions say the same as elsewhere, and other kinds are refused.
func TestBitsBySlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		c := w.connect()
		ctx := context.Background()
		ns, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "people", BitmapPlacement: ebb.PlaceBySlice, Universe: new("all")})
		if err != nil || ns.BitmapPlacement != ebb.PlaceBySlice || *ns.Universe != "all" {
			t.Fatalf("namespace %+v, %v", ns, err)
		}
		var many []uint64
		for i := range uint64(70_000) { // more than fit one request
			many = append(many, i*17)
		}
		if n, err := c.SetBits(ctx, "people", "many", many...); err != nil || n != len(many) {
			t.Fatalf("set %d, %v", n, err)
		}
		if n, err := c.SetBitRange(ctx, "people", "all", 0, 1_999_999); err != nil || n != 2_000_000 {
			t.Fatalf("set %d, %v", n, err)
		}
		if got := idsOf(t, c, "people", "many"); !slices.Equal(got, many) {
			t.Fatalf("%d ids, want %d", len(got), len(many))
		}
		n, err := c.Bitmap("people", ebb.Bits("many").Not()).Count(ctx)
		if err != nil || n.Count != 2_000_000-70_000 || n.Coverage.ShardsAnswered != n.Coverage.ShardsTotal {
			t.Errorf("not: %+v, %v", n, err)
		}
		id, ok, err := c.Bitmap("people", ebb.Bits("many")).At(ctx, 40_000)
		if err != nil || !ok || id != 17*40_000 {
			t.Errorf("position 40,000: %d, %v, %v", id, ok, err)
		}

		bits := c.BitWriter(ebb.BitWriterOptions{Namespace: "people"})
		for _, err := range []error{
			bits.Set(ctx, "few", 5, 1<<40, 5), bits.Flip(ctx, "few", 5, 6, 6, 7), bits.Clear(ctx, "few", 7, 8), bits.Clear(ctx, "few"), bits.Close(ctx),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if s := bits.Stats(); s.Added != 9 || s.Changed != 5 || s.Buffered != 0 {
			t.Errorf("stats %+v", s)
		}
		if err := bits.Set(ctx, "few", 1); !errors.Is(err, ebb.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if got := idsOf(t, c, "people", "few"); !slices.Equal(got, []uint64{1 << 40}) {
			t.Errorf("ids %v", got)
		}
		if err := c.Increment(ctx, "people", ebb.Increment{Key: "clicks", Bin: "US", Amount: 1}); !errors.Is(err, ebb.ErrWrongKind) {
			t.Errorf("another kind: %v", err)
		}
		if _, err := c.Bitmap("default", ebb.Bits("x").Not()).Count(ctx); !errors.Is(err, ebb.ErrBadRequest) {
			t.Errorf("a namespace without a universe: %v", err)
		}
		if n, err := c.Delete(ctx, "people", "few", "many"); err != nil || n != 2 {
			t.Errorf("deleted %d, %v", n, err)
		}
		if got := idsOf(t, c, "people", "many"); len(got) != 0 {
			t.Errorf("%d ids", len(got))
		}
	})
}

// A BitWriter gathers changes of bitmaps that are placed by slice: a shard gets many calls in one command. What follows
// a change of another kind comes after it, also while several requests are under way. Each counts once, though shards
// sometimes answer with an unknown outcome.
func TestBitWriterGathersBySlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4)
		c := w.connect()
		ctx := context.Background()
		if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "people", BitmapPlacement: ebb.PlaceBySlice}); err != nil {
			t.Fatal(err)
		}
		var commands atomic.Int64
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
			if n := commands.Add(1); n%7 == 0 && n < 300 {
				return proto.ErrUnknownOutcome.Errorf("who knows"), false
			}
			return nil, false
		})
		rnd := rand.New(rand.NewPCG(1, 2))
		bits := c.BitWriter(ebb.BitWriterOptions{Namespace: "people", MaxBatch: 2000})
		want := map[string]map[uint64]bool{"a": {}, "b": {}, "c": {}}
		for range 5000 {
			key, id := string('a'+rune(rnd.IntN(3))), uint64(rnd.IntN(40))<<16+uint64(rnd.IntN(50))
			op, set := bits.Set, true
			switch rnd.IntN(400) {
			case 0:
				op, set = bits.Clear, false
			case 1:
				op, set = bits.Flip, !want[key][id]
			}
			if err := op(ctx, key, id); err != nil {
				t.Fatal(err)
			}
			if want[key][id] = set; !set {
				delete(want[key], id)
			}
		}
		if err := bits.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if s := bits.Stats(); s.Added != 5000 || s.Buffered != 0 {
			t.Errorf("stats %+v", s)
		}
		for key, ids := range want {
			if got := idsOf(t, c, "people", key); !slices.Equal(got, slices.Sorted(maps.Keys(ids))) {
				t.Errorf("%s: %d ids, want %d", key, len(got), len(ids))
			}
		}
		if n := commands.Load(); n > 1000 {
			t.Errorf("5,000 ids in %d commands", n)
		}
	})
}

// Small changes of many bitmaps share commands, with numbers and with strings: a shard remembers only 65,536 commands.
// What one shard does not take at first is sent again, and nothing is counted twice.
func TestManyBitmapsShareCommands(t *testing.T) {
	for _, names := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 4)
			c, ctx := w.connect(), context.Background()
			ns := ebb.Namespace{Name: "people", BitmapPlacement: ebb.PlaceBySlice, Dictionary: names}
			if _, err := c.CreateNamespace(ctx, ns); err != nil {
				t.Fatal(err)
			}
			var remembered, refused atomic.Int64
			w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
				var body ebbv1.Command
				if err := proto.Decode(cmd.GetCommand(), &body); err == nil && body.GetIdempotencyKey() != nil {
					if n := remembered.Add(1); n%3 == 1 && n < 30 {
						refused.Add(1)
						return proto.ErrNoLeader.Errorf("not now"), false
					}
				}
				return nil, false
			})
			const keys = 3000
			changed, sets := 0, map[string][]string{}
			bits := c.BitWriter(ebb.BitWriterOptions{Namespace: "people", Timeout: time.Minute})
			for i := range keys {
				key := fmt.Sprint("key-", i)
				sets[key] = []string{fmt.Sprint("a", i%7), fmt.Sprint("b", i%5)}
				if names {
					continue
				}
				if err := bits.Set(ctx, key, uint64(i%7), 1<<40+uint64(i%5)); err != nil {
					t.Fatal(err)
				}
			}
			if names {
				n, err := c.SetNamesIn(ctx, "people", sets)
				if changed = n; err != nil {
					t.Fatal(err)
				}
			}
			if err := bits.Close(ctx); err != nil {
				t.Fatal(err)
			}
			if changed += int(bits.Stats().Changed); changed != 2*keys {
				t.Errorf("changed %d, want %d", changed, 2*keys)
			}
			if n := remembered.Load() - refused.Load(); n > 100 || refused.Load() == 0 {
				t.Errorf("%d commands are remembered, %d were refused", n, refused.Load())
			}
			for _, i := range []int{0, 1, keys / 2, keys - 1} {
				n, err := c.Bitmap("people", ebb.Bits(fmt.Sprint("key-", i))).Count(ctx)
				if err != nil || n.Count != 2 {
					t.Errorf("key %d: %+v, %v", i, n, err)
				}
			}
		})
	}
}

// placedBySlice is a client of a world with the namespace people, which places bitmaps by slice, and a bitmap of one id
// under each of the keys.
func placedBySlice(t *testing.T, w *world, keys []string, opts ...ebb.Option) *ebb.Client {
	t.Helper()
	c := w.connect(opts...)
	if _, err := c.CreateNamespace(t.Context(), ebb.Namespace{Name: "people", BitmapPlacement: ebb.PlaceBySlice}); err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if _, err := c.SetBits(t.Context(), "people", key, 1); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// A change that some shards have made and another refuses does not count as one that was not made. Nor does a change of
// several requests when the first has been made.
func TestMadeInPartIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c, ctx := placedBySlice(t, w, []string{"here", "there", "others", "none"}), t.Context()
		var wide []uint64
		for slice := range uint64(64) {
			wide = append(wide, slice<<16|2)
		}
		var many []uint64
		for id := range uint64(2 * proto.BitIDsMax) {
			many = append(many, 1<<16+id)
		}
		full := func(shards func(cmd *ebbv1.ShardCommand) bool) {
			w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
				if shards(cmd) {
					return proto.ErrOverloaded.Errorf("shard %d is full", cmd.GetShard()), false
				}
				return nil, false
			})
		}
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()

		full(func(cmd *ebbv1.ShardCommand) bool { return cmd.GetShard() == 3 })
		bits := c.BitWriter(ebb.BitWriterOptions{Namespace: "people", Timeout: time.Second})
		if err := bits.Set(ctx, "here", wide...); err != nil {
			t.Fatal(err)
		}
		var u *ebb.Undelivered
		if err := bits.Close(ctx); !errors.As(err, &u) || u.Lost > 0 || u.Unknown != 1 {
			t.Errorf("a batch: %v", err)
		}
		_, err := c.SetBits(limited, "people", "there", wide...)
		if !errors.Is(err, ebb.ErrUnknownOutcome) || !strings.Contains(err.Error(), "shard 3 is full") {
			t.Errorf("refused by one shard: %v", err)
		}
		w.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
			if cmd.GetShard() == 3 {
				return proto.ErrResourceExhausted.Errorf("the part in shard 3 has reached its limit"), false
			}
			return nil, false
		})
		begun := time.Now()
		n, err := c.FlipBits(ctx, "people", "there", wide...)
		if took := time.Since(begun); n == 0 || n >= len(wide) || !errors.Is(err, ebb.ErrUnknownOutcome) || !errors.Is(err, ebb.ErrResourceExhausted) || took > time.Second {
			t.Errorf("refused by one shard for good: %d flipped, %v after %v", n, err, took)
		}
		if n, err := c.ClearBits(ctx, "people", "none", wide...); n != 0 || !errors.Is(err, ebb.ErrResourceExhausted) || errors.Is(err, ebb.ErrUnknownOutcome) {
			t.Errorf("refused by one shard, and nothing to be done in the others: %d cleared, %v", n, err)
		}
		pieces := 0
		full(func(*ebbv1.ShardCommand) bool { pieces++; return pieces > 1 })
		limited, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if n, err := c.SetBits(limited, "people", "others", many...); n != proto.BitIDsMax || !errors.Is(err, ebb.ErrUnknownOutcome) || !strings.Contains(err.Error(), "is full") {
			t.Errorf("%d set, the second request is refused: %v", n, err)
		}
		full(func(*ebbv1.ShardCommand) bool { return true })
		limited, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if _, err := c.SetBits(limited, "people", "none", wide...); !errors.Is(err, ebb.ErrOverloaded) || errors.Is(err, ebb.ErrUnknownOutcome) {
			t.Errorf("refused by all: %v", err)
		}
	})
}

// A change that was sent and not answered may have been made, whatever is said of a try that comes too late for its
// identity.
func TestTooOldIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c, ctx := placedBySlice(t, w, []string{"here"}), t.Context()
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) { return nil, true })
		bits := c.BitWriter(ebb.BitWriterOptions{Namespace: "people", Timeout: 20 * time.Minute})
		if err := bits.Set(ctx, "here", 2, 3); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(11*time.Minute, func() { w.setFault(nil) })
		err := bits.Close(ctx)
		var u *ebb.Undelivered
		if !errors.As(err, &u) || u.Lost > 0 || u.Unknown != 1 || !strings.Contains(err.Error(), "forgotten") {
			t.Errorf("the tries before were taken: %v", err)
		}
		if got := idsOf(t, c, "people", "here"); len(got) != 3 {
			t.Errorf("ids %v", got)
		}
	})
}

// Nor is a refusal that is about who sends a change, or which node it is sent to, one of the tries before it. Alone it
// is what it says.
func TestARefusalOfOneTry(t *testing.T) {
	for _, refusal := range []*proto.Error{proto.ErrNamespaceNotFound, proto.ErrUnauthenticated, proto.ErrPermissionDenied} {
		for _, lost := range []int{0, 1} { // tries that are taken, and whose answers do not come
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				c := placedBySlice(t, w, []string{"here"}, ebb.WithAttemptTimeout(100*time.Millisecond))
				tries := 0
				w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
					if tries++; tries <= lost {
						return nil, true
					}
					return refusal.Errorf("not now"), false
				})
				_, err := c.SetBits(t.Context(), "people", "here", 2)
				if !errors.Is(err, refusal) || errors.Is(err, ebb.ErrUnknownOutcome) != (lost > 0) || tries != lost+1 {
					t.Errorf("%v after %d lost answers: %v, in %d tries", refusal, lost, err, tries)
				}
			})
		}
	}
}

// A change that was sent and not answered may have been made: the client never says that it is lost.
func TestUnansweredIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c, ctx := placedBySlice(t, w, []string{"here"}, ebb.WithAttemptTimeout(100*time.Millisecond)), t.Context()
		for _, n := range w.nodes {
			defer n.freeze()()
		}
		bits := c.BitWriter(ebb.BitWriterOptions{Namespace: "people", Timeout: time.Second})
		if err := bits.Set(ctx, "here", 2, 3); err != nil {
			t.Fatal(err)
		}
		err := bits.Close(ctx)
		var u *ebb.Undelivered
		if !errors.As(err, &u) || u.Lost > 0 || u.Unknown != 1 || !errors.Is(err, ebb.ErrUnknownOutcome) {
			t.Errorf("a batch: %v", err)
		}
		for _, x := range []struct {
			what    string
			changes bool
			call    func(ctx context.Context) error
		}{
			{"bits", true, func(ctx context.Context) error { _, err := c.SetBits(ctx, "people", "here", 7); return err }},
			{"delete", true, func(ctx context.Context) error { _, err := c.Delete(ctx, "people", "here"); return err }},
			{"settings", true, func(ctx context.Context) error {
				_, err := c.SetNamespace(ctx, ebb.Namespace{Name: "people", Universe: new("all")})
				return err
			}},
			{"list", false, func(ctx context.Context) error { _, err := c.Namespaces(ctx); return err }},
			{"query", false, func(ctx context.Context) error { _, err := c.Query(ctx, "top 3 k"); return err }},
		} {
			limited, cancel := context.WithTimeout(ctx, time.Second)
			if err := x.call(limited); err == nil || errors.Is(err, ebb.ErrUnknownOutcome) != x.changes {
				t.Errorf("%s: %v", x.what, err)
			}
			cancel()
		}
	})
}

// A string that is too large for a request is refused, and does not keep the call from ending.
func TestSetNamesInRefusesLargeStrings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, ctx := newWorld(t, 1).connect(), context.Background()
		ns := ebb.Namespace{Name: "people", BitmapPlacement: ebb.PlaceBySlice, Dictionary: true}
		if _, err := c.CreateNamespace(ctx, ns); err != nil {
			t.Fatal(err)
		}
		large := strings.Repeat("x", proto.BatchBytesMax+1)
		if n, err := c.SetNamesIn(ctx, "people", map[string][]string{"k": {"a", large}}); err == nil || n != 1 {
			t.Errorf("%d strings, %v", n, err)
		}
	})
}
