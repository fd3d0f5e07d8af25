package load

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/client"
)

// What becomes of times by what follows them: 'y' confirmed, 'n' refuted, '.' left to the namespace.
func TestGapsAreTold(t *testing.T) {
	for _, c := range []struct {
		name  string
		clock int // day of the namespace's clock; 0: none
		days  string
		want  string
		ahead int
	}{
		{name: "in order", days: "1 2 3 4 5 6", want: "......"},
		{name: "one is far ahead", days: "1 2 4000 3 4 5", want: "..n..."},
		{name: "two are", days: "1 2 4000 4001 3 4 5", want: "..nn..."},
		{name: "a gap", days: "1 2 300 301 302 303", want: "..yyyy"},
		{name: "the gap ends the file", days: "1 2 300 301", want: "..yy"},
		{name: "one row ends it", days: "1 2 300", want: "..n"},
		{name: "the first is wrong", days: "4000 1 2 3", want: "n..."},
		{name: "the only one", days: "4000", want: "."},
		{name: "behind the clock", clock: 290, days: "1 2 300 4000 301 302 303", want: "...n..."},
		{name: "far behind the clock", clock: 1, days: "300 301 302 303 4000 304", want: "yyyyny"},
		{name: "late rows", days: "100 101 50 102 1 103", want: "......"},
		{name: "in any order", days: "400 10 390 200 395 5 399 398", want: "y.yyy.yy", clock: 1},
		{name: "too far apart to be seen", days: "1 400 2 2 2 2 401 402 403", want: ".n....yyy", ahead: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			var text strings.Builder
			start := time.Date(2005, 1, 1, 0, 0, 0, 0, time.UTC)
			for _, day := range strings.Fields(c.days) {
				var n int
				_, _ = fmt.Sscan(day, &n)
				fmt.Fprintf(&text, "k\tb\t%s\n", start.AddDate(0, 0, n).Format(time.RFC3339))
			}
			r, err := NewReader(strings.NewReader(text.String()), "x.tsv", Options{NoHeader: true, Key: "1", Bin: "2", Time: "3"})
			if err != nil {
				t.Fatal(err)
			}
			clock := client.EventClock{Epoch: 6}
			if c.clock > 0 {
				clock.NowUS = start.AddDate(0, 0, c.clock).UnixMicro()
			}
			g := newGaps(r, client.Namespace{Clock: client.ClockEvent, ClockEpoch: 6, MaxJump: new(30 * 24 * time.Hour)}, clock)
			if c.ahead > 0 {
				g.ahead = c.ahead
			}
			got := ""
			for {
				row, known, err := g.row()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if want := uint64(len(got) + 1); row.Offset != want {
					t.Fatalf("row %d, not %d", row.Offset, want)
				}
				got += map[uint64]string{0: ".", client.ClockConfirmed(6): "y", client.ClockRefuted: "n"}[known]
			}
			if got != c.want {
				t.Errorf("%s: %s, not %s", c.days, got, c.want)
			}
		})
	}
}

func TestNoGapsAreLookedFor(t *testing.T) {
	r, err := NewReader(strings.NewReader("k\tb\n"), "x.tsv", Options{NoHeader: true, Key: "1", Bin: "2"})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []client.Namespace{
		{Clock: client.ClockWall, MaxJump: new(time.Hour)}, {Clock: client.ClockEvent, MaxJump: new(time.Duration(0))},
		{Clock: client.ClockEvent, MaxJump: new(time.Hour)}, // no column of times
	} {
		if newGaps(r, ns, client.EventClock{}) != nil {
			t.Errorf("%+v", ns)
		}
	}
}
