package load

import (
	"context"
	"errors"
	"time"

	"github.com/ebbdb/ebb/client"
)

// gaps reads rows ahead, and says which of those that are dated far ahead of the clock of an event-clock namespace are
// part of the stream, and which are wrong:
//
//	t   t   t          T  T  T  T      a gap: others are as late, so the clock is told before the first goes out
//	t   t   t   T   t  t  t            a single one: the clock is not told, and the shard refuses it
//
// A row is late by a gap if it is more than max_jump ahead of all before it. It is part of the stream if of the next
// rows a hundredth, three at least, are not more than max_jump before it; or if it is no further ahead than one that
// was.
type gaps struct {
	next    func() (Row, error)
	tell    func(ctx context.Context, t time.Time) error // tells all shards that the clock has come there
	maxJump time.Duration                                // 0: nothing is looked at
	rows    int                                          // to be read ahead

	event   bool // the namespace has an event clock
	ahead   []readRow
	clock   time.Time     // of the rows so far; zero before the first
	told    time.Time     // to the shards
	longest time.Duration // of the gaps that were found to be part of the stream
}

type readRow struct {
	row Row
	err error
}

const (
	// gapRows is how many rows are read ahead to judge one. Of a stream, which may have no more for now, it is
	// gapRowsStream, and the first row is taken as it is.
	gapRows       = 1000
	gapRowsStream = 10
	// gapShare of them, but gapLeast at least, must be as late; all of them if there are fewer.
	gapShare = 100
	gapLeast = 3
)

// Next returns the next row, and has told the shards of the clock if the row needs it.
func (g *gaps) Next(ctx context.Context) (Row, error) {
	if g.maxJump == 0 {
		return g.next()
	}
	if g.clock.IsZero() {
		if g.rows == gapRows {
			g.fill()
		} else {
			g.ahead = append(g.ahead, g.take())
		}
		if g.clock = g.earliest(); !g.clock.IsZero() { // else a wrong date could be the first event of a shard
			if err := g.tell(ctx, g.clock); err != nil {
				return Row{}, err
			}
			g.told = g.clock
		}
	}
	r := g.take()
	if r.err != nil || r.row.Time.IsZero() || !r.row.Time.After(g.clock) {
		return r.row, r.err
	}
	jump := r.row.Time.Sub(g.clock)
	switch {
	case jump <= g.maxJump:
	case jump <= g.longest || g.confirmed(r.row.Time):
		g.longest = max(g.longest, jump)
	default:
		return r.row, nil // the shard refuses it
	}
	// A shard that has had no row for a while is behind by more than this one.
	if r.row.Time.Sub(g.told) > g.maxJump/2 || jump > g.maxJump {
		to := g.clock
		if jump > g.maxJump {
			to = r.row.Time
		}
		if err := g.tell(ctx, to); err != nil {
			return Row{}, err
		}
		g.told = to
	}
	g.clock = r.row.Time
	return r.row, nil
}

// take returns what was read ahead, or reads.
func (g *gaps) take() readRow {
	if len(g.ahead) == 0 {
		row, err := g.next()
		return readRow{row, err}
	}
	r := g.ahead[0]
	g.ahead = g.ahead[1:]
	return r
}

// fill reads ahead, up to the end or an error that ends the import.
func (g *gaps) fill() {
	for len(g.ahead) < g.rows {
		var refused *Refused
		if n := len(g.ahead); n > 0 && g.ahead[n-1].err != nil && !errors.As(g.ahead[n-1].err, &refused) {
			return
		}
		row, err := g.next()
		g.ahead = append(g.ahead, readRow{row, err})
	}
}

// earliest is the earliest time of the rows read ahead.
func (g *gaps) earliest() (t time.Time) {
	for _, r := range g.ahead {
		if r.err == nil && !r.row.Time.IsZero() && (t.IsZero() || r.row.Time.Before(t)) {
			t = r.row.Time
		}
	}
	return t
}

// confirmed says whether the next rows are as late as one at a time.
func (g *gaps) confirmed(t time.Time) bool {
	g.fill()
	all, late := 0, 0
	for _, r := range g.ahead {
		if r.err != nil || r.row.Time.IsZero() {
			continue
		}
		all++
		if !r.row.Time.Before(t.Add(-g.maxJump)) {
			late++
		}
	}
	return late > 0 && late >= min(all, max(gapLeast, all/gapShare))
}

// newGaps returns gaps of the rows of a reader, that does nothing in a namespace without an event clock.
func newGaps(
	ctx context.Context,
	c *client.Client,
	ns client.Namespace,
	r *Reader,
	source *client.Source,
) (*gaps, error) {
	g := &gaps{next: r.Next, rows: gapRows, event: ns.Clock == client.ClockEvent}
	if ns.Clock != client.ClockEvent || ns.MaxJump == nil || *ns.MaxJump == 0 {
		return g, nil
	}
	if !r.Regular() {
		g.rows = gapRowsStream
	}
	clock, err := c.EventClock(ctx, ns.Name)
	if err != nil {
		return nil, err
	}
	if clock == nil { // before storage version 11 nothing is refused
		return g, nil
	}
	g.maxJump, g.clock, g.told = *ns.MaxJump, clock.Now, clock.Oldest
	g.tell = func(ctx context.Context, t time.Time) error {
		if err := source.Flush(ctx); err != nil {
			return err
		}
		return source.Advance(ctx, t)
	}
	return g, nil
}
