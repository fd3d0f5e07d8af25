package main

import (
	"slices"
	"strings"
	"testing"
)

const said = `{"Action":"run","Package":"github.com/ebbdb/ebb/node","Test":"TestA"}
{"Action":"output","Package":"github.com/ebbdb/ebb/node","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"pass","Package":"github.com/ebbdb/ebb/node","Test":"TestA/sub"}
{"Action":"pass","Package":"github.com/ebbdb/ebb/node","Test":"TestA"}
{"Action":"output","Package":"github.com/ebbdb/ebb/node","Test":"TestB","Output":"only root\n"}
{"Action":"skip","Package":"github.com/ebbdb/ebb/node","Test":"TestB"}
{"Action":"output","Package":"github.com/ebbdb/ebb/node","Output":"PASS\n"}
{"Action":"output","Package":"github.com/ebbdb/ebb/node","Output":"ok  \tgithub.com/ebbdb/ebb/node\t1.0s\n"}
{"Action":"pass","Package":"github.com/ebbdb/ebb/node"}
`

func TestManifest(t *testing.T) {
	const failing = `{"Action":"output","Package":"github.com/ebbdb/ebb/node","Test":"TestC","Output":"wrong\n"}
{"Action":"fail","Package":"github.com/ebbdb/ebb/node","Test":"TestC"}
{"Action":"fail","Package":"github.com/ebbdb/ebb/node"}
`
	for _, c := range []struct {
		what, said, manifest string
		faults               []string
	}{
		{"all as it should be", said, "# head\nran ./node 1\nskip ./node TestB only root", nil},
		{"a skip that is not listed", said, "ran ./node 1", []string{"./node: TestB was left out, and is not in the manifest"}},
		{"a skip without a reason", said, "skip ./node TestB ?", []string{"./node: TestB has no reason in the manifest why it may be left out"}},
		{"a skip of a machine that cannot", said, "machine only root", nil},
		{"fewer tests", said, "ran ./node 3\nskip ./node TestB only root", []string{"./node: 2 tests ran: the manifest has 3"}},
		{"one that may be left out", said, "ran ./node 2\nskip ./node TestB only root", nil},
		{"a package that did not run", said, "ran ./rpc 1\nskip ./node TestB only root", []string{"./rpc: 0 tests ran: the manifest has 1"}},
		{"a failure", said + failing, "skip ./node TestB only root", []string{"FAIL: ./node"}},
		{"a package that does not build", `{"Action":"build-fail","ImportPath":"github.com/ebbdb/ebb/rpc"}`, "", []string{"FAIL: ./rpc"}},
	} {
		r, out := newRun(), new(strings.Builder)
		if err := r.read(strings.NewReader(c.said), out); err != nil {
			t.Fatal(err)
		}
		m, err := parse(c.manifest)
		if err != nil {
			t.Fatal(err)
		}
		if got := append(r.failed(), m.compare(r)...); !slices.Equal(got, c.faults) {
			t.Errorf("%s: %q, want %q", c.what, got, c.faults)
		}
		if strings.HasPrefix(c.said, said) && !strings.Contains(out.String(), "ok  \tgithub.com/ebbdb/ebb/node\t1.0s\n") {
			t.Errorf("%s: shows %q", c.what, out)
		}
		if c.what == "a failure" && !strings.Contains(out.String(), "wrong\n") {
			t.Errorf("%s: shows %q", c.what, out)
		}
	}
}

func TestUpdate(t *testing.T) {
	r := newRun()
	if err := r.read(strings.NewReader(said), new(strings.Builder)); err != nil {
		t.Fatal(err)
	}
	m, err := parse("# head\nmachine no disk\nran ./gone 3\nskip ./node TestOld measures\n")
	if err != nil {
		t.Fatal(err)
	}
	m.take(r)
	const want = "# head\n\nmachine no disk\n\nran ./node 1\n\nskip ./node TestB ?\nskip ./node TestOld measures\n"
	if m.String() != want {
		t.Errorf("%q, want %q", m, want)
	}
	for _, bad := range []string{"ran ./node", "ran ./node many", "skip ./node TestB", "leave out"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
