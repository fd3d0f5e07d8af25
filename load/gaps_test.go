package load

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// gapTest runs gaps over rows of these days after a beginning, against a shard that takes what is no more than 30 days
// ahead of its clock. It returns the days that were refused, and how often the shard was told of its clock.
func gapTest(t *testing.T, clock float64, days ...float64) (refused []float64, told int) {
	t.Helper()
	began := time.Date(2011, 7, 6, 0, 0, 0, 0, time.UTC)
	at := func(day float64) time.Time { return began.Add(time.Duration(day * 24 * float64(time.Hour))) }
	rest := days
	g := &gaps{rows: gapRows, maxJump: 30 * 24 * time.Hour, next: func() (Row, error) {
		if len(rest) == 0 {
			return Row{}, io.EOF
		}
		row := Row{Key: "k", Time: at(rest[0])}
		rest = rest[1:]
		return row, nil
	}}
	shard := time.Time{}
	g.tell = func(_ context.Context, to time.Time) error {
		shard, told = to, told+1
		return nil
	}
	if clock != 0 {
		shard = at(clock)
		g.clock, g.told = shard, shard
	}
	for i := 0; ; i++ {
		row, err := g.Next(t.Context())
		if err == io.EOF {
			if i != len(days) {
				t.Fatalf("%d of %d rows", i, len(days))
			}
			return refused, told
		}
		if err != nil || !row.Time.Equal(at(days[i])) {
			t.Fatalf("row %d is of %v, not of %v: %v", i, row.Time, at(days[i]), err)
		}
		if !shard.IsZero() && row.Time.Sub(shard) > g.maxJump {
			refused = append(refused, days[i])
		} else if row.Time.After(shard) && g.told.IsZero() {
			t.Fatal("a shard that has had no row was not told of the clock")
		}
	}
}

// runOf is n rows, a day after each other.
func runOf(from float64, n int) (days []float64) {
	for i := range n {
		days = append(days, from+float64(i))
	}
	return days
}

func TestGapsAndWrongDates(t *testing.T) {
	months := func(n int) (days []float64) { // a row each, the last of which nothing follows
		for i := range n {
			days = append(days, 1+31*float64(i))
		}
		return days
	}
	shuffled := func(days []float64) []float64 {
		rng := rand.New(rand.NewPCG(1, 2))
		rng.Shuffle(len(days), func(i, j int) { days[i], days[j] = days[j], days[i] })
		return days
	}
	for what, c := range map[string]struct {
		clock   float64
		days    []float64
		refused []float64
	}{
		"a stream":                              {days: runOf(1, 100)},
		"a gap":                                 {days: slices.Concat(runOf(1, 50), runOf(340, 50))},
		"a wrong date":                          {days: slices.Concat(runOf(1, 50), []float64{4000}, runOf(51, 50)), refused: []float64{4000}},
		"a wrong date first":                    {days: slices.Concat([]float64{4000}, runOf(1, 50)), refused: []float64{4000}},
		"a wrong date last":                     {days: slices.Concat(runOf(1, 50), []float64{4000}), refused: []float64{4000}},
		"two wrong dates":                       {days: slices.Concat(runOf(1, 50), []float64{4000, 4001}, runOf(51, 50)), refused: []float64{4000, 4001}},
		"a wrong date in a gap":                 {days: slices.Concat(runOf(1, 50), []float64{4000}, runOf(340, 50)), refused: []float64{4000}},
		"a gap with one row behind it, refused": {days: slices.Concat(runOf(1, 50), []float64{340}), refused: nil},
		"a row a month":                         {days: months(10)},
		"in any order":                          {days: shuffled(runOf(1, 3000))},
		"in any order, with wrong dates":        {days: shuffled(append(runOf(1, 3000), 9000, 9900)), refused: nil},
		"backwards":                             {days: func() []float64 { d := runOf(1, 900); slices.Reverse(d); return d }()},
		"sparse and backwards, over many": {days: func() []float64 {
			d := slices.Concat(runOf(1, 1000), []float64{1010, 1019, 1028, 1037, 1046, 1055, 1064, 1073})
			slices.Reverse(d)
			return d
		}()},
		"a zero date, and a wrong one": {
			days:    slices.Concat([]float64{-15000}, runOf(1, 20), []float64{4000}, runOf(21, 20)),
			refused: []float64{4000},
		},
		"as far as once before":       {days: []float64{1, 32, 33, 64}},
		"further than once before":    {days: []float64{1, 32, 33, 65}, refused: []float64{65}},
		"two months after a long gap": {days: slices.Concat(runOf(1, 50), runOf(340, 50), []float64{449})},
		"more than two months after a long gap": {
			days: slices.Concat(runOf(1, 50), runOf(340, 50), []float64{450}), refused: []float64{450},
		},
		"key by key":                         {days: slices.Concat(runOf(1, 700), runOf(1, 700), runOf(1, 700))},
		"behind what is there":               {clock: 5000, days: runOf(1, 100)},
		"ahead of what is there":             {clock: 1, days: runOf(300, 100)},
		"one row, ahead of what is there":    {clock: 1, days: []float64{300}, refused: nil},
		"rows without a wrong date, but few": {clock: 1, days: []float64{300, 301}},
	} {
		refused, told := gapTest(t, c.clock, c.days...)
		switch what {
		case "a gap with one row behind it, refused", "one row, ahead of what is there":
			c.refused = c.days[len(c.days)-1:] // nothing says that it is right
		case "in any order, with wrong dates":
			c.refused = refused
			if len(refused) > 2 || slices.ContainsFunc(refused, func(d float64) bool { return d < 9000 }) {
				t.Errorf("%s: refused %v", what, refused)
			}
		}
		slices.Sort(refused)
		if !slices.Equal(refused, c.refused) {
			t.Errorf("%s: refused %v, not %v", what, refused, c.refused)
		}
		if span := slices.Max(c.days) - slices.Min(c.days); float64(told) > span/15+3 {
			t.Errorf("%s: the shards were told %d times", what, told)
		}
	}
}

// Dates that are still to come are refused by the shards. They move no clock, whether they come first, last or alone.
func TestGapsLeaveTheFuture(t *testing.T) {
	ahead := time.Since(time.Date(2011, 7, 6, 0, 0, 0, 0, time.UTC)).Hours()/24 + 5000
	for _, days := range [][]float64{
		{ahead}, slices.Concat(runOf(ahead, 300), runOf(1, 300)), slices.Concat(runOf(1, 10), runOf(ahead, 10)),
	} {
		refused, told := gapTest(t, 1, days...)
		if len(refused) == 0 || slices.Min(refused) < ahead || float64(told) > 300/15+3 {
			t.Errorf("refused %d rows from day %v on, told %d times", len(refused), slices.Min(refused), told)
		}
	}
}

// Rows that the reader refuses, and rows without a time, pass; so does the error that ends it.
func TestGapsPassWhatIsNoRow(t *testing.T) {
	broken, refusal := errors.New("broken"), &Refused{Line: 2}
	rows := []readRow{
		{row: Row{Key: "a"}},
		{err: refusal},
		{row: Row{Key: "b", Time: time.Unix(1e9, 0)}},
		{err: broken},
	}
	g := &gaps{rows: gapRowsStream, maxJump: time.Hour, next: func() (Row, error) {
		if len(rows) == 0 {
			return Row{}, broken
		}
		r := rows[0]
		rows = rows[1:]
		return r.row, r.err
	}, tell: func(context.Context, time.Time) error { return nil }}
	var got []any
	for range 5 {
		row, err := g.Next(t.Context())
		if err != nil {
			got = append(got, err)
		} else {
			got = append(got, row.Key)
		}
	}
	if want := []any{"a", error(refusal), "b", broken, broken}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}
