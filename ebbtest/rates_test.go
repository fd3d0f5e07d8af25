package ebbtest_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/ebbtest"
)

// Rates under an event clock begin with the events of the namespace, on whatever nodes its shards are: of each key
// alone, after a rename, and in a copy.
func TestRatesBeginWithTheNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ebbtest.New(t, ebbtest.Nodes(3), ebbtest.Shards(6))
		client := c.Client()
		time.Sleep(10 * time.Second) // until the newest storage version is in force
		const keys, day = 12, 24 * time.Hour
		begin := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
		if _, err := client.CreateNamespace(t.Context(), ebb.Namespace{
			Name: "n", Clock: ebb.ClockEvent, HalfLife: 30 * day, SlowHalfLife: new(300 * day), MaxJump: new(time.Duration(0)),
		}); err != nil {
			t.Fatal(err)
		}
		for i := range keys {
			var events []ebb.Increment
			for d := range 30 {
				at := begin.Add(time.Duration(100-8*i-d) * day)
				events = append(events, ebb.Increment{Key: fmt.Sprint("k", i), Bin: "b", Amount: 1, Time: at})
			}
			if err := client.Increment(t.Context(), "n", events...); err != nil {
				t.Fatal(err)
			}
		}
		since := func(ns, key string) time.Time {
			t.Helper()
			tr, err := client.Trend(t.Context(), ns, ebb.TrendQuery{Keys: []string{key}})
			if err != nil || !tr.Found || tr.Coverage.ShardsTotal != 6 || tr.Coverage.ShardsAnswered != 6 {
				t.Fatalf("%s of %s: %+v, %v", key, ns, tr, err)
			}
			return tr.Since
		}
		want := begin.Add((100 - 8*(keys-1) - 29) * day)
		for i := range keys {
			if got := since("n", fmt.Sprint("k", i)); !got.Equal(want) {
				t.Errorf("rates of k%d begin %v, want %v", i, got, want)
			}
		}
		for i := range 4 {
			if err := client.Rename(t.Context(), "n", fmt.Sprint("k", i), fmt.Sprint("moved", i), false); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := client.CopyNamespace(t.Context(), "n", "copy", ebb.CopyOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, ns := range []string{"n", "copy"} {
			for _, key := range []string{"moved0", "moved3", "k5", "k11"} {
				if got := since(ns, key); !got.Equal(want) {
					t.Errorf("%s: rates of %s begin %v, want %v", ns, key, got, want)
				}
			}
		}
	})
}
