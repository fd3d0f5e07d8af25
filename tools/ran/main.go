// Command ran reads the output of `go test -json`, and compares it with a manifest of what must run. The manifest has
// the least number of tests that must pass in each package, and the tests that may be left out, with reasons. It is a
// failure if another test is left out, or if fewer tests ran in a package. The command prints what `go test` prints
// without -json: a line for each package, and all output of tests that failed.
//
//	go test -json ./... | go run -C tools ./ran -manifest ../.ci/tests.txt [-update]
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// module is the prefix of all package paths; a manifest leaves it out.
const module = "github.com/ebbdb/ebb"

func main() {
	log.SetFlags(0)
	name := flag.String("manifest", "", "`file` with what must run")
	update := flag.Bool("update", false,
		"write the manifest anew: a skip that is new in it has yet to be given a reason")
	flag.Parse()
	if *name == "" || flag.NArg() > 0 {
		log.Fatal("usage: go test -json ./... | ran -manifest FILE [-update]")
	}
	r := newRun()
	if err := r.read(os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(*name)
	if err != nil && !(*update && errors.Is(err, os.ErrNotExist)) {
		log.Fatal(err)
	}
	m, err := parse(string(text))
	if err != nil {
		log.Fatalf("%s: %v", *name, err)
	}
	if *update {
		m.take(r)
		if err := os.WriteFile(*name, []byte(m.String()), 0o644); err != nil {
			log.Fatal(err)
		}
	}
	faults := append(r.failed(), m.compare(r)...)
	for _, f := range faults {
		fmt.Println(f)
	}
	fmt.Printf("%d tests of %d packages passed, %d were left out\n", r.count(), len(r.passed), len(r.skipped))
	if len(faults) > 0 {
		log.Fatal("FAIL")
	}
}

// event is a line of `go test -json`.
type event struct {
	Action, Package, Test, Output, ImportPath string
}

// test is the name of a test and its package; the package is named without the module.
type test struct{ pkg, name string }

// run is the result of a run of tests.
type run struct {
	passed  map[string]int  // tests that passed, by package; not their subtests
	skipped map[test]string // why, as the test says; subtests, too
	broken  map[string]bool
	said    map[test][]string
}

func newRun() *run {
	return &run{
		passed: map[string]int{}, skipped: map[test]string{}, broken: map[string]bool{}, said: map[test][]string{},
	}
}

// read reads events to the end, and writes what `go test` prints without -json.
func (r *run) read(from io.Reader, to io.Writer) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(to, lines.Text()) // a message of the go command itself
			continue
		}
		r.take(e, to)
	}
	return lines.Err()
}

func (r *run) take(e event, to io.Writer) {
	at := test{short(e.Package), e.Test}
	top := e.Test != "" && !strings.Contains(e.Test, "/")
	switch e.Action {
	case "build-output":
		fmt.Fprint(to, e.Output)
	case "build-fail":
		r.broken[short(e.ImportPath)] = true
	case "output":
		if e.Test == "" && shown(e.Output) {
			fmt.Fprint(to, e.Output)
		} else if e.Test != "" {
			r.said[at] = append(r.said[at], e.Output)
		}
	case "pass":
		if top {
			r.passed[at.pkg]++
		}
		delete(r.said, at)
	case "skip":
		if e.Test != "" {
			r.skipped[at] = strings.Join(r.said[at], "")
		}
		delete(r.said, at)
	case "fail":
		r.broken[at.pkg] = true
		fmt.Fprint(to, strings.Join(r.said[at], ""))
		delete(r.said, at)
	}
}

// shown reports whether `go test` prints this line of a package without -json.
func shown(line string) bool { return line != "PASS\n" && !strings.HasPrefix(line, "=== ") }

func short(pkg string) string {
	if rest, ok := strings.CutPrefix(pkg, module); ok {
		return "." + rest
	}
	return pkg
}

func (r *run) count() (n int) {
	for _, passed := range r.passed {
		n += passed
	}
	return n
}

// failed names the packages in which something failed.
func (r *run) failed() (out []string) {
	for _, pkg := range slices.Sorted(maps.Keys(r.broken)) {
		out = append(out, "FAIL: "+pkg)
	}
	return out
}

// manifest is what must run.
type manifest struct {
	head   []string       // comments
	counts map[string]int // tests of a package that pass, at least
	skips  map[test]string
	// machine has parts of messages by which tests say that the machine cannot run them.
	machine []string
}

// unknown is the reason of a skip that has none yet.
const unknown = "?"

// parse reads a manifest: comments, lines "ran PACKAGE COUNT", lines "skip PACKAGE TEST REASON", and lines
// "machine TEXT".
func parse(text string) (*manifest, error) {
	m := &manifest{counts: map[string]int{}, skips: map[test]string{}}
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case strings.HasPrefix(line, "#"):
			m.head = append(m.head, line)
		case words[0] == "ran" && len(words) == 3:
			n, err := strconv.Atoi(words[2])
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			m.counts[words[1]] = n
		case words[0] == "skip" && len(words) > 3:
			m.skips[test{words[1], words[2]}] = strings.Join(words[3:], " ")
		case words[0] == "machine" && len(words) > 1:
			m.machine = append(m.machine, strings.Join(words[1:], " "))
		default:
			return nil, fmt.Errorf("line %d: %q is none of: ran PACKAGE COUNT, skip PACKAGE TEST REASON, machine TEXT",
				i+1, line)
		}
	}
	return m, nil
}

// take sets the counts to those of a run, and adds its skips. Skips keep their reasons, also those that did not happen
// this time.
func (m *manifest) take(r *run) {
	m.counts = maps.Clone(r.passed)
	for at, said := range r.skipped {
		if m.skips[at] == "" && !m.cannot(said) {
			m.skips[at] = unknown
		}
	}
}

// cannot reports whether a test said that the machine cannot run it.
func (m *manifest) cannot(said string) bool {
	return slices.ContainsFunc(m.machine, func(text string) bool { return strings.Contains(said, text) })
}

// compare returns what a run lacks, sorted.
func (m *manifest) compare(r *run) (faults []string) {
	for _, pkg := range slices.Sorted(maps.Keys(m.counts)) {
		ran := r.passed[pkg]
		for at := range r.skipped { // tests that are skipped here may run on another machine
			if at.pkg == pkg && !strings.Contains(at.name, "/") {
				ran++
			}
		}
		if ran < m.counts[pkg] {
			faults = append(faults, fmt.Sprintf("%s: %d tests ran: the manifest has %d", pkg, ran, m.counts[pkg]))
		}
	}
	for at, said := range r.skipped {
		switch m.skips[at] {
		case "":
			if m.cannot(said) {
				continue
			}
			faults = append(faults, fmt.Sprintf("%s: %s was left out, and is not in the manifest", at.pkg, at.name))
		case unknown:
			faults = append(faults,
				fmt.Sprintf("%s: %s has no reason in the manifest why it may be left out", at.pkg, at.name))
		}
	}
	slices.Sort(faults)
	return faults
}

// String writes a manifest.
func (m *manifest) String() string {
	var b strings.Builder
	for _, line := range m.head {
		b.WriteString(line + "\n")
	}
	b.WriteString("\n")
	for _, text := range m.machine {
		fmt.Fprintf(&b, "machine %s\n", text)
	}
	b.WriteString("\n")
	for _, pkg := range slices.Sorted(maps.Keys(m.counts)) {
		fmt.Fprintf(&b, "ran %s %d\n", pkg, m.counts[pkg])
	}
	b.WriteString("\n")
	for _, at := range slices.SortedFunc(maps.Keys(m.skips), func(a, b test) int {
		return strings.Compare(a.pkg+" "+a.name, b.pkg+" "+b.name)
	}) {
		fmt.Fprintf(&b, "skip %s %s %s\n", at.pkg, at.name, m.skips[at])
	}
	return b.String()
}
