package mutants

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A run that was interrupted in the middle of a line continues with the outcomes that it had kept.
func TestKeptOutcomes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mutants.jsonl")
	one := Outcome{Result: Result{Mutant: "one", Checker: "a", Caught: true, By: "TestA", Said: "1, want 2\n", Took: time.Second}, Commit: "0123456", Ended: time.Unix(1, 0).UTC()}
	two := Outcome{Result: Result{Mutant: "two", Checker: "swarm", Seeds: 60}, Commit: "0123456", Ended: time.Unix(2, 0).UTC()}
	kept := func(o ...Outcome) {
		t.Helper()
		k, err := OpenKept(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range o {
			if err := k.Keep(o); err != nil {
				t.Error(err)
			}
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	}
	kept(one, two)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text[:len(text)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := OpenKept(file)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if got, known := k.Of("one"); !known || got != one {
		t.Errorf("%+v, %v", got, known)
	}
	if got, known := k.Of("two"); known {
		t.Errorf("half a line: %+v", got)
	}
	kept(two)
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%v, %s, want %s", err, got, text)
	}
	again := one
	again.By = "TestB"
	kept(again)
	text, _ = os.ReadFile(file)
	if all, err := ReadOutcomes(text); err != nil || len(all) != 2 || all["one"] != again || all["two"] != two {
		t.Errorf("%v, %+v", err, all)
	}
	if _, known := (*Kept)(nil).Of("one"); known || (*Kept)(nil).Keep(one) != nil {
		t.Error("none keeps something")
	}
	for _, wrong := range []string{"{}\n", "x\n", `{"mutant": "one", "seed": 3}` + "\n"} {
		if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenKept(file); err == nil || !strings.Contains(err.Error(), file+": line 1") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestCommitOfTheSource(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not here")
	}
	root := t.TempDir()
	r := runner(t, root)
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", root, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(root))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(root))
	if got := r.Commit(t.Context()); got != "" {
		t.Errorf("of no repository: %q", got)
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "one")
	want := git("rev-parse", "HEAD")[:7]
	if got := r.Commit(t.Context()); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := os.WriteFile(filepath.Join(root, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.Commit(t.Context()); got != want+", changed" {
		t.Errorf("%q, want it changed", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := r.Commit(ctx); got != "" {
		t.Errorf("when it is over: %q", got)
	}
}

// The page says what became of each mutant, and nothing in it is markup that a checker wrote.
func TestPage(t *testing.T) {
	p := Page{Command: "go run ./chaos/bugs mutants --only '<a>'", Rows: []PageRow{
		{Outcome: Outcome{Result: Result{Mutant: "one", Checker: "swarm", Caught: true, By: "read-fresh", Seeds: 3, Said: "<b>1 & 2</b>", Took: 1234 * time.Millisecond}, Commit: "0123456"}, What: "It breaks <i>."},
		{Outcome: Outcome{Result: Result{Mutant: "two", Checker: "shard"}}},
		{Outcome: Outcome{Result: Result{Mutant: "three", Caught: true, By: "TestX"}}, Error: "it fails anyhow"},
	}}
	var b bytes.Buffer
	if err := p.HTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<h1>3 mutants: <span class=\"bad\">2 were not caught</span></h1>", "--only &#39;&lt;a&gt;&#39;",
		"<tr><td>one<td>It breaks &lt;i&gt;.<td>swarm<td class=\"good\">read-fresh<td>3<td>1.23s<td>0123456<td><code>&lt;b&gt;1 &amp; 2&lt;/b&gt;</code>",
		"<tr><td>two<td><td>shard<td class=\"bad\">not caught<td>-<td>0s", "<td class=\"bad\">no verdict<td>-<td>0s<td><td><code>it fails anyhow</code>",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, b.String())
		}
	}
	p.Rows, b = p.Rows[:1], bytes.Buffer{}
	if err := p.HTML(&b); err != nil || !strings.Contains(b.String(), "1 mutants: <span class=\"good\">all were caught</span>") {
		t.Errorf("%v, %s", err, &b)
	}
	if err := p.HTML(fullDisk{}); err == nil {
		t.Error("a disk that is full is not noticed")
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, fmt.Errorf("no room") }
