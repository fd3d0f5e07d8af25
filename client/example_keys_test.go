package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

func ExampleClient_Keys() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	fmt.Println(c.Increment(ctx, "plain", ebb.One("link/a", "US"), ebb.One("link/b", "US"), ebb.One("link/b", "BR"), ebb.One("other", "x")))
	for key, err := range c.Keys(ctx, "plain", ebb.KeysQuery{Pattern: "link/*", Order: ebb.OrderTotal}) {
		fmt.Println(key.Key, key.Kind, key.Total.Value, err)
	}
	// Output:
	// <nil>
	// link/b KIND_DISTRIBUTION 2 <nil>
	// link/a KIND_DISTRIBUTION 1 <nil>
}

func ExampleClient_KeysPage() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	fmt.Println(c.Increment(ctx, "plain", ebb.One("a", "x"), ebb.One("b", "x"), ebb.One("c", "x")))
	page, err := c.KeysPage(ctx, "plain", ebb.KeysQuery{Limit: 2})
	fmt.Println(len(page.Keys), "of", page.Matched, err)
	page, err = c.KeysPage(ctx, "plain", ebb.KeysQuery{After: page.Keys[1].Key})
	fmt.Println(page.Keys[0].Key, page.Coverage.Complete(), err)
	// Output:
	// <nil>
	// 2 of 3 <nil>
	// c true <nil>
}

func ExampleClient_MergedMatching() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	fmt.Println(c.Increment(ctx, "plain", ebb.One("link/a", "US"), ebb.One("link/b", "US"), ebb.One("link/b", "BR")))
	d, err := c.MergedMatching(ctx, "plain", "link/*", 1)
	fmt.Println(d.Matched, "keys,", d.Bins[0].Name, d.Bins[0].Count, "of", d.Z, err)
	// Output:
	// <nil>
	// 2 keys, US 2 of 3 <nil>
}

func ExampleClient_Describe() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	fmt.Println(c.Increment(ctx, "plain", ebb.Seen("visitors", "ann")))
	d, err := c.Describe(ctx, "plain", "visitors")
	fmt.Println(d.Kind, d.Accuracy, d.Expires.IsZero(), err)
	// Output:
	// <nil>
	// KIND_DISTINCT exact but for equal hashes, as long as there are so few bins; of many the standard error is 0.76% true <nil>
}

func ExampleClient_Delete() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	fmt.Println(c.Increment(ctx, "plain", ebb.One("a", "x")))
	fmt.Println(c.Delete(ctx, "plain", "a", "nobody"))
	fmt.Println(c.Increment(ctx, "plain", ebb.Seen("a", "of another kind")))
	// Output:
	// <nil>
	// 1 <nil>
	// <nil>
}

func ExampleClient_Rename() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	fmt.Println(c.Increment(ctx, "plain", ebb.One("a", "x"), ebb.One("b", "y")))
	err := c.Rename(ctx, "plain", "a", "b", false)
	fmt.Println(errors.Is(err, ebb.ErrKeyExists))
	fmt.Println(c.Rename(ctx, "plain", "a", "b", true))
	r, err := c.Probability(ctx, "plain", "b", "x")
	fmt.Println(r.Value, err)
	// Output:
	// <nil>
	// true
	// <nil>
	// 1 <nil>
}

func ExampleClient_Expire() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	fmt.Println(c.Increment(ctx, "plain", ebb.One("session/ann", "click")))
	fmt.Println(c.Expire(ctx, "plain", 10*time.Minute, "session/ann"))
	d, err := c.Describe(ctx, "plain", "session/ann")
	fmt.Println(d.Expires.After(time.Now().Add(9*time.Minute)), err)
	// Output:
	// <nil>
	// 1 <nil>
	// true <nil>
}

func ExampleClient_ExpireAt() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	fmt.Println(c.Increment(ctx, "plain", ebb.One("a", "x")))
	fmt.Println(c.ExpireAt(ctx, "plain", time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC), "a"))
	r, err := c.CountKeys(ctx, "plain")
	fmt.Println(r.Value, err)
	// Output:
	// <nil>
	// 1 <nil>
	// 0 <nil>
}

func ExampleClient_Persist() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	fmt.Println(c.Increment(ctx, "plain", ebb.One("a", "x")))
	fmt.Println(c.Expire(ctx, "plain", time.Minute, "a"))
	fmt.Println(c.Persist(ctx, "plain", "a"))
	d, err := c.Describe(ctx, "plain", "a")
	fmt.Println(d.Expires.IsZero(), err)
	// Output:
	// <nil>
	// 1 <nil>
	// 1 <nil>
	// true <nil>
}

func ExampleClient_Query() {
	c, stop := counted()
	defer stop()
	ctx := context.Background()
	r, err := c.Query(ctx, "top 1 clicks/abc | clicks/def", ebb.InNamespace("plain"))
	if err != nil {
		log.Fatal(err)
	}
	top := r.Distribution()
	fmt.Println(r.Text, "is", top.Bins[0].Name, top.Bins[0].Count, "of", top.Z)

	_, err = c.Query(ctx, "top 1 clicks/abc & clicks/def")
	fmt.Println(errors.Is(err, ebb.ErrBadQuery))
	// Output:
	// top 1 clicks/abc | clicks/def in plain is US 3 of 5
	// true
}

func ExampleClient_Explain() {
	c, stop := counted()
	defer stop()
	e, err := c.Explain(context.Background(), "keys clicks/** in plain")
	fmt.Println(len(e.GetShards()), "shards", err)
	// Output: 8 shards <nil>
}

func ExampleClient_WatchQuery() {
	c, stop := counted()
	defer stop()
	for e, err := range c.WatchQuery(context.Background(), "top 1 clicks/abc", ebb.WatchOptions{}, ebb.InNamespace("plain")) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Distribution().Bins[0].Name)
		break // or go on, and hear what changes
	}
	// Output: US
}

// Whoever comes for the first time in a month, and how many of them come again.
func ExampleResult_Cohort() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	for key, ids := range map[string][]uint64{"play/2011-10": {1, 2, 3, 4}, "play/2011-11": {3, 4, 5}, "play/2011-12": {4, 5}} {
		if _, err := c.SetBits(ctx, "plain", key, ids...); err != nil {
			log.Fatal(err)
		}
	}
	r, err := c.Query(ctx, "cohort(play/2011-10 .. 2011-12)", ebb.InNamespace("plain"))
	if err != nil {
		log.Fatal(err)
	}
	for _, row := range r.Cohort() {
		fmt.Println(row.Period, row.Count, row.Again)
	}
	r, err = c.Query(ctx, "count by play/* (play/2011-11)", ebb.InNamespace("plain"))
	if err != nil {
		log.Fatal(err)
	}
	for _, group := range r.Groups().Groups {
		fmt.Println(group.Key, group.Count)
	}
	r, err = c.Query(ctx, "ids(play/2011-10 - play/2011-11)", ebb.InNamespace("plain"))
	fmt.Println(r.Page().IDs, err)
	// Output:
	// 2011-10 4 [2 1]
	// 2011-11 1 [1]
	// 2011-12 0 []
	// play/2011-11 3
	// play/2011-10 2
	// play/2011-12 2
	// [1 2] <nil>
}

func ExampleBitmap_CountBy() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	for key, ids := range map[string][]uint64{"play/2011-11-01": {1, 2, 3}, "country/us": {1, 2, 9}, "country/br": {3}, "country/ua": {8}} {
		if _, err := c.SetBits(ctx, "plain", key, ids...); err != nil {
			log.Fatal(err)
		}
	}
	g, err := c.Bitmap("plain", ebb.Bits("play/2011-11-01")).CountBy(ctx, "country/*", 2)
	fmt.Println(g.Count, g.Groups, err)
	// Output: 3 [{country/us 2} {country/br 1}] <nil>
}

func ExampleBitmap_Store() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	for key, ids := range map[string][]uint64{"play/2011-11-01": {1, 2, 3}, "play/2011-11-02": {2, 7}} {
		if _, err := c.SetBits(ctx, "plain", key, ids...); err != nil {
			log.Fatal(err)
		}
	}
	either := c.Bitmap("plain", ebb.AnyOf(ebb.Bits("play/2011-11-01"), ebb.Bits("play/2011-11-02")))
	fmt.Println(either.Store(ctx, "play/2011-11"))
	fmt.Println(either.Between(2, 3).Store(ctx, "some"))
	n, err := c.Bitmap("plain", ebb.Bits("some")).Count(ctx)
	fmt.Println(n.Count, err)
	// Output:
	// 4 <nil>
	// 2 <nil>
	// 2 <nil>
}

func ExampleClient_Cohort() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	for key, ids := range map[string][]uint64{"play/2011-11-01": {1, 2, 3}, "play/2011-11-02": {2, 3, 7}, "play/2011-11-03": {3, 7, 8}} {
		if _, err := c.SetBits(ctx, "plain", key, ids...); err != nil {
			log.Fatal(err)
		}
	}
	table := ebb.CohortQuery{}
	for _, day := range []string{"2011-11-01", "2011-11-02", "2011-11-03"} {
		table.Periods = append(table.Periods, ebb.CohortPeriod{Name: day, IDs: ebb.Bits("play/" + day)})
	}
	for _, everyone := range []bool{false, true} {
		table.Everyone = everyone
		rows, err := c.Cohort(ctx, "plain", table)
		fmt.Println(rows, err)
	}
	// Output:
	// [{2011-11-01 3 [2 1]} {2011-11-02 1 [1]} {2011-11-03 1 []}] <nil>
	// [{2011-11-01 3 [2 1]} {2011-11-02 3 [2]} {2011-11-03 3 []}] <nil>
}

// Ids of bitmaps may be strings, such as uuids, in a namespace that has a dictionary.
func ExampleClient_SetNames() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: "users", Dictionary: true}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.SetNames(ctx, "users", "play/2011-11-01", "alice", "bob", "carol"))
	fmt.Println(c.SetNames(ctx, "users", "premium", "bob", "dora"))
	paying := c.Bitmap("users", ebb.AllOf(ebb.Bits("play/2011-11-01"), ebb.Bits("premium")))
	for name, err := range paying.Names(ctx) {
		fmt.Println(name, err)
	}
	fmt.Println(paying.ContainsNames(ctx, "alice", "bob", "nobody"))
	// Output:
	// 3 <nil>
	// 2 <nil>
	// bob <nil>
	// [false true false] <nil>
}
