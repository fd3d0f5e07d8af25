package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"bugs": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

// The script is a story at a terminal; $SOURCE is the clone of the source.
func TestScript(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error { env.Setenv("SOURCE", wd); return nil },
	})
}

// A file that --resume or --report cannot use is refused before anything is built, by its flag and name and with a
// next step, and stays as it is.
func TestPathsThatCannotBeRight(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"file": "there\n", "loose": "a line without an end"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]string{
		"--resume DIR/loose":            "--resume DIR/loose: its last line has no end",
		"--resume " + os.DevNull:        "--resume " + os.DevNull + ": it is not a regular file",
		"--resume DIR/file":             "--resume DIR/file: line 1 is no outcome of a mutant",
		"--resume DIR/none/bugs.jsonl":  "--resume DIR/none/bugs.jsonl: it cannot be written: no such file",
		"--report DIR/none/page.html":   "--report DIR/none/page.html: it cannot be written: no such file",
		"--report DIR":                  "--report DIR: it is a directory",
		"--report DIR/file/page.html":   "--report DIR/file/page.html: it cannot be written: not a directory",
		"--resume DIR --report DIR/new": "--resume DIR: it cannot be written: is a directory",
	} {
		in := strings.NewReplacer("DIR", dir)
		args := append([]string{"mutants", "--only", "^merge-drops"}, strings.Fields(in.Replace(line))...)
		var out, said bytes.Buffer
		code := run(t.Context(), args, &out, &said)
		text := said.String()
		if code != exitUsage || !strings.Contains(text, in.Replace(want)) || !strings.Contains(text, "\ntry:  ") {
			t.Errorf("%s: exit %d: %s", line, code, text)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "loose")); err != nil || string(text) != "a line without an end" {
		t.Errorf("the file that was refused is now %q, %v", text, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.part")); err != nil || len(left) > 0 {
		t.Errorf("runs that were refused left %v, %v", left, err)
	}
}

// A mutant is planted and caught by the command, whose JSON names the test that caught it.
func TestMutantIsCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a test of another package")
	}
	var out, said bytes.Buffer
	args := []string{"mutants", "--source", "../..", "--only", "^merge-drops-the-mark$", "--json"}
	code := run(t.Context(), args, &out, &said)
	var all []mutantJSON
	if err := json.Unmarshal(out.Bytes(), &all); code != exitOK || err != nil || len(all) != 1 {
		t.Fatalf("exit %d, %v: %s: %s", code, err, &out, &said)
	}
	if m := all[0]; !m.Caught || m.By == "" || m.What == "" {
		t.Errorf("%+v", m)
	}
}

// An interrupted run ends with the exit status of one.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, said bytes.Buffer
	args := []string{"mutants", "--source", "../..", "--only", "^merge-drops"}
	if code := run(ctx, args, &out, &said); code != exitInterrupted {
		t.Errorf("exit %d: %s", code, &said)
	}
}
