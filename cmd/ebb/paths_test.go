package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/chaos/swarm"
)

// A file or directory that a command cannot use is refused before anything begins, by its flag and name and with a next
// step.
func TestPathsThatCannotBeRight(t *testing.T) {
	dir := t.TempDir()
	another, err := json.Marshal(struct {
		Build string `json:"build"`
		*swarm.Verdict
	}{buildName(), &swarm.Verdict{Plan: swarm.Plan{Seed: 3}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"file": "there\n", "another": string(another) + "\n", "elsewhere": `{"build":"another"}` + "\n", "loose": "a line of somebody else's"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]string{
		"chaos sim --seeds 3 --resume " + os.DevNull:                            "--resume " + os.DevNull + ": it is not a regular file",
		"chaos sim --seeds 3 --resume DIR":                                      "--resume DIR: it cannot be written: is a directory",
		"chaos sim --seeds 3 --resume DIR/file":                                 "--resume DIR/file:1 is no seed's verdict: ",
		"chaos sim --seeds 3 --resume DIR/elsewhere":                            "--resume DIR/elsewhere:1: seed 0 was run by build another",
		"chaos sim --seeds 3 --resume DIR/another":                              "--resume DIR/another keeps another plan of seed 3",
		"chaos sim --seeds 3 --resume DIR/loose":                                "--resume DIR/loose: its last line has no end",
		"chaos sim --seeds 3 --resume DIR/none/seeds.jsonl":                     "--resume DIR/none/seeds.jsonl: it cannot be written: no such file",
		"chaos sim --seeds 3 --report DIR/none/page.html":                       "--report DIR/none/page.html: it cannot be written: no such file",
		"chaos proc --cycles 1 --faults kill --dir DIR/file":                    "--dir DIR/file: it cannot be written: ",
		"chaos proc --cycles 1 --faults kill --seeds 1-2 --dir DIR/file/deeper": "--dir DIR/file/deeper/seed-1: it cannot be written: ",
		"chaos soak --faults kill --dir DIR/file":                               "--dir DIR/file: it cannot be written: ",
		"chaos failover --trials 1 --dir DIR/file":                              "--dir DIR/file: it cannot be written: ",
		"token create un --role reader=x --out DIR/none/token":                  "--out DIR/none/token: it cannot be written: no such file",
		"token create un --role reader=x --out DIR/file/token":                  "--out DIR/file/token: it cannot be written: not a directory",
		"token secret --out DIR/none/token":                                     "--out DIR/none/token: it cannot be written: no such file",
		"cert gossip-key --out DIR/none/keys":                                   "--out DIR/none/keys: it cannot be written: no such file",
		"cert ca --dir DIR/file":                                                "--dir DIR/file: it cannot be written: not a directory",
	} {
		in := strings.NewReplacer("DIR", dir)
		code, said := refused(t, strings.Fields(in.Replace(line))...)
		if code != exitUsage || !strings.Contains(said, in.Replace(want)) || !strings.Contains(said, "\ntry:  ") || strings.Contains(said, "are in "+dir) {
			t.Errorf("%s: exit %d: %s", line, code, said)
		}
	}
	if code, said := refused(t, "token", "create", "un", "--role", "reader=x", "--force", "--out", dir); code != exitUsage || !strings.Contains(said, "--out "+dir+": it is a directory") {
		t.Errorf("exit %d: %s", code, said)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "loose")); err != nil || string(text) != "a line of somebody else's" {
		t.Errorf("what is somebody else's became %q, %v", text, err)
	}
}
