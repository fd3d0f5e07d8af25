package mutants

import (
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func source(t *testing.T) string {
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

// TestMutantsCanBePlanted sees that every mutant's lines are in the source once, that what it makes of them is Go, and that its checkers exist.
func TestMutantsCanBePlanted(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
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
		tests := testsOf(t, root+"/"+m.Checker.Package)
		for _, name := range strings.Split(strings.TrimSuffix(m.Checker.Run, "$"), "|") {
			if !slices.Contains(tests, name) {
				t.Errorf("mutant %s: %s has no %s", m.Name, m.Checker.Package, name)
			}
		}
	}
}

var testNames = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

func testsOf(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), "_test.go") {
			text, err := os.ReadFile(dir + "/" + e.Name())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range testNames.FindAllStringSubmatch(string(text), -1) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

// TestMutantsAreCaught plants them, one after the other, in EBB_MUTANTS (a regular expression of names): minutes for all.
func TestMutantsAreCaught(t *testing.T) {
	pattern := os.Getenv("EBB_MUTANTS")
	if pattern == "" {
		t.Skip("EBB_MUTANTS names none")
	}
	names, err := regexp.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	r := Runner{Root: source(t), Limit: 5 * time.Minute}
	sound := make(map[Checker]bool)
	for _, m := range all {
		if !names.MatchString(m.Name) {
			continue
		}
		if !sound[m.Checker] {
			if err := r.Sound(t.Context(), m.Checker); err != nil {
				t.Error(err)
			}
			sound[m.Checker] = true
		}
		res, err := r.Try(t.Context(), &m)
		switch {
		case err != nil:
			t.Errorf("%s: %v", m.Name, err)
		case !res.Caught:
			t.Errorf("%s is not caught by %s -run '%s'", m.Name, m.Checker.Package, m.Checker.Run)
		default:
			t.Logf("| %s | %s | %s | %.1f s | %s |", m.Name, res.By, res.Seeds, res.Took.Seconds(), res.Said)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"no checker":    "What.\n\nrun: TestX\n-- a.go was --\nx\n-- a.go is --\ny\n",
		"no edit":       "What.\n\npackage: ./x\nrun: TestX\n",
		"half an edit":  "What.\n\npackage: ./x\nrun: TestX\n-- a.go was --\nx\n",
		"another file":  "What.\n\npackage: ./x\nrun: TestX\n-- a.go was --\nx\n-- b.go is --\ny\n",
		"unknown field": "What.\n\npackage: ./x\nrun: TestX\nseed: 3\n-- a.go was --\nx\n-- a.go is --\ny\n",
		"no fields":     "What.\n",
	} {
		if _, err := parse("m", []byte(text)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestRead(t *testing.T) {
	by, what, with := read([]byte("=== RUN   TestSwarm\n    swarm_test.go:43: seed 6: all is well\n    swarm_test.go:48: seed 7: k1 counts 3, want 2\n--- FAIL: TestSwarm (1.00s)\nFAIL\n"))
	if by != "TestSwarm" || with != "7" || !strings.Contains(what, "seed") {
		t.Errorf("%q %q %q", by, what, with)
	}
	by, what, _ = read([]byte("=== RUN   TestA\npanic: test timed out after 5m0s\n"))
	if by != "TestA" || what != "it hangs" {
		t.Errorf("%q %q", by, what)
	}
}
