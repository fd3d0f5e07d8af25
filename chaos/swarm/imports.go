package swarm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// importer imports the rows of a file through an ordered source, some at a time. Faults interrupt it, and it also stops
// by itself. Then it opens the source again, and sends all rows behind the offset that the shards report. Each row has
// its own bin.
type importer struct {
	w     *world
	rng   *rand.Rand
	rows  uint64 // sent so far
	acked uint64 // all rows up to this one
	tries int
}

const (
	importSource  = "rows"
	importKeys    = 3
	importRowsMax = 300
)

func importKey(row uint64) string { return fmt.Sprintf("import-%d", row%importKeys) }
func importBin(row uint64) string { return fmt.Sprintf("row-%d", row) }

func newImporter(w *world) *importer { return &importer{w: w, rng: w.rng(7800)} }

func (i *importer) work(c *ebb.Client) {
	if i.rng.IntN(2) == 0 || i.rows >= importRowsMax {
		i.look(c)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), millis(i.rng, 200, 4000))
	defer cancel()
	_ = i.run(ctx, c, i.rows+1+i.rng.Uint64N(15), i.rng.IntN(3) == 0) // its outcome is counted
}

// run sends all rows up to upTo that the shards do not have yet. If breakOff is set, it then stops as if the process
// were killed.
func (i *importer) run(ctx context.Context, c *ebb.Client, upTo uint64, breakOff bool) error {
	s, err := c.Source(ctx, importSource, ebb.SourceOptions{Namespace: countsNamespace, MaxBatch: 4, Timeout: 3 * time.Second})
	if err != nil {
		i.w.done(failed)
		return err
	}
	i.tries++
	at := s.Resume()
	i.w.hold("imported-once", at.Newest <= i.rows, "the source is at row %d, and %d were given", at.Newest, i.rows)
	for row := at.Offset + 1; row <= upTo && err == nil; row++ {
		i.rows = max(i.rows, row)
		err = s.Add(ctx, row, ebb.Increment{Key: importKey(row), Bin: importBin(row), Amount: 1})
	}
	if breakOff {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		_ = s.Close(gone) // as if the process were killed: rows under way may arrive or not
		return nil
	}
	if flushed := s.Flush(ctx); err == nil {
		err = flushed
	}
	if closed := s.Close(ctx); err == nil {
		err = closed
	}
	if err == nil {
		i.acked = max(i.acked, upTo)
		i.w.done(acked)
	} else {
		i.w.done(unknown)
	}
	return err
}

// look reads all keys.
func (i *importer) look(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(i.rng, 1000, 6000))
	defer cancel()
	have := map[string]float64{}
	for k := range uint64(importKeys) {
		d, err := c.Distribution(ctx, countsNamespace, importKey(k))
		i.w.read(err == nil)
		if err != nil {
			return
		}
		for _, b := range d.Bins {
			have[b.Name] += b.Count
		}
	}
	i.judge(have)
}

// judge compares the counted rows with those that were sent. Every row counts at most once, and every acknowledged row
// counts once.
func (i *importer) judge(have map[string]float64) {
	var wrong []uint64
	for row := uint64(1); row <= i.rows; row++ {
		if n := have[importBin(row)]; n != 1 && (n != 0 || row <= i.acked) {
			wrong = append(wrong, row)
		}
		delete(have, importBin(row))
	}
	i.w.hold("imported-once", len(wrong)+len(have) == 0, "rows %v are not counted once, in %d imports in which %d were given and all up to %d acknowledged, and nobody gave %v", wrong, i.tries, i.rows, i.acked, have)
}

// settle completes the import, and checks it.
func (i *importer) settle(ctx context.Context, c *ebb.Client) {
	err := i.run(ctx, c, i.rows+1, false)
	if i.w.hold("healed-writes", err == nil, "finish the import when all was mended: %v", err) {
		i.look(c)
	}
}
