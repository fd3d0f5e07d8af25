package main

import (
	"bytes"
	"testing"

	"github.com/ebbdb/ebb/proto"
)

// FuzzKMVLine: a line of a file of sets is refused, or is written as it was read.
func FuzzKMVLine(f *testing.F) {
	for _, line := range []string{
		`{"key":"stars/go","value_base64":"AAAAAAAAABEAAAAAAAAACQAAAAAAAAAH"}`, `{"key_base64":"//4=","value_base64":"AAAAAAAAABE="}`,
		`{"key":"a","key_base64":"YQ==","value_base64":""}`, `{"key":"\ud800","value_base64":"AAAAAAAAABE="}`, `[]`, `{"key":1}`,
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
