package swarm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/shard"
)

// A seed draws the same plan again, and a plan outlives being written down.
func TestPlansAreData(t *testing.T) {
	for seed := range uint64(200) {
		p := Draw(seed)
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back Plan
		if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, Draw(seed)) {
			t.Fatalf("seed %d: %+v, %v; want %+v", seed, back, err, p)
		}
	}
}

// Seeds draw subsets of the families, together all of them, and lose one disk each at most.
func TestSeedsDrawFromSubsets(t *testing.T) {
	used, logs := map[string]int{}, map[int64]int{}
	for seed := range uint64(2000) {
		p, lost := Draw(seed), 0
		logs[p.Segment]++
		for _, a := range p.Faults {
			used[a.Family]++
			f, ok := FamilyOf(a.Family)
			if !ok || !slices.Contains(p.Families, a.Family) {
				t.Fatalf("seed %d has a fault of family %s, and draws from %v", seed, a.Family, p.Families)
			}
			if f.Loses {
				lost++
			}
		}
		if lost > 1 || len(p.Families) == len(Families) {
			t.Errorf("seed %d: %d disks are lost, and %d families are drawn from", seed, lost, len(p.Families))
		}
	}
	for _, f := range Families {
		if used[f.Name] == 0 {
			t.Errorf("2,000 seeds do not draw %s", f.Name)
		}
	}
	for _, size := range segments {
		if logs[size] == 0 {
			t.Errorf("2,000 seeds do not draw logs in files of %d bytes", size)
		}
	}
	if p := Draw(1, "ring"); !slices.Equal(p.Families, []string{"ring"}) {
		t.Errorf("of ring alone, %v is drawn", p.Families)
	}
}

// A plan that fails since two of its faults come together is shrunk to these two.
func TestShrink(t *testing.T) {
	plan := Plan{Outage: true, Home: true}
	for i := range 9 {
		plan.Faults = append(plan.Faults, Fault{Number: i + 1})
	}
	tries := 0
	fails := func(p Plan) *Verdict {
		tries++
		if n := p.Choice().Faults; !slices.Contains(n, 3) || !slices.Contains(n, 8) {
			return nil
		}
		return &Verdict{Plan: p, Breaches: []Breach{{Invariant: "acked-kept"}}}
	}
	got := Shrink(fails(plan), fails)
	if got.Plan.Choice().String() != "3,8" {
		t.Errorf("shrunk to %v in %d tries", got.Plan.Choice(), tries)
	}
}

// The line that is printed of a failing seed makes the very plan that it was shrunk to, whatever is left of it: its
// faults, the outage at the beginning, the wait for leaders at the end.
func TestReplayOfAShrunkPlan(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	with := map[string]int{}
	for seed := range uint64(500) {
		var families []string
		if seed%3 == 0 {
			families = []string{"ring", "kill", "join"}
		}
		drawn := Draw(seed, families...)
		needs := func(p Plan) bool { return true }
		if len(drawn.Faults) > 0 && rng.IntN(2) == 0 {
			one := drawn.Faults[rng.IntN(len(drawn.Faults))].Number
			needs = func(p Plan) bool { return slices.Contains(p.Choice().Faults, one) }
		}
		outage, home := drawn.Outage && rng.IntN(2) == 0, drawn.Home && rng.IntN(2) == 0
		fails := func(p Plan) *Verdict {
			if !needs(p) || outage && !p.Outage || home && !p.Home {
				return nil
			}
			return &Verdict{Plan: p, Breaches: []Breach{{Invariant: "acked-kept"}}}
		}
		shrunk := Shrink(fails(drawn), fails)
		f := Failure{Seed: seed}
		f.take(shrunk, families)
		fields := strings.Fields(f.Replay) // ebb chaos sim --seeds N --acts WORDS [--families WORDS]
		number, err := strconv.ParseUint(fields[4], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		choice, err := ParseChoice(fields[6])
		if err != nil {
			t.Fatal(err)
		}
		var of []string
		if len(fields) > 8 {
			of = strings.Split(fields[8], ",")
		}
		c := Campaign{Faults: &choice, Families: of}
		if again := c.plan(number); !reflect.DeepEqual(again, shrunk.Plan) {
			t.Fatalf("%s makes\n%+v, and not\n%+v", f.Replay, again, shrunk.Plan)
		}
		if lack := choice.Lacks(drawn); lack != "" {
			t.Errorf("%s: the plan has no %s", f.Replay, lack)
		}
		with[fmt.Sprint(shrunk.Plan.Outage, shrunk.Plan.Home, len(shrunk.Plan.Faults))]++
	}
	if len(with) != 8 {
		t.Errorf("these shrunk plans only: %v", with)
	}
}

// A choice is read back, and what is none is refused.
func TestChoice(t *testing.T) {
	for text, want := range map[string]Choice{
		"none": {}, "2,3": {Faults: []int{2, 3}}, "outage": {Outage: true}, "outage,1,home": {true, true, []int{1}},
	} {
		if c, err := ParseChoice(text); err != nil || !reflect.DeepEqual(c, want) || c.String() != text {
			t.Errorf("%s: %+v (%v), %v", text, c, c, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "1,,2", "out", "1,none"} {
		if c, err := ParseChoice(text); err == nil {
			t.Errorf("%q is %v", text, c)
		}
	}
	if lack := (Choice{Outage: true, Faults: []int{1, 2}}).Lacks(Plan{Outage: true, Faults: []Fault{{Number: 1}}}); lack != "2" {
		t.Errorf("it lacks %q", lack)
	}
}

// A build that replays says its own name in the lines that it prints.
func TestReplayNamesItsBuild(t *testing.T) {
	defer func(was string) { replays = was }(replays)
	replays = "yes"
	f := Failure{Seed: 3}
	f.take(&Verdict{Plan: Plan{Home: true}, Breaches: []Breach{{Invariant: "acked-kept"}}}, nil)
	if f.Replay != "./ebb-replay chaos sim --seeds 3 --acts home" {
		t.Error(f.Replay)
	}
}

// The report is one page with what it needs, and what a node said cannot break it.
func TestPage(t *testing.T) {
	v := &Verdict{
		Plan: Draw(7), Virtual: 20 * time.Second, Faults: map[string]int{"ring": 3}, Checks: map[string]int{"acked-kept": 12},
		Breaches: []Breach{{"acked-kept", 9 * time.Second, "lost: <b>"}},
		Story:    []Line{{9 * time.Second, LineBreach, "<script>"}},
		Spans:    []Span{{"ring", time.Second, 5 * time.Second}, {"kill", 6 * time.Second, 0}},
		Seconds:  []Second{{3, 4}, {0, 0}, {9, 1}},
		Reigns:   []Reign{{1, "ebb-0", 2, 0, 3 * time.Second}},
	}
	r := &Report{Mode: Mode(), Real: time.Second}
	r.add(v)
	r.add(&Verdict{Plan: Draw(8), Virtual: time.Second})
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{"1 of 2 seeds failed", "lost: &lt;b&gt;", "&lt;script&gt;", "<svg", "ebb chaos sim --seeds 7 --acts " + v.Plan.Choice().String(), "<td>ring<td>", "leads shard 1 in term 2"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, not := range []string{"<script", "http://", "https://", "%!"} {
		if strings.Contains(page, not) {
			t.Errorf("the page has %q", not)
		}
	}
}

// Names are said on command lines and in tables.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range append(FamilyNames(), invariantNames()...) {
		if seen[n] || strings.ContainsAny(n, " |,_") || n == "" {
			t.Errorf("%q is no name, or two's", n)
		}
		seen[n] = true
	}
	if len(Families) < 14 || len(Invariants) < 20 {
		t.Errorf("%d families and %d invariants", len(Families), len(Invariants))
	}
}

func invariantNames() (names []string) {
	for _, i := range Invariants {
		names = append(names, i.Name)
	}
	return names
}

// docs/reliability.md lists what the code has.
func TestTablesAreInTheDocs(t *testing.T) {
	b, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for title, rows := range map[string][]string{
		"| family |": familyRows(), "| invariant |": invariantRows(), "| limit of a seed |": knobRows(),
	} {
		_, table, _ := strings.Cut(doc, title)
		table, _, _ = strings.Cut(table, "\n\n")
		have := strings.Split(strings.TrimSpace(table), "\n")
		if len(have) < 2 {
			t.Errorf("there is no table that begins with %q", title)
			continue
		}
		if want := strings.Join(rows, "\n"); strings.Join(have[2:], "\n") != want {
			t.Errorf("the table that begins with %q must be:\n%s", title, want)
		}
	}
}

func familyRows() (rows []string) {
	for _, f := range Families {
		rows = append(rows, fmt.Sprintf("| %s | %s | %s |", f.Name, f.What, f.Dose))
	}
	return rows
}

func knobRows() (rows []string) {
	for _, k := range Knobs {
		values := strings.Trim(fmt.Sprint(k.Values), "[]")
		rows = append(rows, fmt.Sprintf("| %s | %s | %s |", k.Name, k.What, values))
	}
	return rows
}

// Seeds draw every value of every limit, most seeds other limits than those of production, and a plan without any has
// those of production.
func TestSeedsDrawLimits(t *testing.T) {
	counts, small := map[string]KnobCount{}, 0
	for seed := range uint64(800) {
		p := Draw(seed)
		if p.Knobs != nil {
			small++
		}
		for i := range Knobs {
			k := &Knobs[i]
			counts[k.Name] = counts[k.Name].add(k, &p)
			if v := k.of(&p); !slices.Contains(k.Values, v) {
				t.Errorf("seed %d draws %d of %s", seed, v, k.Name)
			}
		}
	}
	if small < 400 {
		t.Errorf("%d of 800 seeds have other limits than those of production", small)
	}
	for _, k := range Knobs {
		if c := counts[k.Name]; c.First < 100 || c.Production < 100 || c.Between == 0 && len(k.Values) > 2 {
			t.Errorf("800 seeds draw %+v of %s", c, k.Name)
		}
	}
	var plan Plan
	var cfg node.Config
	plan.turn(&cfg)
	if cfg.ShardLimits != shard.DefaultLimits() || cfg.ControlLimits != cluster.DefaultControlLimits() ||
		cfg.Limits != (node.Limits{}) || cfg.SnapshotBytes != 0 || plan.sdk() != (ebb.Limits{}) {
		t.Errorf("a plan without limits has %+v", cfg)
	}
	if b := plan.backoff(); b != (ebb.Backoff{Min: 10 * time.Millisecond, Max: 500 * time.Millisecond}) {
		t.Errorf("clients of a plan without limits wait %v", b)
	}
	if d := plan.knobTime(knobTry); d != ebb.AttemptTimeoutDefault {
		t.Errorf("clients of a plan without limits try a node for %v", d)
	}
	if plan.window() != ebb.WindowDefault {
		t.Errorf("clients of a plan without limits have a window of %d", plan.window())
	}
}

func invariantRows() (rows []string) {
	for _, i := range Invariants {
		rows = append(rows, fmt.Sprintf("| %s | %s |", i.Name, i.Holds))
	}
	return rows
}

// A worker that replays is started with the same environment and name, whichever process starts it.
func TestReplayingWorkerIsStartedTheSameWay(t *testing.T) {
	defer func(was string) { replays = was }(replays)
	t.Setenv("EBB_ELSEWHERE", strings.Repeat("x", 100))
	for _, replays = range []string{"", "yes"} {
		cmd := exec.CommandContext(t.Context(), "worker")
		Prepare(cmd)
		if has := slices.ContainsFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "EBB_ELSEWHERE=") }); has == Replays() {
			t.Errorf("replays: %v, and the worker's environment is %q", Replays(), cmd.Env)
		}
		if own := cmd.Args[0] == os.Args[0]; own == Replays() {
			t.Errorf("replays: %v, and the worker is called %q", Replays(), cmd.Args[0])
		}
	}
}
