package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files with licences are found in a package and above it, each text stands there once, and a component without any is
// an error.
func TestNotices(t *testing.T) {
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("a/LICENSE.txt", "the same\r\n")
	write("a/license.go", "package a")
	write("a/inner/COPYING", "another\n")
	write("a/beside/LICENSE", "not linked\n")
	write("b/LICENCE", "\nthe same")
	write("c/README", "nothing")
	a := component{"example/a", "v1", filepath.Join(root, "a")}
	b := component{"example/b", "v2", filepath.Join(root, "b")}
	found := make(notices)
	for _, err := range []error{found.add(a, filepath.Join(root, "a/inner")), found.add(b, b.dir)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := found.text()
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	if strings.Count(got, "the same") != 1 || !strings.Contains(got,
		"example/a v1 (LICENSE.txt)\nexample/b v2 (LICENCE)\n\nthe same\n") ||
		!strings.Contains(got, "example/a v1 (inner/COPYING)\n\nanother\n") || strings.Contains(got, "linked") ||
		strings.Contains(got, "package a") {
		t.Errorf("got\n%s", got)
	}
	c := component{"example/c", "v3", filepath.Join(root, "c")}
	if err := found.add(c, c.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := found.text(); err == nil || !strings.Contains(err.Error(), "example/c v3") {
		t.Errorf("a component without a licence: %v", err)
	}
}
