package cluster

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// sizeIn is how many members or ids an answer says, and whether anything is known.
func sizeIn(a *ebbv1.Answer) (float64, bool) {
	if s := a.GetSummary(); s != nil {
		return s.GetTotal().GetValue(), s.GetFound()
	}
	return float64(a.GetBitmap().GetCount()), true
}

// total, distinct and count say the same of what is made of sets, of bitmaps and of patterns of them.
func TestQuerySizesAgree(t *testing.T) {
	e := stocked(t)
	e.table = e.table.WithVersion(proto.VersionMissingKeys)
	e.put(map[string]ids{
		"bits/a": {1: true, 2: true, 3: true}, "bits/b": {2: true, 3: true, 4: true}, "bits/c": {9: true},
	})
	for of, want := range map[string]float64{
		"set/0 & set/*":                         3,
		"set/** & set/0":                        3,
		"set/* - set/0":                         2,
		"set/* - set/0 - set/2":                 1,
		"atleast(2, set/0, set/*)":              4,
		"atleast(5, set/0 | set/1, set/*)":      2,
		"atleast(1, set/*) - set/0":             2,
		"set/0 & (set/2 | set/*)":               3,
		"set/* & set/*":                         5,
		"(set/* - set/0) | (set/0 & set/*)":     5,
		"set/0 ^ set/*":                         2,
		"(set/* & set/0) & ~(set/2 & set/*)":    1,
		"set/*":                                 5,
		"bits/a & bits/*":                       3,
		"bits/* - bits/a":                       2,
		"bits/*":                                5,
		"bits/a":                                3,
		"bits/a | bits/b":                       4,
		"atleast(2, bits/a, bits/*)":            3,
		"atleast(1, bits/*) - bits/a":           2,
		"bits/a | (bits/* - bits/c)":            4,
		"(bits/a & bits/*) ^ (bits/b & bits/*)": 2,
	} {
		for _, function := range []string{"total", "distinct", "count"} {
			text := fmt.Sprintf("%s(%s)", function, of)
			resp, err := e.query(text)
			if got, _ := sizeIn(resp.GetAnswer()); err != nil || got != want {
				t.Errorf("%s: %v, %v: want %v", text, got, err, want)
			}
			if n := resp.GetAnswer().GetCoverage().GetMissingTotal(); n != 0 {
				t.Errorf("%s: missing: %q", text, resp.GetAnswer().GetCoverage().GetMissingKeys())
			}
			req := &ebbv1.QueryRequest{Text: text, Strict: true}
			if _, err = NewQueries(e.keys("ebb-0")).Query(t.Context(), req); err != nil {
				t.Errorf("%s, strict: %v", text, err)
			}
		}
	}
	for of, missing := range map[string]string{
		"set/typo & set/*": "set/typo", "bits/typo & bits/*": "bits/typo", "set/0 & none/*": "none/*",
		"bits/a & none/*": "none/*", "typo & none/*": "typo",
	} {
		for _, function := range []string{"total", "distinct", "count"} {
			text := fmt.Sprintf("%s(%s)", function, of)
			resp, err := e.query(text)
			got, _ := sizeIn(resp.GetAnswer())
			names := resp.GetAnswer().GetCoverage().GetMissingKeys()
			if err != nil || got != 0 || len(names) == 0 || string(names[0]) != missing {
				t.Errorf("%s: %v, %v: missing %q, want %s", text, got, err, names, missing)
			}
		}
	}
	// What is about ids alone says so of sets, also where no bitmap matches.
	for _, text := range []string{
		"ids(set/0)", "ids(set/0 & set/*)", "ids(atleast(2, set/0, set/*))", "count by bits/* (set/0 & set/*)",
		"cohort(play/2011-11-01 .. 2011-11-02, set/0 & set/*)", "store bits/a = set/0 & set/*",
		"store bits/a = set/* - set/0",
	} {
		if resp, err := e.query(text); !errors.Is(err, proto.ErrWrongKind) {
			t.Errorf("%s: %v %v", text, resp, err)
		}
	}
	if resp, err := e.query("count(bits/a)"); err != nil || resp.GetAnswer().GetBitmap().GetCount() != 3 {
		t.Errorf("after refused stores: %v %v", resp, err)
	}
	// Nothing is stored of bitmaps that have nothing, as before.
	resp, err := e.query("store bits/a = bits/a & none/*")
	if err != nil || resp.GetAnswer().GetBitmap().GetCount() != 0 {
		t.Errorf("%v %v", resp, err)
	}
}

// total, distinct and count say the same of periods that are rolled up: by themselves, in ranges, and in expressions.
func TestRollupSizesAgree(t *testing.T) {
	for _, placement := range []ebbv1.BitmapPlacement{
		ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY, ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE,
	} {
		e := newFakeCluster(t, 4)
		e.create(&ebbv1.Namespace{
			Name: "people", BitmapPlacement: placement,
			Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{monthUnit, quarterUnit}},
		})
		e.bits("people",
			setIDs("play/2011-11-01", 1, 2), setIDs("play/2011-12-01", 2, 3), setIDs("play/2012-03", 9),
			setIDs("play/2012-03-05", 10), setIDs("play:2011-11-01", 5))
		for of, want := range map[string]float64{
			"play/2011-11":                                            2,
			"play/2011-11-01":                                         2,
			"play/2011-Q4":                                            3,
			"play/2011-11 .. 2011-12":                                 3,
			"play/2011-10 .. 2011-12":                                 3,
			"play/2011-Q4 .. 2012-Q1":                                 5,
			"play/2011-11 | play/2011-12":                             3,
			"play/2011-11 .. 2011-12 | play/2012-03":                  5,
			"play/2012-03":                                            2,
			"play/2011-12 .. 2012-03":                                 4,
			"play/2011-11-01 .. 2011-12-31":                           3,
			"play/2011-11-*":                                          2,
			"play/*":                                                  5,
			"play:2011-11 .. 2011-12":                                 1,
			"play/2011-11 & play/2011-Q4":                             2,
			"play/2011-11 .. 2011-12 - play/2011-11":                  1,
			"atleast(2, play/2011-11 .. 2011-12)":                     1,
			"(play/2011-11 .. 2011-12) & (play/2011-Q4 .. 2012-Q1)":   3,
			"play/2011-11-01 & play/2011-11-*":                        2,
			"atleast(2, play/2011-11 .. 2011-12, play/2011-12-01)":    2,
			"(play/2011-11 .. 2011-12) - (play/2011-11-* | none/*)":   1,
			"play/2011-Q4 ^ (play/2011-11 .. 2011-12 | play/2012-03)": 2,
		} {
			for _, function := range []string{"total", "distinct", "count"} {
				text := fmt.Sprintf("%s(%s) in people", function, of)
				resp, err := e.query(text)
				if got, found := sizeIn(resp.GetAnswer()); err != nil || got != want || !found {
					t.Errorf("%v: %s: %v, found %v, %v: want %v", placement, text, got, found, err, want)
				}
			}
		}
		for _, function := range []string{"total", "distinct"} {
			for _, of := range []string{"play/2011-11", "play/2012-03", "play/2011-11 .. 2011-12"} {
				text := fmt.Sprintf("%s(%s) in people as of 2030-01-01", function, of)
				if resp, err := e.query(text); !errors.Is(err, proto.ErrBadQuery) {
					t.Errorf("%v: %s: %v, %v", placement, text, resp.GetAnswer(), err)
				}
			}
		}
		for _, text := range []string{
			"jaccard(play/2011-11, play/2011-12)", "overlap(play/2011-11 .. 2011-12, play/2011-Q4)",
			"jaccard(play/2011-11-01, play/2011-12-01)", "similar(play/2011-11)", "graph(play/2011-11, play/2011-12)",
		} {
			if resp, err := e.query(text + " in people"); !errors.Is(err, proto.ErrWrongKind) {
				t.Errorf("%v: %s: %v, %v", placement, text, resp.GetAnswer(), err)
			}
		}
		for _, text := range []string{
			"total(play/2013-01 .. 2013-02)", "distinct(play/2013-01)", "total(play/2013-Q1)",
		} {
			resp, err := e.query(text + " in people")
			if got, found := sizeIn(resp.GetAnswer()); err != nil || got != 0 || found {
				t.Errorf("%v: %s: %v, found %v, %v", placement, text, got, found, err)
			}
		}
	}
}

// A window is of what has one, and a time is of what is forgotten: bitmaps know neither.
func TestDistinctOfBitmaps(t *testing.T) {
	e := stocked(t)
	e.put(map[string]ids{"bits/a": {1: true, 2: true, 3: true}, "bits/b": {2: true}})
	for text, want := range map[string]*proto.Error{
		"distinct(bits/a, 10m)": proto.ErrWrongKind, "distinct(bits/a | bits/b, 10m)": proto.ErrWrongKind,
		"distinct(bits/a | visits/0)": proto.ErrWrongKind, "distinct(searches)": proto.ErrWrongKind,
		"distinct(clicks/0 | clicks/1)": proto.ErrWrongKind,
	} {
		if resp, err := e.query(text); !errors.Is(err, want) {
			t.Errorf("%s: %v %v", text, resp, err)
		}
	}
}

// Where a sample holds nothing of a union, a similarity may be anything, and is said to be so by all questions.
func TestQueryUnknownSimilarity(t *testing.T) {
	e := newFakeCluster(t, 7)
	req := new(ebbv1.IncrementRequest)
	add := func(key, bin string) {
		req.Increments = append(req.Increments, &ebbv1.Increment{
			Key: []byte(key), Bin: []byte(bin), Kind: ebbv1.Kind_KIND_SET,
		})
	}
	for i := range 4000 {
		add("big", fmt.Sprint("b", i))
	}
	for i := range 12 {
		add(fmt.Sprint("a/", i), fmt.Sprint("x", i))
		add(fmt.Sprint("b/", i), fmt.Sprint("x", i))
	}
	if resp, err := e.router("ebb-0").Increment(t.Context(), req); err != nil || len(resp.Refused) > 0 {
		t.Fatalf("%v %v", resp, err)
	}
	e.takeCalls()
	unknown := 0
	for i := range 12 {
		of := fmt.Sprintf("a/%d, b/%d - big", i, i)
		for _, text := range []string{"jaccard(" + of + ")", "overlap(" + of + ")"} {
			resp, err := e.query(text + " with confidence 0.5")
			if err != nil {
				t.Fatal(err)
			}
			o := resp.GetAnswer().GetOverlap()
			j := o.GetJaccard()
			if j.GetLow() > 1 || j.GetHigh() < 1 || j.GetConfidence() == 1 {
				t.Errorf("%s: %v", text, j)
			}
			if o.GetUnion().GetValue() == 0 {
				unknown++
				if j.GetLow() != 0 || j.GetHigh() != 1 {
					t.Errorf("%s: %v", text, j)
				}
			}
		}
		text := fmt.Sprintf("similar(b/%d - big, a/%d)", i, i)
		resp, err := e.query(text)
		if err != nil {
			t.Fatal(err)
		}
		nodes := resp.GetAnswer().GetGraph().GetNodes()
		if len(nodes) != 2 || len(nodes[0].GetLinks()) != 1 || nodes[0].GetLinks()[0].GetJaccard().GetHigh() < 1 {
			t.Errorf("%s: %v", text, nodes)
		}
	}
	if unknown == 0 {
		t.Error("all samples had something of the union")
	}
}
