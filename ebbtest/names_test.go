package ebbtest_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/ebbtest"
)

// While leaders are killed one after the other, strings are named and set; then the power goes. Every string that was
// acknowledged is in, and no two have one id; those of before are what they were.
func TestStringsKeepTheirIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ebbtest.New(t, ebbtest.Nodes(3), ebbtest.Shards(3))
		client := c.Client()
		ctx := t.Context()
		if _, err := client.CreateNamespace(ctx, ebb.Namespace{Name: "users", Dictionary: true}); err != nil {
			t.Fatal(err)
		}
		var want []string
		var before []ebb.NameID
		for round := range 3 {
			victim := c.Leader("users", fmt.Sprint("key-", round))
			written := make(chan error)
			go func() {
				for i := range 20 {
					if _, err := client.SetNames(ctx, "users", "a", fmt.Sprintf("%d/%d", round, i), fmt.Sprintf("%d/%d again", round, i)); err != nil {
						written <- fmt.Errorf("string %d of round %d: %w", i, round, err)
						return
					}
				}
				written <- nil
			}()
			c.Kill(max(victim, 0))
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			c.Restart(max(victim, 0))
			for i := range 20 {
				want = append(want, fmt.Sprintf("%d/%d", round, i), fmt.Sprintf("%d/%d again", round, i))
			}
			if round == 0 {
				var err error
				if before, err = client.NameIDs(ctx, "users", want...); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range 3 {
			c.PowerLoss(i)
		}
		c.Restart()
		var got []string
		for name, err := range client.Bitmap("users", ebb.Bits("a")).Names(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, name)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%d strings of %d: %q", len(got), len(want), got)
		}
		for _, was := range before {
			if is, err := client.NameIDs(ctx, "users", was.Name); err != nil || is[0] != was {
				t.Errorf("%+v was %+v: %v", is, was, err)
			}
		}
	})
}
