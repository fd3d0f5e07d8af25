package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
)

// drawnExpression is an expression, what it holds, and which of the names in it mean nothing that is there.
type drawnExpression struct {
	text    string
	holds   ids
	parts   []ids // of a term, what each of its keys holds
	missing map[string]bool
}

// drawExpression draws an expression over keys that hold ids. Names that are not among them are missing, and so is a
// pattern that matches none.
func drawExpression(t *rapid.T, there map[string]ids, names []string, deep int) drawnExpression {
	if deep == 0 || rapid.IntRange(0, 3).Draw(t, "term") == 0 {
		return drawTerm(there, rapid.SampledFrom(names).Draw(t, "name"))
	}
	var of []drawnExpression
	for range rapid.IntRange(2, 3).Draw(t, "operands") {
		of = append(of, drawExpression(t, there, names, deep-1))
	}
	out := drawnExpression{holds: ids{}, missing: map[string]bool{}}
	texts, counts, first := []string{}, map[uint64]int{}, of[0].holds
	for _, x := range of {
		texts = append(texts, x.text)
		maps.Copy(out.missing, x.missing)
	}
	operator := rapid.SampledFrom([]string{"|", "&", "-", "^", "atleast"}).Draw(t, "operator")
	if operator == "atleast" {
		least := rapid.IntRange(1, 4).Draw(t, "least")
		for _, x := range of {
			for _, part := range x.parts {
				for id := range part {
					counts[id]++
				}
			}
		}
		for id, n := range counts {
			if n >= least {
				out.holds[id] = true
			}
		}
		out.text, out.parts = fmt.Sprintf("atleast(%d, %s)", least, strings.Join(texts, ", ")), []ids{out.holds}
		return out
	}
	for _, x := range of {
		for id := range x.holds {
			counts[id]++
		}
	}
	for id, n := range counts {
		switch operator {
		case "|":
			out.holds[id] = true
		case "&":
			if n == len(of) {
				out.holds[id] = true
			}
		case "-":
			if n == 1 && first[id] {
				out.holds[id] = true
			}
		case "^":
			if n%2 == 1 {
				out.holds[id] = true
			}
		}
	}
	out.text, out.parts = "("+strings.Join(texts, " "+operator+" ")+")", []ids{out.holds}
	return out
}

func drawTerm(there map[string]ids, name string) drawnExpression {
	out := drawnExpression{text: name, holds: ids{}, missing: map[string]bool{}}
	prefix, pattern := strings.CutSuffix(name, "*")
	for key, held := range there {
		if key == name || pattern && strings.HasPrefix(key, prefix) {
			out.parts = append(out.parts, held)
			maps.Copy(out.holds, held)
		}
	}
	out.missing[name] = len(out.parts) == 0
	return out
}

// Whatever a missing name stands next to, an answer names it, and the answer is right.
func TestMissingIsNamedWhereverItStands(t *testing.T) {
	e := stocked(t)
	e.table = e.table.WithVersion(proto.VersionMissingKeys)
	bits := map[string]ids{"bits/a": {1: true, 2: true, 3: true}, "bits/b": {2: true, 3: true, 4: true}, "bits/c": {9: true}}
	e.put(bits)
	bitNames := []string{"bits/a", "bits/b", "bits/c", "bits/x", "bits/y", "bits/*", "nil/*"}
	sets := map[string]ids{}
	for i := range 5 {
		sets[fmt.Sprintf("set/%d", i)] = ids{0: true, 1: true, 10 + uint64(i/2): true}
	}
	setNames := []string{"set/1", "set/2", "set/4", "set/x", "set/y", "set/*", "nil/*"}
	rapid.Check(t, func(t *rapid.T) {
		there, names := bits, bitNames
		if rapid.Bool().Draw(t, "sets") {
			there, names = sets, setNames
		}
		x := drawExpression(t, there, names, rapid.IntRange(1, 3).Draw(t, "deep"))
		text := fmt.Sprintf("%s(%s)", rapid.SampledFrom([]string{"count", "total", "distinct"}).Draw(t, "function"), x.text)
		resp, err := e.query(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		a := resp.GetAnswer()
		count := float64(a.GetBitmap().GetCount())
		if s := a.GetSummary(); s != nil {
			count = s.GetTotal().GetValue()
		}
		if want := float64(len(x.holds)); count < want-1e-3 || count > want+1e-3 {
			t.Fatalf("%s = %v, not %v", text, count, want)
		}
		got := map[string]bool{}
		for _, key := range a.GetCoverage().GetMissingKeys() {
			got[string(key)] = true
		}
		maps.DeleteFunc(x.missing, func(_ string, missing bool) bool { return !missing })
		if !maps.Equal(got, x.missing) {
			t.Fatalf("%s: missing %v, want %v", text, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(x.missing)))
		}
	})
}
