package load

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// jumpFilter reads rows ahead. Some rows are dated far ahead of the clock of a namespace with an event clock. It
// decides which of those are part of the stream, and which have a wrong date:
//
//	t   t   t          T  T  T  T      a gap: others are as late, so the clock advances before the first is sent
//	t   t   t   T   t  t  t            a single one: the clock does not advance, and the shard refuses it
//
// A row is a jump if it is more than max_jump ahead of the clock. It is part of the stream if enough rows after it are
// as late: see followed. Otherwise the order of the rows in the file does not count. The rows after it that were read
// ahead, and those before it that were refused, are sorted by time. From the clock on, a step to the next row is
// allowed if that row is
//
//   - no more than max_jump later, or
//   - no further ahead than an earlier gap, up to twice max_jump: with one row a month, no row follows the last, or
//   - confirmed by enough others that are as late: see confirmed.
//
// A row that such steps reach is part of the stream too.
type jumpFilter struct {
	next    func() (Row, error)
	advance func(ctx context.Context, t time.Time) error // advances the clock of all shards
	maxJump time.Duration                                // 0: the filter does nothing
	rows    int                                          // how many rows to read ahead

	event     bool // the namespace has an event clock
	namespace string
	begun     bool // the event clock had begun before this import

	ahead      []readRow
	clock      time.Time     // the latest time of the rows so far; zero before the first
	advanced   time.Time     // the last time passed to advance
	longestGap time.Duration // among the gaps that were found to be part of the stream
	timed      int           // rows with a time that Next has returned
	refused    []refusedTime // rows among the last gapRows that were not part of the stream
	ended      bool          // all rows were read
}

// refusedTime is the time of a refused row, and the row's number among those with a time.
type refusedTime struct {
	number int
	time   time.Time
}

type readRow struct {
	row Row
	err error
}

const (
	// gapRows is how many rows are read ahead to judge one. For a stream, which may have no more rows for now, it is
	// gapRowsStream, and the first row is accepted without a check.
	gapRows       = 1000
	gapRowsStream = 10
	// gapAgain times max_jump is the longest gap that is accepted because there was a similar one before.
	gapAgain = 2
	// A hundredth of the rows, but at least gapLeast, must be as late. One is enough if the file has at most gapSmall.
	gapShare = 100
	gapLeast = 3
	gapSmall = 20
)

// Next returns the next row. If the row needs it, Next first advances the clock of the shards.
func (f *jumpFilter) Next(ctx context.Context) (Row, error) {
	if f.maxJump == 0 {
		return f.next()
	}
	if f.clock.IsZero() {
		if f.rows == gapRows {
			f.readAhead()
		} else {
			f.ahead = append(f.ahead, f.nextRow())
		}
		if f.clock = f.earliest(); !f.clock.IsZero() { // otherwise a wrong date could be the first event of a shard
			if err := f.advance(ctx, f.clock); err != nil {
				return Row{}, err
			}
			f.advanced = f.clock
		}
	}
	r := f.nextRow()
	if r.err != nil || r.row.Time.IsZero() || f.future(r.row.Time) {
		return r.row, r.err
	}
	f.timed++
	if !r.row.Time.After(f.clock) {
		return r.row, nil
	}
	jump := r.row.Time.Sub(f.clock)
	if jump > f.maxJump && !f.reaches(r.row.Time) {
		f.refused = append(f.refused, refusedTime{f.timed, r.row.Time}) // reaches removes the old ones
		r.row.aheadOf = f.clock
		return r.row, nil // the shard refuses it
	}
	// The clock of a shard that has had no row for a while is further behind than f.clock.
	if r.row.Time.Sub(f.advanced) > f.maxJump/2 || jump > f.maxJump {
		to := f.clock
		if jump > f.maxJump {
			to = r.row.Time
		}
		if err := f.advance(ctx, to); err != nil {
			return Row{}, err
		}
		f.advanced = to
	}
	f.clock = r.row.Time
	return r.row, nil
}

// nextRow returns the first row that was read ahead, or else reads one.
func (f *jumpFilter) nextRow() readRow {
	if len(f.ahead) == 0 {
		row, err := f.next()
		return readRow{row, err}
	}
	r := f.ahead[0]
	f.ahead = f.ahead[1:]
	return r
}

// readAhead reads rows ahead, up to the end of the file or an error that ends the import.
func (f *jumpFilter) readAhead() {
	for len(f.ahead) < f.rows && !f.ended {
		row, err := f.next()
		f.ahead = append(f.ahead, readRow{row, err})
		var refused *Refused
		f.ended = err != nil && !errors.As(err, &refused)
	}
}

// earliest returns the earliest time of the rows that were read ahead; zero if none has a time.
func (f *jumpFilter) earliest() (t time.Time) {
	for _, r := range f.ahead {
		if r.err == nil && !r.row.Time.IsZero() && !f.future(r.row.Time) && (t.IsZero() || r.row.Time.Before(t)) {
			t = r.row.Time
		}
	}
	if !t.IsZero() && t.Before(clockFirst) { // an event clock at 0 means that it has not begun
		return clockFirst
	}
	return t
}

// clockFirst is the earliest time that an event clock can have.
var clockFirst = time.UnixMicro(1)

// reaches reports whether the rows that were read lead from the clock to a time: see jumpFilter.
func (f *jumpFilter) reaches(t time.Time) bool {
	f.readAhead()
	var after, all []time.Time
	for _, r := range f.ahead {
		if r.err == nil && !r.row.Time.IsZero() && !f.future(r.row.Time) {
			after = append(after, r.row.Time)
		}
	}
	for len(f.refused) > 0 && f.refused[0].number < f.timed-gapRows {
		f.refused = f.refused[1:]
	}
	all = append(all, after...)
	for _, r := range f.refused {
		all = append(all, r.time)
	}
	all = append(all, t)
	slices.SortFunc(all, time.Time.Compare)
	if f.followed(t, after) {
		f.longestGap = max(f.longestGap, min(t.Sub(f.clock), gapAgain*f.maxJump))
		return true
	}
	at, longest := f.clock, f.longestGap
	for _, next := range all {
		jump := next.Sub(at)
		switch {
		case jump > f.maxJump && jump > longest && !f.confirmed(next, all, len(after)):
			return false
		case jump > f.maxJump:
			longest = max(longest, min(jump, gapAgain*f.maxJump))
		}
		if next.After(at) {
			at = next
		}
		if !at.Before(t) {
			break
		}
	}
	f.longestGap = longest
	return true
}

// followed reports whether enough of the rows after a row are as late: a hundredth but at least three, or all that are
// left.
func (f *jumpFilter) followed(t time.Time, after []time.Time) bool {
	late := f.countAsLate(t, after)
	return late > 0 && late >= min(len(after), max(gapLeast, len(after)/gapShare))
}

// confirmed reports whether enough of all rows that were read, before and after a row, are as late: a hundredth but at
// least three. One is enough if the file has at most 20 rows. The row itself is in all, and does not count.
func (f *jumpFilter) confirmed(t time.Time, all []time.Time, after int) bool {
	others := f.countAsLate(t, all) - 1
	if f.ended && f.timed+after <= gapSmall {
		return others > 0
	}
	return others >= max(gapLeast, (min(f.timed, gapRows)+after)/gapShare)
}

// countAsLate counts the times that are later than t, or no more than max_jump before it.
func (f *jumpFilter) countAsLate(t time.Time, times []time.Time) (n int) {
	for _, other := range times {
		if !other.Before(t.Add(-f.maxJump)) {
			n++
		}
	}
	return n
}

// future reports whether a time has not come yet. The shards refuse such a row, and it does not help to judge the
// others.
func (f *jumpFilter) future(t time.Time) bool {
	return t.After(time.Now().Add(proto.FutureMaxUS * time.Microsecond))
}

// refusal returns the error of a row that a shard refused, with the clock that the row is too far ahead of. If the
// clock had not begun before the import, the error says that the rows have set it.
func (f *jumpFilter) refusal(t, clock time.Time, hint string) error {
	of := "the event clock of namespace " + f.namespace + ", " + clock.UTC().Format(time.RFC3339)
	if !f.begun {
		of = clock.UTC().Format(time.RFC3339) + ", where the rows that were taken so far have brought namespace " +
			f.namespace
	}
	return proto.ErrTimeJump.Errorf("time %s is more than max_jump, %v, ahead of %s",
		t.UTC().Format(time.RFC3339), f.maxJump, of).WithHint(hint)
}

// newJumpFilter returns a filter of a reader's rows. In a namespace without an event clock it does nothing.
func newJumpFilter(
	ctx context.Context,
	c *client.Client,
	ns client.Namespace,
	r *Reader,
	source *client.Source,
) (*jumpFilter, error) {
	f := &jumpFilter{next: r.Next, rows: gapRows, event: ns.Clock == client.ClockEvent}
	if ns.Clock != client.ClockEvent || ns.MaxJump == nil || *ns.MaxJump == 0 {
		return f, nil
	}
	if !r.Regular() {
		f.rows = gapRowsStream
	}
	clock, err := c.EventClock(ctx, ns.Name)
	if err != nil {
		return nil, err
	}
	if clock == nil { // before storage version 11 no shard refuses such rows
		return f, nil
	}
	f.maxJump, f.clock, f.advanced = *ns.MaxJump, clock.Now, clock.Oldest
	f.namespace, f.begun = ns.Name, !clock.Now.IsZero()
	f.advance = func(ctx context.Context, t time.Time) error {
		if err := source.Flush(ctx); err != nil {
			return err
		}
		return source.Advance(ctx, t)
	}
	return f, nil
}
