package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/bench/accuracy"
)

func accuracyResults() []kindResult {
	theory, none := 0.02, 0.0
	return []kindResult{
		{"good", "a kind", false, []accuracy.Row{
			{Kind: "good", N: 1, Theory: &none, Within: true, Trials: 9},
			{Kind: "good", N: 10, Bias: -0.001, RMSE: 0.021, Theory: &theory, Within: true, Encoded: 64, Trials: 9},
			{Kind: "good", N: 100, RMSE: 0.019, Theory: &theory, Within: true, Trials: 9},
		}},
		{"published", "a reference", true, []accuracy.Row{{Kind: "published", N: 5, Bias: 0.5, RMSE: 0.5, Theory: &theory, Trials: 9}}},
	}
}

// The table has each kind where it is worst, then the figures and the bounds.
func TestPrintAccuracy(t *testing.T) {
	figures := []accuracy.Figure{{What: "words", Structure: "s", Origin: "8%", RMSE: 0.01, Theory: 0.02, Bytes: 7, Seeds: 3}, {What: "keys", Structure: "t"}}
	bounds := []accuracy.Bound{{Kind: "bloom", Promise: "found", Limit: 0.01, Measured: 0.005, Checks: 100, Within: true}}
	coverages := []accuracy.Coverage{
		{Kind: "set", Stream: "late", Statistical: true, Inside: 0.95, Checks: 2000, Within: true},
		{Kind: "topk", Stream: "bursty", Inside: 1, Checks: 2000, Within: true},
	}
	var out bytes.Buffer
	s := &session{term: terminal{out: &out}, output: "table"}
	if err := printAccuracy(s, accuracyResults(), figures, bounds, coverages); err != nil {
		t.Fatal(err)
	}
	want := `KIND       THINGS  BIAS     RMSE     THEORY  RMSE/THEORY  BYTES  TRIALS
good       10      -0.100%  2.100%   2.000%  1.050        64     9
published  5       50.000%  50.000%  2.000%  25.000       0      9

WHAT   STRUCTURE  ORIGIN  BIAS    RMSE    WORST   THEORY  BYTES  SEEDS
words  s          8%      0.000%  1.000%  0.000%  2.000%  7      3
keys   t          -       0.000%  0.000%  0.000%  -       0      0

KIND   PROMISE  LIMIT   MEASURED  CHECKS
bloom  found    1.000%  0.500%    100

INTERVALS OF  EVENTS  TO BE        CONTAIN THE TRUTH  CHECKS
set           late    93% to 97%   95.000%            2000
topk          bursty  93% or more  100.000%           2000
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	s.output = "json"
	if err := printAccuracy(s, accuracyResults(), figures, bounds, coverages); err != nil || !json.Valid(out.Bytes()) || !strings.Contains(out.String(), `"promise": "found"`) {
		t.Errorf("%v: %s", err, out.String())
	}
}

// Only kinds of ebb and broken bounds fail the command, and the error says where.
func TestOutsideOf(t *testing.T) {
	results := accuracyResults()
	if err := outsideOf(results, []accuracy.Bound{{Within: true}}, []accuracy.Coverage{{Within: true}}); err != nil {
		t.Error(err)
	}
	results[0].Rows[1].Within = false
	err := outsideOf(results, []accuracy.Bound{{Kind: "bloom", Promise: "found", Limit: 0.01, Measured: 0.02}},
		[]accuracy.Coverage{{Kind: "set", Stream: "late", Statistical: true, Inside: 0.9, Checks: 9}})
	for _, part := range []string{"outside of theory", "good at 10: bias -0.100%, rmse 2.100%, theory 2.000%", "bloom: found: 2.000%, limit 1.000%", "set, late: 90.000% of the intervals contain the truth, to be 93% to 97%"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %q", err, part)
		}
	}
	if err != nil && strings.Contains(err.Error(), "published") {
		t.Errorf("%v names a reference", err)
	}
}
