// Command replay writes an overlay of Go's runtime under which a bubble of testing/synctest takes the same course each
// time.
//
//	replay DIR     writes DIR/overlay.json, for go build -overlay, and the files that it names
//
// What else such a run needs is in the Makefile (the build's heap base and toolchain) and in chaos/swarm (one core, no
// garbage collection, a process for each plan). Nothing of it is in the product.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// release is the Go release for whose sources the edits were written. They are small and in the scheduler: for another
// release they must be reviewed.
const release = "go1.26.8"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: replay DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

// write writes the overlay into dir. It fails if this command was not built with release.
func write(dir string) error {
	if v := runtime.Version(); v != release {
		return fmt.Errorf("the edits of Go's runtime are for %s, and this is %s: build with GOTOOLCHAIN=%s, or read chaos/replay/edits.go beside the new sources", release, v, release)
	}
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src")
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	replace := map[string]string{}
	for _, e := range edits {
		old, err := os.ReadFile(filepath.Join(src, e.file))
		if err != nil {
			return err
		}
		text, err := e.apply(string(old))
		if err != nil {
			return err
		}
		to := filepath.Join(dir, strings.ReplaceAll(e.file, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			return err
		}
		replace[filepath.Join(src, e.file)] = to
	}
	b, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "overlay.json"), b, 0o644)
}

// apply makes all changes to a file's text. Each change must find the text that it replaces exactly once.
func (e edit) apply(text string) (string, error) {
	var errs []error
	for _, c := range e.changes {
		if n := strings.Count(text, c.from); n != 1 {
			errs = append(errs, fmt.Errorf("%s has %d times what is to be replaced, and not once: %q", e.file, n, c.from))
			continue
		}
		text = strings.Replace(text, c.from, c.to, 1)
	}
	return text + e.more, errors.Join(errs...)
}
