package mutants

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func source(t *testing.T) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root, err := Root(wd)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func everyMutant(t *testing.T) []Mutant {
	t.Helper()
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func runner(t *testing.T, root string) *Runner {
	t.Helper()
	r, err := NewRunner(root, 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// TestMutantsCanBePlanted sees that every mutant's lines are in the source once, that what it makes of them is Go, and
// that its checkers exist.
func TestMutantsCanBePlanted(t *testing.T) {
	all := everyMutant(t)
	if len(all) < 20 {
		t.Errorf("%d mutants, want at least 20", len(all))
	}
	root := source(t)
	for _, m := range all {
		sources, err := m.Sources(root)
		if err != nil {
			t.Error(err)
			continue
		}
		for file, text := range sources {
			if _, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution); err != nil {
				t.Errorf("mutant %s is no Go: %v", m.Name, err)
			}
		}
		if m.Checker.Package == "" {
			families := namesIn(t, filepath.Join(root, "chaos/swarm"), familyNames)
			if m.Checker.Faults != "" {
				families = namesIn(t, filepath.Join(root, "chaos/proc"), familyNames)
			}
			for name := range strings.SplitSeq(m.Checker.Families+m.Checker.Faults, ",") {
				if name != "" && !slices.Contains(families, name) {
					t.Errorf("mutant %s: no family is called %s", m.Name, name)
				}
			}
			continue
		}
		tests := namesIn(t, filepath.Join(root, m.Checker.Package), testNames)
		for name := range strings.SplitSeq(m.Checker.Run, "|") {
			if !slices.Contains(tests, name) {
				t.Errorf("mutant %s: %s has no %s", m.Name, m.Checker.Package, name)
			}
		}
	}
}

var (
	testNames   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	familyNames = regexp.MustCompile(`(?m)^\s+(?:\{\s*)?Name: "([a-z-]+)",`)
)

// namesIn finds names in the Go files of a directory.
func namesIn(t *testing.T, dir string, pattern *regexp.Regexp) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// rowOf matches a row of the table of mutants: name, what it breaks, checker, what caught it, seeds, time.
var rowOf = regexp.MustCompile("(?m)^\\| ([a-z-]+) \\| ([^|]+) \\| ([^|]+) \\| `[^`|]+` \\| (-|\\d+) \\| [0-9.]+ s \\|$")

// pieceOf matches the field of a piece of the museum that names a mutant.
var pieceOf = regexp.MustCompile(`(?m)^mutant: (\S+)$`)

// Each mutant has a row in docs/reliability.md, unless it puts back a bug of the museum, which has a table of its own.
// Each row is of a mutant: it names what the mutant breaks and the checker, as planted. Where seeds are tried, it says
// how many it took.
func TestTableIsOfTheseMutants(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(source(t), "docs/reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Mutants\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string][]string{}
	for _, row := range rowOf.FindAllStringSubmatch(section, -1) {
		if rows[row[1]] != nil {
			t.Errorf("%s has two rows", row[1])
		}
		rows[row[1]] = row
	}
	if lines := strings.Count(section, "\n| ") - 2; lines != len(rows) {
		t.Errorf("%d lines of the table, %d of them as they should be", lines, len(rows))
	}
	pieces := mutantsOfPieces(t)
	for _, m := range everyMutant(t) {
		row := rows[m.Name]
		delete(rows, m.Name)
		switch {
		case row == nil && slices.Contains(pieces, m.Name):
		case row == nil:
			t.Errorf("%s has no row", m.Name)
		case row[2] != m.What || row[3] != m.Checker.String():
			t.Errorf("%s: the row says %q, %q; the mutant %q, %q", m.Name, row[2], row[3], m.What, m.Checker)
		case (row[4] == "-") != (m.Checker.Seeds == 0):
			t.Errorf("%s: %s seeds, of a checker that tries %d at most", m.Name, row[4], m.Checker.Seeds)
		}
	}
	for name := range rows {
		t.Errorf("no mutant is called %s", name)
	}
}

// mutantsOfPieces are those that the museum names.
func mutantsOfPieces(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(source(t), "chaos/museum/pieces/*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d pieces, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if m := pieceOf.FindStringSubmatch(string(text)); m != nil {
			names = append(names, m[1])
		}
	}
	return names
}

// quick are mutants whose checkers are built and run in a few seconds.
const quick = "^(merge-drops-the-mark|and-not-is-and)$"

// A few mutants are planted and caught; EBB_MUTANTS is a regular expression of others. `go run ./chaos/bugs mutants` tries all.
func TestMutantsAreCaught(t *testing.T) {
	pattern := os.Getenv("EBB_MUTANTS")
	if pattern == "" {
		if testing.Short() {
			t.Skip("builds tests of other packages")
		}
		pattern = quick
	}
	names, err := regexp.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	r := runner(t, source(t))
	tried := 0
	for _, m := range everyMutant(t) {
		if !names.MatchString(m.Name) {
			continue
		}
		tried++
		res, err := r.Try(t.Context(), &m)
		switch {
		case err != nil:
			t.Errorf("%s: %v", m.Name, err)
		case !res.Caught:
			t.Errorf("%s is not caught by %s", m.Name, m.Checker)
		default:
			t.Logf("%s: caught by %s, seeds %d, %v: %s", m.Name, res.By, res.Seeds, res.Took.Round(time.Millisecond), res.Said)
		}
	}
	if tried == 0 {
		t.Errorf("no mutant is called %s", pattern)
	}
}

// What is not caught, does not build, or is caught by a test that fails anyhow, is said.
func TestRunner(t *testing.T) {
	if testing.Short() {
		t.Skip("builds tests")
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"a.go":   "package m\n\nfunc double(n int) int { return n + n }\n",
		"a_test.go": `package m

import "testing"

func TestDouble(t *testing.T) {
	for seed := range 5 {
		if got := double(seed); got != 2*seed {
			t.Fatalf("seed %d: %d, want %d", seed, got, 2*seed)
		}
	}
}

func TestWrong(t *testing.T) { t.Fatal("it fails anyhow") }

func TestSkipped(t *testing.T) { t.Skip("not here") }
`,
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := runner(t, root)
	try := func(run string, seeds uint64, is string) (Result, error) {
		return r.Try(t.Context(), &Mutant{Name: "m", Checker: Checker{Package: ".", Run: run, Seeds: seeds}, Edits: []Edit{{"a.go", "return n + n", is}}})
	}
	if res, err := try("TestDouble", 5, "return n + n*n"); err != nil || !res.Caught || res.By != "TestDouble" || res.Seeds != 2 || res.Said != "seed 2: 6, want 4" {
		t.Errorf("a mutant: %+v, %v", res, err)
	}
	if res, err := try("TestDouble", 0, "panic(n)"); err != nil || !res.Caught || !strings.Contains(res.Said, "panic") || res.Seeds != 0 {
		t.Errorf("a panic: %+v, %v", res, err)
	}
	if res, err := try("TestDouble", 0, "return 2 * n"); err != nil || res.Caught {
		t.Errorf("no bug at all: %+v, %v", res, err)
	}
	if res, err := try("TestDouble", 0, "return n +"); err == nil || res.Caught {
		t.Errorf("what does not build: %+v, %v", res, err)
	}
	if _, err := try("TestWrong", 0, "return 3 * n"); err == nil || !strings.Contains(err.Error(), "it fails anyhow") {
		t.Errorf("a test that fails anyhow: %v", err)
	}
	for _, name := range []string{"TestNone", "TestSkipped"} {
		if _, err := try(name, 0, "return 3 * n"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no checker":         "What.\n\nrun: TestX\n-- a.go was --\nx\n-- a.go is --\ny\n",
		"no edit":            "What.\n\npackage: ./x\nrun: TestX\n",
		"half an edit":       "What.\n\npackage: ./x\nrun: TestX\n-- a.go was --\nx\n",
		"another file":       "What.\n\npackage: ./x\nrun: TestX\n-- a.go was --\nx\n-- b.go is --\ny\n",
		"unknown field":      "What.\n\npackage: ./x\nrun: TestX\nenv: 3\n-- a.go was --\nx\n-- a.go is --\ny\n",
		"no number":          "What.\n\nseeds: 1-3\n-- a.go was --\nx\n-- a.go is --\ny\n",
		"a swarm of no seed": "What.\n\nfamilies: kill\n-- a.go was --\nx\n-- a.go is --\ny\n",
		"families of tests":  "What.\n\npackage: ./x\nrun: TestX\nfamilies: kill\n-- a.go was --\nx\n-- a.go is --\ny\n",
		"no fields":          "What.\n",
	} {
		if _, err := parse("m", []byte(text)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestRead(t *testing.T) {
	by, what, with := read([]byte("=== RUN   TestSwarm\n    swarm_test.go:43: all is well\n    swarm_test.go:48: seed 7: k1 counts 3, want 2\n--- FAIL: TestSwarm (1.00s)\nFAIL\n"))
	if by != "TestSwarm" || with != 7 || !strings.Contains(what, "seed") {
		t.Errorf("%q %q %d", by, what, with)
	}
	by, what, _ = read([]byte("=== RUN   TestA\npanic: test timed out after 5m0s\n"))
	if by != "TestA" || what != "it hangs" {
		t.Errorf("%q %q", by, what)
	}
	by, what, _ = read([]byte("=== RUN   TestA\n    a_test.go:3: seed 1 is tried\n--- PASS: TestA (0.1s)\n=== RUN   TestB\nfatal error: all goroutines are asleep - deadlock!\n"))
	if by != "TestB" || !strings.Contains(what, "deadlock") {
		t.Errorf("%q %q", by, what)
	}
}

// What a run of real processes says of itself.
func TestReadProcesses(t *testing.T) {
	c := Checker{Faults: "pause", Seeds: 2}
	got, err := readProcesses([]byte(`{"verdict": {"breaches": [{"invariant": "read-fresh", "what": "a: 0 is read"}], "faults": {"pause": 1}}}`), c)
	if want := (found{caught: true, by: "read-fresh", said: "a: 0 is read", seeds: 1}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = readProcesses([]byte(`{"verdict": {"faults": {"pause": 2}}}`), c); err != nil || got.caught {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{`{"verdict": {"faults": {"pause": 1}}}`, `{}`, ""} {
		if got, err = readProcesses([]byte(text), c); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestReadSwarm(t *testing.T) {
	c := Checker{Seeds: 60}
	got, err := readSwarm([]byte(`{"sum": {"seeds": 7}, "first_failure": {"seed": 7, "invariant": "acked-kept", "what": "9s acked-kept: k1"}}`), c)
	if err != nil || got != (found{caught: true, by: "acked-kept", seeds: 7, said: "9s acked-kept: k1"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = readSwarm([]byte(`{"sum": {"seeds": 60}}`), c); err != nil || got.caught {
		t.Errorf("all held: %+v, %v", got, err)
	}
	for _, text := range []string{`{"sum": {"seeds": 59}}`, "", "panic"} {
		if got, err = readSwarm([]byte(text), c); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
