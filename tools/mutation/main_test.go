package main

import (
	"bytes"
	"context"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func pay(t *testing.T) *pkg {
	t.Helper()
	p, err := load("..", "./mutation/testdata/pay")
	if err != nil {
		t.Fatal(err)
	}
	p.find()
	return p
}

// Every mutant of a small package is found, and is noticed or not.
func TestVerdicts(t *testing.T) {
	o := options{root: "..", records: t.TempDir(), sample: 0, seed: "1", files: regexp.MustCompile(".")}
	rows, err := o.try(t.Context(), "./mutation/testdata/pay")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Pay leave-out survived a.calls++",
		"Unused arithmetic unreached func Unused(n uint8) uint8 { return n + 1 }",
	}
	var got []string
	for _, s := range rows[0].survivors {
		got = append(got, fmt.Sprintf("%s %s %s %s", s.Func, s.Op, s.Verdict, s.Text))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || rows[0].tried != rows[0].mutants || rows[0].timeouts == 0 {
		t.Errorf("got %+v\n%s\nwant\n%s", rows[0], strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	before, err := os.ReadFile(filepath.Join(o.records, "mutation-testdata-pay.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(before, []byte("\n")); n != rows[0].mutants {
		t.Errorf("%d lines of %d mutants", n, rows[0].mutants)
	}
	// nothing is left to be tried, and no runner is begun
	again, err := o.try(t.Context(), "./mutation/testdata/pay")
	if err != nil || again[0].String() != rows[0].String() {
		t.Errorf("resumed: %v, %v", again, err)
	}
	if after, _ := os.ReadFile(filepath.Join(o.records, "mutation-testdata-pay.jsonl")); !bytes.Equal(after, before) {
		t.Error("a run with nothing left wrote to its record")
	}
	// what no test can notice is no survivor
	o.equal = map[string]string{rows[0].survivors[0].ID: "it counts what is not read"}
	again, err = o.try(t.Context(), "./mutation/testdata/pay")
	if err != nil || again[0].equal != 1 || again[0].alive != 1 {
		t.Errorf("one is equal: %+v, %v", again, err)
	}
}

// The operators make the text that they should.
func TestTexts(t *testing.T) {
	p := pay(t)
	text, err := format.Source(p.files[0].mutated())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`import ebbmutant "github.com/ebbdb/ebb/tools/internal/ebbmutant"`,
		`if ebbmutant.On(5) != (ebbmutant.Less(4, n, 0)) {`,
		`if !ebbmutant.On(1) {
		a.sum -= ebbmutant.Neg(2, n)
	}`,
		`return ebbmutant.Or(18, ebbmutant.Shl(19, n, 3), 1)`,
		`return ebbmutant.Div(20, x, 2)`,
	} {
		if !bytes.Contains(squeeze(text), squeeze([]byte(want))) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
	if bytes.Contains(squeeze(text), []byte("ebbmutant.More")) {
		t.Error("a method String has mutants")
	}
	if lines(p.files[0].mutated()) != lines(p.files[0].text) {
		t.Error("lines have other numbers")
	}
}

func lines(b []byte) int { return bytes.Count(b, []byte("\n")) }

// squeeze leaves white space and needless parentheses out.
func squeeze(b []byte) []byte {
	return regexp.MustCompile(`[\s()]+`).ReplaceAll(b, nil)
}

// No two mutants have one name, and a name stays when other lines come or go.
func TestNamesStay(t *testing.T) {
	names := func(p *pkg) (out []string) {
		for _, m := range p.mutants {
			out = append(out, m.ID)
		}
		return out
	}
	p := pay(t)
	before := names(p)
	if one := slices.Compact(slices.Sorted(slices.Values(before))); len(one) != len(before) {
		t.Errorf("%d names of %d mutants", len(one), len(before))
	}
	line := []byte("// Account has")
	p.files[0].text = bytes.Replace(p.files[0].text, line, slices.Concat([]byte("// A line more.\n\n"), line), 1)
	if err := p.check("pay"); err != nil {
		t.Fatal(err)
	}
	p.find()
	if after := names(p); !slices.Equal(after, before) {
		t.Errorf("%v are %v", before, after)
	}
}

// A sample is spread over the files, and drawn again by the same seed it is the same.
func TestSample(t *testing.T) {
	var all []*mutant
	for i := range 1000 {
		name := "big.go"
		if i < 50 {
			name = "small.go"
		}
		all = append(all, &mutant{ID: fmt.Sprint(i), File: name, n: i + 1})
	}
	any := regexp.MustCompile(".")
	got := sample(all, 100, "1", any)
	small := 0
	for _, m := range got {
		if m.File == "small.go" {
			small++
		}
	}
	if len(got) != 100 || small != 5 {
		t.Errorf("%d of all, %d of the small file", len(got), small)
	}
	slices.Reverse(all)
	if again := sample(all, 100, "1", any); !slices.Equal(again, got) {
		t.Error("another order gives another sample")
	}
	if other := sample(all, 100, "2", any); slices.Equal(other, got) {
		t.Error("another seed gives the same sample")
	}
	if all := sample(all, 0, "1", regexp.MustCompile("small")); len(all) != 50 {
		t.Errorf("%d of a file of 50", len(all))
	}
}

// A line that was cut off as the process was killed is as if it had not been written.
func TestRecordCutOff(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.jsonl")
	r, err := openRecord(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"1", "2"} {
		if err := r.add(outcome{mutant: mutant{ID: id}, Verdict: killed}); err != nil {
			t.Fatal(err)
		}
	}
	r.close()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, text[:len(text)-4], 0o644); err != nil {
		t.Fatal(err)
	}
	if r, err = openRecord(name); err != nil || len(r.of) != 1 || r.of["1"].Verdict != killed {
		t.Fatalf("%v, %v", r.of, err)
	}
	if err := r.add(outcome{mutant: mutant{ID: "3"}, Verdict: survived}); err != nil {
		t.Fatal(err)
	}
	r.close()
	if r, err = openRecord(name); err != nil || r.of["3"].Verdict != survived {
		t.Errorf("what came after the cut line is lost: %v, %v", r.of, err)
	}
	r.close()
}

// A run that is stopped leaves no verdict of the mutant that it was at.
func TestStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := options{root: "..", records: t.TempDir(), seed: "1", files: regexp.MustCompile(".")}
	if rows, err := o.try(ctx, "./mutation/testdata/pay"); err != nil || len(rows) != 0 {
		t.Errorf("%v, %v", rows, err)
	}
}

// The list of equal mutants names each once, with a reason.
func TestEqual(t *testing.T) {
	equal, err := readEqual("equal.txt")
	if err != nil {
		t.Fatal(err)
	}
	for id, why := range equal {
		if len(id) != 8 || !strings.Contains(why, " ") {
			t.Errorf("%s: %s", id, why)
		}
	}
}
