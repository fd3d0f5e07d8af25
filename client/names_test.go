package client_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Strings are put in and flipped once, whatever happens to the commands that name them and those that set their bits,
// and each has one id.
func TestNamesUnderFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect(ebb.WithAttemptTimeout(time.Second), ebb.WithBackoff(ebb.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}))
		ctx := context.Background()
		if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "users", Dictionary: true}); err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(1, 1))
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
			return nil, rng.IntN(4) == 0 // applied, and the answer is lost
		})
		want := map[string]bool{}
		for range 60 {
			names := map[string]bool{}
			for range 1 + rng.IntN(10) {
				names[fmt.Sprint("user-", rng.IntN(60))] = true
			}
			for name := range names {
				if want[name] = !want[name]; !want[name] {
					delete(want, name)
				}
			}
			if n, err := c.FlipNames(ctx, "users", "a", slices.Collect(maps.Keys(names))...); err != nil || n != len(names) {
				t.Fatalf("%d of %d, %v", n, len(names), err)
			}
		}
		w.setFault(nil)
		got := []string{}
		for name, err := range c.Bitmap("users", ebb.Bits("a")).Names(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, name)
		}
		slices.Sort(got)
		if !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Fatalf("it holds %q: want %v", got, slices.Sorted(maps.Keys(want)))
		}
		ids, err := c.NameIDs(ctx, "users", append(got, "nobody")...)
		if err != nil || ids[len(got)].Found {
			t.Fatalf("%v, %v", ids[len(got)], err)
		}
		numbers := []uint64{1 << 50}
		for i, id := range ids[:len(got)] {
			if !id.Found || id.Name != got[i] || slices.Contains(numbers, id.ID) {
				t.Fatalf("%+v", id)
			}
			numbers = append(numbers, id.ID)
		}
		back, err := c.IDNames(ctx, "users", numbers...)
		if err != nil || back[0].Found {
			t.Fatalf("%v, %v", back[0], err)
		}
		for i, id := range back[1:] {
			if id.Name != got[i] {
				t.Errorf("%d is %q, and was that of %q", id.ID, id.Name, got[i])
			}
		}
	})
}

// What cannot be is refused before anything is sent, or by the node that is asked.
func TestNamesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		c := w.connect()
		ctx := context.Background()
		if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "users", Dictionary: true}); err != nil {
			t.Fatal(err)
		}
		if !c.HasDictionary(ctx, "users") || c.HasDictionary(ctx, w.plain()) || c.HasDictionary(ctx, "nobody") {
			t.Error("who has a dictionary")
		}
		for what, c := range map[string]struct {
			err  error
			says string
		}{
			"a long string":              {second(c.SetNames(ctx, "users", "a", strings.Repeat("x", 257))), "the limit of one that gets an id is 256"},
			"a string where numbers are": {second(c.SetNames(ctx, w.plain(), "a", "alice")), "has no dictionary"},
			"a number where strings are": {second(c.SetBits(ctx, "users", "a", 5)), "ids are strings there"},
			"a look at what is not text": {second(c.NameIDs(ctx, "users", "\xff")), "not UTF-8"},
		} {
			if c.err == nil || !strings.Contains(c.err.Error(), c.says) {
				t.Errorf("%s: %v", what, c.err)
			}
		}
		if n, err := c.SetNames(ctx, "users", "a"); n != 0 || err != nil {
			t.Errorf("nothing: %d, %v", n, err)
		}
	})
}

func second[T any](_ T, err error) error { return err }
