package museum

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/chaos/mutants"
)

var update = flag.Bool("update", false, "write the table of docs/reliability.md instead of comparing it")

const root = "../.."

var commit = regexp.MustCompile(`^[0-9a-f]{7}$`)

var mended = regexp.MustCompile(`^((before )?[0-9a-f]{7}|contained)$`)

// TestPiecesCanBeSeen sees that the tests, corpora and mutants of all pieces exist, and that a mutant is judged by the
// tests of its piece.
func TestPiecesCanBeSeen(t *testing.T) {
	tests := make(map[string][]string) // by package
	for _, p := range load(t) {
		if tests[p.Package] == nil {
			tests[p.Package] = testsOf(t, p.Package)
		}
		for _, name := range strings.Split(p.Run, "|") {
			if !slices.Contains(tests[p.Package], name) {
				t.Errorf("%s: %s has no %s", p.Name, p.Package, name)
			}
		}
		if p.Corpus != "" {
			if _, err := os.Stat(filepath.Join(root, p.Corpus)); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
		m, _, err := p.Planted()
		if err != nil {
			t.Error(err)
		} else if m.Checker.Package != p.Package || m.Checker.Run != p.Run {
			t.Errorf("%s: the mutant %s is judged by %s of %s, and the piece by %s of %s", p.Name, p.Mutant, m.Checker.Run, m.Checker.Package, p.Run, p.Package)
		}
		if !mended.MatchString(p.Mended) {
			t.Errorf("%s: mended by %q, which is no commit of 7 digits, nor before one, nor contained", p.Name, p.Mended)
		}
	}
}

func load(t *testing.T) []Piece {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 25 {
		t.Errorf("%d pieces, want at least 25", len(all))
	}
	return all
}

// testsOf are the names of tests and fuzz targets of a package.
func testsOf(t *testing.T, dir string) (names []string) {
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && (strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	return names
}

// TestTableIsInTheDocs: `go test ./chaos/museum -update` writes it.
func TestTableIsInTheDocs(t *testing.T) {
	const page = root + "/docs/reliability.md"
	const head = "| piece | what was seen | found | test | with the bug put back | took | in |\n| --- | --- | --- | --- | --- | --- | --- |\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), head)
	have, after, whole := strings.Cut(rest, "\n\n")
	if !found || !whole {
		t.Fatalf("%s has no table that begins with %q", page, head)
	}
	last := outcomes(t)
	var rows []string
	for _, p := range load(t) {
		rows = append(rows, fmt.Sprintf("| [%s](../chaos/museum/pieces/%s.txt) | %s | %s | %s | %s |", p.Name, p.Name, p.Symptom, p.Found, strings.ReplaceAll(p.Run, "|", ", "), last(p)))
	}
	want := strings.Join(rows, "\n")
	switch {
	case have == want:
	case *update:
		if err := os.WriteFile(page, []byte(before+head+want+"\n\n"+after), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table of pieces in %s is stale: go test ./chaos/museum -update writes it", page)
	}
}

// outcomes returns the last columns of a piece's row: what became of its mutant in the last run, by outcomes.jsonl.
// What is in the file was planted in a commit, and judged by the piece's tests; what is no piece's any more is not in
// it. A mutant that was not run, or not caught, says so in its row.
func outcomes(t *testing.T) func(Piece) string {
	t.Helper()
	text, err := os.ReadFile("outcomes.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	all, err := mutants.ReadOutcomes(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range load(t) {
		m, planted, err := p.Planted()
		if o, known := all[p.Mutant]; err != nil || planted && known && (o.Checker != m.Checker.String() || !commit.MatchString(o.Commit)) {
			t.Errorf("%s: its mutant is to be judged by %s, in a commit, and the last run has %+v (%v): \"go run ./chaos/bugs mutants --only '^%s$' --resume chaos/museum/outcomes.jsonl\" tries it", p.Name, m.Checker, o, err, p.Mutant)
		}
	}
	for name := range all {
		if !slices.ContainsFunc(load(t), func(p Piece) bool { return p.Mutant == name }) {
			t.Errorf("outcomes.jsonl: no piece has the mutant %s", name)
		}
	}
	return func(p Piece) string {
		switch o, known := all[p.Mutant]; {
		case p.Mutant == "":
			return "- | - | -"
		case !known:
			return "not run | - | -"
		case !o.Caught:
			return fmt.Sprintf("not caught | %.2f s | %s", o.Took.Seconds(), o.Commit)
		}
		o := all[p.Mutant]
		return fmt.Sprintf("`%s` fails | %.2f s | %s", o.By, o.Took.Seconds(), o.Commit)
	}
}

func TestParseRefuses(t *testing.T) {
	const whole = "S.\n\nfound: f\nmended: 1234567\npackage: ./x\nrun: TestX\n\nStory.\n"
	if p, err := parse("p", whole); err != nil || p.Symptom != "S." || p.Run != "TestX" || p.Story != "Story." {
		t.Fatalf("%+v, %v", p, err)
	}
	for name, text := range map[string]string{
		"empty":         "",
		"no story":      "S.\n\nfound: f\nmended: 1234567\npackage: ./x\nrun: TestX\n",
		"two lines":     "S.\nS.\n\n" + strings.TrimPrefix(whole, "S.\n\n"),
		"no test":       strings.Replace(whole, "run: TestX\n", "", 1),
		"unknown field": strings.Replace(whole, "run:", "seed: 3\nrun:", 1),
		"twice":         strings.Replace(whole, "run:", "run: TestY\nrun:", 1),
		"no value":      strings.Replace(whole, "run: TestX", "run: TestX\nmutant:", 1),
	} {
		if _, err := parse("p", text); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
