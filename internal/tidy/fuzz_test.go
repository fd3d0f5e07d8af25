package tidy

import (
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fuzzPage lists who reads bytes from outside, and which fuzz targets bring them any.
const fuzzPage = "../../docs/fuzzing.md"

// readers are packages, and their functions, that take bytes apart; "*" for all whose names begin so.
var readers = map[string][]string{
	"json": {"Unmarshal", "NewDecoder"}, "xml": {"Unmarshal", "NewDecoder"}, "protojson": {"Unmarshal"}, "csv": {"NewReader"}, "gob": {"NewDecoder"},
	"pb": {"Unmarshal"}, "protobuf": {"Unmarshal"}, "protowire": {"Consume*"}, "proto": {"WalkFields", "NextIncrement", "BitEdits", "Names"},
	"binary": {"Uvarint", "Varint", "ReadUvarint", "ReadVarint", "Read"}, "le": {"Uint*"}, "LittleEndian": {"Uint*"}, "BigEndian": {"Uint*"},
	"url": {"Parse*", "PathUnescape", "QueryUnescape"}, "strconv": {"Parse*", "Atoi"}, "time": {"Parse*"}, "raft": {"DecodeConfiguration"}, "netip": {"Parse*"},
	"base64": {"NewDecoder"}, "hex": {"Decode*"}, "roaring": {"*"}, "roaring64": {"*"},
}

// decoderName is what functions are called that take bytes apart.
var decoderName = regexp.MustCompile(`^(([dD]ecode|[pP]arse|[uU]nmarshal)($|[A-Z])|Restore$)`)

// notFromOutside are folders that have nothing in the product, or get no bytes from outside.
var notFromOutside = []string{"chaos/", "ebbtest/", "bench/", "deploy/", "tools/", "proto/ebbv1/", "proto/ebbv1grpc/", "proto/peerv1/", "sketch/accuracy/"}

// takesApart returns a line that says how a file takes bytes apart; "" if it does not.
func takesApart(f *ast.File) (how string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if decoderName.MatchString(n.Name.Name) {
				how = "func " + n.Name.Name
			}
		case *ast.SelectorExpr:
			of := ""
			switch x := n.X.(type) {
			case *ast.Ident:
				of = x.Name
			case *ast.SelectorExpr:
				of = x.Sel.Name
			}
			for _, name := range readers[of] {
				prefix, all := strings.CutSuffix(name, "*")
				if n.Sel.Name == name || all && strings.HasPrefix(n.Sel.Name, prefix) {
					how = of + "." + n.Sel.Name
				}
			}
		}
		return how == ""
	})
	return how
}

// fuzzRow is a line of a table of the page.
type fuzzRow struct {
	files   []string // paths from the root
	targets []string // as dir.FuzzName; none in the table of files whose bytes come from this program
}

var code = regexp.MustCompile("`([^`]+)`")

// fuzzRows reads the tables. A cell has names in backquotes: of files those after the first are in the first one's folder unless they have one; targets of another
// package have its folder before them.
func fuzzRows(t *testing.T) (rows []fuzzRow) {
	t.Helper()
	text, err := os.ReadFile(fuzzPage)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`") {
			continue
		}
		var row fuzzRow
		dir := ""
		for _, m := range code.FindAllStringSubmatch(cells[1], -1) {
			if strings.Contains(m[1], "/") {
				dir = path.Dir(m[1])
			}
			row.files = append(row.files, path.Join(dir, path.Base(m[1])))
		}
		for _, m := range code.FindAllStringSubmatch(cells[len(cells)-2], -1) {
			target := m[1]
			if !strings.Contains(target, ".") {
				target = dir + "." + target
			}
			if strings.Contains(target, ".Fuzz") {
				row.targets = append(row.targets, target)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// Whatever takes bytes apart is in docs/fuzzing.md, with fuzz targets that exist or the reason why it needs none; and
// every target is there, and has a corpus.
func TestWhatReadsBytesIsFuzzed(t *testing.T) {
	rows := fuzzRows(t)
	known, listed := map[string]bool{}, map[string]bool{}
	for _, row := range rows {
		for _, file := range row.files {
			if known[file] {
				t.Errorf("%s is there twice", file)
			}
			known[file] = true
			if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
				t.Errorf("%s is not there any more", file)
			}
		}
		for _, target := range row.targets {
			listed[target] = true
		}
	}
	for _, s := range sources(t) {
		if s.test {
			for _, d := range s.file.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || !strings.HasPrefix(fn.Name.Name, "Fuzz") {
					continue
				}
				dir, target := path.Dir(s.path), path.Dir(s.path)+"."+fn.Name.Name
				if !listed[target] {
					t.Errorf("%s is not in docs/fuzzing.md: what does it bring any bytes to?", target)
				}
				delete(listed, target)
				if corpus, err := filepath.Glob(filepath.Join("../..", dir, "testdata/fuzz", fn.Name.Name, "*")); len(corpus) == 0 {
					t.Errorf("%s has no corpus in %s/testdata/fuzz: %v", target, dir, err)
				}
			}
			continue
		}
		if slices.ContainsFunc(notFromOutside, func(dir string) bool { return strings.HasPrefix(s.path, dir) }) {
			continue
		}
		if how := takesApart(s.file); how != "" && !known[s.path] {
			t.Errorf("%s takes bytes apart (%s) and is not in docs/fuzzing.md: name its fuzz target, or say why it needs none", s.path, how)
		}
	}
	for target := range listed {
		t.Errorf("docs/fuzzing.md names %s, which is not there", target)
	}
}
