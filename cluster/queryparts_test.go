package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Expressions over a year of days and a bitmap in another shard are fetched in rounds, and say what one shard says of
// the same.
func TestQueryManyParts(t *testing.T) {
	const days = 390
	e := newFakeCluster(t, 4)
	sets, times := map[string]ids{}, map[uint64]int{}
	everyone := ids{}
	first := time.Date(2011, 1, 1, 0, 0, 0, 0, time.UTC)
	for day := range days {
		set := ids{}
		for i := range uint64(12) { // in up to 12 slices; their parts are fetched one after the other
			id := i<<16 + uint64(day)*i%50
			set[id], everyone[id] = true, true
		}
		for i := range uint64(6_000) { // now and then in slices that do not go into one part together
			if id := i%8<<16 + i/8*80 + uint64(day)%7; day%60 == 0 {
				set[id], everyone[id] = true, true
			}
		}
		for id := range set {
			times[id]++
		}
		sets["play/"+first.AddDate(0, 0, day).Format(time.DateOnly)] = set
	}
	other := "everyone"
	for n := 0; e.table.ShardOf("default", []byte(other)) == e.table.ShardOf("default", []byte("play/2011-01-01")); n++ {
		other = fmt.Sprint("everyone-", n)
	}
	e.put(sets)
	e.put(map[string]ids{other: everyone})

	days390 := "play/2011-01-01 .. " + first.AddDate(0, 0, days-1).Format(time.DateOnly)
	ask := func(text string) *ebbv1.Answer {
		t.Helper()
		resp, err := e.query(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return resp.GetAnswer()
	}
	want, got := ask("cohort("+days390+")").GetCohort(), ask("cohort("+days390+", "+other+")").GetCohort()
	want.AsOfUs, got.AsOfUs = 0, 0
	if len(want.GetRows()) != days || !pb.Equal(want, got) {
		t.Errorf("a cohort of %d days within everyone differs from one of everyone", len(want.GetRows()))
	}
	for _, least := range []int{1, 3, 8, 100, 391} {
		n := uint64(0)
		for id := range everyone {
			if times[id]+1 >= least { // once more in the bitmap elsewhere
				n++
			}
		}
		text := fmt.Sprintf("count(atleast(%d, %s, %s))", least, days390, other)
		if got := ask(text).GetBitmap().GetCount(); got != n {
			t.Errorf("%s: %d: want %d", text, got, n)
		}
	}
}

// count of sets takes a time, as total does; of bitmaps it is refused.
func TestCountAsOf(t *testing.T) {
	e := stocked(t)
	e.put(map[string]ids{"bits/a": {1: true}})
	now, err := e.query("total(set/0)")
	if err != nil {
		t.Fatal(err)
	}
	later := time.UnixMicro(now.GetAnswer().GetSummary().GetAsOfUs()).Add(30 * time.Minute).UTC().Format(time.RFC3339)
	for _, of := range []string{"set/0", "set/0 | set/1", "set/*", "set/0 & set/4", "atleast(2, set/*)"} {
		text := "count(" + of + ") as of " + later
		count, err := e.query(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		total, err := e.query("total(" + of + ") as of " + later)
		got, want := count.GetAnswer().GetSummary(), total.GetAnswer().GetSummary()
		if err != nil || !got.GetFound() || !pb.Equal(got.GetTotal(), want.GetTotal()) || got.GetAsOfUs() != want.GetAsOfUs() {
			t.Errorf("%s: %v, and the total %v, %v", text, got, want, err)
		}
	}
	for of, says := range map[string]string{
		"bits/a": "bitmaps are as they are now", "bits/a | nothing": "bitmaps are as they are now",
		"clicks/1": "distribution",
	} {
		if _, err := e.query("count(" + of + ") as of " + later); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("count(%s) as of: %v: want %q", of, err, says)
		}
	}
}

// An expression that no set can be in is 0 of sets that are there.
func TestEmptyExpressionOfSets(t *testing.T) {
	e := stocked(t)
	for text, found := range map[string]bool{
		"count(atleast(3, set/0, set/1))": true, "total(atleast(3, set/0, nothing))": true,
		"count(set/0 & none/*)": true, "total(atleast(2, nothing))": false, "count(atleast(9, set/*))": true,
	} {
		resp, err := e.query(text)
		s := resp.GetAnswer().GetSummary()
		if err != nil || s.GetFound() != found || s.GetTotal().GetHigh() != 0 {
			t.Errorf("%s: %v, %v: want 0, found %v", text, resp.GetAnswer(), err, found)
		}
	}
	resp, err := e.query("overlap(atleast(3, set/0, set/1), atleast(3, nothing, none))")
	sets := resp.GetAnswer().GetOverlap().GetSets()
	if err != nil || len(sets) != 2 || !sets[0].GetFound() || sets[1].GetFound() {
		t.Errorf("%v, %v: want one that is there, and one that is not", sets, err)
	}
}
