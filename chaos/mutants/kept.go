package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/ebbdb/ebb/chaos/lines"
)

// Outcome is the result of a mutant in one run.
type Outcome struct {
	Result
	Commit string    `json:"commit"` // of the source that it was planted in; empty where git does not say
	Ended  time.Time `json:"ended"`
}

// Kept is outcomes in a file, one a line, so that an interrupted run can continue. Only verdicts are kept: a mutant
// without a verdict is tried again. A nil Kept keeps nothing.
type Kept struct {
	file *os.File
	by   map[string]Outcome // mutant
}

// ReadOutcomes reads the text of a file that Kept has written, and returns the outcomes by mutant. If a mutant has
// several, the last one counts. A last line without an end is ignored.
func ReadOutcomes(text []byte) (map[string]Outcome, error) {
	by, number := make(map[string]Outcome), 0
	for line := range bytes.Lines(lines.Whole(text)) {
		number++
		var o Outcome
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&o); err != nil {
			return nil, fmt.Errorf("line %d is no outcome of a mutant: %w", number, err)
		}
		if o.Mutant == "" {
			return nil, fmt.Errorf("line %d is of no mutant", number)
		}
		by[o.Mutant] = o
	}
	return by, nil
}

// OpenKept opens or creates a file and reads its outcomes. Keep appends to the file.
func OpenKept(file string) (_ *Kept, err error) {
	f, whole, err := lines.Open(file, `{"mutant":`)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	by, err := ReadOutcomes(whole)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := lines.Continue(f, whole); err != nil {
		return nil, err
	}
	return &Kept{file: f, by: by}, nil
}

// Close closes the file.
func (k *Kept) Close() error { return k.file.Close() }

// Of returns the outcome of a mutant that the file had when it was opened.
func (k *Kept) Of(mutant string) (o Outcome, known bool) {
	if k == nil {
		return o, false
	}
	o, known = k.by[mutant]
	return o, known
}

// Keep appends an outcome.
func (k *Kept) Keep(o Outcome) error {
	if k == nil {
		return nil
	}
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = k.file.Write(append(line, '\n'))
	return err
}

// Commit returns the commit of the source, in 7 digits, with ", changed" if there are uncommitted changes. It is empty
// if git fails.
func (r *Runner) Commit(ctx context.Context) string {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", r.root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	name, err := git("rev-parse", "HEAD")
	if err != nil || len(name) < 7 {
		return ""
	}
	if changed, err := git("status", "--porcelain"); err != nil || changed != "" {
		return name[:7] + ", changed"
	}
	return name[:7]
}
