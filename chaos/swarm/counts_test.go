package swarm

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var countsOf = flag.String("counts", "", "write the counts of this report of `ebb chaos sim --json` into docs/reliability.md")

const (
	countsBegin = "<!-- counts of a run: go test ./chaos/swarm -run TestCountsAreInTheDocs -args -counts report.json -->\n"
	countsEnd   = "<!-- end of counts -->\n"
)

// docs/reliability.md says how often a run injected each family, evaluated each invariant and killed at each failpoint; -counts writes what another run did.
func TestCountsAreInTheDocs(t *testing.T) {
	const file = "../../docs/reliability.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(text), countsBegin)
	counts, after, ended := strings.Cut(rest, countsEnd)
	if !begun || !ended {
		t.Fatalf("%s has no place for counts", file)
	}
	if *countsOf != "" {
		b, err := os.ReadFile(*countsOf)
		if err != nil {
			t.Fatal(err)
		}
		var r Report
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatal(err)
		}
		counts = countTables(&r.Sum)
		if err := os.WriteFile(file, []byte(before+countsBegin+counts+countsEnd+after), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names := append(append(FamilyNames(), invariantNames()...), Failpoints()...)
	for _, k := range Knobs {
		names = append(names, k.Name)
	}
	for _, name := range names {
		if !strings.Contains(counts, "| "+name+" | ") {
			t.Errorf("the counts do not have %s", name)
		}
	}
}

// countTables are a run's counts in Markdown.
func countTables(s *Sum) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d seeds, nodes came or went in %d; %v.\n\n| family | injected |\n| --- | --- |\n", s.Seeds, s.Members, &s.Outage)
	for _, f := range Families {
		fmt.Fprintf(&b, "| %s | %d |\n", f.Name, s.Faults[f.Name])
	}
	b.WriteString("\n| held | evaluated |\n| --- | --- |\n")
	for _, i := range Invariants {
		fmt.Fprintf(&b, "| %s | %d |\n", i.Name, s.Checks[i.Name])
	}
	b.WriteString("\n| failpoint | armed | killed there |\n| --- | --- | --- |\n")
	for _, name := range Failpoints() {
		fmt.Fprintf(&b, "| %s | %d | %d |\n", name, s.Points[name].Armed, s.Points[name].Killed)
	}
	b.WriteString("\n| limit | tightest | between | of production |\n| --- | --- | --- | --- |\n")
	for _, k := range Knobs {
		c := s.Knobs[k.Name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", k.Name, c.First, c.Between, c.Production)
	}
	return b.String()
}
