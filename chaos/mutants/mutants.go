// Package mutants plants bugs on purpose and asks the tests whether they see them.
//
// A mutant is a file in planted: what it breaks, which test is to notice, and the lines that change. It is laid over the source
// while a test is built (go build -overlay), so the product holds no planted bug, under no flag and no build tag, and a mutant
// whose lines are gone from the source is an error rather than a bug that was never there.
package mutants

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/txtar"
)

//go:embed planted/*.txt
var planted embed.FS

// Mutant is a planted bug.
type Mutant struct {
	Name string
	What string // what it breaks, a sentence
	// Checker is who is to notice.
	Checker Checker
	Edits   []Edit
}

// Checker names tests of a package.
type Checker struct {
	Package string // its path in the module: ./chaos/sim
	Run     string // as of go test -run
	Env     string // what is added to the environment, NAME=VALUE with spaces between
}

// Edit replaces lines of a file, which it holds exactly once.
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
	for line := range strings.Lines(fields) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "":
		case "package":
			m.Checker.Package = value
		case "run":
			m.Checker.Run = value
		case "env":
			m.Checker.Env = value
		default:
			return m, fmt.Errorf("%q is not package, run or env", key)
		}
	}
	if len(a.Files) == 0 || len(a.Files)%2 != 0 || m.Checker.Package == "" || m.Checker.Run == "" {
		return m, fmt.Errorf("wants package, run, and pairs of \"-- FILE was --\" and \"-- FILE is --\"")
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

// Sources returns the mutated files of a module, by path below its root.
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

// overlay writes the mutated files into dir, and what -overlay reads.
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
