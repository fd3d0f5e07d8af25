package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// contains asks of blooms whether bins are there, and of bitmaps whether ids are in: strings where the namespace has a
// dictionary, and numbers elsewhere. Whatever the kind, the answer is of one shape.
func TestQueryContains(t *testing.T) {
	e := stocked(t)
	e.named(0)
	e.create(&ebbv1.Namespace{Name: "slices", BitmapPlacement: ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE})
	e.bits("people", namesChange("play/2011-11-01", 1, "alice"), namesChange("play/2011-11-02", 1, "bob", "7"), namesChange("premium", 1, "eve"))
	e.bits("default", setIDs("bits/a", 7), setIDs("bits/b", 8), setIDs("mixed/a", 7))
	e.bits("slices", setIDs("a", 7, 1<<40), setIDs("b", 8))
	e.create(&ebbv1.Namespace{Name: "plays", Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{ebbv1.Period_PERIOD_MONTH}}})
	e.bits("plays", setIDs("day/2011-11-01", 7), setIDs("day/2011-11-30", 8), setIDs("day/2011-12-01", 9))
	bloom := &ebbv1.Increment{Key: []byte("guests"), Bin: []byte("alice"), Kind: ebbv1.Kind_KIND_BLOOM}
	seven := &ebbv1.Increment{Key: []byte("bits/2011-11"), Bin: []byte("7"), Kind: ebbv1.Kind_KIND_BLOOM}
	mixed := &ebbv1.Increment{Key: []byte("mixed/b"), Bin: []byte("8"), Kind: ebbv1.Kind_KIND_BLOOM}
	for namespace, in := range map[string]*ebbv1.Increment{"people": bloom, "plays": seven, "default": mixed} {
		if _, err := e.router("ebb-0").Increment(t.Context(), &ebbv1.IncrementRequest{Namespace: namespace, Increments: []*ebbv1.Increment{in}}); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		`contains(play/2011-11-01, "alice", "bob", "nobody") in people`:             "true false false",
		`contains(play/2011-11-01 .. 2011-11-02, "alice", "bob", "eve") in people`:  "true true false",
		`contains(play/2011-11-01 | premium, "alice", "bob", "eve") in people`:      "true false true",
		`contains(play/*, "alice", "7", "eve") in people`:                           "true true false",
		`contains(nowhere, "alice") in people`:                                      "false",
		`contains(nowhere/*, "alice") in people`:                                    "false",
		`contains(guests, "alice", "bob") in people`:                                "true false",
		`contains(bits/a, "7", "8")`:                                                "true false",
		`contains(bits/a | bits/b, "7", "8", "9")`:                                  "true true false",
		`contains(bits/*, "7", "8", "9")`:                                           "true true false",
		`contains(bits/* | mixed/a, "7", "9")`:                                      "true false",
		`contains(mixed/*, "7", "8")`:                                               `"mixed/*" matches bitmaps, and keys of other kinds`,
		`contains(mixed/b*, "7", "8")`:                                              "false true",
		`contains(day/2011-11-0* | day/2011-12-*, "7", "8", "9") in plays`:          "true false true",
		`contains(day/2011-11, "7", "8", "9") in plays`:                             "true true false",
		`contains(day/2011-11 | day/2011-12-01, "7", "9", "10") in plays`:           "true true false",
		`contains(day/2011-10, "7") in plays`:                                       "false",
		`contains(day/2011-11-01, "alice") in plays`:                                `"day/2011-11-01" is a bitmap`,
		`contains(bits/2011-11, "7") in plays`:                                      "true",
		`contains(a, "7", "8", "1099511627776") in slices`:                          "true false true",
		`contains(a | b, "7", "8", "9") in slices`:                                  "true true false",
		`contains(nobody, "7") in slices`:                                           "false",
		`contains(seen, "ann", "7")`:                                                "true false",
		`contains(bits/a, "alice")`:                                                 `"bits/a" is a bitmap`,
		`contains(a, "alice") in slices`:                                            "ids of bitmaps are whole numbers",
		`contains(searches, "7")`:                                                   "is a topk",
		`contains(premium, "a\tb") in people`:                                       "control characters",
		`contains(guests | premium, "alice") in people`:                             "is a bitmap",
		`contains(bits/a, "18446744073709551615", "007", "18446744073709551614")`:   "false true false",
		`contains(play/2011-11-02, "7") in people with consistency any`:             "true",
		`contains(play/2011-11-02, "not in") in people with consistency bounded 1s`: "false",
	} {
		got, err := e.query(text)
		w := got.GetAnswer().GetSummary()
		said := ""
		for _, m := range w.GetMemberships() {
			said += fmt.Sprint(m.GetContained(), " ")
		}
		if err != nil {
			said = err.Error()
		} else if got.GetAnswer().GetCoverage().GetShardsAnswered() == 0 || w.GetAsOfUs() == 0 {
			t.Errorf("%s: %v", text, got)
		}
		if !strings.Contains(said, want) {
			t.Errorf("%s: %q: want %q", text, said, want)
		}
	}
}
