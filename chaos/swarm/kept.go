package swarm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/ebbdb/ebb/chaos/lines"
)

// Kept stores the verdicts of seeds in a file, one a line. So a long run can be interrupted and continued, or made in
// parts: the files of different seeds can be concatenated. Verdicts that held are stored without their stories. All
// verdicts of a file must be of one build. A nil Kept stores nothing.
type Kept struct {
	file  *os.File
	build string
	by    map[uint64]*Verdict // by seed
}

// ErrAnotherPlan means that the file has a verdict of a seed whose plan differs from that of the campaign.
var ErrAnotherPlan = errors.New("keeps another plan")

// keptLine is a line of the file.
type keptLine struct {
	Build string `json:"build"`
	*Verdict
}

// OpenKept reads a file, or creates it, and appends to it. It drops a last line that is incomplete: its seed is run
// again. It returns an error if a line is no verdict, or is of another build.
func OpenKept(file, build string) (_ *Kept, err error) {
	f, whole, err := lines.Open(file, `{"build":`)
	if err != nil {
		return nil, err
	}
	k := &Kept{file: f, build: build, by: map[uint64]*Verdict{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	number := 0
	for line := range bytes.Lines(whole) {
		number++
		l := keptLine{Verdict: new(Verdict)}
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, fmt.Errorf("%s:%d is no seed's verdict: %w", file, number, err)
		}
		if l.Build != build {
			return nil, fmt.Errorf("%s:%d: seed %d was run by build %s, and this one is %s: name another file", file, number, l.Plan.Seed, l.Build, build)
		}
		k.by[l.Plan.Seed] = l.Verdict
	}
	if err := lines.Continue(f, whole); err != nil {
		return nil, err
	}
	return k, nil
}

// Close closes the file.
func (k *Kept) Close() error { return k.file.Close() }

func (k *Kept) name() string { return k.file.Name() }

func (k *Kept) has(seed uint64) bool { return k != nil && k.by[seed] != nil }

// judged returns the verdicts of these seeds, in order.
func (k *Kept) judged(first, last uint64) (all []*Verdict) {
	if k == nil {
		return nil
	}
	for seed, v := range k.by {
		if first <= seed && seed <= last {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b *Verdict) int { return int(int64(a.Plan.Seed) - int64(b.Plan.Seed)) })
	return all
}

// keep appends a verdict.
func (k *Kept) keep(v *Verdict) error {
	if k == nil {
		return nil
	}
	if !v.Failed() {
		v = v.bare()
	}
	b, err := json.Marshal(keptLine{k.build, v})
	if err != nil {
		return err
	}
	_, err = k.file.Write(append(b, '\n'))
	return err
}
