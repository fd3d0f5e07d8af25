package load

import (
	"testing"

	"github.com/ebbdb/ebb/client"
)

// A batch that is sent again because no answer came was decided by this run, not by an earlier one.
func TestWhoDecided(t *testing.T) {
	for _, c := range []struct {
		what        string
		s           client.SourceStats
		now, before uint64
	}{
		{"a first run", client.SourceStats{WriterStats: client.WriterStats{Applied: 900}}, 900, 0},
		{"with a batch that was sent twice", client.SourceStats{WriterStats: client.WriterStats{Applied: 800, Duplicates: 100}}, 900, 0},
		{"a second run that skips", client.SourceStats{Skipped: 900, WriterStats: client.WriterStats{Applied: 50}}, 50, 900},
		{"a second run that checks", client.SourceStats{Rechecked: 900, WriterStats: client.WriterStats{Applied: 50, Duplicates: 900}}, 50, 900},
		{"with a batch that was sent twice", client.SourceStats{Rechecked: 900, WriterStats: client.WriterStats{Applied: 50, Duplicates: 1000}}, 150, 900},
	} {
		if now, before := decided(c.s); now != c.now || before != c.before {
			t.Errorf("%s: %d counted and %d before, want %d and %d", c.what, now, before, c.now, c.before)
		}
	}
}
