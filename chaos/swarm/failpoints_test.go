package swarm

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/cluster"
)

// hit is how the product names a failpoint that it is at. What it adds to a name that ends with a dot is what a group's
// leader does.
var hit = regexp.MustCompile(`\b[Hh]it\("([a-z.]+)"(\+step\.Action\.String\(\))?\)`)

// Plans kill at every failpoint of the product, except those for which unreached says why not.
func TestEveryFailpointIsKilledAt(t *testing.T) {
	have := slices.Collect(maps.Keys(unreached))
	have = append(have, Failpoints()...)
	var want []string
	err := fs.WalkDir(os.DirFS("../../node"), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile("../../node/" + path)
		for _, m := range hit.FindAllStringSubmatch(string(text), -1) {
			if m[2] == "" {
				want = append(want, m[1])
				continue
			}
			for a := cluster.StepAdd; a <= cluster.StepSettle; a++ {
				want = append(want, m[1]+a.String())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(have)
	slices.Sort(want)
	want = slices.Compact(want)
	if !slices.Equal(have, want) {
		t.Errorf("the swarm has\n%v\nand the product\n%v", have, want)
	}
	if len(Failpoints()) < 40 {
		t.Errorf("%d failpoints", len(Failpoints()))
	}
}

// A process that dies at a failpoint is counted there and as a fault; one that does not come there is armed only, and a
// fault that finds nothing to do is none.
func TestFaultsThatDoNothingDoNotCount(t *testing.T) {
	at := func(number int, family, way string) Fault {
		return Fault{Number: number, Family: family, Hold: time.Second, Mend: true, Dose: Dose{Shard: 1, Way: way}}
	}
	v := Run(inBubble(t), Plan{Seed: 5, Nodes: 3, Shards: 3, Faults: []Fault{at(1, "kill-at", "wal.sync"), at(2, "kill-at", "snap.arrive"), at(3, "kill-at", "move.after.settle"), at(4, "join", "")}}, Options{})
	if v.Failed() {
		t.Fatal(v.Tell())
	}
	if v.Faults["kill-at"] != 2 || v.Faults["join"] != 0 {
		t.Errorf("faults: %v", v.Faults)
	}
	var s Sum
	s.Add(v)
	for name, want := range map[string]PointCount{"wal.sync": {1, 1}, "snap.arrive": {1, 1}, "move.after.settle": {1, 0}, "wal.write": {}} {
		if s.Points[name] != want {
			t.Errorf("%s: %+v, want %+v", name, s.Points[name], want)
		}
	}
	if s.Members != 0 {
		t.Errorf("nodes came or went in %d seeds", s.Members)
	}
}

// Three seeds of ten and more have a node come or go, and every failpoint is drawn.
func TestMembershipAndFailpointsAreDrawn(t *testing.T) {
	seeds, points := 0, map[string]int{}
	for seed := range uint64(2000) {
		p := Draw(seed)
		if slices.ContainsFunc(p.Faults, func(a Fault) bool { f, _ := FamilyOf(a.Family); return f.membership() }) {
			seeds++
		}
		for _, a := range p.Faults {
			points[a.Dose.Way]++
		}
	}
	if seeds < 700 {
		t.Errorf("of 2,000 seeds %d have a node come or go", seeds)
	}
	for _, name := range Failpoints() {
		if points[name] < 10 {
			t.Errorf("2,000 seeds draw %s %d times", name, points[name])
		}
	}
}

// Of a hundred cases one may take longer than three election timeouts, and not two; of fewer nothing is said.
func TestMajoritiesThatAreLate(t *testing.T) {
	var o Outage
	for range 98 {
		o.add(time.Second)
	}
	o.add(7 * time.Second)
	if late := o.Late(); late != "" || o.Max != 7*time.Second {
		t.Errorf("of 99: %q, %+v", late, o)
	}
	o.add(2 * time.Second)
	if late := o.Late(); late != "" || o.P50 != time.Second || o.P99 != 2*time.Second || o.Cases != 100 {
		t.Errorf("of 100: %q, %+v", late, o)
	}
	o.add(4 * time.Second)
	if late := o.Late(); !strings.Contains(late, "3s is the limit") || o.P99 != 4*time.Second {
		t.Errorf("of 101: %q, %+v", late, o)
	}
}
