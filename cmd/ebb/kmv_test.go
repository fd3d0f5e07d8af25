package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/ebbdb/ebb/proto"
)

// FuzzKMVLine: a line of a file of sets is refused, or is written as it was read.
func FuzzKMVLine(f *testing.F) {
	for _, line := range []string{
		`{"key":"stars/go","value_base64":"AAAAAAAAABEAAAAAAAAACQAAAAAAAAAH"}`,
		`{"key_base64":"//4=","value_base64":"AAAAAAAAABE="}`,
		`{"key":"a","key_base64":"YQ==","value_base64":""}`,
		`{"key":"\ud800","value_base64":"AAAAAAAAABE="}`, `[]`, `{"key":1}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		key, value, err := parseKMVLine(line)
		if err != nil {
			if proto.AsError(err).Code == 0 {
				t.Fatalf("%q: %v has no code", line, err)
			}
			return
		}
		raw, err := appendKMVLine(nil, key, value)
		if err != nil || len(raw) > kmvLineMax {
			t.Fatalf("%q: %d bytes, %v", key, len(raw), err)
		}
		again, same, err := parseKMVLine(raw)
		if err != nil || again != key || !bytes.Equal(same, value) {
			t.Fatalf("%q is written as %q: %v", line, raw, err)
		}
	})
}

// The line of docs/doors.md that makes rows of Redis is the one that the script forgettable runs.
func TestRedisRecipeIsTheOneThatIsRun(t *testing.T) {
	script, err := os.ReadFile("testdata/script/forgettable.txtar")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/doors.md")
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(script, []byte("redis-cli --raw EVAL"))
	if at < 0 {
		t.Fatal("the script has no recipe")
	}
	recipe, _, _ := bytes.Cut(script[at:], []byte("\n"))
	if !bytes.Contains(page, recipe) {
		t.Errorf("docs/doors.md does not have the line\n%s", recipe)
	}
}
