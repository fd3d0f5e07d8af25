package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Times as people write them, in microseconds: 0 is now, so that the beginning of
// 1970 is 1.
func TestInstant(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
	}{
		{"", 0},
		{"now", 0},
		{"0", 1},
		{"1970-01-01", 1},
		{"1970-01-01T00:00:00Z", 1},
		{"1970-01-01T00:00:00.000002Z", 2},
		{"1970-01-01t00:00:00.000002z", 2},
		{"2013-05-17", 1_368_748_800_000_000},
		{"1368748800", 1_368_748_800_000_000},
		{"1368748800000", 1_368_748_800_000_000},
		{"1368748800000000", 1_368_748_800_000_000},
	} {
		if got, err := instant(c.text); err != nil || got != c.want {
			t.Errorf("%q is %d, %v: want %d", c.text, got, err, c.want)
		}
	}
}

// A brief answer prints nothing about what was not visited: no 0 that is none.
func TestBriefPrinted(t *testing.T) {
	for _, brief := range []bool{false, true} {
		a := &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: &ebbv1.Distribution{
			Found: true, Z: 40_000, EffectiveN: 30_000, BinsTotal: 20_000, Brief: brief, Confidence: 0.95,
			Bins: []*ebbv1.Bin{{Bin: []byte("a"), Count: 7, P: 7. / 40_000}},
		}}}
		var table bytes.Buffer
		if err := printDistributionTable(&table, a, false); err != nil {
			t.Fatal(err)
		}
		document, err := json.Marshal(new(session).distributionJSON(a))
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]bool{"entropy": !brief, "other": !brief, "1 of 20000 bins": true, "at most": brief} {
			if strings.Contains(table.String(), text) != want {
				t.Errorf("brief %v: %q is not to be in the table, or should be: %s", brief, text, &table)
			}
		}
		for text, want := range map[string]bool{`"entropy_bits":0`: !brief, `"other":0`: !brief, `"bins_total":20000`: true, `"brief":true`: brief} {
			if strings.Contains(string(document), text) != want {
				t.Errorf("brief %v: %s is not to be in the document, or should be: %s", brief, text, document)
			}
		}
	}
}

// No two names are printed alike, each is read again as it was, and none takes more than its cell of a line.
func TestPrintableNames(t *testing.T) {
	names := []string{
		"tmp/a\tb", `"tmp/a\tb"`, `tmp/a\tb`, "--help", "", `"`, `""`, `\`, "a\nb", "\xff", `"\xff"`, "\u202e", " a ", "'a'", `a"b`, "東京",
	}
	printed := map[string]string{}
	for _, name := range names {
		text := printable([]byte(name))
		if other, twice := printed[text]; twice {
			t.Errorf("%q and %q are both printed as %s", name, other, text)
		}
		printed[text] = name
		if got, ok := unprinted(text); !ok || got != name {
			t.Errorf("%q is printed as %s, which is read as %q, %v", name, text, got, ok)
		}
		if strings.ContainsAny(text, "\t\n\r") {
			t.Errorf("%q is printed as %q", name, text)
		}
	}
	for _, text := range []string{`"`, `"a"`, `"a`, "a\x00", `"a" b`, "`a`\x01"} {
		if name, ok := unprinted(text); ok {
			t.Errorf("%q is read as %q, and is not printed so", text, name)
		}
	}
}
