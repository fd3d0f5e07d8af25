package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// outcome is the result of a mutant: a line of a record.
type outcome struct {
	mutant
	Verdict string `json:"verdict"`
	By      string `json:"by,omitempty"` // the test that failed
	Took    int64  `json:"took_ms"`
	Commit  string `json:"commit"`
}

// record has the outcomes of a package's mutants. If a mutant has two outcomes, the later one counts.
type record struct {
	of   map[string]outcome
	file *os.File
}

func openRecord(name string) (*record, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	r := &record{of: map[string]outcome{}, file: f}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var o outcome
		if json.Unmarshal(lines.Bytes(), &o) == nil { // the last may be cut off
			r.of[o.ID] = o
		}
	}
	// a line that was cut off gets an end, so that the next line is not part of it
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		end := make([]byte, 1)
		if _, err := f.ReadAt(end, info.Size()-1); err != nil {
			return nil, err
		}
		if end[0] != '\n' {
			if _, err := f.WriteString("\n"); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

func (r *record) close() { _ = r.file.Close() }

func (r *record) add(o outcome) error {
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	r.of[o.ID] = o
	_, err = r.file.Write(append(line, '\n'))
	return err
}

// readEqual reads lines of a mutant's name and why no test can notice it.
func readEqual(name string) (map[string]string, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if id, why, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(id, "#") {
			out[id] = why
		}
	}
	return out, err
}

// sample chooses about count mutants of the files whose names match. Each file gets its share, and at least one mutant.
// The choice depends only on the seed and on the mutants' ids, so that a change elsewhere does not alter it.
func sample(mutants []*mutant, count int, seed string, files *regexp.Regexp) []*mutant {
	of := map[string][]*mutant{}
	total := 0
	for _, m := range mutants {
		if files.MatchString(m.File) && !m.dropped {
			of[m.File] = append(of[m.File], m)
			total++
		}
	}
	var out []*mutant
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list := of[name]
		share := len(list)
		if count > 0 && count < total {
			share = max(1, (len(list)*count+total/2)/total)
		}
		slices.SortFunc(list, func(a, b *mutant) int {
			return cmp.Or(cmp.Compare(hash(seed+a.ID), hash(seed+b.ID)), cmp.Compare(a.n, b.n))
		})
		out = append(out, list[:share]...)
	}
	// mix the files, so that a run that stops early has tried some mutants of each
	slices.SortFunc(out, func(a, b *mutant) int {
		return cmp.Or(cmp.Compare(hash(seed+a.ID), hash(seed+b.ID)), cmp.Compare(a.n, b.n))
	})
	return out
}

// critical matches files in which a fault loses or repeats what was acknowledged, or gives wrong answers.
var critical = regexp.MustCompile(`^(node/(wal/|acked/|(member|groups|proposer|transport/past)\.go)|` +
	`shard/(session|source|idempotency|snapshot|keycommands|state)[a-z]*\.go|` +
	`cluster/(control[a-z_]*|tokens)\.go|sketch/(distribution|params)\.go)`)

// row is a line of the table.
type row struct {
	file                                           string
	mutants, tried, killed, timeouts, equal, alive int
	survivors                                      []outcome
}

// rows counts, file by file, what became of the mutants that were chosen.
func rows(mutants, chosen []*mutant, rec *record, equal map[string]string) []row {
	of := map[string]*row{}
	for _, m := range mutants {
		if of[m.File] == nil {
			of[m.File] = &row{file: m.File}
		}
		of[m.File].mutants++
	}
	for _, m := range chosen {
		r, o := of[m.File], rec.of[m.ID]
		o.Line = m.Line // where it is now
		switch {
		case o.Verdict == killed:
			r.killed++
		case o.Verdict == timeout:
			r.timeouts++
		case o.Verdict != survived && o.Verdict != unreached:
			continue
		case equal[m.ID] != "":
			r.equal++
		default:
			r.alive++
			r.survivors = append(r.survivors, o)
		}
		r.tried++
	}
	var out []row
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if of[name].tried > 0 {
			out = append(out, *of[name])
		}
	}
	return out
}

func (r *row) add(o row) {
	r.mutants, r.tried, r.equal = r.mutants+o.mutants, r.tried+o.tried, r.equal+o.equal
	r.killed, r.timeouts, r.alive = r.killed+o.killed, r.timeouts+o.timeouts, r.alive+o.alive
}

func (r *row) rate() string {
	if of := r.tried - r.equal; of > 0 {
		return fmt.Sprintf("%.1f%%", 100*float64(r.killed+r.timeouts)/float64(of))
	}
	return "-"
}

func (r *row) String() string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %s |\n",
		r.file, r.mutants, r.tried, r.killed, r.timeouts, r.equal, r.alive, r.rate())
}

// table formats rows as text: the survivors, the table of docs/mutation.md, and a sentence. Rates leave out equal
// mutants.
func table(rows []row) string {
	var out strings.Builder
	all, safe := row{file: "all of these"}, row{file: "safety-critical (*)"}
	for _, r := range rows {
		for _, o := range r.survivors {
			fmt.Fprintf(&out, "%s %s %s:%d %s: %s\n", o.ID, o.Verdict, o.File, o.Line, o.Op, o.Text)
		}
	}
	out.WriteString("\n| file | mutants | tried | killed | timeouts | equal | survivors | " +
		"killed of those not equal |\n")
	out.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range rows {
		all.add(r)
		if critical.MatchString(r.file) {
			safe.add(r)
			r.file += " *"
		}
		out.WriteString(r.String())
	}
	out.WriteString(all.String() + safe.String())
	fmt.Fprintf(&out, "\n%d mutants tried, %s killed; in safety-critical files %d, %s\n",
		all.tried, all.rate(), safe.tried, safe.rate())
	return out.String()
}
