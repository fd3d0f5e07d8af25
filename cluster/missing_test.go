package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A period that is rolled up and has nothing in it is missing, and so is a universe that is not there, whichever way a
// question takes.
func TestMissingPeriodsAndUniverse(t *testing.T) {
	for _, placement := range []ebbv1.BitmapPlacement{
		ebbv1.BitmapPlacement_BITMAP_PLACEMENT_KEY, ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE,
	} {
		e := stocked(t)
		e.create(&ebbv1.Namespace{
			Name: "plays", Universe: []byte("all"), BitmapPlacement: placement,
			Rollups: &ebbv1.Rollups{Units: []ebbv1.Period{monthUnit, quarterUnit}},
		})
		e.create(&ebbv1.Namespace{Name: "known", Universe: []byte("all"), BitmapPlacement: placement})
		e.table = e.table.WithVersion(proto.VersionMissingKeys)
		e.bits("plays", setIDs("play/2011-11-01", 7), setIDs("a", 7))
		e.bits("known", setIDs("a", 7), setIDs("all", 7, 8))
		for text, want := range map[string]string{
			"count(play/2001-Q1) in plays":                "play/2001-Q1",
			"count(play/2001-Q1 | play/2011-Q4) in plays": "play/2001-Q1",
			"count(play/2011-Q4) in plays":                "",
			"count(play/2011-11) in plays":                "",
			"total(play/2001-Q1) in plays":                "play/2001-Q1",
			"total(play/2011-Q4) in plays":                "",
			"distinct(play/2001-Q1) in plays":             "play/2001-Q1",
			"ids(play/2001-Q1) in plays":                  "play/2001-Q1",
			`contains(play/2001-Q1, "7") in plays`:        "play/2001-Q1",
			"count(play/2001-Q1 .. 2001-Q2) in plays":     "play/2001-Q1 .. 2001-Q2",
			"count(~a) in plays":                          "all",
			"ids(~a) in plays":                            "all",
			"count(~a) in known":                          "",
			"count(~a & a) in plays":                      "",
			"count(~play/2001-Q1) in known":               "play/2001-Q1",
		} {
			if placement == ebbv1.BitmapPlacement_BITMAP_PLACEMENT_SLICE &&
				(strings.HasPrefix(text, "total") || strings.HasPrefix(text, "distinct")) {
				continue // such a namespace holds bitmaps alone, and says so
			}
			resp, err := e.query(text)
			if err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			var names []string
			for _, key := range resp.GetAnswer().GetCoverage().GetMissingKeys() {
				names = append(names, string(key))
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("%s, %s: missing %q, want %q", text, placement, got, want)
			}
			_, err = NewQueries(e.keys("ebb-0")).Query(t.Context(), &ebbv1.QueryRequest{Text: text, Strict: true})
			if (want == "") != (err == nil) || err != nil && !errors.Is(err, proto.ErrMissingKeys) {
				t.Errorf("%s, %s, strict: %v", text, placement, err)
			}
		}
		not := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Not{Not: &ebbv1.BitmapNot{Of: keyExpr([]byte("a"))}}}
		for namespace, missing := range map[string]uint32{"plays": 1, "known": 0} {
			q := bitmapQuestion(namespace, not)
			a := e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})[0]
			if a.GetError() != nil || a.GetCoverage().GetMissingTotal() != missing {
				t.Errorf("%s, %s: %v", namespace, placement, a)
			}
			a = e.ask(&ebbv1.AskRequest{Questions: []*ebbv1.Question{q}, Strict: true})[0]
			if refused := a.GetError().GetCode() == ebbv1.Code_CODE_MISSING_KEYS; refused != (missing > 0) {
				t.Errorf("%s, %s, strict: %v", namespace, placement, a)
			}
		}
	}
}
