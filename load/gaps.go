package load

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// gaps reads rows ahead, and says which of those that are dated far ahead of the clock of an event-clock namespace are
// part of the stream, and which are wrong:
//
//	t   t   t          T  T  T  T      a gap: others are as late, so the clock is told before the first goes out
//	t   t   t   T   t  t  t            a single one: the clock is not told, and the shard refuses it
//
// A row is late by a gap if it is more than max_jump ahead of all before it. It is part of the stream if of the next
// rows a hundredth, three at least, are not more than max_jump before it; or if it is no further ahead than one that
// was, and than twice max_jump: of a row a month nothing follows the last.
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
	// gapAgain is how many times max_jump a gap may be long that is taken since there was one before.
	gapAgain = 2
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
	if r.err != nil || r.row.Time.IsZero() || !r.row.Time.After(g.clock) || g.future(r.row.Time) {
		return r.row, r.err
	}
	jump := r.row.Time.Sub(g.clock)
	switch {
	case jump <= g.maxJump:
	case jump <= g.longest:
	case g.confirmed(r.row.Time):
		g.longest = min(max(g.longest, jump), gapAgain*g.maxJump)
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
		if r.err == nil && !r.row.Time.IsZero() && !g.future(r.row.Time) && (t.IsZero() || r.row.Time.Before(t)) {
			t = r.row.Time
		}
	}
	return t
}

// confirmed says whether a row at a time is part of the stream: of the next rows so many are as late, or there are rows
// between it and the clock, no more than max_jump after each other.
func (g *gaps) confirmed(t time.Time) bool {
	g.fill()
	var times []time.Time
	late := 0
	for _, r := range g.ahead {
		if r.err != nil || r.row.Time.IsZero() || g.future(r.row.Time) {
			continue
		}
		times = append(times, r.row.Time)
		if !r.row.Time.Before(t.Add(-g.maxJump)) {
			late++
		}
	}
	if late > 0 && late >= min(len(times), max(gapLeast, len(times)/gapShare)) {
		return true
	}
	slices.SortFunc(times, time.Time.Compare)
	at := g.clock
	for _, next := range times {
		if next.After(at) && !next.After(t) && next.Sub(at) <= g.maxJump {
			at = next
		}
	}
	return t.Sub(at) <= g.maxJump
}

// future says whether a time is still to come: the shards refuse it, and it says nothing of the others.
func (g *gaps) future(t time.Time) bool {
	return t.After(time.Now().Add(proto.FutureMaxUS * time.Microsecond))
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
