package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/ebbdb/ebb"

// mayImport is the table of the design: a folder (with all below it) imports,
// of our own packages, only those of the folders listed.
var mayImport = map[string][]string{
	"proto":            {},
	"internal/kernel":  {},
	"sketch":           {"internal/kernel"},
	"query":            {"proto", "internal/spell"},
	"shard":            {"proto", "sketch", "query"},
	"cluster":          {"proto", "query", "shard", "internal/budget", "internal/caller", "internal/stage"},
	"rpc":              {"proto", "query", "cluster", "web", "internal/budget", "internal/cores", "internal/spell", "internal/stage", "internal/trust"},
	"node":             {"proto", "internal/kernel", "sketch", "query", "shard", "cluster", "rpc", "web", "internal/budget", "internal/caller", "internal/cores", "internal/stage", "internal/trust"},
	"client":           {"proto", "query", "internal/trust"},
	"chaos":            {"proto", "internal/kernel", "sketch", "query", "shard", "cluster", "rpc", "web", "node", "client"},
	"chaos/bugs":       {"proto", "chaos", "internal/outfile", "internal/spell"},
	"ebbtest":          {"node", "client", "chaos"},
	"load":             {"proto", "query", "sketch", "client"},
	"bench":            {"proto", "query", "client", "load", "sketch", "shard", "node"},
	"bench/overload":   {"client", "chaos"},
	"bench/paired":     {"bench", "chaos"},
	"internal/backup":  {"proto", "client", "shard"},
	"cmd/ebb":          {"proto", "query", "node", "client", "chaos", "load", "bench", "internal/spell", "internal/backup", "internal/outfile", "internal/trust"},
	"web":              {},
	"internal/budget":  {"proto"},
	"internal/caller":  {},
	"internal/cores":   {},
	"internal/outfile": {"proto"},
	"internal/spell":   {},
	"internal/stage":   {},
	"internal/tidy":    {},
	"internal/trust":   {"proto"},
	"tools":            {},
}

// pure packages decide; they do not wait, look at a clock or do I/O.
var pure = []string{"internal/kernel", "sketch", "query", "shard"}

var impureImports = []string{
	"context", "log", "log/slog", "net", "net/http", "os", "os/exec", "os/signal", "syscall",
	"sync", "sync/atomic", "math/rand", "math/rand/v2", "io/ioutil",
}

// impureCalls are names that pure packages may not use: clocks, and functions
// whose result depends on the machine.
var impureCalls = map[string][]string{
	"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"math": {"Exp", "Exp2", "Expm1", "Pow", "Pow10", "Log", "Log2", "Log10", "Log1p", "FMA"},
}

var topLevel = []string{
	"cmd", "node", "cluster", "sketch", "rpc", "proto", "chaos", "deploy", "shard", "query", "client",
	"ebbtest", "load", "bench", "web", "internal", "tools", "docs",
}

type source struct {
	path string // slash-separated, from the root
	file *ast.File
	test bool
}

func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	root := os.DirFS("../..")
	fset := token.NewFileSet()
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		f, err := parser.ParseFile(fset, filepath.Join("../..", path), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		out = append(out, source{path: path, file: f, test: strings.HasSuffix(path, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// row finds the table's row for a file: the longest folder that holds it.
func row(path string) string {
	best := ""
	for folder := range mayImport {
		if strings.HasPrefix(path, folder+"/") && len(folder) > len(best) {
			best = folder
		}
	}
	return best
}

func imports(f *ast.File) []string {
	var out []string
	for _, spec := range f.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		out = append(out, path)
	}
	return out
}

// Which package may import which (direct imports of files that are not tests).
func TestImportTable(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		own := row(s.path)
		if own == "" {
			t.Errorf("%s is in no folder of the table", s.path)
			continue
		}
		for _, path := range imports(s.file) {
			rel, ours := strings.CutPrefix(path, module+"/")
			if !ours {
				continue
			}
			to := row(rel + "/")
			if to != own && !slices.Contains(mayImport[own], to) {
				t.Errorf("%s imports %s: %s may import only %v", s.path, rel, own, mayImport[own])
			}
		}
	}
}

// Pure packages have no clock, no I/O, no locks and no machine-dependent maths.
func TestPurity(t *testing.T) {
	for _, s := range sources(t) {
		folder := row(s.path)
		if s.test || !slices.Contains(pure, folder) {
			continue
		}
		for _, path := range imports(s.file) {
			if slices.Contains(impureImports, path) || strings.Contains(path, "google.golang.org/grpc") {
				t.Errorf("%s imports %s: %s is pure", s.path, path, folder)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s has a go statement: %s is pure", s.path, folder)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(impureCalls[x.Name], n.Sel.Name) {
					t.Errorf("%s uses %s.%s: %s is pure", s.path, x.Name, n.Sel.Name, folder)
				}
			}
			return true
		})
	}
}

// The contract package does not link grpc; only its stub packages do.
func TestProtoDoesNotLinkGRPC(t *testing.T) {
	for _, s := range sources(t) {
		dir := filepath.Dir(s.path)
		if s.test || dir != "proto" && dir != "proto/ebbv1" {
			continue
		}
		for _, path := range imports(s.file) {
			if strings.HasPrefix(path, "google.golang.org/grpc") {
				t.Errorf("%s imports %s", s.path, path)
			}
		}
	}
}

// Every top-level folder is one of the layout.
func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(topLevel, e.Name()) {
			t.Errorf("%s/ is not a folder of the layout %v", e.Name(), topLevel)
		}
	}
}

// Every package says in its first sentence what it is.
func TestPackageComments(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		dir := filepath.Dir(s.path)
		if s.test || strings.HasPrefix(dir, "proto/") {
			continue
		}
		documented[dir] = documented[dir] || s.file.Doc.Text() != ""
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

// File names that say nothing collect everything.
func TestFileNames(t *testing.T) {
	for _, s := range sources(t) {
		for _, name := range []string{"util", "utils", "common", "helpers", "types", "base", "manager", "misc"} {
			if strings.TrimSuffix(filepath.Base(s.path), ".go") == name {
				t.Errorf("%s: a file is a noun of the domain", s.path)
			}
		}
	}
}
