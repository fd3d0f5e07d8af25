package node_test

import (
	"log/slog"
	"testing"
)

// A table that was saved and is damaged is replaced, and the log says so and which file it was; one that is sound is
// not spoken of.
func TestDamagedTableIsSpokenOf(t *testing.T) {
	inBubble(t, 1, 2, func(b *bubble) {
		const complaint = `"file":"/data/table.pb"`
		var said auditLog
		b.config[0].Logger = slog.New(slog.NewJSONHandler(&said, nil))
		restart := func() {
			if err := b.nodes[0].Close(); err != nil {
				t.Error(err)
			}
		}
		b.openAll()
		restart()
		b.open(0)
		b.ready(0)
		if n := said.count(complaint); n != 0 {
			t.Errorf("a sound table is spoken of: %s", said.String())
		}
		restart()
		if err := b.disks[0].FlipByte("/data/table.pb", 20, 3); err != nil {
			t.Fatal(err)
		}
		b.open(0)
		b.ready(0)
		if n := said.count(complaint); n != 1 {
			t.Errorf("the log names a damaged table %d times, want once", n)
		}
		restart()
		b.open(0)
		b.ready(0)
		if n := said.count(complaint); n != 1 {
			t.Error("the table was not written anew")
		}
	})
}
