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

// gapTest runs a jumpFilter over rows of these days after a beginning. The shard accepts rows up to 30 days ahead of
// its clock. It returns the days that were refused, and how often the clock of the shard was advanced.
func gapTest(t *testing.T, clock float64, days ...float64) (refused []float64, advances int) {
	t.Helper()
	began := time.Date(2011, 7, 6, 0, 0, 0, 0, time.UTC)
	at := func(day float64) time.Time { return began.Add(time.Duration(day * 24 * float64(time.Hour))) }
	rest := days
	f := &jumpFilter{rows: gapRows, maxJump: 30 * 24 * time.Hour, next: func() (Row, error) {
		if len(rest) == 0 {
			return Row{}, io.EOF
		}
		row := Row{Key: "k", Time: at(rest[0])}
		rest = rest[1:]
		return row, nil
	}}
	shard := time.Time{}
	f.advance = func(_ context.Context, to time.Time) error {
		shard, advances = to, advances+1
		return nil
	}
	if clock != 0 {
		shard = at(clock)
		f.clock, f.advanced = shard, shard
	}
	for i := 0; ; i++ {
		row, err := f.Next(t.Context())
		if err == io.EOF {
			if i != len(days) {
				t.Fatalf("%d of %d rows", i, len(days))
			}
			return refused, advances
		}
		if err != nil || !row.Time.Equal(at(days[i])) {
			t.Fatalf("row %d is of %v, not of %v: %v", i, row.Time, at(days[i]), err)
		}
		if !shard.IsZero() && row.Time.Sub(shard) > f.maxJump {
			refused = append(refused, days[i])
		} else if row.Time.After(shard) && f.advanced.IsZero() {
			t.Fatal("a shard that has had no row did not advance its clock")
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
	months := func(n int) (days []float64) { // a row each; nothing follows the last one
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
		refused, advances := gapTest(t, c.clock, c.days...)
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
		if span := slices.Max(c.days) - slices.Min(c.days); float64(advances) > span/15+3 {
			t.Errorf("%s: the shards were advanced %d times", what, advances)
		}
	}
}

// releases are 18 days. Each but the last is confirmed by another that is as late.
func releases() []float64 {
	return []float64{0, 200, 410, 590, 900, 1100, 1400, 1490, 1800, 2000, 2300, 2450, 2700, 3000, 3300, 3500, 3800, 4100}
}

// everyDays is n rows, so many days after each other.
func everyDays(n int, days float64) (rows []float64) {
	for i := range n {
		rows = append(rows, float64(i)*days)
	}
	return rows
}

// The rows that are refused are the same in each order of a file.
func TestGapsInAnyOrder(t *testing.T) {
	for what, c := range map[string]struct {
		days    []float64
		refused []float64
	}{
		"release dates":        {days: releases(), refused: []float64{4100}},
		"five":                 {days: []float64{0, 759, 1529, 2194, 2982}, refused: []float64{2982}},
		"two months, one late": {days: []float64{0, 181, 182}},
		"every 40 days":        {days: everyDays(130, 40)},
		"every 70 days":        {days: everyDays(75, 70), refused: []float64{72 * 70, 73 * 70, 74 * 70}},
	} {
		for seed := range uint64(22) {
			days := slices.Clone(c.days)
			switch rng := rand.New(rand.NewPCG(seed, 1)); seed {
			case 0:
			case 1:
				slices.Reverse(days)
			default:
				rng.Shuffle(len(days), func(i, j int) { days[i], days[j] = days[j], days[i] })
			}
			want := c.refused
			if seed == 0 && len(want) > 1 {
				want = want[len(want)-1:] // of those that are left when the file ends, all are as late
			}
			refused, _ := gapTest(t, 0, days...)
			if seed > 1 && len(want) > 1 {
				if len(refused) > len(want) || slices.Min(refused) < slices.Min(want) {
					t.Errorf("%s, order %d: refused %v, not of %v", what, seed, refused, want)
				}
				continue
			}
			if slices.Sort(refused); !slices.Equal(refused, want) {
				t.Errorf("%s, order %d: refused %v, not %v", what, seed, refused, want)
			}
		}
	}
}

// A wrong date is refused wherever it stands, and nothing that is not refused without it.
func TestGapsRefuseAWrongDateAnywhere(t *testing.T) {
	const wrong = 5400
	for what, days := range map[string][]float64{
		"release dates": releases(), "every 10 days": everyDays(150, 10), "every day": runOf(1, 100), "two": {1, 2},
		"every 40 days": everyDays(120, 40), "more than is read ahead": runOf(1, 1300),
	} {
		for range 2 {
			slices.Reverse(days)
			without, _ := gapTest(t, 0, days...)
			for at := 0; at <= len(days); at += 1 + len(days)/150 {
				refused, _ := gapTest(t, 0, slices.Insert(slices.Clone(days), at, wrong)...)
				if !slices.Contains(refused, wrong) {
					t.Errorf("%s from day %v on: day %d was taken as row %d", what, days[0], wrong, at+1)
				}
				for _, day := range refused {
					if day != wrong && !slices.Contains(without, day) {
						t.Errorf("%s from day %v on: day %v was refused with the wrong date as row %d", what, days[0], day, at+1)
					}
				}
			}
		}
	}
}

// Wrong dates that come again and again are counted with the rows before them: they do not confirm each other.
func TestGapsRefuseWrongDatesThatComeAgain(t *testing.T) {
	days, wrong := runOf(1, 4000), 0
	for i := 100; i < len(days); i += 150 {
		days = slices.Insert(days, i, 9000)
		wrong++
	}
	if refused, _ := gapTest(t, 0, days...); len(refused) != wrong || slices.Min(refused) != 9000 {
		t.Errorf("refused %d rows of %d that are wrong, from day %v on", len(refused), wrong, slices.Min(refused))
	}
}

// Dates that are still to come are refused by the shards. They move no clock, whether they come first, last or alone.
func TestGapsLeaveTheFuture(t *testing.T) {
	ahead := time.Since(time.Date(2011, 7, 6, 0, 0, 0, 0, time.UTC)).Hours()/24 + 5000
	for _, days := range [][]float64{
		{ahead}, slices.Concat(runOf(ahead, 300), runOf(1, 300)), slices.Concat(runOf(1, 10), runOf(ahead, 10)),
	} {
		refused, advances := gapTest(t, 1, days...)
		if len(refused) == 0 || slices.Min(refused) < ahead || float64(advances) > 300/15+3 {
			t.Errorf("refused %d rows from day %v on, advanced %d times", len(refused), slices.Min(refused), advances)
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
	f := &jumpFilter{rows: gapRowsStream, maxJump: time.Hour, next: func() (Row, error) {
		if len(rows) == 0 {
			return Row{}, broken
		}
		r := rows[0]
		rows = rows[1:]
		return r.row, r.err
	}, advance: func(context.Context, time.Time) error { return nil }}
	var got []any
	for range 5 {
		row, err := f.Next(t.Context())
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

// A row of 1970-01-01 begins a clock, which at 0 has not begun: a wrong date that comes first is refused all the same.
func TestGapsFromTheEpochOn(t *testing.T) {
	rows := []time.Time{time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}
	for hour := range 48 {
		rows = append(rows, time.UnixMicro(int64(hour)*3600e6))
	}
	next := 0
	f := &jumpFilter{rows: gapRows, maxJump: 30 * 24 * time.Hour, next: func() (Row, error) {
		if next == len(rows) {
			return Row{}, io.EOF
		}
		next++
		return Row{Key: "k", Time: rows[next-1]}, nil
	}}
	var advanced time.Time
	f.advance = func(_ context.Context, to time.Time) error {
		advanced = to
		return nil
	}
	row, err := f.Next(t.Context())
	if err != nil || advanced.UnixMicro() != 1 || row.aheadOf.UnixMicro() != 1 {
		t.Errorf("the clock was advanced to %v, and the first row is ahead of %v: %v", advanced, row.aheadOf, err)
	}
}
