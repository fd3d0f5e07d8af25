// Package mutants plants bugs on purpose, and checks whether its checkers catch them: tests, and the swarm of seeds.
//
// A mutant is a file in planted: what it breaks, which checker must notice it, and the lines that change. The mutant is
// laid over the source while a checker is built (go build -overlay). So the product contains none of these bugs, not
// even under a flag or a build tag. A mutant whose lines are no longer in the source is an error, not a bug that was
// never planted.
package mutants

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
)

//go:embed planted/*.txt
var planted embed.FS

// Mutant is a planted bug.
type Mutant struct {
	Name string
	What string // what it breaks, a sentence
	// Checker is what must notice the bug.
	Checker Checker
	Edits   []Edit
}

// Checker names tests of a package, seeds of `ebb chaos sim`, or faults of `ebb chaos proc`.
type Checker struct {
	Package  string // of tests, its path in the module: ./chaos/sim; empty for the swarm and for real processes
	Run      string // names of tests with | between
	Families string // of faults that the swarm's plans are drawn from, with commas between; all if empty
	Faults   string // families that real processes meet, with commas between; empty for the swarm
	Seeds    uint64 // how many from 1 on are tried at most; 0 for tests that take none; of real processes, how many faults
}

// Swarm and Processes name these checkers where other checkers are named by their package.
const (
	Swarm     = "swarm"
	Processes = "real processes"
)

// String names the checker.
func (c Checker) String() string {
	switch {
	case c.Package != "":
		return strings.TrimPrefix(c.Package, "./")
	case c.Faults != "":
		return Processes + " under " + strings.ReplaceAll(c.Faults, ",", ", ")
	case c.Families != "":
		return Swarm + " of " + strings.ReplaceAll(c.Families, ",", ", ")
	}
	return Swarm
}

// Edit replaces lines of a file, which must hold the old lines exactly once.
type Edit struct {
	File    string
	Was, Is string
}

// All returns the mutants, in the order of their names.
func All() ([]Mutant, error) {
	files, err := fs.Glob(planted, "planted/*.txt")
	if err != nil {
		return nil, err
	}
	all := make([]Mutant, 0, len(files))
	for _, file := range files {
		text, err := planted.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(filepath.Base(file), ".txt"), text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, m)
	}
	return all, nil
}

func parse(name string, text []byte) (Mutant, error) {
	a := txtar.Parse(text)
	m := Mutant{Name: name}
	what, fields, found := strings.Cut(string(a.Comment), "\n\n")
	if !found {
		return m, fmt.Errorf("no blank line between what it breaks and who is to notice")
	}
	m.What = strings.TrimSpace(what)
	c := &m.Checker
	for line := range strings.Lines(fields) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		var err error
		switch key {
		case "":
		case "package":
			c.Package = value
		case "run":
			c.Run = value
		case "families":
			c.Families = value
		case "faults":
			c.Faults = value
		case "seeds":
			c.Seeds, err = strconv.ParseUint(value, 10, 32)
		default:
			err = fmt.Errorf("%q is not package, run, families, faults or seeds", key)
		}
		if err != nil {
			return m, err
		}
	}
	switch {
	case (c.Package == "") != (c.Run == ""), c.Package == "" && c.Seeds == 0, c.Package != "" && c.Families+c.Faults != "", c.Families != "" && c.Faults != "":
		return m, fmt.Errorf("wants package and run for tests, or seeds for the swarm and perhaps families, or seeds and faults for real processes")
	case len(a.Files) == 0 || len(a.Files)%2 != 0:
		return m, fmt.Errorf("wants pairs of \"-- FILE was --\" and \"-- FILE is --\"")
	}
	for i := 0; i < len(a.Files); i += 2 {
		file, ok := strings.CutSuffix(a.Files[i].Name, " was")
		if !ok || a.Files[i+1].Name != file+" is" {
			return m, fmt.Errorf("wants \"-- FILE was --\" and then \"-- FILE is --\", not %q and %q", a.Files[i].Name, a.Files[i+1].Name)
		}
		m.Edits = append(m.Edits, Edit{file, strings.TrimSuffix(string(a.Files[i].Data), "\n"), strings.TrimSuffix(string(a.Files[i+1].Data), "\n")})
	}
	return m, nil
}

// Sources returns the mutated files of a module, by path below its root. It fails if the source does not hold the lines
// of an edit exactly once.
func (m *Mutant) Sources(root string) (map[string][]byte, error) {
	sources := make(map[string][]byte)
	for _, e := range m.Edits {
		text, ok := sources[e.File]
		if !ok {
			var err error
			if text, err = os.ReadFile(filepath.Join(root, e.File)); err != nil {
				return nil, fmt.Errorf("mutant %s: %w", m.Name, err)
			}
		}
		if n := bytes.Count(text, []byte(e.Was)); n != 1 {
			return nil, fmt.Errorf("mutant %s: %s holds these lines %d times, not once:\n%s", m.Name, e.File, n, e.Was)
		}
		sources[e.File] = bytes.Replace(text, []byte(e.Was), []byte(e.Is), 1)
	}
	return sources, nil
}

// overlay writes the mutated files into dir, and the JSON file for -overlay. It returns the path of the JSON file.
func (m *Mutant) overlay(root, dir string) (string, error) {
	sources, err := m.Sources(root)
	if err != nil {
		return "", err
	}
	replace := make(map[string]string)
	for file, text := range sources {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = to
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o600)
}
