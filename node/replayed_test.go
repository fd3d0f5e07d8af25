package node_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// Without a majority a node answers reads that may be behind from what it has applied. One that has started since knows
// of none of its entries whether it is committed: it refuses, and does not answer as if nothing had been counted.
func TestReadsBehindAfterARestart(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		c := b.client()
		b.plain(c)
		b.write(c, "k", "x", 2)
		counts := func() bool {
			n, err := b.anyAnswer(0, "k", "x")
			return err == nil && n == 2
		}
		b.until("the write is on the first node", counts)
		b.crash(1)
		b.crash(2)
		if !counts() {
			b.Error("without the others it does not say what it has")
		}
		b.crash(0)
		b.open(0)
		time.Sleep(5 * time.Second)
		if n, err := b.anyAnswer(0, "k", "x"); !errors.Is(err, proto.ErrTooStale) {
			b.Errorf("started again, without the others, it says %v, %v", n, err)
		}
		b.open(1)
		b.until("it counts what its log has", counts)
	})
}
