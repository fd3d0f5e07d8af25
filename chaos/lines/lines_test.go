package lines

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A line without an end is left out and written over, if it is one; a file of something else stays as it is.
func TestOpen(t *testing.T) {
	for _, test := range []struct{ text, then, refused string }{
		{"", "{\"a\":3}\n", ""},
		{"{\"a\":1}\n", "{\"a\":1}\n{\"a\":3}\n", ""},
		{"{\"a\":1}\n{\"a", "{\"a\":1}\n{\"a\":3}\n", ""},
		{"{\"a\":1}\n{\"a\":22", "{\"a\":1}\n{\"a\":3}\n", ""},
		{"what I need", "what I need", "does not begin with"},
		{"{\"a\":1}\n[", "{\"a\":1}\n[", "does not begin with"},
	} {
		file := filepath.Join(t.TempDir(), "kept")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, whole, err := Open(file, `{"a":`)
		switch {
		case test.refused != "":
			if err == nil || !strings.Contains(err.Error(), test.refused) || !strings.Contains(err.Error(), file) {
				t.Errorf("%q: %v", test.text, err)
			}
		case err != nil:
			t.Errorf("%q: %v", test.text, err)
		default:
			if err := Continue(f, whole); err != nil {
				t.Error(err)
			}
			if _, err := f.WriteString("{\"a\":3}\n"); err != nil {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != test.then {
			t.Errorf("%q became %q (%v), want %q", test.text, got, err, test.then)
		}
	}
}

// What has no end is not read.
func TestOpenRegular(t *testing.T) {
	if f, _, err := Open("/dev/null", "{"); err == nil || !strings.Contains(err.Error(), "/dev/null: it is not a regular file") {
		t.Errorf("%v", err)
		_ = f.Close()
	}
	if _, _, err := Open(t.TempDir(), "{"); err == nil {
		t.Error("a directory is read")
	}
}
