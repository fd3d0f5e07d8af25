package tidy

import (
	"go/ast"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	pageLink  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	heading   = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	testName  = regexp.MustCompile(`\bTest[A-Z]\w*`)
)

// pages are the Markdown files of the repository by path, without code.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(os.DirFS("../.."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == ".bin" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		text, err := os.ReadFile(filepath.Join("../..", name))
		out[name] = codeBlock.ReplaceAllString(string(text), "")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// anchors are the names by which links reach the headings of a page.
func anchors(text string) []string {
	var out []string
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		name := notInSlug.ReplaceAllString(strings.ToLower(h[1]), "")
		out = append(out, strings.ReplaceAll(name, " ", "-"))
	}
	return out
}

// Links between pages lead to files and headings that are there.
func TestLinksOfPages(t *testing.T) {
	all, links := pages(t), 0
	for from, text := range all {
		for _, found := range pageLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, ":") {
				continue // of another site
			}
			links++
			to := from
			if target != "" {
				to = path.Join(path.Dir(from), target)
			}
			if _, err := os.Stat(filepath.Join("../..", to)); err != nil {
				t.Errorf("%s: there is no %s", from, to)
			} else if page, is := all[to]; is && anchor != "" && !slices.Contains(anchors(page), anchor) {
				t.Errorf("%s: %s has no heading %q", from, to, anchor)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links were found", links)
	}
}

// The tests that show what the README and the page of guarantees promise are there.
func TestPromisesNameTests(t *testing.T) {
	funcs := map[string]bool{}
	for _, s := range sources(t) {
		for _, decl := range s.file.Decls {
			if f, is := decl.(*ast.FuncDecl); is && s.test {
				funcs[f.Name.Name] = true
			}
		}
	}
	all := pages(t)
	for _, page := range []string{"README.md", "docs/guarantees.md"} {
		names := testName.FindAllString(all[page], -1)
		for _, name := range names {
			if !funcs[name] {
				t.Errorf("%s names %s, which is not there", page, name)
			}
		}
		if len(names) < 5 {
			t.Errorf("%s names %d tests only", page, len(names))
		}
	}
}

// The README is short, an entry of the changelog has two lines, and lines of both have 120 columns.
func TestPagesAreShort(t *testing.T) {
	for page, most := range map[string]struct{ lines, entry int }{
		"README.md": {lines: 120, entry: 4}, "CHANGELOG.md": {lines: 1000, entry: 2},
	} {
		text, err := os.ReadFile(filepath.Join("../..", page))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		if len(lines) > most.lines {
			t.Errorf("%s has %d lines, at most %d are allowed", page, len(lines), most.lines)
		}
		entry := 0
		for i, line := range lines {
			if n := utf8.RuneCountInString(line); n > 120 {
				t.Errorf("%s:%d: %d columns", page, i+1, n)
			}
			switch {
			case strings.HasPrefix(line, "- "):
				entry = 1
			case strings.HasPrefix(line, "  ") && entry > 0:
				entry++
			default:
				entry = 0
			}
			if entry == most.entry+1 {
				t.Errorf("%s:%d: an entry has more than %d lines", page, i+1, most.entry)
			}
		}
	}
}
