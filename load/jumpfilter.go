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
// A row is a jump if it is more than max_jump ahead of the clock. It is part of the stream if so many rows after it are
// as late as it is: see followed. Else it does not matter where it stands in the file. The rows after it that were read
// ahead, and those before it that were refused, are put in the order of time. From the clock on, one leads to the next
// if that is
//
//   - no more than max_jump later, or
//   - no further ahead than one was before, up to twice max_jump: of a row a month nothing follows the last, or
//   - confirmed by so many others that are as late: see confirmed.
//
// A row to which these steps lead is part of the stream too.
type gaps struct {
	next    func() (Row, error)
	tell    func(ctx context.Context, t time.Time) error // tells all shards that the clock has come there
	maxJump time.Duration                                // 0: nothing is looked at
	rows    int                                          // to be read ahead

	event     bool // the namespace has an event clock
	namespace string
	begun     bool // its clock, before this import

	ahead   []readRow
	clock   time.Time     // of the rows so far; zero before the first
	told    time.Time     // to the shards
	longest time.Duration // of the gaps that were found to be part of the stream
	timed   int           // rows with a time that Next has returned
	refused []refusedTime // of the last gapRows of them, those that were not part of the stream
	ended   bool          // all rows were read
}

// refusedTime is the time of a row, and its number among those with a time.
type refusedTime struct {
	number int
	time   time.Time
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
	// A hundredth of the rows, but gapLeast at least, must be as late; one if the file has no more than gapSmall.
	gapShare = 100
	gapLeast = 3
	gapSmall = 20
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
	if r.err != nil || r.row.Time.IsZero() || g.future(r.row.Time) {
		return r.row, r.err
	}
	g.timed++
	if !r.row.Time.After(g.clock) {
		return r.row, nil
	}
	jump := r.row.Time.Sub(g.clock)
	if jump > g.maxJump && !g.leadTo(r.row.Time) {
		g.refused = append(g.refused, refusedTime{g.timed, r.row.Time}) // leadTo drops the old ones
		r.row.aheadOf = g.clock
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
	for len(g.ahead) < g.rows && !g.ended {
		row, err := g.next()
		g.ahead = append(g.ahead, readRow{row, err})
		var refused *Refused
		g.ended = err != nil && !errors.As(err, &refused)
	}
}

// earliest is the earliest time of the rows read ahead.
func (g *gaps) earliest() (t time.Time) {
	for _, r := range g.ahead {
		if r.err == nil && !r.row.Time.IsZero() && !g.future(r.row.Time) && (t.IsZero() || r.row.Time.Before(t)) {
			t = r.row.Time
		}
	}
	if !t.IsZero() && t.Before(clockFirst) { // a clock at 0 has not begun
		return clockFirst
	}
	return t
}

// clockFirst is the earliest that an event clock can have come to.
var clockFirst = time.UnixMicro(1)

// leadTo says whether the rows that were read lead from the clock to a time: see gaps.
func (g *gaps) leadTo(t time.Time) bool {
	g.fill()
	var after, all []time.Time
	for _, r := range g.ahead {
		if r.err == nil && !r.row.Time.IsZero() && !g.future(r.row.Time) {
			after = append(after, r.row.Time)
		}
	}
	for len(g.refused) > 0 && g.refused[0].number < g.timed-gapRows {
		g.refused = g.refused[1:]
	}
	all = append(all, after...)
	for _, r := range g.refused {
		all = append(all, r.time)
	}
	all = append(all, t)
	slices.SortFunc(all, time.Time.Compare)
	if g.followed(t, after) {
		g.longest = max(g.longest, min(t.Sub(g.clock), gapAgain*g.maxJump))
		return true
	}
	at, longest := g.clock, g.longest
	for _, next := range all {
		jump := next.Sub(at)
		switch {
		case jump > g.maxJump && jump > longest && !g.confirmed(next, all, len(after)):
			return false
		case jump > g.maxJump:
			longest = max(longest, min(jump, gapAgain*g.maxJump))
		}
		if next.After(at) {
			at = next
		}
		if !at.Before(t) {
			break
		}
	}
	g.longest = longest
	return true
}

// followed says whether so many of the rows after one are as late: a hundredth, three at least, or all that are left.
func (g *gaps) followed(t time.Time, after []time.Time) bool {
	late := g.asLate(t, after)
	return late > 0 && late >= min(len(after), max(gapLeast, len(after)/gapShare))
}

// confirmed says whether so many of all rows that were read, before and after one, are as late: a hundredth, three at
// least; one if the file has no more than 20 rows. The row itself is one of all, and does not count.
func (g *gaps) confirmed(t time.Time, all []time.Time, after int) bool {
	others := g.asLate(t, all) - 1
	if g.ended && g.timed+after <= gapSmall {
		return others > 0
	}
	return others >= max(gapLeast, (min(g.timed, gapRows)+after)/gapShare)
}

// asLate is how many of these times are no more than max_jump before one.
func (g *gaps) asLate(t time.Time, times []time.Time) (n int) {
	for _, other := range times {
		if !other.Before(t.Add(-g.maxJump)) {
			n++
		}
	}
	return n
}

// future says whether a time is still to come: the shards refuse it, and it says nothing of the others.
func (g *gaps) future(t time.Time) bool {
	return t.After(time.Now().Add(proto.FutureMaxUS * time.Microsecond))
}

// refusal says what a row that a shard refused is ahead of. A clock that had not begun before the import is what its
// rows have made it.
func (g *gaps) refusal(t, clock time.Time, hint string) error {
	of := "the event clock of namespace " + g.namespace + ", " + clock.UTC().Format(time.RFC3339)
	if !g.begun {
		of = clock.UTC().Format(time.RFC3339) + ", where the rows that were taken so far have brought namespace " + g.namespace
	}
	return proto.ErrTimeJump.Errorf("time %s is more than max_jump, %v, ahead of %s",
		t.UTC().Format(time.RFC3339), g.maxJump, of).WithHint(hint)
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
	g.namespace, g.begun = ns.Name, !clock.Now.IsZero()
	g.tell = func(ctx context.Context, t time.Time) error {
		if err := source.Flush(ctx); err != nil {
			return err
		}
		return source.Advance(ctx, t)
	}
	return g, nil
}
