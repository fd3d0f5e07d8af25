// Package museum keeps every bug that was found: what a user saw of it, why it happened, and the test that fails if it
// comes back.
//
// A piece is a file in pieces: a sentence, fields, and the story.
//
//	A bin that counts something answers that it is not there.
//
//	found: the model of a shard, with longer scripts
//	mended: 242e084
//	package: ./shard
//	run: TestStateAgainstModel
//	mutant: death-is-forgotten
//
//	A negative amount that was refused could empty ...
//
// A piece with a mutant (chaos/mutants) proves itself: the mutant puts the bug back, and the test must then fail.
package museum

import (
	"embed"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ebbdb/ebb/chaos/mutants"
)

//go:embed pieces/*.txt
var pieces embed.FS

// Piece is a bug that was found.
type Piece struct {
	Name    string `json:"name"`
	Symptom string `json:"symptom"` // as a user saw it, a sentence
	Found   string `json:"found"`   // by what, with its seed or input; "by hand" for reading and trying, where nothing else is recorded
	Mended  string `json:"mended"`  // by which commit, or "before" one that has several in it; "contained" where the fault is a library's
	Package string `json:"package"` // of the tests that fail if it comes back
	Run     string `json:"run"`     // their names, with | between
	Corpus  string `json:"corpus,omitempty"`
	Mutant  string `json:"mutant,omitempty"` // the mutant that puts the bug back
	Story   string `json:"story"`
}

// Planted is the mutant that puts the bug back, if there is one. Otherwise the mutant names only the checker that would
// notice the bug.
func (p *Piece) Planted() (m mutants.Mutant, planted bool, err error) {
	m = mutants.Mutant{Checker: mutants.Checker{Package: p.Package, Run: p.Run}}
	if p.Mutant == "" {
		return m, false, nil
	}
	all, err := mutants.All()
	if err != nil {
		return m, false, err
	}
	i := slices.IndexFunc(all, func(m mutants.Mutant) bool { return m.Name == p.Mutant })
	if i < 0 {
		return m, false, fmt.Errorf("piece %s: no mutant is called %s", p.Name, p.Mutant)
	}
	return all[i], true, nil
}

// All returns the pieces, in the order of their names.
func All() ([]Piece, error) {
	files, err := fs.Glob(pieces, "pieces/*.txt")
	if err != nil {
		return nil, err
	}
	all := make([]Piece, 0, len(files))
	for _, file := range files {
		text, err := pieces.ReadFile(file)
		if err != nil {
			return nil, err
		}
		p, err := parse(strings.TrimSuffix(filepath.Base(file), ".txt"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, p)
	}
	return all, nil
}

func parse(name, text string) (Piece, error) {
	p := Piece{Name: name}
	symptom, rest, _ := strings.Cut(text, "\n\n")
	fields, story, found := strings.Cut(rest, "\n\n")
	if !found {
		return p, fmt.Errorf("wants a sentence, fields and a story, with blank lines between")
	}
	p.Symptom, p.Story = strings.TrimSpace(symptom), strings.TrimSpace(story)
	to := map[string]*string{"found": &p.Found, "mended": &p.Mended, "package": &p.Package, "run": &p.Run, "corpus": &p.Corpus, "mutant": &p.Mutant}
	for line := range strings.Lines(fields) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		field, ok := to[key]
		if !ok || *field != "" || value == "" {
			return p, fmt.Errorf("%q is not one of found, mended, package, run, corpus and mutant, with a value, once", strings.TrimSpace(line))
		}
		*field = value
	}
	for _, key := range []string{"found", "mended", "package", "run"} {
		if *to[key] == "" {
			return p, fmt.Errorf("wants %s", key)
		}
	}
	if p.Symptom == "" || strings.Contains(p.Symptom, "\n") || p.Story == "" {
		return p, fmt.Errorf("wants a symptom of one line, and a story")
	}
	return p, nil
}
