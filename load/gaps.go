package load

import (
	"context"
	"errors"
	"time"

	"github.com/ebbdb/ebb/client"
)

const (
	// aheadRows is how many rows are read ahead of one that is further ahead in time than the namespace takes, and
	// aheadStream how many of what cannot be read twice, which may come slowly.
	aheadRows   = 1024
	aheadStream = 64
	// aheadConfirm is how many of them confirm it: those that are not much earlier.
	aheadConfirm = 3
)

// gaps tells a gap in time from a wrong date, for a namespace with an event clock. A row that is more than the
// namespace's MaxJump after all before it is looked at together with those that follow: if some of them are of that
// time too, there is a gap, and the row and what follows is confirmed; else it is refuted. What is within MaxJump of the
// namespace's clock at the beginning needs neither.
type gaps struct {
	next  func() (Row, error)
	jump  time.Duration
	ahead int
	epoch uint64
	// now is the latest time that is not refuted, and begun that of the namespace when the import began, or of the first
	// row. Zero: there is none yet.
	now, begun time.Time
	queue      []readRow
}

// readRow is what Reader.Next has returned.
type readRow struct {
	row Row
	err error
}

// newGaps returns nil for a namespace that refuses no jumps.
func newGaps(r *Reader, ns client.Namespace, clock client.EventClock) *gaps {
	if ns.Clock != client.ClockEvent || ns.MaxJump == nil || *ns.MaxJump == 0 || r.time == nil {
		return nil
	}
	g := &gaps{next: r.Next, jump: *ns.MaxJump, ahead: aheadRows, epoch: ns.ClockEpoch}
	if !r.Regular() {
		g.ahead = aheadStream
	}
	if clock.NowUS > 0 && clock.Epoch == ns.ClockEpoch {
		g.now = time.UnixMicro(clock.NowUS)
		g.begun = g.now
	}
	return g
}

// gaps asks for the namespace's clock, if it has one.
func (im *Importer) gaps(ctx context.Context, r *Reader, ns client.Namespace) (*gaps, error) {
	if newGaps(r, ns, client.EventClock{}) == nil {
		return nil, nil
	}
	if _, err := im.Client.CountKeys(ctx, ns.Name); err != nil {
		return nil, err
	}
	clock, _ := im.Client.EventClock(ns.Name)
	return newGaps(r, ns, clock), nil
}

func isRefused(err error) bool {
	var refused *Refused
	return errors.As(err, &refused)
}

// row returns the next row or error of the reader, and what is known of the row's time: see client.Increment.
func (g *gaps) row() (Row, uint64, error) {
	if len(g.queue) == 0 {
		g.read()
	}
	one := g.queue[0]
	g.queue = g.queue[1:]
	if one.err != nil {
		return one.row, 0, one.err
	}
	return one.row, g.judge(one.row.Time), nil
}

// read appends one more row to the queue, or what ends them.
func (g *gaps) read() {
	row, err := g.next()
	g.queue = append(g.queue, readRow{row, err})
}

func (g *gaps) judge(t time.Time) uint64 {
	if g.now.IsZero() || t.After(g.now.Add(g.jump)) {
		if !g.confirmed(t) {
			return client.ClockRefuted
		}
	}
	if g.begun.IsZero() {
		g.begun = t
	}
	if t.After(g.now) {
		g.now = t
	}
	if t.After(g.begun.Add(g.jump)) {
		return client.ClockConfirmed(g.epoch)
	}
	return 0
}

// confirmed reads ahead until enough rows are not much earlier than t. Where fewer follow, all of them are enough; what
// nothing follows is confirmed only if nothing came before.
func (g *gaps) confirmed(t time.Time) bool {
	least, found, seen := t.Add(-g.jump), 0, 0
	for i := 0; seen < g.ahead; i++ {
		if i == len(g.queue) {
			g.read()
		}
		if err := g.queue[i].err; isRefused(err) {
			continue
		} else if err != nil {
			break
		}
		seen++
		if !g.queue[i].row.Time.Before(least) {
			if found++; found == aheadConfirm {
				return true
			}
		}
	}
	return found == seen && (seen > 0 || g.now.IsZero())
}
