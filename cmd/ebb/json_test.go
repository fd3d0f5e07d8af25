package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// json PATH[=VALUE]...: the last command's standard output is one JSON document
// in which each path leads somewhere, and to that value if one is given.
func checkJSON(ts *testscript.TestScript, _ bool, args []string) {
	out := ts.ReadFile("stdout")
	var document any
	if err := json.Unmarshal([]byte(out), &document); err != nil {
		ts.Fatalf("%v in %s", err, out)
	}
	for _, arg := range args {
		path, want, valued := strings.Cut(arg, "=")
		got, err := follow(document, path)
		if err != nil {
			ts.Fatalf("%s: %v in %s", path, err, out)
		}
		if valued && fmt.Sprint(got) != want {
			ts.Fatalf("%s is %v, not %s, in %s", path, got, want, out)
		}
	}
}

// follow walks names of members and indices of elements, separated by dots.
func follow(at any, path string) (any, error) {
	for step := range strings.SplitSeq(path, ".") {
		switch v := at.(type) {
		case map[string]any:
			next, ok := v[step]
			if !ok {
				return nil, fmt.Errorf("no member %q", step)
			}
			at = next
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(v) {
				return nil, fmt.Errorf("no element %q of %d", step, len(v))
			}
			at = v[i]
		default:
			return nil, fmt.Errorf("%v has no %q", at, step)
		}
	}
	return at, nil
}
