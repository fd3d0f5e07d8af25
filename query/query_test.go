package query

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

var rewrite = flag.Bool("rewrite", false, "write what is golden instead of comparing it")

// Files of questions have one a line, and what becomes of it.
const (
	questionsFile = "testdata/questions.txt"
	wrongFile     = "testdata/wrong.txt"
	becomes       = "  =>  "
)

// golden compares what becomes of each line of a file with what stands behind the arrow there.
func golden(t *testing.T, file string, least int, result func(question string) string) {
	t.Helper()
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	lines := 0
	for line := range strings.Lines(string(was)) {
		question, want, _ := strings.Cut(strings.TrimSuffix(line, "\n"), becomes)
		got := result(question)
		lines++
		if got != want && !*rewrite {
			t.Errorf("%s\ngot   %s\nwant  %s", question, got, want)
		}
		out.WriteString(question + becomes + got + "\n")
	}
	if lines < least {
		t.Errorf("%s has %d lines: %d at least", file, lines, least)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// testdata/questions.txt has questions, and how they are written by Text.
func TestQuestions(t *testing.T) {
	golden(t, questionsFile, 200, func(question string) string {
		plan, err := Parse(question)
		if err != nil {
			t.Errorf("%s: %v", question, err)
			return err.Error()
		}
		sameAgain(t, plan)
		return Text(plan)
	})
}

// testdata/wrong.txt has questions that are wrong, and what is said of them.
func TestWrongQuestions(t *testing.T) {
	golden(t, wrongFile, 100, func(question string) string {
		_, err := Parse(question)
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, proto.ErrBadQuery) {
			t.Errorf("%q: %v", question, err)
			return ""
		}
		if e.Line != 1 || e.Column != len([]rune(question[:e.Offset]))+1 {
			t.Errorf("%q: byte %d is not at line %d, column %d", question, e.Offset, e.Line, e.Column)
		}
		if wire := proto.AsError(err); wire.Column != uint32(e.Column) || wire.Line != 1 || wire.Hint != e.Hint {
			t.Errorf("%q crosses the wire as %+v", question, wire)
		}
		text := e.Error()
		if e.Hint != "" {
			text += " (" + e.Hint + ")"
		}
		return text
	})
}

// sameAgain holds Parse(Text(plan)) to be plan, and Text to be the only way to write it.
func sameAgain(t *testing.T, plan *ebbv1.Plan) {
	t.Helper()
	text := Text(plan)
	again, err := Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if !pb.Equal(plan, again) {
		t.Fatalf("%s\nof    %v\nis    %v", text, plan, again)
	}
	if twice := Text(again); twice != text {
		t.Fatalf("%s is written as %s", text, twice)
	}
	if err := Check(plan); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// What plans look like.
func TestPlans(t *testing.T) {
	key := func(name string) *ebbv1.PlanTerm { return &ebbv1.PlanTerm{Of: &ebbv1.PlanTerm_Key{Key: []byte(name)}} }
	of := func(name string) *ebbv1.PlanExpression {
		return &ebbv1.PlanExpression{Of: &ebbv1.PlanExpression_Term{Term: key(name)}}
	}
	made := func(o ebbv1.PlanOperator, operands ...*ebbv1.PlanExpression) *ebbv1.PlanExpression {
		return operation(o, operands)
	}
	november := &ebbv1.PlanTerm{Of: &ebbv1.PlanTerm_Range{Range: &ebbv1.PlanRange{Family: []byte("play"), First: "2011-11-01", Last: "2011-11-30"}}}
	for text, want := range map[string]*ebbv1.Plan{
		"top 20 clicks/a | @sales/clicks/* by trend(10m, 6h)": {Ask: &ebbv1.Plan_Top{Top: &ebbv1.PlanTop{
			N:     20,
			Of:    []*ebbv1.PlanTerm{key("clicks/a"), {Namespace: "sales", Of: &ebbv1.PlanTerm_Pattern{Pattern: []byte("clicks/*")}}},
			Trend: &ebbv1.PlanHalfLives{FastUs: 600e6, SlowUs: 6 * 3600e6},
		}}},
		"count((play/2011-11-01 .. 2011-11-30) & premium - staff - \"x y\")": {Ask: &ebbv1.Plan_Count{Count: &ebbv1.PlanCount{
			Of: made(
				ebbv1.PlanOperator_PLAN_OPERATOR_INTERSECTION,
				&ebbv1.PlanExpression{Of: &ebbv1.PlanExpression_Term{Term: november}},
				made(ebbv1.PlanOperator_PLAN_OPERATOR_DIFFERENCE, of("premium"), of("staff"), of("x y")),
			),
		}}},
		"describe(x) in sales as of 2013-05-06T12:00:00Z with consistency bounded 10s with confidence 0.9 allow partial": {
			Namespace: "sales", AsOfUs: 1367841600e6, Consistency: ebbv1.Consistency_CONSISTENCY_BOUNDED, MaxStalenessUs: 10e6, Confidence: 0.9, AllowPartial: true,
			Ask: &ebbv1.Plan_Describe{Describe: &ebbv1.PlanDescribe{Key: key("x")}},
		},
		"distinct(v, 90s)": {Ask: &ebbv1.Plan_Summary{Summary: &ebbv1.PlanSummary{
			Function: ebbv1.PlanFunction_PLAN_FUNCTION_DISTINCT, Of: []*ebbv1.PlanTerm{key("v")}, WindowUs: 90e6,
		}}},
		"top 5 keys link/* by recent": {Ask: &ebbv1.Plan_Keys{Keys: &ebbv1.PlanKeys{
			Of: &ebbv1.PlanTerm{Of: &ebbv1.PlanTerm_Pattern{Pattern: []byte("link/*")}}, Limit: 5, Order: ebbv1.KeyOrder_KEY_ORDER_RECENT,
		}}},
	} {
		got, err := Parse(text)
		if err != nil || !pb.Equal(got, want) {
			t.Errorf("%s\ngot   %v %v\nwant  %v", text, got, err, want)
		}
	}
}

// Check refuses plans that cannot be written, and what they say beyond what is written.
func TestCheck(t *testing.T) {
	key := &ebbv1.PlanTerm{Of: &ebbv1.PlanTerm_Key{Key: []byte("x")}}
	for name, plan := range map[string]*ebbv1.Plan{
		"nothing":      nil,
		"no question":  {},
		"no key":       {Ask: &ebbv1.Plan_Describe{Describe: &ebbv1.PlanDescribe{}}},
		"an empty key": {Ask: &ebbv1.Plan_Describe{Describe: &ebbv1.PlanDescribe{Key: &ebbv1.PlanTerm{Of: &ebbv1.PlanTerm_Key{}}}}},
		"top 0":        {Ask: &ebbv1.Plan_Top{Top: &ebbv1.PlanTop{Of: []*ebbv1.PlanTerm{key}}}},
		"quantiles of distinct": {Ask: &ebbv1.Plan_Summary{Summary: &ebbv1.PlanSummary{
			Function: ebbv1.PlanFunction_PLAN_FUNCTION_DISTINCT, Of: []*ebbv1.PlanTerm{key}, Quantiles: []float64{0.5},
		}}},
		"a limit of total":    {Ask: &ebbv1.Plan_Summary{Summary: &ebbv1.PlanSummary{Function: ebbv1.PlanFunction_PLAN_FUNCTION_TOTAL, Of: []*ebbv1.PlanTerm{key}, Limit: 3}}},
		"staleness of any":    {MaxStalenessUs: 3, Consistency: ebbv1.Consistency_CONSISTENCY_ANY, Ask: &ebbv1.Plan_Describe{Describe: &ebbv1.PlanDescribe{Key: key}}},
		"an unknown operator": {Ask: &ebbv1.Plan_Count{Count: &ebbv1.PlanCount{Of: operation(77, []*ebbv1.PlanExpression{{}, {}})}}},
		"a union of one": {Ask: &ebbv1.Plan_Count{Count: &ebbv1.PlanCount{
			Of: operation(ebbv1.PlanOperator_PLAN_OPERATOR_UNION, []*ebbv1.PlanExpression{{Of: &ebbv1.PlanExpression_Term{Term: key}}}),
		}}},
		"a range upside down": {Ask: &ebbv1.Plan_Cohort{Cohort: &ebbv1.PlanCohort{
			Of: &ebbv1.PlanTerm{Of: &ebbv1.PlanTerm_Range{Range: &ebbv1.PlanRange{Family: []byte("x"), First: "2012", Last: "2011"}}},
		}}},
	} {
		if err := Check(plan); !errors.Is(err, proto.ErrBadQuery) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Limits are named, and what is within them is parsed.
func TestLimits(t *testing.T) {
	many := func(n int, join string) string { return strings.Repeat("a"+join, n-1) + "a" }
	nested := func(n int) string { return strings.Repeat("(", n) + "a" + strings.Repeat(")", n) }
	for _, c := range []struct {
		name, text, says string
	}{
		{"terms", "count(" + many(TermsMax, " | ") + ")", ""},
		{"one term more", "count(" + many(TermsMax+1, " | ") + ")", "more than 10000 keys"},
		{"alternating operators", "count(" + strings.Repeat("a | b ^ c & ", TermsMax/3-1) + "a)", ""},
		{"levels", "count(" + nested(DepthMax-1) + ")", ""},
		{"one level more", "count(" + nested(DepthMax) + ")", "more than 1000 levels"},
		{"complements", "count(" + strings.Repeat("~", DepthMax-1) + "a)", ""},
		{"one complement more", "count(" + strings.Repeat("~", DepthMax) + "a)", "more than 1000 levels"},
		{"at least of at least", "count(" + strings.Repeat("atleast(1, ", 499) + "a" + strings.Repeat(")", 499) + ")", ""},
		{"deep in each operator", "count(" + strings.Repeat("(a | a ^ a & a - ", 990) + "a" + strings.Repeat(")", 990) + ")", ""},
		{"parentheses that never close", "count(" + strings.Repeat("(", TextBytesMax/2), "more than 1000 levels"},
		{"text", strings.Repeat(" ", TextBytesMax-len("keys")) + "keys", ""},
		{"one byte more", strings.Repeat(" ", TextBytesMax-len("keys")+1) + "keys", "1048577 bytes: the limit is 1048576"},
		{"key", "describe(" + strings.Repeat("k", proto.KeyLenMax) + ")", ""},
		{"one byte of a key more", "describe(" + strings.Repeat("k", proto.KeyLenMax+1) + ")", "key of 513 bytes"},
		{"bin", `p(x, "` + strings.Repeat("k", proto.BinLenMax+1) + `")`, "bin of 257 bytes: the limit is 256"},
		{"sets", "overlap(" + strings.Repeat("a, ", proto.OverlapKeysMax) + "b)", "more than 256 sets"},
		{"bins", `p(x` + strings.Repeat(`, "b"`, TermsMax) + ")", "more than 10000"},
		{"periods", "count(x/2011-01-01T00 .. 2012-02-21T15)", ""},
		{"one period more", "count(x/2011-01-01T00 .. 2012-02-21T16)", "more than 10000"},
	} {
		plan, err := Parse(c.text)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.says == "":
			sameAgain(t, plan)
			raw, err := pb.Marshal(&ebbv1.QueryRequest{Plan: plan})
			if err != nil || pb.Unmarshal(raw, &ebbv1.QueryRequest{}) != nil {
				t.Errorf("%s: a plan that cannot travel: %v", c.name, err)
			}
		case err == nil || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %v: want %q", c.name, err, c.says)
		}
	}
}

// Columns are counted in characters, in the line where the error is.
func TestPositions(t *testing.T) {
	for _, c := range []struct {
		text                 string
		offset, line, column int
	}{
		{"top 10 \"äöü\" !", len("top 10 \"äöü\" "), 1, 14},
		{"# what we count\ncount(\n  größe &\n  & b)", len("# what we count\ncount(\n  größe &\n  "), 4, 3},
		{"count(@music/play/2011-02-30)", len("count(@music/play/"), 1, 19},
		{"count(play/2011-11-01 .. play/2011-02-30)", len("count(play/2011-11-01 .. play/"), 1, 31},
	} {
		_, err := Parse(c.text)
		var e *Error
		if !errors.As(err, &e) || e.Offset != c.offset || e.Line != c.line || e.Column != c.column {
			t.Errorf("%q: %+v: want byte %d, line %d, column %d", c.text, e, c.offset, c.line, c.column)
		}
	}
}

// What Forms gives as examples can be parsed, and begins with the name of its form.
func TestForms(t *testing.T) {
	for _, f := range Forms() {
		plan, err := Parse(f.Usage)
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		sameAgain(t, plan)
		if !strings.HasPrefix(f.Usage, f.Name) || f.Call != strings.HasPrefix(f.Usage, f.Name+"(") || f.Summary == "" {
			t.Errorf("%s: %s, %q", f.Name, f.Usage, f.Summary)
		}
	}
}

// No text makes the parser panic, and what it takes it takes again as it is written.
func FuzzParse(f *testing.F) {
	for _, file := range []string{questionsFile, wrongFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			question, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), becomes)
			f.Add(question)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := Parse(text)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Offset < 0 || e.Offset > len(text) || e.Line < 1 || e.Column < 1 || e.Message == "" {
				t.Fatalf("%q: %+v", text, err)
			}
			return
		}
		sameAgain(t, plan)
	})
}

// No bytes that are a plan make Text or Check panic.
func FuzzCheck(f *testing.F) {
	for _, form := range Forms() {
		plan, err := Parse(form.Usage)
		if err != nil {
			f.Fatal(err)
		}
		raw, err := pb.Marshal(plan)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		plan := &ebbv1.Plan{}
		if pb.Unmarshal(raw, plan) != nil || Check(plan) != nil {
			return
		}
		sameAgain(t, plan)
	})
}

func ExampleParse() {
	plan, err := Parse("count((play/2011-11-01 .. play/2011-11-30) and not staff)")
	fmt.Println(Text(plan), err)
	_, err = Parse("cuont(play/2011-11-01)")
	fmt.Println(err)
	// Output:
	// count(play/2011-11-01 .. 2011-11-30 - staff) <nil>
	// column 1: unknown function cuont
}

func BenchmarkParse(b *testing.B) {
	for name, text := range map[string]string{
		"top":         "top 10 clicks/country",
		"count":       "count((play/2011-11-01 .. play/2011-11-30) & premium/2011-11)",
		"10,000terms": "count(" + strings.Repeat("play/2011-11-01 | ", TermsMax-1) + "x)",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A question is about the namespace of its keys, or else that of its clause.
func TestNamespace(t *testing.T) {
	for text, want := range map[string]string{
		"top 10 clicks": "", "top 10 clicks in sales": "sales", "top 10 @sales/clicks": "sales", "count(a & ~(@people/b - @people/c))": "people",
		"count by @people/* (@people/a)": "people", "store @people/a = @people/b": "people", "keys @sales/**": "sales", "similar(@sales/a)": "sales", "keys in sales": "sales",
	} {
		plan, err := Parse(text)
		if err != nil || Namespace(plan) != want {
			t.Errorf("%s: %q, %v: want %q", text, Namespace(plan), err, want)
		}
	}
}
